//! The jobs that this node fires by itself, from its own copies (`run_on: each` and `home`): what is due, what was claimed, and what
//! must be on the disk before anything starts. It decides nothing about servers and starts nothing itself: see `desk::local`.
//!
//! A fire is claimed once: the claim moves the job's cursor past it and is on the disk before the run may start, so an agent that is
//! killed at any moment, and the one that follows it, start it at most once between them. What was claimed and has no end on the
//! disk when an agent starts was cut off, and is reported as lost.

mod disabled;
mod given_up;
mod journal;
mod record;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use belfry_core::cursor::Cursor;
use belfry_core::due::{self, Due};
use belfry_core::id::Slot;
use belfry_core::job_table::{Firer, JobSlot, JobTable, Stored};
use belfry_core::overlap::{self, Go};
use belfry_core::{JobId, NodeId, RunId};
use jiff::Timestamp;

use crate::clock::Moment;
use crate::key::Key;
pub(crate) use disabled::NotDisabled;
use given_up::{GivenUp, Left};
pub(crate) use journal::Journal;
pub use journal::MemoryJournal;
pub(crate) use record::{Claim, Kept, KeptJob, Record};

/// Claims are on the disk before their instant.
const CLAIM_AHEAD: Duration = Duration::from_millis(600);
/// Claims that wait for the disk, or for their instant.
const CLAIMS_MAX: usize = 1000;
/// A step of the wall clock is noticed within this.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Servers that can be reached have said by then what the time is; and what was due meanwhile is still on time.
const TOLD_WITHIN: Duration = Duration::from_secs(3);

pub(crate) struct Local {
    node: NodeId,
    /// For servers to say what the time is: nothing fires before.
    waits: bool,
    /// They have had the time to. None: the agent is still starting.
    waits_until: Option<Duration>,
    table: JobTable,
    jobs: HashMap<JobId, Own>,
    removed: GivenUp,
    /// Asked to let go, with runs that are not over.
    frozen: HashSet<JobId>,
    /// On its way to the disk, by ticket.
    unwritten: BTreeMap<u64, Unwritten>,
    last_ticket: u64,
    /// Claimed, until its instant, on the boottime clock.
    to_judge: BTreeMap<(Duration, RunId), Claim>,
    /// Behind the runs of its job that are going.
    waiting: HashMap<JobId, VecDeque<Claim>>,
    /// Of the jobs in the table, whoever ordered them.
    going: HashMap<JobId, BTreeSet<Key>>,
    /// Not known to have started at this boot of the machine.
    boot: Option<String>,
    /// By the local API of this host; also jobs that are not here at the moment.
    disabled: BTreeSet<JobId>,
    wake: Option<Duration>,
}

/// What is known of a job beside its slot in the table.
struct Own {
    shard: u32,
    namespace: String,
    name: String,
    home_term: u64,
    cursor_ms: i64,
    fence: u64,
}

#[derive(Default)]
struct Unwritten {
    claims: Vec<Claim>,
    removals: Vec<JobId>,
}

/// A job as a server sends it.
pub(crate) struct Copy {
    pub shard: u32,
    pub stored: Stored,
    pub home_term: u64,
    pub from_ms: i64,
}

/// To be brought to the disk; [`Local::written`] takes the ticket when it is there.
#[derive(Debug)]
pub(crate) struct ToWrite {
    pub ticket: u64,
    pub records: Vec<Record>,
}

/// What becomes of a claim at its instant.
#[derive(Debug, PartialEq)]
pub(crate) enum Judged {
    Start(Claim),
    /// It waits until those that go have ended, which are to be ended; those that waited before it never begin.
    Replace {
        going: Vec<Key>,
        waiting: Vec<Claim>,
    },
    Wait,
    Never {
        claim: Claim,
        cancelled: bool,
        reason: String,
    },
}

impl Local {
    /// `boot_id`: of the machine as it runs now. `finished`: what the spool has. The claims that come back were cut off.
    pub(crate) fn new(node: NodeId, kept: Kept, boot_id: &str, finished: &[Key], now: Moment) -> (Local, Vec<Claim>) {
        let mut local = Local {
            node,
            waits: true,
            waits_until: None,
            table: JobTable::new(Firer::Node),
            jobs: HashMap::new(),
            removed: kept.removed,
            frozen: HashSet::new(),
            unwritten: BTreeMap::new(),
            last_ticket: 0,
            to_judge: BTreeMap::new(),
            waiting: HashMap::new(),
            going: HashMap::new(),
            boot: (kept.boot.as_deref() != Some(boot_id)).then(|| boot_id.to_owned()),
            disabled: kept.disabled,
            wake: Some(now.boot),
        };
        for job in kept.jobs.into_values() {
            local.know(job);
        }
        let has_end: HashSet<RunId> = finished.iter().map(|key| key.run).collect();
        let cut_off = kept.open.into_values().filter(|claim| !has_end.contains(&claim.run)).collect();
        (local, cut_off)
    }

    /// What the disk has of a job.
    fn know(&mut self, job: KeptJob) {
        let stored = job.stored();
        let id = job.id;
        let last_end = job.last_end_ms.map(instant);
        let own = Own {
            shard: job.shard,
            namespace: job.namespace,
            name: job.name,
            home_term: job.home_term,
            cursor_ms: job.cursor_ms,
            fence: job.fence,
        };
        if let Err(cause) = self.table.load(stored, Cursor::starting(instant(own.cursor_ms))) {
            tracing::error!("{cause}");
            return;
        }
        self.jobs.insert(id, own);
        self.table.count_after_from(id, last_end);
        self.hold_if_disabled(id);
    }

    /// Takes a copy in, if it is newer than the one that is here.
    pub(crate) fn put(&mut self, copy: Copy, now: Moment) -> Option<Record> {
        let id = copy.stored.id;
        let held = self.jobs.get(&id);
        let revision = self.table.get(id).map_or(0, |slot| slot.revision);
        // The servers' default for its timeout may be another than when it came.
        let same_document = self.table.get(id).is_some_and(|slot| slot.document == copy.stored.document);
        let same = same_document && held.is_some_and(|own| own.home_term == copy.home_term && own.shard == copy.shard);
        if copy.stored.revision < revision || (copy.stored.revision == revision && same) {
            return None;
        }
        let (namespace, name) = copy.stored.name.split_once('/')?;
        let left = self.removed.get(id);
        let fired_to = held.map(|own| own.cursor_ms).or(left.map(|left| left.cursor_ms));
        // What was hardly missed when a job comes here is on time; what a home missed follows the job's rule.
        let hardly_missed = now.wall_ms - due::ON_TIME_MS;
        let from_ms = match (copy.home_term, held) {
            (0, Some(own)) => own.cursor_ms,
            (0, None) => hardly_missed.max(copy.stored.counts_from.as_millisecond()).max(fired_to.unwrap_or(i64::MIN)),
            _ => copy.from_ms.max(fired_to.unwrap_or(i64::MIN)),
        };
        let own = Own {
            shard: copy.shard,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            home_term: copy.home_term,
            cursor_ms: from_ms,
            fence: held
                .map(|own| own.fence)
                .or(left.map(|left| left.fence))
                .unwrap_or(0)
                .max(copy.home_term.saturating_mul(belfry_core::id::FENCES_PER_COMMIT)),
        };
        if self.frozen.remove(&id) {
            self.table.remove(id);
        }
        let record = Record::Job(KeptJob::new(&copy.stored, &own));
        let fires_after_its_end = self.table.get(id).is_none();
        if let Err(cause) = self.table.load(copy.stored, Cursor::starting(instant(from_ms))) {
            tracing::error!("{cause}");
            return None;
        }
        if fires_after_its_end {
            // When its last run here ended is not known any more, only that it was after the instant it had been planned for.
            self.table.count_after_from(id, fired_to.map(instant));
        }
        self.hold_if_disabled(id);
        self.removed.remove(id);
        self.jobs.insert(id, own);
        Some(record)
    }

    /// Of this shard, all but these are gone.
    pub(crate) fn retain(&mut self, shard: u32, only: &HashSet<JobId>) -> Vec<Record> {
        let gone = self.jobs.iter().filter(|(id, own)| own.shard == shard && !only.contains(id));
        let gone: Vec<JobId> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    pub(crate) fn remove(&mut self, id: JobId) -> Option<Record> {
        let own = self.jobs.remove(&id)?;
        self.table.remove(id);
        self.frozen.remove(&id);
        let left = Left { cursor_ms: own.cursor_ms, fence: own.fence, was_home: own.home_term > 0 };
        self.removed.add(id, left);
        Some(Record::Removed { job: id, cursor_ms: left.cursor_ms, was_home: left.was_home, fence: left.fence })
    }

    /// Fires nothing more of a job that is to move. Nothing of it is lost: what was claimed has its turn first. The record, if it
    /// is given up with this; the cursor, when that is on the disk.
    pub(crate) fn release(&mut self, id: JobId, home_term: u64) -> (Option<Record>, Option<i64>) {
        if self.jobs.get(&id).is_some_and(|own| own.home_term > home_term) {
            return (None, None);
        }
        let claimed = self.unwritten.values().flat_map(|it| &it.claims).chain(self.to_judge.values());
        let is_idle = !claimed.into_iter().any(|claim| claim.job == id)
            && !self.waiting.contains_key(&id)
            && !self.going.contains_key(&id);
        if self.jobs.contains_key(&id) {
            self.frozen.insert(id);
            return (is_idle.then(|| self.remove(id)).flatten(), None);
        }
        let on_disk = !self.unwritten.values().any(|it| it.removals.contains(&id));
        let as_home = self.removed.get(id).filter(|left| left.was_home);
        (None, (is_idle && on_disk).then(|| as_home.map_or(0, |left| left.cursor_ms)))
    }

    /// Gives what goes to the disk together a ticket.
    pub(crate) fn write_down(&mut self, records: Vec<Record>) -> Option<ToWrite> {
        if records.is_empty() {
            return None;
        }
        self.last_ticket += 1;
        let mut unwritten = Unwritten::default();
        for record in &records {
            match record {
                Record::Claimed(claim) => unwritten.claims.push(claim.clone()),
                Record::Removed { job, .. } => unwritten.removals.push(*job),
                Record::Job(_)
                | Record::Ended { .. }
                | Record::Boot { .. }
                | Record::Disabled { .. }
                | Record::Enabled { .. } => {}
            }
        }
        self.unwritten.insert(self.last_ticket, unwritten);
        Some(ToWrite { ticket: self.last_ticket, records })
    }

    /// The claims of this ticket hold. Those that come back were decided with their claim.
    pub(crate) fn written(&mut self, ticket: u64, now: Moment) -> Vec<Claim> {
        let Some(Unwritten { claims, .. }) = self.unwritten.remove(&ticket) else { return Vec::new() };
        let (decided, open): (Vec<Claim>, Vec<Claim>) = claims.into_iter().partition(|claim| claim.skipped.is_some());
        for claim in open {
            let in_ms = claim.start_ms - now.wall_ms;
            let wait = Duration::from_millis(in_ms.max(0) as u64);
            self.to_judge.insert((now.boot + wait, claim.run), claim);
        }
        decided
    }

    /// A machine may boot with any time: what fires by that would be gone, and what comes here counted from it.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Counted from the first time that this is asked.
    pub(crate) fn has_waited(&mut self, now: Moment) -> bool {
        let until = *self.waits_until.get_or_insert(now.boot + TOLD_WITHIN);
        self.waits && until <= now.boot
    }

    /// False: it waited no more.
    pub(crate) fn waits_no_more(&mut self) -> bool {
        std::mem::replace(&mut self.waits, false)
    }

    /// Claims what is due, or soon will be.
    pub(crate) fn claim_due(&mut self, now: Moment) -> Vec<Record> {
        if self.waits() {
            return Vec::new();
        }
        let mut records = Vec::new();
        self.claim_boot(now, &mut records);
        let ahead = instant(now.wall_ms + CLAIM_AHEAD.as_millis() as i64);
        let mut room = CLAIMS_MAX.saturating_sub(self.claims());
        while room > 0
            && let Some((planned, job)) = self.table.peek().filter(|(at, _)| *at <= ahead)
        {
            self.table.pop();
            if self.frozen.contains(&job) {
                continue;
            }
            let Some(slot) = self.table.get(job) else { continue };
            let skipped = match due::judge(&slot.schedule, &slot.misfire, planned, instant(now.wall_ms)) {
                Due::Run => None,
                Due::Skip { reason } => Some(reason),
            };
            records.extend(self.claim(job, planned, skipped, false, now).map(Record::Claimed));
            room -= 1;
        }
        records
    }

    /// Once for each boot of the machine, whatever the agent does; nothing of what comes to the node later.
    fn claim_boot(&mut self, now: Moment, records: &mut Vec<Record>) {
        let Some(boot_id) = self.boot.take() else { return };
        let at_boot = |id: &&JobId| {
            let fires = self.table.get(**id).is_some_and(|slot| slot.schedule.at_boot() && slot.enabled);
            fires && !self.disabled.contains(*id)
        };
        let mut jobs: Vec<JobId> = self.jobs.keys().filter(at_boot).copied().collect();
        jobs.sort_unstable();
        let planned = instant(now.wall_ms);
        for job in jobs {
            records.extend(self.claim(job, planned, None, true, now).map(Record::Claimed));
        }
        records.push(Record::Boot { id: boot_id });
    }

    fn claim(
        &mut self,
        job: JobId,
        planned: Timestamp,
        skipped: Option<String>,
        at_boot: bool,
        now: Moment,
    ) -> Option<Claim> {
        let slot = self.table.get(job)?;
        let own = self.jobs.get_mut(&job)?;
        own.fence += 1;
        if !at_boot {
            own.cursor_ms = own.cursor_ms.max(planned.as_millisecond());
        }
        Some(Claim {
            job,
            run: RunId::of(job, planned, Slot::Node(self.node)),
            namespace: own.namespace.clone(),
            name: own.name.clone(),
            revision: slot.revision,
            planned_ms: planned.as_millisecond(),
            start_ms: slot.start_at(planned).as_millisecond(),
            claimed_at_ms: now.wall_ms,
            fence: own.fence,
            home_term: own.home_term,
            at_boot,
            skipped,
        })
    }

    fn claims(&self) -> usize {
        self.to_judge.len() + self.unwritten.values().map(|it| it.claims.len()).sum::<usize>()
    }

    /// The next claim whose instant has come, and what becomes of it.
    pub(crate) fn judge_next(&mut self, now: Moment) -> Option<Judged> {
        let due = self.to_judge.first_entry().filter(|entry| entry.key().0 <= now.boot)?;
        let claim = due.remove();
        Some(self.judge(claim, now))
    }

    fn judge(&mut self, claim: Claim, now: Moment) -> Judged {
        let never = |claim, cancelled, reason: &str| Judged::Never { claim, cancelled, reason: reason.to_owned() };
        let Some(slot) = self.table.get(claim.job) else {
            return never(claim, true, "its job was removed from this node before it started");
        };
        let by_clock = !claim.at_boot && slot.schedule.delay_after_end().is_none();
        if !slot.enabled {
            return never(claim, true, "its job was paused before its instant");
        }
        if self.disabled.contains(&claim.job) {
            return never(claim, true, "its job was disabled on this host by its local API before its instant");
        }
        if by_clock && !slot.fires_at(instant(claim.planned_ms)) {
            return never(claim, true, "its job's schedule was changed before its instant");
        }
        // The disk may have held it up.
        if let Due::Skip { reason } =
            due::judge(&slot.schedule, &slot.misfire, instant(claim.planned_ms), instant(now.wall_ms))
            && by_clock
        {
            return Judged::Never { claim, cancelled: false, reason };
        }
        let going = self.going.get(&claim.job).map_or(0, BTreeSet::len);
        let waiting = self.waiting.get(&claim.job).map_or(0, VecDeque::len);
        match overlap::judge(slot.overlap, going, waiting) {
            Go::Start => Judged::Start(claim),
            Go::Skip { reason } => Judged::Never { claim, cancelled: false, reason },
            Go::Wait => {
                self.waiting.entry(claim.job).or_default().push_back(claim);
                Judged::Wait
            }
            Go::Replace => {
                let going = self.going.get(&claim.job).into_iter().flatten().copied().collect();
                let waiting = self.waiting.entry(claim.job).or_default();
                let earlier = waiting.drain(..).collect();
                waiting.push_back(claim);
                Judged::Replace { going, waiting: earlier }
            }
        }
    }

    /// Why an order of a server may not go beside what goes on here. None: it may.
    pub(crate) fn why_not_beside(&self, job: JobId) -> Option<String> {
        let slot = self.table.get(job)?;
        let going = self.going.get(&job).map_or(0, BTreeSet::len);
        match overlap::judge(slot.overlap, going, 0) {
            Go::Start => None,
            Go::Wait | Go::Replace | Go::Skip { .. } => {
                Some("a run of the job is going on this node, and its overlap rule lets none go beside it".to_owned())
            }
        }
    }

    pub(crate) fn slot(&self, job: JobId) -> Option<&JobSlot> {
        self.table.get(job)
    }

    pub(crate) fn went(&mut self, job: JobId, key: Key) {
        if self.table.get(job).is_some() {
            self.going.entry(job).or_default().insert(key);
        }
    }

    /// A run of the job is over: what waits behind it may go.
    pub(crate) fn ended(&mut self, job: JobId, key: Key, at_ms: i64) -> Option<Claim> {
        self.table.run_ended(job, instant(at_ms));
        if let Some(going) = self.going.get_mut(&job) {
            going.remove(&key);
            if !going.is_empty() {
                return None;
            }
            self.going.remove(&job);
        }
        let waiting = self.waiting.get_mut(&job)?;
        let next = waiting.pop_front();
        if waiting.is_empty() {
            self.waiting.remove(&job);
        }
        next
    }

    /// Everything that was claimed and has not started.
    pub(crate) fn take_claimed(&mut self) -> Vec<Claim> {
        let waiting = std::mem::take(&mut self.waiting).into_values().flatten();
        std::mem::take(&mut self.to_judge).into_values().chain(waiting).collect()
    }

    /// To be called last in each tick: when the next thing is due by this clock.
    pub(crate) fn set_wake(&mut self, now: Moment) {
        let may_claim = self.claims() < CLAIMS_MAX && !self.waits();
        let next_fire = self.table.peek().filter(|_| may_claim).map(|(at, _)| {
            let in_ms = at.as_millisecond() - CLAIM_AHEAD.as_millis() as i64 - now.wall_ms;
            now.boot + Duration::from_millis(in_ms.max(0) as u64).min(SLEEP_MAX)
        });
        let judged = self.to_judge.first_key_value().map(|((at, _), _)| *at);
        let told = self.waits_until.filter(|_| self.waits);
        self.wake = [next_fire, judged, told].into_iter().flatten().min();
    }

    pub(crate) fn wake(&self) -> Option<Duration> {
        self.wake
    }
}

pub(crate) fn instant(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests;
