//! Taking over: what the coordinator says is open, what the store says has ended, what the connected agents say they have.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use belfry_coord::{CoordError, Entry, keys};
use belfry_core::run::Trigger;
use belfry_core::{JobId, RunId, Timestamp};
use belfry_store::RawJob;

use super::{Open, Shard, Stage};
use crate::open_run::OpenRecord;

const RETRY_DELAY: Duration = Duration::from_millis(200);

impl Shard {
    /// The list may be older than a write of the former owner's; each later write guards the version that was read here, so a
    /// run that moved on since cannot be touched by mistake.
    pub(super) async fn recover(&mut self) -> Result<(), CoordError> {
        let entries = self.list_open().await?;
        let ids: Vec<RunId> = entries.iter().filter_map(run_of).collect();
        let ended = self.ended_among(&ids).await;
        for entry in entries {
            let Some(id) = run_of(&entry) else { continue };
            let record = match OpenRecord::decode(&entry.value) {
                Ok(record) => record,
                Err(cause) => {
                    tracing::error!(key = %entry.key, "an open run cannot be read and is left alone; was it written by a newer Belfry? {cause}");
                    continue;
                }
            };
            let run = record.to_run(id, entry.version);
            let stage = match (&record.decision, &record.bound) {
                _ if ended.contains(&id) => Stage::Closing,
                (Some(_), _) => Stage::Deciding,
                (None, Some(_)) => Stage::Dispatched { taken: false },
                (None, None) => Stage::Behind { judged: false },
            };
            let mut record = record;
            record.fence = Some(run.fence);
            let booked = matches!(stage, Stage::Dispatched { .. });
            let start_at = run.planned;
            self.insert(Open {
                record,
                run,
                version: Some(entry.version),
                stage: stage.clone(),
                start_at,
                not_on: Vec::new(),
                then: None,
                kill: None,
                order_sent: None,
                booked,
                cursor: None,
                reply: None,
            });
            self.publish(id);
            match stage {
                Stage::Closing => self.commit_by_and_by(id),
                Stage::Deciding => self.decided(id),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn load(&mut self, jobs: Vec<RawJob>, last_ends: &HashMap<JobId, Timestamp>) {
        for job in jobs {
            if let Err(cause) = self.jobs.load(job, self.cursor) {
                tracing::error!("{cause}");
            }
        }
        for job in self.jobs.after_jobs() {
            if !self.by_job.contains_key(&job) {
                self.jobs.count_after_from(job, last_ends.get(&job).copied());
            }
        }
        self.loaded = true;
        for open in self.open.values_mut() {
            // The coordinator keeps the plan; the jitter follows from the job.
            if let Some(slot) = self.jobs.get(open.run.job)
                && open.record.trigger == Trigger::Schedule
            {
                open.start_at = slot.start_at(open.run.planned);
            }
        }
        let is_waiting = |open: &Open| open.stage == Stage::Behind { judged: false };
        let waiting: Vec<RunId> = self.open.iter().filter(|(_, open)| is_waiting(open)).map(|(id, _)| *id).collect();
        let now = self.context.now();
        for id in waiting {
            self.wait_or_go(id, now);
        }
        for report in self.context.sessions.reports() {
            self.node_arrived(&report);
        }
        self.show();
    }

    async fn list_open(&self) -> Result<Vec<Entry>, CoordError> {
        loop {
            match self.context.coordinator.list(&keys::open_runs(self.id)).await {
                Err(cause) if cause.is_transient() => {
                    self.context.coordinator_health.away(self.context.now(), &cause);
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                answer => return answer,
            }
        }
    }

    /// Runs whose end is in the store while their key was not removed yet.
    async fn ended_among(&self, ids: &[RunId]) -> HashSet<RunId> {
        loop {
            match self.context.store.ended_among(ids).await {
                Ok(ended) => return ended.into_iter().map(|(id, _)| id).collect(),
                Err(cause) => {
                    self.context.store_health.away(self.context.now(), crate::chain(&cause));
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

fn run_of(entry: &Entry) -> Option<RunId> {
    entry.key.rsplit('/').next()?.parse().ok()
}
