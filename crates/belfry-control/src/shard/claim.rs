//! Due fires are claimed a little ahead, many in one commit. Each commit guards the shard's seat and moves its cursor, and guards
//! each run's key at the version that was read.
//!
//! **Why a fire never starts twice.** A run's id follows from job and instant; its key is created once under the seat's guard
//! together with the cursor that passes it, and names the only incarnation that may start it. A server that lost the seat has
//! every commit refused, and what is not committed is not dispatched. `removing_the_claims_guard_is_noticed` fails without it.

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belfry_coord::{COMMIT_BYTES_MAX, Guard, HELD_WRITES_MAX, Held, HeldError, Resolved, Write, keys};
use belfry_core::cursor::Cursor;
use belfry_core::due::{self, Due};
use belfry_core::id::Slot;
use belfry_core::run::{Event, RunState, Trigger, Verdict};
use belfry_core::{JobId, RunId, Timestamp, Version};
use jiff::SignedDuration;

use super::state::Committing;
use super::{Left, Open, Shard, ShardMessage, Stage};
use crate::context::Context;
use crate::open_run::{Decision, ManualFacts, OpenRecord};

/// How far ahead of its instant a fire is claimed, at most.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_millis(1000);
/// When the next fire is this near, all up to the look-ahead are claimed: few commits, and time enough to dispatch.
const CLAIM_WHEN_WITHIN: SignedDuration = SignedDuration::from_millis(600);
/// What is not urgent (removing the keys of ended runs) waits this long for company.
const PATIENCE: SignedDuration = SignedDuration::from_millis(400);
const WAITING_CLAIMS_MAX: usize = 4 * HELD_WRITES_MAX;
/// Of a commit, for the seat, the keys and the marks around them.
const COMMIT_BYTES_SPARE: usize = 64 << 10;
const RETRY_DELAY: Duration = Duration::from_millis(100);

pub(super) fn wake_for(fire: Timestamp) -> Timestamp {
    fire.saturating_sub(CLAIM_WHEN_WITHIN).unwrap_or(Timestamp::MIN)
}

pub(super) fn by_and_by(now: Timestamp) -> Timestamp {
    now.saturating_add(PATIENCE).unwrap_or(Timestamp::MAX)
}

/// A commit that was answered, and the seat back.
pub(crate) struct Committed {
    seat: Held<Cursor>,
    /// Whose keys were written; those in `removed` are gone.
    runs: Vec<RunId>,
    removed: HashSet<RunId>,
    states: Vec<Committing>,
    result: Result<Version, HeldError>,
}

impl Shard {
    pub(super) fn may_claim_more(&self) -> bool {
        self.to_commit.len() < WAITING_CLAIMS_MAX && !self.is_full() && !self.context.recorder.is_full(&self.context)
    }

    /// So many runs are open that more would use up the coordinator's room: what is due waits until some are closed.
    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= self.context.open_per_shard_max.load(Ordering::Relaxed)
    }

    pub(super) fn claim_due(&mut self, now: Timestamp) {
        let near = now.saturating_add(CLAIM_WHEN_WITHIN).unwrap_or(Timestamp::MAX);
        if self.jobs.peek().is_none_or(|(at, _)| at > near) {
            return;
        }
        let ahead = now.saturating_add(LOOK_AHEAD).unwrap_or(Timestamp::MAX);
        while self.may_claim_more()
            && let Some((planned, job)) = self.jobs.peek().filter(|(at, _)| *at <= ahead)
        {
            self.jobs.pop();
            self.claim(job, planned, now);
        }
    }

    /// A change that came when its fire was already behind the cursor has that fire claimed without moving the cursor. A former owner may
    /// have died in between: what is neither open nor recorded was never claimed. Nobody else can claim it meanwhile.
    pub(super) fn look_behind(&self, cursor: Cursor) {
        let since = cursor.at.saturating_sub(LOOK_AHEAD * 2).unwrap_or(Timestamp::MIN);
        let mut behind = self.jobs.left_behind(cursor, since);
        behind.retain(|(job, planned)| !self.open.contains_key(&RunId::of(*job, *planned, Slot::Only)));
        if behind.is_empty() {
            return;
        }
        let (context, shard) = (self.context.clone(), self.id);
        self.context.tasks.spawn("look behind the cursor", async move {
            let mut left = Vec::new();
            for (job, planned) in behind {
                match context.store.run(RunId::of(job, planned, Slot::Only)).await {
                    Ok(None) => left.push((job, planned)),
                    Ok(Some(_)) => {}
                    // Whether it ran cannot be known: it must not run twice.
                    Err(cause) => context.store_health.away(context.now(), crate::chain(&cause)),
                }
            }
            if let Some(inbox) = context.shards.inbox(shard).filter(|_| !left.is_empty()) {
                let _ = inbox.send(ShardMessage::LeftBehind(left)).await;
            }
        });
    }

    pub(super) fn claim_left_behind(&mut self, left: Vec<(JobId, Timestamp)>) {
        let now = self.context.now();
        for (job, planned) in left {
            let is_due = self.jobs.get(job).is_some_and(|slot| slot.fires_at(planned));
            if is_due && !self.open.contains_key(&RunId::of(job, planned, Slot::Only)) {
                self.claim(job, planned, now);
            }
        }
    }

    fn claim(&mut self, job: JobId, due: Timestamp, now: Timestamp) {
        let is_service = self.jobs.get(job).is_some_and(|slot| slot.service.is_some());
        let planned = if is_service { self.service_instant(job, due) } else { due };
        if is_service {
            // The claim moves the cursor to its instant, and must pass no fire that is still to be claimed: it has its turn after those.
            if planned > due && self.jobs.peek().is_some_and(|next| next < (planned, job)) {
                return self.jobs.service_due(job, planned);
            }
            self.service_planned(job, planned);
        }
        let id = RunId::of(job, planned, Slot::Only);
        if self.open.contains_key(&id) {
            return; // claimed before its schedule was changed to another one that has this instant too
        }
        let passed = Cursor { at: planned, job };
        // A schedule that was changed a moment ago may have a fire behind the cursor: it is claimed without moving it back.
        let cursor = (passed > self.cursor).then_some(passed);
        self.cursor = self.cursor.max(passed);
        let Some(slot) = self.jobs.get(job) else { return };
        let verdict = if is_service { Due::Run } else { due::judge(&slot.schedule, &slot.misfire, planned, now) };
        let start_at = slot.start_at(planned);
        let Some(mut open) = self.new_open(id, job, planned, Trigger::Schedule, ManualFacts::default(), now) else {
            return;
        };
        open.start_at = start_at;
        open.cursor = cursor;
        open.goes = self.service_goes(job);
        match verdict {
            Due::Run => self.enter(open),
            Due::Skip { reason } => {
                open.record.decision = Some(Decision { verdict: Verdict::Skipped, reason, at: now.as_millisecond() });
                self.insert(open);
                self.commit_now(id);
            }
        }
    }

    /// A run that is not in the coordinator yet. None: its job cannot be read, which was logged when it was loaded.
    pub(super) fn new_open(
        &self,
        id: RunId,
        job: JobId,
        planned: Timestamp,
        trigger: Trigger,
        manual: ManualFacts,
        now: Timestamp,
    ) -> Option<Open> {
        let slot = self.jobs.get(job)?;
        let document = slot.document().ok()?;
        let record = OpenRecord {
            job,
            namespace: document.namespace,
            job_name: document.name,
            revision: slot.revision,
            planned: planned.as_millisecond(),
            claimed_at: now.as_millisecond(),
            trigger,
            fence: None,
            step: 0,
            bound: None,
            decision: None,
            manual,
            service: slot.service.map(|rule| rule.digest),
            next: None,
            lost: Vec::new(),
        };
        let run = record.to_run(id, Version(0));
        Some(Open {
            record,
            run,
            version: None,
            stage: Stage::Claiming,
            start_at: planned,
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
        })
    }

    pub(super) fn insert(&mut self, open: Open) {
        let (id, job) = (open.run.id, open.run.job);
        let runs = self.by_job.entry(job).or_default();
        runs.push(id);
        runs.sort_unstable();
        self.open.insert(id, open);
    }

    /// The run's key is written or removed with the next commit.
    pub(super) fn commit_now(&mut self, run: RunId) {
        self.to_commit.push_back(run);
        self.commit_soon = Some(Timestamp::MIN);
    }

    pub(super) fn commit_by_and_by(&mut self, run: RunId) {
        self.to_commit.push_back(run);
        if self.commit_soon.is_none() {
            self.commit_soon = Some(by_and_by(self.context.now()));
        }
    }

    pub(super) fn next_commit(&mut self) -> Option<Pin<Box<dyn Future<Output = Committed> + Send>>> {
        let due = self.releasing || self.to_commit.len() >= HELD_WRITES_MAX || self.commit_soon? <= self.context.now();
        if !due || (self.to_commit.is_empty() && self.states.is_settled()) || self.seat.is_none() {
            return None;
        }
        let (mut guards, mut writes, states) = self.states.next_commit();
        let room = COMMIT_BYTES_MAX - COMMIT_BYTES_SPARE - writes.iter().map(Write::bytes).sum::<usize>();
        let count = self.that_fit(HELD_WRITES_MAX - writes.len(), room);
        let mut runs: Vec<RunId> = self.to_commit.drain(..count).collect();
        // One write a key: it carries what the run has come to.
        runs.sort_unstable();
        runs.dedup();
        if self.to_commit.is_empty() && self.states.is_settled() {
            self.commit_soon = None;
        }
        let seat = self.seat.take()?;
        let mut cursor = *seat.extra();
        let mut removed = HashSet::new();
        // In the order of ids, which is the order of instants: so fences grow with them.
        for (step, id) in (0..).zip(&runs) {
            let Some(open) = self.open.get_mut(id) else { continue };
            if open.record.fence.is_none() {
                open.record.step = step;
            }
            let key = keys::open_run(self.id, *id);
            guards.push(match open.version {
                None => Guard::Absent(key.clone()),
                Some(version) => Guard::At(key.clone(), version),
            });
            writes.push(match open.stage {
                Stage::Closing => {
                    removed.insert(*id);
                    Write::Delete(key)
                }
                _ if open.version.is_none() && belfry_core::planted::is("node_not_named_in_the_claim") => {
                    Write::Put(key, OpenRecord { bound: None, ..open.record.clone() }.encode())
                }
                _ => Write::Put(key, open.record.encode()),
            });
            cursor = open.cursor.map_or(cursor, |passed| cursor.max(passed));
        }
        if belfry_core::planted::is("claim_leaves_the_cursor") {
            cursor = *seat.extra();
            guards.clear(); // they would refuse the claims that are made again, and hide the bug
        }
        if belfry_core::planted::is("commit_without_guards") || belfry_core::planted::is("open_run_unguarded") {
            guards.clear();
        }
        metrics::counter!("belfry_shard_commits_total").increment(1);
        let committed = commit(self.context.clone(), seat, cursor, guards, writes);
        Some(Box::pin(async move {
            let (seat, result) = committed.await;
            Committed { seat, runs, removed, states, result }
        }))
    }

    /// How many of those that wait go into one commit, first come first: the cursor that it moves passes nothing that is not in it.
    fn that_fit(&self, most: usize, room: usize) -> usize {
        let sizes =
            self.to_commit.iter().take(most).map(|id| self.open.get(id).map_or(0, |open| open.record.bytes_at_most()));
        let mut bytes = 0;
        let fit = sizes.take_while(|size| {
            bytes += size;
            bytes <= room
        });
        // One by itself has room in every commit: see what the API takes.
        fit.count().max(1).min(self.to_commit.len()).min(most)
    }

    pub(super) fn settle(&mut self, committed: Committed) -> Result<(), Left> {
        let version = match committed.result {
            Ok(version) => version,
            Err(cause) => {
                tracing::warn!(shard = %self.id, "the shard is given up and read again: {}", crate::chain(&cause));
                return Err(Left::Deposed);
            }
        };
        self.seat = Some(committed.seat);
        for id in committed.runs {
            if committed.removed.contains(&id) {
                self.forget(id);
            } else {
                self.committed(id, version);
            }
        }
        self.states_committed(committed.states, version);
        Ok(())
    }

    fn committed(&mut self, id: RunId, version: Version) {
        let now = self.context.now();
        let Some(open) = self.open.get_mut(&id) else { return };
        let first = open.version.is_none();
        open.version = Some(version);
        // Of the commit that names its node: so it grows from attempt to attempt, and what waited for others to end has a greater one
        // than they, also when it was claimed before they last started.
        if open.record.fence.is_none() && open.record.bound.is_some() {
            open.run.fence = open.record.fence_at(version);
            open.record.fence = Some(open.run.fence);
        }
        if first {
            metrics::counter!("belfry_fires_claimed_total").increment(1);
            open.cursor = None;
            self.publish(id);
            self.answer(id);
        }
        let missed = if first { self.missed_meanwhile(id, now) } else { None };
        let Some(open) = self.open.get_mut(&id) else { return };
        match open.stage {
            // Its end came in while this commit was on its way; the key is removed by the next one.
            Stage::Closing => {}
            Stage::Claiming | Stage::Placing | Stage::Deciding if open.record.decision.is_some() => self.decided(id),
            Stage::Claiming | Stage::Placing => {
                if let Some((verdict, reason)) = open.then.take() {
                    open.stage = Stage::Behind { judged: true };
                    self.decide(id, verdict, reason);
                } else if let Some(reason) = missed {
                    self.never_ordered(id, reason);
                } else if open.record.bound.is_some() {
                    self.dispatch(id);
                } else {
                    self.wait_or_go(id, now);
                }
            }
            Stage::Planning => self.planned(id),
            // A result came in while the commit was on its way.
            Stage::Recording | Stage::LastLook | Stage::Deciding => {}
            Stage::Behind { .. } | Stage::Homeless(_) | Stage::Dispatched { .. } | Stage::Running => {}
            Stage::Asking { .. } | Stage::Waiting => {}
        }
    }

    /// A coordinator that was away may have held up the claim of a fire that was not missed when it was judged: then the rule for missed
    /// ones holds.
    fn missed_meanwhile(&self, id: RunId, now: Timestamp) -> Option<String> {
        let open = self.open.get(&id).filter(|open| open.record.trigger == Trigger::Schedule)?;
        let on_time = |at_ms: i64| at_ms - open.record.planned <= due::ON_TIME_MS;
        // Jitter is no lateness.
        let jitter = open.start_at.duration_since(open.run.planned).max(SignedDuration::ZERO);
        let late = now.saturating_sub(jitter).unwrap_or(now);
        if on_time(late.as_millisecond()) || !on_time(open.record.claimed_at) || !self.context.trusts_clock() {
            return None;
        }
        let slot = self.jobs.get(open.run.job).filter(|slot| slot.service.is_none())?;
        match due::judge(&slot.schedule, &slot.misfire, open.run.planned, late) {
            Due::Run => None,
            Due::Skip { reason } => Some(reason),
        }
    }

    /// Its node was named by the claim and knows nothing of it.
    fn never_ordered(&mut self, id: RunId, reason: String) {
        self.free_place(id);
        if let Some(open) = self.open.get_mut(&id) {
            open.record.bound = None;
            open.run.placement = None;
            open.stage = Stage::Behind { judged: true };
        }
        self.decide(id, Verdict::Skipped, reason);
    }

    /// First into the coordinator, then into the store, then the key is removed.
    pub(super) fn decide(&mut self, id: RunId, verdict: Verdict, reason: String) {
        let at = self.context.now().as_millisecond();
        let Some(open) = self.open.get_mut(&id) else { return };
        match open.stage {
            Stage::Claiming | Stage::Placing | Stage::Planning => open.then = Some((verdict, reason)),
            Stage::Deciding | Stage::Recording | Stage::LastLook | Stage::Closing => {}
            Stage::Behind { .. }
            | Stage::Homeless(_)
            | Stage::Dispatched { .. }
            | Stage::Running
            | Stage::Asking { .. }
            | Stage::Waiting => {
                self.homeless.remove(&id);
                open.record.decision = Some(Decision { verdict, reason, at });
                open.stage = Stage::Deciding;
                self.commit_now(id);
            }
        }
    }

    pub(super) fn decided(&mut self, id: RunId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(decision) = open.record.decision.clone() else { return };
        open.stage = Stage::Recording;
        let at = Timestamp::from_millisecond(decision.at).unwrap_or(Timestamp::MIN);
        // Stale: the agent's own word came first, and is what is recorded.
        if open.run.on(Event::Decided { at, verdict: decision.verdict, reason: decision.reason }).is_ok() {
            self.ended(id);
        }
    }

    /// The run has its end: the store is told, and runs of the job that wait may go.
    pub(super) fn ended(&mut self, id: RunId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let (job, ended_at) = (open.run.job, open.run.ended_at.unwrap_or(open.run.planned));
        // Nobody sees the end before the store has it, and with it all of the output: see `recorded`.
        self.context.recorder.run(open.run.clone());
        self.free_place(id);
        self.answer(id);
        self.jobs.run_ended(job, ended_at);
        self.service_ended(id);
        self.next_of_job(job);
        if !self.homeless.is_empty() {
            self.try_homeless();
        }
    }

    pub(super) fn free_place(&mut self, id: RunId) {
        if let Some(bound) = self.open.get(&id).and_then(|open| open.record.bound.as_ref()) {
            self.context.nodes.void(bound.node, id);
        }
    }

    /// Whoever asked for the run gets it as soon as it exists for good.
    fn answer(&mut self, id: RunId) {
        if let Some(open) = self.open.get_mut(&id)
            && (open.record.decision.is_none() || open.run.state.is_ended())
            && let Some(reply) = open.reply.take()
        {
            let _ = reply.send(Ok(open.run.clone()));
        }
    }

    pub(super) fn recorded(&mut self, runs: &[RunId]) {
        let mut last_look = Vec::new();
        for id in runs {
            let Some(open) = self.open.get_mut(id) else { continue };
            // Not if a later truth is already on its way to the store: its own notice will come.
            if open.stage == Stage::Recording && open.run.state == RunState::Lost {
                open.stage = Stage::LastLook;
                last_look.push(*id);
            } else if open.stage == Stage::Recording {
                self.close(*id);
            }
        }
        self.look_last(last_look, Duration::ZERO);
    }

    pub(super) fn close(&mut self, id: RunId) {
        self.set_stage(id, Stage::Closing);
        self.publish(id);
        self.commit_by_and_by(id);
    }

    fn forget(&mut self, id: RunId) {
        if let Some(open) = self.open.remove(&id) {
            self.context.open.remove(id);
            if let Some(runs) = self.by_job.get_mut(&open.run.job) {
                runs.retain(|run| *run != id);
                if runs.is_empty() {
                    self.by_job.remove(&open.run.job);
                }
            }
        }
    }
}

/// Tries until the commit is known to have happened, or can never happen. A coordinator that is away is waited for; the seat's
/// guard decides whether this server still owns the shard then.
async fn commit(
    context: std::sync::Arc<Context>,
    mut seat: Held<Cursor>,
    cursor: Cursor,
    guards: Vec<Guard>,
    writes: Vec<Write>,
) -> (Held<Cursor>, Result<Version, HeldError>) {
    loop {
        let result = match seat.commit(cursor, guards.clone(), writes.clone()).await {
            Err(HeldError::Commit { cause, .. }) if cause.is_transient() => {
                context.coordinator_health.away(context.now(), &cause);
                match settle_doubt(&mut seat).await {
                    Some(result) => result,
                    None => continue,
                }
            }
            result => result,
        };
        if result.is_ok() {
            context.coordinator_health.ok();
        }
        return (seat, result);
    }
}

/// None: the commit has not happened and never will, so it may be tried again.
async fn settle_doubt(seat: &mut Held<Cursor>) -> Option<Result<Version, HeldError>> {
    loop {
        tokio::time::sleep(RETRY_DELAY).await;
        if !seat.is_unresolved() {
            return None;
        }
        match seat.resolve().await {
            Ok(Resolved::Applied(version)) => return Some(Ok(version)),
            Ok(Resolved::NotApplied) => return None,
            Err(HeldError::Commit { cause, .. }) if cause.is_transient() => {}
            Err(cause) => return Some(Err(cause)),
        }
    }
}
