//! Jobs in memory, ordered by their next fire: those of a shard, or those that a node fires by itself. A few hundred bytes each, the
//! document unparsed.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};

use bytes::Bytes;
use jiff::Timestamp;

use crate::JobId;
use crate::cursor::Cursor;
use crate::job::{Job, JobDocument, Misfire, Overlap, Placement, Retry, RunOn, Timeout};
use crate::room::Amounts;
use crate::schedule::{Schedule, jitter_for};
use crate::service::ServiceRule;

pub struct JobSlot {
    pub id: JobId,
    pub revision: u64,
    pub document: Bytes,
    pub schedule: Schedule,
    pub misfire: Misfire,
    pub overlap: Overlap,
    pub retry: Option<Box<Retry>>,
    needs: Option<Box<Amounts>>,
    /// Its work has ended where it runs before it may start elsewhere.
    pub exclusive: bool,
    /// It always runs.
    pub service: Option<ServiceRule>,
    /// It says nothing of how long a run may take, and is of a kind that ends.
    takes_default_timeout: bool,
    pub enabled: bool,
    pub run_on: RunOn,
    /// By whoever holds this table; else it is only known here.
    fires_here: bool,
    /// Whoever holds this table does not want it to fire for now.
    held: bool,
    pub created_at: Timestamp,
    seed: u64,
    jitter_ms: u32,
    counts_from: Timestamp,
    /// `@after` and services: when the next fire is due, once the run before it has ended.
    after_due: Option<Timestamp>,
    next: Option<Timestamp>,
}

impl JobSlot {
    /// Fires up to here were never due.
    pub fn counts_from(&self) -> Timestamp {
        self.counts_from
    }

    /// What a node must have free for one of its runs.
    pub fn needs(&self) -> Amounts {
        self.needs.as_deref().copied().unwrap_or_default()
    }

    pub fn document(&self) -> Result<JobDocument, serde_json::Error> {
        serde_json::from_slice(&self.document)
    }

    /// Not after the end of its last run.
    pub fn fires_by_clock(&self) -> bool {
        self.schedule.delay_after_end().is_none() && self.service.is_none()
    }

    /// As it is executed: with the cluster's timeout if it has none of its own.
    pub fn document_with(&self, default: Option<&Timeout>) -> Bytes {
        match (default.filter(|_| self.takes_default_timeout), self.document.strip_prefix(b"{")) {
            (Some(timeout), Some(rest)) => {
                let timeout = serde_json::to_string(timeout).expect("durations and a word");
                [format!("{{\"timeout\":{timeout},").as_bytes(), rest].concat().into()
            }
            (_, _) => self.document.clone(),
        }
    }

    /// When a fire really starts.
    pub fn start_at(&self, planned: Timestamp) -> Timestamp {
        if self.jitter_ms == 0 {
            return planned;
        }
        let jitter = jitter_for(self.seed, planned, std::time::Duration::from_millis(self.jitter_ms.into()));
        planned.saturating_add(jitter).unwrap_or(Timestamp::MAX)
    }

    /// Whether the schedule, as it is now, has a fire at this instant that was due after its last change.
    pub fn fires_at(&self, planned: Timestamp) -> bool {
        let just_before = planned.saturating_sub(std::time::Duration::from_nanos(1)).unwrap_or(Timestamp::MIN);
        self.may_fire() && planned > self.counts_from && self.schedule.next_after(just_before) == Some(planned)
    }

    fn may_fire(&self) -> bool {
        self.enabled && self.fires_here && !self.held
    }

    /// The next fire that is not claimed yet.
    pub fn next(&self) -> Option<Timestamp> {
        self.next
    }

    /// Once more, beside what its schedule says.
    fn is_due(&mut self, at: Option<Timestamp>) {
        self.after_due = at;
        self.next = match (self.next, self.after_due) {
            (Some(next), Some(due)) if self.may_fire() => Some(next.min(due)),
            (None, due) if self.may_fire() => due,
            (next, _) => next,
        };
    }

    fn next_after(&self, at: Timestamp) -> Option<Timestamp> {
        if !self.may_fire() {
            return None;
        }
        let by_time = self.schedule.next_after(at.max(self.counts_from));
        match (by_time, self.after_due) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// A job with its document as text.
#[derive(Clone, Debug)]
pub struct Stored {
    pub id: JobId,
    pub revision: u64,
    /// `namespace/name`
    pub name: String,
    pub document: Bytes,
    pub created_at: Timestamp,
    pub counts_from: Timestamp,
}

/// A job whose stored definition cannot be used by this build.
#[derive(Debug, thiserror::Error)]
#[error("job {name} does not fire: {cause}")]
pub struct Unusable {
    pub name: String,
    pub cause: String,
}

/// Who fires the jobs of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firer {
    /// The owner of a shard: what runs on one node of the cluster.
    Shard,
    /// A node: what it runs from its own copy.
    Node,
}

pub struct JobTable {
    firer: Firer,
    slots: Vec<Option<JobSlot>>,
    free: Vec<u32>,
    by_id: HashMap<JobId, u32>,
    /// Of these, the ones that nodes run from their own copies.
    local: BTreeSet<JobId>,
    /// Those that always run.
    services: BTreeSet<JobId>,
    /// Entries that a change made void are recognised by the slot's `next` and dropped when they come up.
    fires: BinaryHeap<Reverse<(Timestamp, JobId, u32)>>,
}

impl JobTable {
    pub fn new(firer: Firer) -> Self {
        Self {
            firer,
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            local: BTreeSet::new(),
            services: BTreeSet::new(),
            fires: BinaryHeap::new(),
        }
    }

    /// The jobs that nodes run from their own copies.
    pub fn local(&self) -> &BTreeSet<JobId> {
        &self.local
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn get(&self, id: JobId) -> Option<&JobSlot> {
        self.by_id.get(&id).and_then(|index| self.slots[*index as usize].as_ref())
    }

    pub fn is_sticky(&self, id: JobId) -> bool {
        let document = self.get(id).and_then(|slot| slot.document().ok());
        document.is_some_and(|document| matches!(document.effective_placement(), Placement::Sticky(_)))
    }

    pub fn services(&self) -> Vec<JobId> {
        self.services.iter().copied().collect()
    }

    /// Ids of the jobs that fire a delay after their last run ended.
    pub fn after_jobs(&self) -> Vec<JobId> {
        self.slots
            .iter()
            .flatten()
            .filter(|slot| slot.schedule.delay_after_end().is_some())
            .map(|slot| slot.id)
            .collect()
    }

    /// Fires that a change made due, made after `since`, although the cursor had passed their instant already.
    pub fn left_behind(&self, cursor: Cursor, since: Timestamp) -> Vec<(JobId, Timestamp)> {
        let mut behind = Vec::new();
        for slot in self.slots.iter().flatten().filter(|slot| slot.counts_from > since && slot.fires_by_clock()) {
            let up_to = cursor.before_first_fire_of(slot.id);
            let mut at = slot.counts_from;
            while let Some(fire) = slot.schedule.next_after(at).filter(|fire| *fire <= up_to && slot.may_fire()) {
                behind.push((slot.id, fire));
                at = fire;
            }
        }
        behind
    }

    /// As it was stored, without an answer to what it held before.
    pub fn load(&mut self, stored: Stored, cursor: Cursor) -> Result<(), Unusable> {
        let Stored { id, revision, name, document: text, created_at, counts_from } = stored;
        let unusable = |cause: String| Unusable { name: name.clone(), cause };
        let document: JobDocument = serde_json::from_slice(&text).map_err(|e| unusable(e.to_string()))?;
        let schedule = document.compile_schedule(created_at).map_err(|e| unusable(e.to_string()))?;
        let slot = self.slot(id, revision, &document, text, schedule, (created_at, counts_from));
        self.take_in(slot, cursor);
        Ok(())
    }

    /// A new or changed job. Its fires count from its change.
    pub fn upsert(&mut self, job: &Job, cursor: Cursor) -> Result<(), Unusable> {
        let document = &job.document;
        let unusable = |cause: String| Unusable { name: document.full_name(), cause };
        let schedule = job.schedule().map_err(|e| unusable(e.to_string()))?;
        let bytes = serde_json::to_vec(document).map_err(|e| unusable(e.to_string()))?.into();
        let slot = self.slot(job.id, job.revision, document, bytes, schedule, (job.created_at, job.counts_from));
        self.take_in(slot, cursor);
        Ok(())
    }

    /// What is already ordered stays so unless the schedule was changed.
    fn take_in(&mut self, mut slot: JobSlot, cursor: Cursor) {
        slot.held = self.get(slot.id).is_some_and(|old| old.held);
        let same = |old: &&JobSlot| old.counts_from == slot.counts_from && old.fires_here == slot.fires_here;
        if let Some(old) = self.get(slot.id).filter(same) {
            slot.after_due = old.after_due;
            slot.next = old.next;
            self.replace(slot);
        } else {
            self.put(slot, cursor);
        }
    }

    pub fn remove(&mut self, id: JobId) {
        self.services.remove(&id);
        self.local.remove(&id);
        if let Some(index) = self.by_id.remove(&id) {
            self.slots[index as usize] = None;
            self.free.push(index);
        }
    }

    /// The earliest fire that is not claimed yet.
    pub fn peek(&mut self) -> Option<(Timestamp, JobId)> {
        loop {
            let Reverse((at, id, index)) = *self.fires.peek()?;
            let current =
                self.slots[index as usize].as_ref().is_some_and(|slot| slot.id == id && slot.next == Some(at));
            if current {
                return Some((at, id));
            }
            self.fires.pop();
        }
    }

    /// Takes the fire that `peek` showed, and orders the job by its next one.
    pub fn pop(&mut self) {
        let Some(Reverse((at, _, index))) = self.fires.pop() else { return };
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        if slot.after_due.is_some_and(|due| due <= at) {
            slot.after_due = None;
        }
        slot.next = slot.next_after(at);
        self.order(index);
    }

    /// A run of the job ended: `@after` counts from here.
    pub fn run_ended(&mut self, id: JobId, at: Timestamp) {
        let Some(index) = self.by_id.get(&id).copied() else { return };
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        let Some(delay) = slot.schedule.delay_after_end() else { return };
        slot.is_due(at.saturating_add(delay).ok());
        self.order(index);
    }

    /// The next run of a service starts at this instant, unless it is paused.
    pub fn service_due(&mut self, id: JobId, at: Timestamp) {
        let Some(index) = self.by_id.get(&id).copied() else { return };
        if let Some(slot) = self.slots[index as usize].as_mut().filter(|slot| slot.service.is_some()) {
            slot.next = None;
            slot.is_due(Some(at));
            self.order(index);
        }
    }

    /// The first fire of a job that fires after its last run's end, when it has no open run.
    pub fn count_after_from(&mut self, id: JobId, last_end: Option<Timestamp>) {
        let Some(slot) = self.get(id) else { return };
        let from = last_end.map_or(slot.counts_from, |end| end.max(slot.counts_from));
        self.run_ended(id, from);
    }

    /// When a job that fires after its last run's end is due for that.
    pub fn due_after_end(&self, id: JobId) -> Option<Timestamp> {
        self.get(id)?.after_due
    }

    /// It was changed in what its end has nothing to do with: it is due as it was.
    pub fn due_after_end_as_before(&mut self, id: JobId, due: Option<Timestamp>) {
        let Some(index) = self.by_id.get(&id).copied().filter(|_| due.is_some()) else { return };
        let Some(slot) = self.slots[index as usize].as_mut() else { return };
        if slot.schedule.delay_after_end().is_some() {
            slot.is_due(due);
            self.order(index);
        }
    }

    /// Nothing of it fires from now on.
    pub fn hold(&mut self, id: JobId) {
        if let Some(slot) = self.by_id.get(&id).and_then(|index| self.slots[*index as usize].as_mut()) {
            slot.held = true;
            slot.next = None;
        }
    }

    /// It fires again; what passed until now was not due.
    pub fn let_go(&mut self, id: JobId, now: Timestamp) {
        let Some(index) = self.by_id.get(&id).copied() else { return };
        let Some(slot) = self.slots[index as usize].as_mut().filter(|slot| slot.held) else { return };
        slot.held = false;
        slot.after_due = None;
        slot.next = slot.next_after(now);
        self.order(index);
        self.run_ended(id, now);
    }

    fn put(&mut self, mut slot: JobSlot, cursor: Cursor) {
        slot.next = slot.next_after(cursor.before_first_fire_of(slot.id));
        self.replace(slot);
    }

    fn replace(&mut self, slot: JobSlot) {
        let id = slot.id;
        let index = match self.by_id.get(&id) {
            Some(index) => *index,
            None => self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                (self.slots.len() - 1) as u32
            }),
        };
        self.by_id.insert(id, index);
        if slot.service.is_some() {
            self.services.insert(id);
        } else {
            self.services.remove(&id);
        }
        if slot.run_on == RunOn::One {
            self.local.remove(&id);
        } else {
            self.local.insert(id);
        }
        self.slots[index as usize] = Some(slot);
        self.order(index);
    }

    fn order(&mut self, index: u32) {
        if let Some(slot) = self.slots[index as usize].as_ref()
            && let Some(next) = slot.next
        {
            self.fires.push(Reverse((next, slot.id, index)));
        }
    }

    fn slot(
        &self,
        id: JobId,
        revision: u64,
        document: &JobDocument,
        bytes: Bytes,
        schedule: Schedule,
        (created_at, counts_from): (Timestamp, Timestamp),
    ) -> JobSlot {
        JobSlot {
            id,
            revision,
            seed: document.seed(),
            document: bytes,
            schedule,
            misfire: document.misfire,
            overlap: document.overlap,
            retry: document.retry.clone().map(Box::new),
            needs: document.needs.as_ref().map(|needs| Box::new(Amounts::from(needs))),
            exclusive: document.is_exclusive(),
            service: document.service_rule(),
            takes_default_timeout: document.takes_default_timeout(),
            enabled: document.enabled,
            run_on: document.run_on,
            held: false,
            fires_here: (document.run_on == RunOn::One) == (self.firer == Firer::Shard),
            jitter_ms: document.jitter.map_or(0, |jitter| jitter.get().as_millis() as u32),
            created_at,
            counts_from,
            after_due: None,
            next: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Action, Service, Shell};

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn job(id: u128, schedule: &str, counts_from: &str) -> Job {
        let mut document = JobDocument::new(format!("j{id}"), Action::Shell(Shell { command: "true".into() }));
        document.schedule.0.push(schedule.into());
        let counts_from = at(counts_from);
        Job {
            id: JobId::from_u128(id),
            revision: 1,
            document,
            created_at: counts_from,
            updated_at: counts_from,
            counts_from,
        }
    }

    fn drain(table: &mut JobTable, until: &str) -> Vec<(String, u128)> {
        let mut fires = Vec::new();
        while let Some((fire, id)) = table.peek().filter(|(fire, _)| *fire <= at(until)) {
            fires.push((fire.to_string(), id.as_u128()));
            table.pop();
        }
        fires
    }

    #[test]
    fn the_clusters_timeout_holds_for_jobs_that_have_none_and_are_to_end() {
        let default: Timeout = serde_json::from_value(serde_json::json!({"after": "6h", "action": "report"})).unwrap();
        let own: Timeout = serde_json::from_value(serde_json::json!({"after": "1s"})).unwrap();
        let timeout_of = |timeout: Option<Timeout>, action: Action, default: Option<&Timeout>| {
            let mut job = job(1, "@daily", "2026-11-15T00:00:00Z");
            (job.document.timeout, job.document.action) = (timeout, action);
            let mut table = JobTable::new(Firer::Shard);
            table.upsert(&job, Cursor::starting(job.created_at)).unwrap();
            let document = table.get(job.id).unwrap().document_with(default);
            serde_json::from_slice::<JobDocument>(&document).unwrap().timeout
        };
        let shell = || Action::Shell(Shell { command: "true".into() });
        let service = serde_json::from_value(serde_json::json!({"service": {"command": "x"}})).unwrap();
        assert_eq!(timeout_of(None, shell(), Some(&default)), Some(default));
        assert_eq!(timeout_of(None, shell(), None), None);
        assert_eq!(timeout_of(Some(own), shell(), Some(&default)), Some(own));
        assert_eq!(timeout_of(None, service, Some(&default)), None);
    }

    #[test]
    fn fires_come_in_the_order_of_instant_and_job() {
        let mut table = JobTable::new(Firer::Shard);
        let cursor = Cursor { at: at("2026-01-01T00:00:00Z"), job: JobId::from_u128(u128::MAX) };
        table.upsert(&job(2, "* * * * *", "2025-01-01T00:00:00Z"), cursor).unwrap();
        table.upsert(&job(1, "*/2 * * * *", "2025-01-01T00:00:00Z"), cursor).unwrap();
        let fires = drain(&mut table, "2026-01-01T00:02:00Z");
        let expected = [("2026-01-01T00:01:00Z", 2), ("2026-01-01T00:02:00Z", 1), ("2026-01-01T00:02:00Z", 2)];
        assert_eq!(fires, expected.map(|(t, id)| (t.to_owned(), id)));
    }

    #[test]
    fn a_change_counts_from_its_moment_and_voids_what_was_ordered() {
        let mut table = JobTable::new(Firer::Shard);
        let cursor = Cursor { at: at("2026-01-01T00:00:00Z"), job: JobId::from_u128(u128::MAX) };
        table.upsert(&job(1, "* * * * *", "2025-01-01T00:00:00Z"), cursor).unwrap();
        table.upsert(&job(1, "30 * * * *", "2026-01-01T00:31:00Z"), cursor).unwrap();
        assert_eq!(drain(&mut table, "2026-01-01T02:00:00Z").len(), 1);
        table.remove(JobId::from_u128(1));
        assert!(table.peek().is_none());
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_job_that_is_held_fires_nothing_and_nothing_of_that_time_later() {
        let mut table = JobTable::new(Firer::Shard);
        let cursor = Cursor { at: at("2026-01-01T00:00:00Z"), job: JobId::from_u128(u128::MAX) };
        let id = JobId::from_u128(1);
        table.upsert(&job(1, "* * * * *", "2025-01-01T00:00:00Z"), cursor).unwrap();
        table.hold(id);
        assert!(table.peek().is_none());
        assert!(!table.get(id).unwrap().fires_at(at("2026-01-01T00:01:00Z")));
        table.upsert(&job(1, "*/5 * * * *", "2026-01-01T00:02:00Z"), cursor).unwrap();
        table.run_ended(id, at("2026-01-01T00:03:00Z"));
        assert!(table.peek().is_none(), "nor when it is changed, or a run of it ends");
        table.let_go(id, at("2026-01-01T01:00:00Z"));
        assert_eq!(table.peek().unwrap().0, at("2026-01-01T01:05:00Z"));
        table.upsert(&job(2, "@after 90s", "2026-01-01T00:00:00Z"), cursor).unwrap();
        table.hold(JobId::from_u128(2));
        table.let_go(JobId::from_u128(2), at("2026-01-01T00:10:00Z"));
        assert_eq!(table.peek().unwrap().0, at("2026-01-01T00:11:30Z"));
    }

    #[test]
    fn a_job_is_among_the_services_for_as_long_as_it_is_one() {
        let mut table = JobTable::new(Firer::Shard);
        let cursor = Cursor { at: at("2026-01-01T00:00:00Z"), job: JobId::from_u128(u128::MAX) };
        let mut changed = job(1, "* * * * *", "2026-01-01T00:00:00Z");
        table.upsert(&changed, cursor).unwrap();
        assert!(table.services().is_empty());
        let service = Service { command: Some("serve".into()), argv: vec![], stop_grace: None, restart_delay: None };
        let shell = std::mem::replace(&mut changed.document.action, Action::Service(service));
        table.upsert(&changed, cursor).unwrap();
        assert_eq!(table.services(), [changed.id]);
        let removed = changed.clone();
        changed.document.action = shell;
        table.upsert(&changed, cursor).unwrap();
        assert!(table.services().is_empty(), "it is none any more");
        table.upsert(&removed, cursor).unwrap();
        table.remove(removed.id);
        assert!(table.services().is_empty());
    }

    #[test]
    fn after_counts_from_the_end_of_a_run() {
        let mut table = JobTable::new(Firer::Shard);
        let cursor = Cursor { at: at("2026-01-01T00:00:00Z"), job: JobId::from_u128(u128::MAX) };
        table.upsert(&job(1, "@after 90s", "2026-01-01T00:00:00Z"), cursor).unwrap();
        assert!(table.peek().is_none(), "nothing is due before it is known when the last run ended");
        table.count_after_from(JobId::from_u128(1), None);
        assert_eq!(table.peek().unwrap().0, at("2026-01-01T00:01:30Z"));
        table.pop();
        assert!(table.peek().is_none(), "it waits for the end of its run");
        table.run_ended(JobId::from_u128(1), at("2026-01-01T00:05:00Z"));
        assert_eq!(table.peek().unwrap().0, at("2026-01-01T00:06:30Z"));
    }
}
