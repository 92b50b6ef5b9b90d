//! Runs that this node fires by itself: they need no order, no server and no trust. Everything else about them is as with orders:
//! slots, kills, results that stay on the disk until they are stored.

use std::collections::{HashMap, HashSet};

use belfry_core::JobId;
use belfry_core::job_table::Stored;
use belfry_core::run::{Outcome, RunState};
use belfry_proto::session::{Dispatch, Ended, LocalJob, LocalJobs, LocalRun, Released, from_agent};

use super::orders::full_name;
use super::past::Refusal;
use super::queue::Kind;
use super::{Act, Desk, KillOrder, Live, LiveState, SessionId, promises};
use crate::clock::Moment;
use crate::key::Key;
use crate::local::{Claim, Copy, Judged, Record, instant};
use crate::spool::Space;

const REPLACED_BEFORE: &str = "a later run replaced it before it started (overlap is replace)";
const REPLACED: &str = "a later run replaces it (overlap is replace)";

impl Desk {
    pub(super) fn local_jobs(&mut self, session: SessionId, message: LocalJobs, now: Moment) {
        if self.local.waits() {
            self.early_jobs.push((session, message));
            return;
        }
        let LocalJobs { shard, term, put, remove, whole, only, release, answers } = message;
        if !self.is_of_highest_term(shard, term) {
            return;
        }
        let ids = |texts: Vec<String>| texts.into_iter().filter_map(|text| text.parse().ok()).collect::<Vec<JobId>>();
        let told = ids(put.iter().map(|job| job.id.clone()).chain(remove.iter().cloned()).collect());
        let before = self.local.names(&told, shard, whole);
        let mut records: Vec<Record> =
            put.into_iter().filter_map(|job| self.local.put(copy(shard, job)?, now)).collect();
        records.extend(ids(remove).into_iter().filter_map(|job| self.local.remove(job)));
        if whole {
            let only: HashSet<JobId> = ids(only).into_iter().collect();
            records.extend(self.local.retain(shard, &only));
        }
        log_differences(whole, &records, &before);
        for asked in release {
            let Ok(job) = asked.job.parse() else { continue };
            let (record, cursor_ms) = self.local.release(job, asked.home_term);
            records.extend(record);
            if let Some(cursor_ms) = cursor_ms {
                let released = Released { job: asked.job, home_term: asked.home_term, cursor_ms };
                self.send(session, from_agent::Message::Released(released));
            }
        }
        self.keep_local(records);
        if whole && answers > 0 {
            self.list_came(shard, answers, now);
        }
    }

    /// As well as it ever will.
    pub(super) fn knows_the_time(&mut self, now: Moment) {
        if self.local.waits_no_more() {
            // What fires at boot is what was here before.
            self.fire_local(now);
            for (session, jobs) in std::mem::take(&mut self.early_jobs) {
                self.local_jobs(session, jobs, now);
            }
            self.local.set_wake(now);
        }
    }

    /// The ticket that the disk will tell; none if there is nothing to write.
    pub(super) fn keep_local(&mut self, records: Vec<Record>) -> Option<u64> {
        let to_write = self.local.write_down(records)?;
        let ticket = to_write.ticket;
        self.acts.push(Act::KeepLocal(to_write));
        Some(ticket)
    }

    pub(super) fn local_written(&mut self, ticket: u64, now: Moment) {
        self.answer_written(ticket);
        for claim in self.local.written(ticket, now) {
            let reason = claim.skipped.clone().unwrap_or_default();
            self.never_began(&claim, Outcome::Skipped, reason, now);
        }
    }

    /// What the former start of this agent had claimed, and the spool has no end of.
    pub(super) fn was_cut_off(&mut self, claims: Vec<Claim>, now: Moment) {
        for claim in claims {
            match claim.skipped.clone() {
                Some(reason) => self.never_began(&claim, Outcome::Skipped, reason, now),
                None => {
                    let reason = format!(
                        "the agent on {} ended when it ran, or was about to; what it did is not known",
                        self.facts.name
                    );
                    self.end_claim(&claim, RunState::Lost, reason, now);
                }
            }
        }
    }

    pub(super) fn fire_local(&mut self, now: Moment) {
        if self.local.has_waited(now) {
            return self.knows_the_time(now);
        }
        if self.stopping.is_none() {
            let claimed = self.local.claim_due(now);
            self.keep_local(claimed);
        }
        while let Some(judged) = self.local.judge_next(now) {
            match judged {
                Judged::Start(claim) => self.begin(claim, now),
                Judged::Wait => {}
                Judged::Replace { going, waiting } => {
                    for claim in waiting {
                        self.never_began(&claim, Outcome::Skipped, REPLACED_BEFORE.to_owned(), now);
                    }
                    for key in going {
                        self.end_here(key, REPLACED, now);
                    }
                }
                Judged::Never { claim, cancelled, reason } => {
                    let outcome = if cancelled { Outcome::Cancelled } else { Outcome::Skipped };
                    self.never_began(&claim, outcome, reason, now);
                }
            }
        }
        self.local.set_wake(now);
    }

    fn end_here(&mut self, key: Key, reason: &str, now: Moment) {
        if self.is_waiting(key) {
            self.never_start(key, Outcome::Cancelled, reason.to_owned(), now);
        } else if let Some(live) = self.live.get(&key) {
            live.kill(KillOrder { grace: None, reason: reason.to_owned(), abandoned: false });
        }
    }

    fn begin(&mut self, claim: Claim, now: Moment) {
        let Some(slot) = self.local.slot(claim.job) else {
            let reason = "its job was removed from this node before it started".to_owned();
            return self.never_began(&claim, Outcome::Cancelled, reason, now);
        };
        if self.space == Space::None {
            let reason = Refusal::SpoolFull.reason().to_owned();
            return self.never_began(&claim, Outcome::Skipped, reason, now);
        }
        if self.promises.disk_low() {
            let reason = Refusal::DiskLow.reason().to_owned();
            return self.never_began(&claim, Outcome::Skipped, reason, now);
        }
        let key = key_of(&claim);
        let dispatch = Dispatch {
            key: Some(key.to_wire()),
            incarnation: self.incarnation.0,
            fence: claim.fence,
            namespace: claim.namespace.clone(),
            job: claim.name.clone(),
            job_id: claim.job.to_string(),
            revision: slot.revision,
            document: slot.document.clone(),
            planned_ms: claim.planned_ms,
            start_in_ms: (claim.start_ms - now.wall_ms).min(0),
            start_within_ms: slot.misfire.within.get().as_millis() as u64,
            needs: Some(promises::to_wire(slot.needs())),
            ..Default::default()
        };
        let facts = LocalRun { revision: slot.revision, ..self.facts_of(&claim) };
        let (name, planned_ms) = (full_name(&dispatch), dispatch.planned_ms);
        let order = self.queues.local.add(key, dispatch, now.boot);
        self.promises.taken(key, order.needs);
        let live = Live {
            session: self.peers.route(None),
            incarnation: self.incarnation,
            job: Some(claim.job),
            name,
            planned_ms,
            local: Some(Box::new(facts)),
            kind: Kind::Local,
            state: LiveState::Waiting(Box::new(order)),
        };
        self.live.insert(key, live);
        self.local.went(claim.job, key);
    }

    /// A run that was claimed here ends before it was anything else.
    fn never_began(&mut self, claim: &Claim, outcome: Outcome, reason: String, now: Moment) {
        self.end_claim(claim, outcome.into(), reason, now);
    }

    fn end_claim(&mut self, claim: &Claim, state: RunState, reason: String, now: Moment) {
        self.acts.push(Act::Keep(Ended {
            key: Some(key_of(claim).to_wire()),
            outcome: state.as_str().to_owned(),
            reason,
            ended_at_ms: now.wall_ms,
            local: Some(self.facts_of(claim)),
            ..Default::default()
        }));
    }

    fn facts_of(&self, claim: &Claim) -> LocalRun {
        LocalRun {
            job_id: claim.job.to_string(),
            namespace: claim.namespace.clone(),
            job: claim.name.clone(),
            revision: claim.revision,
            planned_ms: claim.planned_ms,
            claimed_at_ms: claim.claimed_at_ms,
            fence: claim.fence,
            home_term: claim.home_term,
            cut_off: false,
            incarnation: self.incarnation.0,
        }
    }

    /// The spool has the end of a run of this job.
    pub(super) fn local_ended(&mut self, job: JobId, key: Key, ended: &Ended, now: Moment) {
        // Not later than now: another time may be believed since.
        let at_ms = ended.ended_at_ms.min(now.wall_ms);
        if ended.local.is_some() {
            self.keep_local(vec![Record::Ended { job, run: key.run, at_ms }]);
        }
        if let Some(next) = self.local.ended(job, key, at_ms) {
            self.begin(next, now);
        }
    }

    /// The agent stops: what was claimed here and has not begun never will.
    pub(super) fn drop_claimed(&mut self, reason: &str, now: Moment) {
        for claim in self.local.take_claimed() {
            self.never_began(&claim, Outcome::Skipped, reason.to_owned(), now);
        }
    }
}

/// What a message of the centre changed here; each job is named, up to a few.
fn log_differences(whole: bool, records: &[Record], before: &HashMap<JobId, String>) {
    const NAMED_MAX: usize = 10;
    let said = records.iter().filter_map(|record| match record {
        Record::Job(job) if before.contains_key(&job.id) => {
            Some(format!("{}/{} is at revision {}", job.namespace, job.name, job.revision))
        }
        Record::Job(job) => Some(format!("{}/{} is new", job.namespace, job.name)),
        Record::Removed { job, .. } => Some(format!("{} is gone", before.get(job).map_or("a job", String::as_str))),
        Record::Claimed(_)
        | Record::Ended { .. }
        | Record::Boot { .. }
        | Record::Disabled { .. }
        | Record::Enabled { .. } => None,
    });
    let said: Vec<String> = said.take(NAMED_MAX).collect();
    if !said.is_empty() {
        let how = if whole { "a full sync found differences" } else { "the centre told a change" };
        tracing::info!(differences = records.len(), "jobs that this node fires by itself: {how}: {}", said.join("; "));
    }
}

fn key_of(claim: &Claim) -> Key {
    Key { run: claim.run, attempt: 1 }
}

/// None: it is not understood.
fn copy(shard: u32, job: LocalJob) -> Option<Copy> {
    let id = job.id.parse().ok()?;
    let named: serde_json::Value = serde_json::from_slice(&job.document).ok()?;
    let word = |field: &str| named.get(field).and_then(serde_json::Value::as_str);
    let namespace = word("namespace").unwrap_or(belfry_core::job::DEFAULT_NAMESPACE);
    let stored = Stored {
        id,
        revision: job.revision,
        name: format!("{namespace}/{}", word("name")?),
        document: job.document.clone(),
        created_at: instant(job.created_at_ms),
        counts_from: instant(job.counts_from_ms),
    };
    Some(Copy { shard, stored, home_term: job.home_term, from_ms: job.from_ms })
}

/// The moment of boot does not matter, only that it is another one.
pub(crate) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}
