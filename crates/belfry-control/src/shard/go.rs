//! From claimed to dispatched: may it go beside the other runs of its job, where does it go, and the order to its node. Judged at
//! the planned instant; what was found out earlier is only used when it cannot be otherwise by then.

use std::cmp::Reverse;

use belfry_core::overlap::{self, Go};
use belfry_core::run::{Event, Verdict};
use belfry_core::{JobId, RunId, Timestamp};
use belfry_proto::session::{self, RunKey};

use super::{Open, Shard, Stage};
use crate::gateway::Sent;

/// A node that has not said that it took a run is asked again after this.
const ASK_AGAIN_MS: i64 = 2_000;

/// The other runs of a job, seen from one of them.
struct Crowd {
    going: usize,
    waiting_before: usize,
}

impl Shard {
    /// A new run. With nobody before it, its node is named by the claim itself; else it waits for its instant to be judged.
    pub(super) fn enter(&mut self, mut open: Open) {
        let id = open.run.id;
        let crowd = self.crowd(open.run.job, id);
        let alone = crowd.going == 0 && crowd.waiting_before == 0;
        if (alone || self.may_run_beside(&open))
            && let Ok(bound) = self.choose(&open)
        {
            open.record.bound = Some(bound);
            open.booked = true;
        }
        self.insert(open);
        self.commit_now(id);
    }

    fn may_run_beside(&self, open: &Open) -> bool {
        open.record.manual.force
            || self.jobs.get(open.run.job).is_some_and(|slot| slot.overlap == belfry_core::job::Overlap::Allow)
    }

    /// Claimed without a node: it waits for its instant, or is judged now.
    pub(super) fn wait_or_go(&mut self, id: RunId, now: Timestamp) {
        let Some(open) = self.open.get_mut(&id) else { return };
        open.stage = Stage::Behind { judged: false };
        if open.start_at > now {
            self.to_judge.push(Reverse((open.start_at, id)));
            let job = open.run.job;
            self.next_of_job(job);
        } else {
            self.judge(id);
        }
    }

    pub(super) fn judge_due(&mut self, now: Timestamp) {
        while let Some(Reverse((_, id))) = self.to_judge.peek().filter(|Reverse((at, _))| *at <= now).copied() {
            self.to_judge.pop();
            if self.open.get(&id).is_some_and(|open| open.stage == Stage::Behind { judged: false }) {
                self.judge(id);
            }
        }
    }

    fn judge(&mut self, id: RunId) {
        let Some(open) = self.open.get(&id) else { return };
        let job = open.run.job;
        let Some(slot) = self.jobs.get(job) else {
            return self.decide(id, Verdict::Cancelled, "its job was removed before it started".to_owned());
        };
        let crowd = self.crowd(job, id);
        let go = if open.record.manual.force {
            Go::Start
        } else {
            overlap::judge(slot.overlap, crowd.going, crowd.waiting_before)
        };
        match go {
            Go::Start => self.place(id),
            Go::Wait => self.set_stage(id, Stage::Behind { judged: true }),
            Go::Replace => {
                self.set_stage(id, Stage::Behind { judged: true });
                self.replace_others(job, id);
            }
            Go::Skip { reason } => self.decide(id, Verdict::Skipped, reason),
        }
    }

    fn replace_others(&mut self, job: JobId, id: RunId) {
        for other in self.by_job.get(&job).cloned().unwrap_or_default() {
            let Some(open) = self.open.get(&other).filter(|open| open.run.id != id) else { continue };
            match open.stage {
                Stage::Behind { .. } | Stage::Homeless(_) if other < id => {
                    self.decide(other, Verdict::Skipped, "a later run replaced it (overlap is replace)".to_owned());
                }
                Stage::Dispatched { .. } | Stage::Running => {
                    self.send_kill(other, "a later run replaces it (overlap is replace)")
                }
                _ => {}
            }
        }
        self.next_of_job(job);
    }

    /// The first that waits goes when nobody is going.
    pub(super) fn next_of_job(&mut self, job: JobId) {
        let Some(runs) = self.by_job.get(&job) else { return };
        let first = runs
            .iter()
            .copied()
            .find(|id| matches!(self.open.get(id).map(|open| &open.stage), Some(Stage::Behind { .. })));
        if let Some(id) = first
            && self.crowd(job, id).going == 0
        {
            self.place(id);
        }
    }

    fn crowd(&self, job: JobId, id: RunId) -> Crowd {
        let mut crowd = Crowd { going: 0, waiting_before: 0 };
        for other in self.by_job.get(&job).into_iter().flatten().filter(|other| **other != id) {
            let Some(open) = self.open.get(other) else { continue };
            match open.stage {
                Stage::Placing | Stage::Dispatched { .. } | Stage::Running | Stage::Homeless(_) => crowd.going += 1,
                Stage::Claiming if open.record.decision.is_some() => {}
                Stage::Claiming if open.record.bound.is_some() => crowd.going += 1,
                Stage::Claiming | Stage::Behind { .. } => crowd.waiting_before += usize::from(*other < id),
                Stage::Deciding | Stage::Recording | Stage::Closing => {}
            }
        }
        crowd
    }

    fn choose(&self, open: &Open) -> Result<crate::open_run::Bound, String> {
        let document =
            self.jobs.get(open.run.job).and_then(|slot| slot.document().ok()).ok_or("its job cannot be read")?;
        self.context.nodes.place(
            &document.select,
            document.placement,
            open.run.id,
            open.record.manual.node,
            &open.not_on,
        )
    }

    /// Names a node by a commit; the order follows when it is committed.
    fn place(&mut self, id: RunId) {
        let Some(open) = self.open.get(&id) else { return };
        if self.jobs.get(open.run.job).is_none() {
            return self.decide(id, Verdict::Cancelled, "its job was removed before it started".to_owned());
        }
        let chosen = self.choose(open);
        let Some(open) = self.open.get_mut(&id) else { return };
        match chosen {
            Ok(bound) => {
                self.homeless.remove(&id);
                open.record.bound = Some(bound);
                open.booked = true;
                open.stage = Stage::Placing;
                self.commit_now(id);
            }
            Err(why) => {
                let known = matches!(&open.stage, Stage::Homeless(before) if *before == why);
                if known {
                    return;
                }
                open.run.reason = Some(why.clone());
                open.stage = Stage::Homeless(why);
                self.homeless.insert(id);
                self.context.recorder.run(open.run.clone());
                self.publish(id);
            }
        }
    }

    /// Runs without a node are tried again until `misfire.within` after their instant.
    pub(super) fn try_homeless(&mut self) {
        let now = self.context.now();
        for id in self.homeless.clone() {
            let Some(open) = self.open.get(&id) else {
                self.homeless.remove(&id);
                continue;
            };
            let Stage::Homeless(why) = &open.stage else { continue };
            let within = self.jobs.get(open.run.job).map(|slot| slot.misfire.within.get()).unwrap_or_default();
            let until = open.start_at.saturating_add(within).unwrap_or(Timestamp::MAX);
            if now > until {
                let reason = format!("{why}, until {} after its instant", belfry_core::units::Span::from(within));
                self.decide(id, Verdict::Skipped, reason);
            } else {
                self.place(id);
            }
        }
    }

    /// The commit that names its node has happened: the order may go out.
    pub(super) fn dispatch(&mut self, id: RunId) {
        let sent = self.send_order(id);
        let now = self.context.now();
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(bound) = open.record.bound.clone() else { return };
        if sent == Sent::OtherIncarnation {
            // It was never sent, so it can go elsewhere.
            open.not_on.push((bound.node, bound.incarnation));
            open.record.bound = None;
            open.booked = false;
            open.stage = Stage::Behind { judged: true };
            return self.place(id);
        }
        open.stage = Stage::Dispatched { taken: false };
        let event = Event::Dispatched {
            at: now,
            node: bound.node,
            node_name: bound.node_name,
            incarnation: bound.incarnation,
            attempt: bound.attempt,
        };
        let _ = open.run.on(event);
        open.run.reason = None;
        self.publish(id);
    }

    /// Sends the order; the same order again changes nothing at the agent, a newer revision amends it.
    pub(super) fn send_order(&mut self, id: RunId) -> Sent {
        let now = self.context.now();
        let Some(open) = self.open.get_mut(&id) else { return Sent::NotNow };
        let (Some(bound), Some(slot)) = (open.record.bound.as_ref(), self.jobs.get(open.run.job)) else {
            return Sent::NotNow;
        };
        open.run.revision = slot.revision;
        let order = session::Dispatch {
            key: Some(RunKey { run: id.to_string(), attempt: bound.attempt }),
            incarnation: bound.incarnation.0,
            shard: self.id.0.into(),
            term: self.term.0,
            fence: open.run.fence.0,
            namespace: open.run.namespace.clone(),
            job: open.run.job_name.clone(),
            revision: slot.revision,
            document: slot.document.clone(),
            planned_ms: open.run.planned.as_millisecond(),
            start_in_ms: open.start_at.as_millisecond() - now.as_millisecond(),
            start_within_ms: slot.misfire.within.get().as_millis() as u64,
            env: open.record.manual.env.clone().into_iter().collect(),
        };
        let sent = self.context.sessions.order(bound.node, bound.incarnation, order.into());
        open.order_sent = (sent == Sent::Yes).then_some(now);
        sent
    }

    /// Orders that could not be sent or were not answered, and kills that have not worked yet, are sent again.
    pub(super) fn send_again(&mut self) {
        let now_ms = self.context.now().as_millisecond();
        let mut unanswered = Vec::new();
        let mut dying = Vec::new();
        for (id, open) in &self.open {
            let is_overdue = open.order_sent.is_none_or(|at| now_ms - at.as_millisecond() > ASK_AGAIN_MS);
            if open.stage == (Stage::Dispatched { taken: false }) && is_overdue {
                unanswered.push(*id);
            }
            if let Some(by) =
                open.kill.as_ref().filter(|_| matches!(open.stage, Stage::Dispatched { .. } | Stage::Running))
            {
                dying.push((*id, by.clone()));
            }
        }
        for id in unanswered {
            self.send_order(id);
        }
        for (id, by) in dying {
            self.send_kill(id, &by);
        }
    }

    pub(super) fn send_kill(&mut self, id: RunId, reason: &str) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(bound) = &open.record.bound else { return };
        open.kill = Some(reason.to_owned());
        let order = session::Kill {
            key: Some(RunKey { run: id.to_string(), attempt: bound.attempt }),
            shard: self.id.0.into(),
            term: self.term.0,
            grace_ms: 0,
            reason: reason.to_owned(),
        };
        self.context.sessions.order(bound.node, bound.incarnation, order.into());
    }

    pub(super) fn set_stage(&mut self, id: RunId, stage: Stage) {
        if let Some(open) = self.open.get_mut(&id) {
            open.stage = stage;
        }
    }
}
