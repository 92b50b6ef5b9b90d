//! Taking over: what the coordinator says is open, what the store says has ended, what the connected agents say they have.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use belfry_coord::{CoordError, Entry, keys};
use belfry_core::attempt::Attempt;
use belfry_core::job_table::Stored;
use belfry_core::place::LastNode;
use belfry_core::run::{Run, RunState, Trigger};
use belfry_core::{JobId, RunId, Timestamp};
use belfry_store::{RawJob, Store, StoreError};

use super::{Found, Open, Shard, Stage, retry};
use crate::open_run::OpenRecord;

const RETRY_DELAY: Duration = Duration::from_millis(200);

impl Shard {
    /// Each later write guards the version that was read here, so a run that moved on since cannot be touched by mistake.
    pub(super) async fn recover(&mut self) -> Result<(), CoordError> {
        let entries = self.list_open().await?;
        let ids: Vec<RunId> = entries.iter().filter_map(run_of).collect();
        let (found, waiting) = self.known_to_store(&ids).await;
        let ended: HashMap<RunId, Run> = found.ended.into_iter().map(|run| (run.id, run)).collect();
        self.found = Found { attempts: found.attempts, ..Found::default() };
        tracing::debug!(shard = %self.id, term = %self.term, open = ids.len(), ended = ended.len(), "taken over");
        for entry in entries {
            self.states.read(&entry);
            let Some(id) = run_of(&entry) else { continue };
            let record = match OpenRecord::decode(&entry.value) {
                Ok(record) => record,
                Err(cause) => {
                    tracing::error!(key = %entry.key, "an open run cannot be read and is left alone; was it written by a newer Belfry? {cause}");
                    continue;
                }
            };
            record.lost.iter().for_each(|attempt| self.context.recorder.attempt(attempt.clone()));
            let run = record.to_run(id, entry.version);
            // Of the attempt that ended, the coordinator has only what the next one needs.
            let known = waiting.get(&id).filter(|known| record.waits().is_some() && known.attempt == run.attempt);
            let run = known.cloned().unwrap_or(run);
            let (over, other) = ended.get(&id).map_or((None, None), |end| {
                if record.ends_with(end.attempt) { (Some(end), None) } else { (None, Some(end)) }
            });
            if let Some(end) = other {
                self.context.recorder.attempt(Attempt::last_of(end));
            }
            let stage = match (&record.decision, &record.bound) {
                // Its former owner may not have come to its last look: see `load`.
                _ if over.is_some_and(|end| end.state == RunState::Lost) => Stage::LastLook,
                _ if over.is_some() => Stage::Closing,
                (Some(_), _) => Stage::Deciding,
                (None, Some(_)) => Stage::Dispatched { taken: false },
                (None, None) if record.next.is_some() => Stage::Waiting,
                (None, None) => Stage::Behind { judged: false },
            };
            let run = over.filter(|_| stage == Stage::LastLook).cloned().unwrap_or(run);
            let mut record = record;
            if record.bound.is_some() {
                record.fence = Some(run.fence);
            }
            let start_at = record.next.as_ref().map_or(run.planned, |next| next.due());
            self.insert(Open {
                record,
                run,
                version: Some(entry.version),
                stage: stage.clone(),
                start_at,
                not_on: Vec::new(),
                goes: Default::default(),
                abandoned: false,
                then: None,
                kill: None,
                recalled: None,
                order_sent: None,
                recorded_for_others: None,
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

    pub(super) fn load(
        &mut self,
        jobs: Vec<RawJob>,
        last_ends: &HashMap<JobId, Timestamp>,
        last_nodes: HashMap<JobId, LastNode>,
        all: bool,
    ) {
        self.last_nodes = last_nodes;
        self.unheard_from = (!all).then_some(self.cursor);
        for job in jobs {
            if let Err(cause) = self.jobs.load(stored(job), self.cursor) {
                tracing::error!("{cause}");
            }
        }
        let is_outdated =
            |open: &&Open| self.jobs.get(open.run.job).is_none_or(|slot| slot.revision < open.record.revision) && !all;
        self.outdated = self.open.values().filter(is_outdated).map(|open| open.run.job).collect();
        for job in self.jobs.after_jobs() {
            let open: Vec<RunId> = self.by_job.get(&job).cloned().unwrap_or_default();
            if !open.iter().any(|run| self.has_not_ended(*run)) {
                // One that was open when the shard was taken may have its end already, which the store was not told yet.
                let ends = open.iter().filter_map(|run| self.open.get(run)?.run.ended_at);
                self.jobs.count_after_from(job, last_ends.get(&job).copied().into_iter().chain(ends).max());
            }
        }
        self.loaded = true;
        self.keep_services();
        tracing::debug!(shard = %self.id, term = %self.term, open = self.open.len(), jobs = self.jobs.len(), "loaded");
        // What is open may be newer than what the store has.
        let placed: Vec<(JobId, LastNode)> = self.open.values().filter_map(last_node).collect();
        for last in placed {
            self.remember(self.jobs.is_sticky(last.0).then_some(last));
        }
        for open in self.open.values_mut() {
            // The coordinator keeps the plan; the jitter follows from the job.
            if let Some(slot) = self.jobs.get(open.run.job)
                && open.record.trigger == Trigger::Schedule
                && open.record.next.is_none()
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
        let between = self.open.iter().filter(|(_, open)| open.stage == Stage::Waiting);
        self.to_judge.extend(between.map(|(id, open)| Reverse((open.start_at, *id))));
        // Also what was edited, paused or removed while nobody had the shard.
        for job in self.by_job.keys().copied().collect::<Vec<_>>() {
            self.judge_claimed_again(job);
        }
        let found = std::mem::take(&mut self.found);
        self.found(found);
        // What was read above was read before these were known to be lost in the store: a server that was told an end since then found them
        // open there, put it beside them, and told its node that it is kept.
        let last_look = self.open.iter().filter(|(_, open)| open.stage == Stage::LastLook).map(|(id, _)| *id).collect();
        self.look_last(last_look, Duration::ZERO);
        self.hear_early();
        for report in self.context.sessions.reports() {
            self.node_arrived(&report);
        }
        if all {
            self.local.knows_all();
        }
        self.local.changed();
        self.show();
    }

    /// Not older than the taking of the shard: else it could leave out what the former owner had just claimed, and nobody would ever close
    /// that, or wait for it to end.
    async fn list_open(&self) -> Result<Vec<Entry>, CoordError> {
        let mark = keys::taken(self.id);
        let is_new =
            |entries: &[Entry]| entries.iter().any(|entry| entry.key == mark && entry.version >= self.taken_by);
        loop {
            match self.context.coordinator.list(&keys::open_runs(self.id)).await {
                Ok(entries) if !is_new(&entries) && !belfry_core::planted::is("old_list_believed") => {
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                Err(cause) if cause.is_transient() => {
                    self.context.coordinator_health.away(self.context.now(), &cause);
                    tokio::time::sleep(RETRY_DELAY).await;
                }
                answer => return answer,
            }
        }
    }

    /// What the store has of these runs: those that have ended while their key was not removed yet, and those that wait.
    async fn known_to_store(&self, ids: &[RunId]) -> (Found, HashMap<RunId, Run>) {
        loop {
            if belfry_core::planted::is("owner_never_looks_into_the_store") {
                return Default::default();
            }
            match known_to_store(&self.context.prompt_store, ids).await {
                Ok(known) => return known,
                Err(cause) => {
                    self.context.store_health.away(self.context.now(), crate::chain(&cause));
                    // Firing does not wait for the store. Decisions are recorded again, which changes nothing; what the store has of
                    // the others is found by the looks into it, see `look_into_store`.
                    if self.context.config.snapshot.is_some() && cause.is_transient() {
                        return Default::default();
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
    }
}

fn stored(job: RawJob) -> Stored {
    Stored {
        id: job.id,
        revision: job.revision,
        name: format!("{}/{}", job.namespace, job.name),
        document: job.document.into_boxed_bytes().into(),
        created_at: job.created_at,
        counts_from: job.counts_from,
    }
}

fn last_node(open: &Open) -> Option<(JobId, LastNode)> {
    let bound = open.record.bound.as_ref()?;
    Some((open.run.job, LastNode { node: bound.node, planned: open.run.planned }))
}

async fn known_to_store(store: &Store, ids: &[RunId]) -> Result<(Found, HashMap<RunId, Run>), StoreError> {
    let found = retry::look(store, ids).await?;
    let mut waiting = HashMap::new();
    for id in found.attempts.iter().map(|attempt| attempt.run) {
        if let Some(run) = store.run(id).await?.filter(|run| run.state == RunState::Waiting) {
            waiting.insert(id, run);
        }
    }
    Ok((found, waiting))
}

fn run_of(entry: &Entry) -> Option<RunId> {
    entry.key.rsplit('/').next()?.parse().ok()
}
