//! Between two attempts of a run: whether there is another one, when, and what may come in between.
//!
//! **Which result counts.** The result of the attempt that is going is judged by the job's `retry`. An attempt that was given up as
//! lost may still tell its result: while the next one has no node, it is judged as if it had come in time, so that what was done
//! is not done again; from then on it is kept with its attempt, and the run ends as its newest attempt does.
//!
//! The rule and the work are the job's as they are when they are needed: who mends a failing job has it mended for the next attempt.

use std::cmp::Reverse;
use std::time::Duration;

use belfry_core::attempt::Attempt;
use belfry_core::retry::{Attempted, next_attempt, spread};
use belfry_core::run::{Ended, Event, Run, RunState, Verdict};
use belfry_core::{NodeId, RunId, Timestamp};
use belfry_store::{Store, StoreError};

use super::report::next_look_into_store;
use super::{Open, Shard, ShardMessage, Stage};
use crate::open_run::Next;

/// A run is given up although the store does not say within this whether it had ended: work that starts again when it is lost must
/// not wait for a store that is away.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// Of work that its node was not told to end when contact is lost.
const MAY_GO_ON: &str = "it was ordered before its job had `retry.on: lost`, and may go on there";

/// What the store knows of runs that the shard takes for going.
#[derive(Debug, Default)]
pub struct Found {
    /// Nothing is done with these until this answer.
    pub asked: Vec<RunId>,
    /// The store did not answer, and may later.
    pub unanswered: bool,
    pub ended: Vec<Run>,
    pub attempts: Vec<Attempt>,
}

impl Shard {
    /// The agent's word on the attempt that is going.
    pub(super) fn attempt_ended(&mut self, id: RunId, ended: Ended) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let last = Attempt::ended(&open.run, &ended);
        if let Some(delay) = self.delay_after(id, &last) {
            self.plan(id, last, delay);
        } else if ended.is_attempt_not_made() {
            let why = last.reason.clone().unwrap_or_default();
            self.context.recorder.attempt(last);
            self.give_up(id, &why);
        } else if let Some(open) = self.open.get_mut(&id) {
            open.abandoned = ended.abandoned;
            if open.run.on(Event::Ended(ended)).is_ok() {
                open.stage = Stage::Recording;
                self.ended(id);
            }
        }
    }

    /// None: there is no other attempt. Nobody starts again what was killed on purpose, or what was recalled and lost before it was known
    /// to have started.
    fn delay_after(&self, id: RunId, last: &Attempt) -> Option<Duration> {
        let open = self.open.get(&id).filter(|open| open.kill.is_none())?;
        if open.recalled.is_some() && last.state == RunState::Lost && last.started_at.is_none() {
            return None;
        }
        let attempted = Attempted {
            attempt: last.attempt,
            state: last.state,
            exit_code: last.exit_code,
            abandoned: last.abandoned,
        };
        let retry = self.jobs.get(open.run.job)?.retry.as_deref();
        next_attempt(retry, attempted, spread(id, last.attempt))
    }

    /// The next attempt and its time go into the coordinator, the one that ended into the store.
    fn plan(&mut self, id: RunId, last: Attempt, delay: Duration) {
        self.free_place(id);
        let now = self.context.now_or_earlier(self.cursor.at);
        let until = now.saturating_add(delay).unwrap_or(Timestamp::MAX);
        let until = until.round(jiff::Unit::Millisecond).unwrap_or(until);
        let Some(open) = self.open.get_mut(&id) else { return };
        // An attempt may have been given up before its instant; none starts before it.
        let until = until.max(open.start_at);
        metrics::counter!("belfry_retries_total", "after" => last.state.as_str()).increment(1);
        open.record.next = Some(Next::after(&last, until));
        open.record.bound = None;
        open.record.fence = None;
        if last.state == RunState::Lost {
            open.record.lost.push(last.clone());
        }
        // What is held dead may still have a session here; only its next incarnation counts.
        let gone = (last.state == RunState::Lost).then_some((last.node, last.incarnation));
        open.not_on = gone.and_then(|(node, incarnation)| Some((node?, incarnation?))).into_iter().collect();
        open.start_at = until;
        // Of the attempt that had started before it came.
        open.recalled = None;
        open.stage = Stage::Planning;
        let _ = open.run.on(Event::Waits { last: Box::new(last.clone()), until });
        self.context.recorder.attempt(last);
        // Shown when the store has both: see `wait_recorded`.
        self.context.recorder.run(open.run.clone());
        self.commit_now(id);
    }

    pub(super) fn wait_recorded(&mut self, runs: &[RunId]) {
        for id in runs {
            let Some(open) = self.open.get_mut(id).filter(|open| open.run.state == RunState::Waiting) else { continue };
            open.record.lost.clear();
            self.publish(*id);
        }
    }

    /// The plan is in the coordinator.
    pub(super) fn planned(&mut self, id: RunId) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.stage = Stage::Waiting;
        let job = open.run.job;
        match open.then.take() {
            Some((verdict, reason)) => self.decide(id, verdict, reason),
            None => {
                self.to_judge.push(Reverse((open.start_at, id)));
                // One that was lost with it may have waited for this attempt to end.
                self.next_of_job(job);
            }
        }
    }

    /// There cannot be the attempt that was planned: the run ends as the one before it did.
    pub(super) fn give_up(&mut self, id: RunId, why: &str) {
        let Some(next) = self.open.get(&id).and_then(|open| open.record.next.clone()) else { return };
        self.free_place(id);
        let Some(open) = self.open.get_mut(&id) else { return };
        open.record.bound = None;
        if open.run.attempt == next.attempt {
            let last =
                Attempt { attempt: next.attempt, ..Attempt::lost(&open.run, self.context.now(), why.to_owned()) };
            let _ = open.run.on(Event::Waits { last: Box::new(last), until: open.start_at });
        }
        let verdict = match next.outcome {
            RunState::Failed => Verdict::Failed,
            RunState::TimedOut => Verdict::TimedOut,
            _ => Verdict::Lost,
        };
        let before = next.reason.as_deref().unwrap_or(next.outcome.as_str());
        let reason = format!("{before}; attempt {} could not be made: {why}", next.attempt);
        self.decide(id, verdict, reason);
    }

    /// What an attempt says that is not the one that is going.
    pub(super) fn late_result(&mut self, id: RunId, from: NodeId, ended: Ended) {
        let Some(open) = self.open.get(&id) else { return };
        let mut last = Attempt::ended(&open.run, &ended);
        last.node.get_or_insert(from);
        self.context.recorder.attempt(last.clone());
        if !open.is_given_up(ended.attempt) || open.record.bound.is_some() {
            return;
        }
        let again = self.delay_after(id, &last).is_some();
        let Some(open) = self.open.get_mut(&id) else { return };
        match &mut open.record.next {
            Some(next) if again => *next = Next::after(&last, open.start_at),
            _ if open.run.on(Event::Ended(ended)).is_ok() => {
                self.homeless.remove(&id);
                open.stage = Stage::Recording;
                self.ended(id);
            }
            _ => {}
        }
    }

    /// Before anything is given up, the store is asked: its end may have been told to another server.
    pub(super) fn lost(&mut self, runs: Vec<(RunId, String)>) {
        let asked = runs.iter().map(|(id, _)| *id).collect();
        for (id, why) in runs {
            self.set_stage(id, Stage::Asking { why });
        }
        self.ask_store(asked);
    }

    /// Whether another server put an end beside what is recorded as lost. However long the store takes: nobody looks after it.
    pub(super) fn look_last(&self, asked: Vec<RunId>, pause: Duration) {
        if asked.is_empty() {
            return;
        }
        let (context, shard) = (self.context.clone(), self.id);
        self.context.tasks.spawn("last look for ends", async move {
            tokio::time::sleep(pause).await;
            let found = match context.store.attempts_among(&asked).await {
                Ok(attempts) => Found { attempts, ..Found::default() },
                Err(cause) => {
                    context.store_health.away(context.now(), crate::chain(&cause));
                    Found { unanswered: cause.is_transient(), ..Found::default() }
                }
            };
            if let Some(inbox) = context.shards.inbox(shard) {
                let _ = inbox.send(ShardMessage::Found(Box::new(Found { asked, ..found }))).await;
            }
        });
    }

    pub(super) fn ask_store(&self, asked: Vec<RunId>) {
        if asked.is_empty() {
            return;
        }
        let (context, shard) = (self.context.clone(), self.id);
        self.context.tasks.spawn("ask the store for lost runs", async move {
            let answer = tokio::time::timeout(STORE_PATIENCE, look(&context.store, &asked)).await;
            let found = match answer {
                Ok(Ok(found)) => found,
                Ok(Err(cause)) => {
                    context.store_health.away(context.now(), crate::chain(&cause));
                    Found::default()
                }
                Err(_) => Found::default(),
            };
            if let Some(inbox) = context.shards.inbox(shard) {
                let _ = inbox.send(ShardMessage::Found(Box::new(Found { asked, ..found }))).await;
            }
        });
    }

    pub(super) fn found(&mut self, found: Found) {
        if found.asked.is_empty() {
            self.look_into_store_at = next_look_into_store(self.context.now());
        }
        for run in found.ended {
            let id = run.id;
            let Some(open) = self.open.get_mut(&id).filter(|open| open.is_thought_going()) else { continue };
            if open.record.ends_with(run.attempt) {
                open.run = run;
                open.stage = Stage::Recording;
                self.ended(id);
            } else {
                self.context.recorder.attempt(Attempt::last_of(&run));
            }
        }
        for attempt in found.attempts {
            let is_current =
                |open: &&mut Open| open.record.bound.as_ref().is_some_and(|bound| bound.attempt == attempt.attempt);
            let Some(open) = self.open.get_mut(&attempt.run).filter(is_current) else { continue };
            let Some(ended) = attempt.to_ended() else { continue };
            if open.is_thought_going() {
                let from = attempt.node.or(open.run.node);
                from.into_iter().for_each(|from| self.happened(attempt.run, from, Event::Ended(ended.clone())));
            } else if open.stage == Stage::LastLook && open.run.on(Event::Ended(ended)).is_ok() {
                open.stage = Stage::Recording;
                self.ended(attempt.run);
            }
        }
        let mut again = Vec::new();
        for id in found.asked {
            let Some(open) = self.open.get(&id) else { continue };
            let why = match &open.stage {
                // Whether there is another attempt is its job's to say: see `go_on_with`.
                Stage::Asking { .. } if self.is_unknown_yet(open.run.job) => continue,
                Stage::Asking { why } => why.clone(),
                Stage::LastLook if found.unanswered => {
                    again.push(id);
                    continue;
                }
                Stage::LastLook => {
                    self.close(id);
                    continue;
                }
                _ => continue,
            };
            let is_over = open.record.bound.as_ref().is_none_or(|bound| bound.exclusive);
            let last = Attempt::lost(&open.run, self.context.now(), why.clone());
            match self.delay_after(id, &last) {
                Some(delay) if is_over => self.plan(id, last, delay),
                Some(_) => self.decide(id, Verdict::Lost, format!("{why}; {MAY_GO_ON}")),
                None => self.decide(id, Verdict::Lost, why),
            }
        }
        self.look_last(again, STORE_PATIENCE);
    }

    /// The job was changed while the next attempt has no node.
    pub(super) fn judge_plan_again(&mut self, id: RunId) {
        let Some(open) = self.open.get(&id) else { return };
        let Some(next) = &open.record.next else { return };
        if self.jobs.get(open.run.job).is_none() {
            let reason = format!("its job was removed {}", open.before_what());
            return self.decide(id, Verdict::Cancelled, reason);
        }
        let last = Attempt {
            attempt: next.attempt - 1,
            state: next.outcome,
            exit_code: next.exit_code,
            abandoned: next.abandoned,
            ..Attempt::lost(&open.run, self.context.now(), String::new())
        };
        if self.delay_after(id, &last).is_none() {
            self.give_up(id, "the job's retry was changed meanwhile");
        }
    }
}

impl Open {
    /// The attempt was given up as lost, and the next one has been planned.
    pub(super) fn is_given_up(&self, attempt: u32) -> bool {
        let is_last = |next: &&Next| next.attempt == attempt + 1 && next.outcome == RunState::Lost;
        self.record.next.as_ref().filter(is_last).is_some()
    }

    fn is_thought_going(&self) -> bool {
        matches!(self.stage, Stage::Dispatched { .. } | Stage::Running | Stage::Asking { .. })
    }

    /// Why it is not to start any more, at its node or anywhere.
    pub(super) fn unwanted(&self) -> Option<String> {
        let killed = self.kill.as_ref().map(|by| format!("{by} {}", self.before_what()));
        killed.or_else(|| self.recalled.map(str::to_owned))
    }

    /// Where it stands, for a reason.
    pub(super) fn before_what(&self) -> String {
        match &self.record.next {
            None => "before it started".to_owned(),
            Some(next) => format!("while it waited for attempt {}", next.attempt),
        }
    }
}

pub(super) async fn look(store: &Store, ids: &[RunId]) -> Result<Found, StoreError> {
    let mut found = Found { attempts: store.attempts_among(ids).await?, ..Found::default() };
    for (id, _) in store.ended_among(ids).await? {
        found.ended.extend(store.run(id).await?);
    }
    Ok(found)
}
