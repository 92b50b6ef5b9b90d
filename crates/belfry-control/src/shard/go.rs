//! From claimed to dispatched: may it go beside the other runs of its job, where does it go, and the order to its node. Judged at
//! the planned instant; what was found out earlier is only used when it cannot be otherwise by then.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use belfry_core::job::{Action, RetryWhere, Select};
use belfry_core::job_table::JobSlot;
use belfry_core::overlap::{self, Go};
use belfry_core::place::{Asked, By, Decision, LastNode, NAMED_IN_RECORDS};
use belfry_core::run::{Event, Verdict};
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_proto::session::{self, RunKey};

use super::service::Next;
use super::{Open, Shard, Stage};
use crate::gateway::Sent;
use crate::machine;
use crate::open_run::Bound;
use crate::scripts;

/// A node that has not said that it took a run is asked again after this.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// A service that waits at its node has no time at which it is not wanted any more.
const SERVICE_WAITS_MS: u64 = 10 * 365 * 86_400_000;

/// Of a run whose job came after what this server has on its disk.
const UNKNOWN_YET: &str = "the store is away, and this server does not know the job without it";
const NOT_LOADED: &str = "its shard has a new owner, which still reads its jobs";

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
            && let Ok((Some(bound), decision, _)) = self.choose(&open)
        {
            let last = bind(&mut open, bound, decision);
            self.remember(last);
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
            match self.open.get(&id).map(|open| (&open.stage, open.start_at)) {
                Some((Stage::Behind { judged: false }, _)) => self.judge(id),
                // Not at the instant of an attempt that ended before it.
                Some((Stage::Waiting, start_at)) if start_at <= now => self.go_again(id),
                _ => {}
            }
        }
    }

    fn judge(&mut self, id: RunId) {
        let Some(open) = self.open.get(&id) else { return };
        let job = open.run.job;
        let Some(slot) = self.jobs.get(job) else {
            if self.is_unknown_yet(job) {
                return self.waits_for(id, self.why_unknown().to_owned());
            }
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
            Go::Wait => {
                self.set_stage(id, Stage::Behind { judged: true });
                self.waits_for(id, "overlap is queue: it waits for those before it to end".to_owned());
            }
            Go::Replace => {
                self.set_stage(id, Stage::Behind { judged: true });
                self.waits_for(id, "overlap is replace: it waits for the one before it to end".to_owned());
                self.replace_others(job, id);
            }
            Go::Skip { reason } => self.decide(id, Verdict::Skipped, reason),
        }
    }

    fn replace_others(&mut self, job: JobId, id: RunId) {
        for other in self.by_job.get(&job).cloned().unwrap_or_default() {
            let Some(open) = self.open.get(&other).filter(|open| open.run.id != id) else { continue };
            match open.stage {
                Stage::Waiting | Stage::Planning | Stage::Homeless(_) if open.record.next.is_some() => {
                    let reason = format!("a later run replaced it {} (overlap is replace)", open.before_what());
                    self.decide(other, Verdict::Cancelled, reason);
                }
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

    /// The next attempt of a run. Several runs of a job can be between two attempts, when all of them were lost together: where they may
    /// not run beside each other, the earliest has its turn first.
    fn go_again(&mut self, id: RunId) {
        // Who takes the shard next starts what comes due when this server stops.
        let Some(open) = self.open.get(&id).filter(|_| !self.releasing && !self.context.is_stopping()) else { return };
        let is_before = |other: &RunId| match self.open.get(other).map(|open| &open.stage) {
            Some(Stage::Waiting | Stage::Planning) => *other < id,
            _ => *other != id && self.has_turn(*other),
        };
        if self.may_run_beside(open) || !self.by_job.get(&open.run.job).into_iter().flatten().any(is_before) {
            self.place(id);
        }
    }

    /// What is to start again goes first, and then the first that waits when nobody is going.
    pub(super) fn next_of_job(&mut self, job: JobId) {
        if !self.loaded {
            return; // all are looked at when the jobs are here
        }
        let now = self.context.now();
        let first = |may_be: fn(&Open, Timestamp) -> bool| {
            let runs = self.by_job.get(&job).into_iter().flatten();
            runs.copied().find(|id| self.open.get(id).is_some_and(|open| may_be(open, now)))
        };
        if let Some(id) = first(|open, now| open.stage == Stage::Waiting && open.start_at <= now) {
            self.go_again(id);
        } else if let Some(id) = first(|open, _| matches!(open.stage, Stage::Behind { .. }))
            && self.crowd(job, id).going == 0
        {
            self.place(id);
        }
    }

    /// It is going, or about to, or between two attempts.
    fn has_turn(&self, id: RunId) -> bool {
        let Some(open) = self.open.get(&id) else { return false };
        match open.stage {
            Stage::Placing | Stage::Dispatched { .. } | Stage::Running | Stage::Homeless(_) => true,
            Stage::Asking { .. } | Stage::Planning | Stage::Waiting => true,
            Stage::Claiming => open.record.decision.is_none() && open.record.bound.is_some(),
            Stage::Behind { .. } | Stage::Deciding | Stage::Recording | Stage::LastLook | Stage::Closing => false,
        }
    }

    fn crowd(&self, job: JobId, id: RunId) -> Crowd {
        let mut crowd = Crowd { going: 0, waiting_before: 0 };
        for other in self.by_job.get(&job).into_iter().flatten().filter(|other| **other != id) {
            let Some(open) = self.open.get(other) else { continue };
            match open.stage {
                _ if self.has_turn(*other) => crowd.going += 1,
                Stage::Claiming if open.record.decision.is_some() => {}
                Stage::Claiming | Stage::Behind { .. } => crowd.waiting_before += usize::from(*other < id),
                _ => {}
            }
        }
        crowd
    }

    /// The node, booked, and why it; or why none. With it what `retry.where` adds to that.
    fn choose(&self, open: &Open) -> Result<(Option<Bound>, Arc<Decision>, &'static str), String> {
        let slot = self.jobs.get(open.run.job).ok_or("its job cannot be read")?;
        let document = slot.document().map_err(|_| "its job cannot be read")?;
        let rule_of_placement = document.effective_placement();
        let mut select = document.select;
        let mut wanted = open.record.manual.node;
        // Whoever names a node for a run means all of its attempts.
        let last_attempt = open.record.next.as_ref().filter(|_| wanted.is_none()).and_then(|next| next.node);
        let rule = document.retry.map(|retry| retry.on_node).unwrap_or_default();
        let retried = match (last_attempt, rule) {
            (Some(last), RetryWhere::Same) => {
                wanted = Some(last);
                "retry.where is same, and "
            }
            (Some(last), RetryWhere::Other) => {
                select.exclude.push(last.to_string());
                "retry.where is other, and "
            }
            (Some(_), RetryWhere::Any) | (None, _) => "",
        };
        let place = |select: &Select, wanted: Option<NodeId>| {
            self.context.nodes.place(&Asked {
                job: open.run.job,
                run: open.run.id,
                planned: open.run.planned,
                select,
                needs: slot.needs(),
                rule: rule_of_placement,
                wanted,
                refused_by: &open.not_on,
                last: self.last_nodes.get(&open.run.job).copied(),
                named_max: NAMED_IN_RECORDS,
                takes_slot: open.record.service.is_none(),
            })
        };
        // Where somebody has moved a service to, if that is possible; it had better run elsewhere than not at all.
        let moved = match open.goes {
            Next::Anywhere => None,
            Next::To(node) => Some(place(&select, Some(node))),
            Next::AwayFrom(node) => {
                let mut others = select.clone();
                others.exclude.push(node.to_string());
                Some(place(&others, wanted))
            }
        };
        let (bound, decision) = moved.filter(|(bound, _)| bound.is_some()).unwrap_or_else(|| place(&select, wanted));
        let bound = bound.map(|bound| Bound { attempt: open.record.attempt(), exclusive: slot.exclusive, ..bound });
        Ok((bound, Arc::new(decision), retried))
    }

    /// Of a sticky job; a run that waited for long does not outdate a later one.
    pub(super) fn remember(&mut self, placed: Option<(JobId, LastNode)>) {
        let Some((job, last)) = placed else { return };
        let known = self.last_nodes.entry(job).or_insert(last);
        if known.planned <= last.planned {
            *known = last;
        }
    }

    /// Names a node by a commit; the order follows when it is committed.
    pub(super) fn place(&mut self, id: RunId) {
        let Some(open) = self.open.get(&id) else { return };
        let is_unknown_yet = self.is_unknown_yet(open.run.job);
        if self.jobs.get(open.run.job).is_none() && !is_unknown_yet {
            let reason = format!("its job was removed {}", open.before_what());
            return self.decide(id, Verdict::Cancelled, reason);
        }
        let chosen = if is_unknown_yet { Err(self.why_unknown().to_owned()) } else { self.choose(open) };
        let slot = self.jobs.get(open.run.job);
        let (revision, service) = (slot.map(|slot| slot.revision), slot.and_then(|slot| Some(slot.service?.digest)));
        let Some(open) = self.open.get_mut(&id) else { return };
        let why = match chosen {
            Ok((Some(bound), decision, _)) => {
                self.homeless.remove(&id);
                open.stage = Stage::Placing;
                open.record.revision = revision.unwrap_or(open.record.revision);
                open.record.service = open.record.service.and(service);
                let last = bind(open, bound, decision);
                self.remember(last);
                return self.commit_now(id);
            }
            Ok((None, decision, retried)) => {
                let why = format!("{retried}{}", decision.why_nowhere());
                open.run.placement = Some(decision);
                why
            }
            Err(why) => why,
        };
        open.stage = Stage::Homeless(why.clone());
        self.homeless.insert(id);
        self.waits_for(id, why);
    }

    fn why_unknown(&self) -> &'static str {
        if self.loaded { UNKNOWN_YET } else { NOT_LOADED }
    }

    /// Whoever looks sees what a claimed run waits for.
    fn waits_for(&mut self, id: RunId, why: String) {
        let Some(open) = self.open.get_mut(&id).filter(|open| open.run.reason.as_ref() != Some(&why)) else { return };
        open.run.reason = Some(why);
        self.context.recorder.run(open.run.clone());
        self.publish(id);
    }

    /// Runs without a node are tried again until `misfire.within` after their instant.
    pub(super) fn try_homeless(&mut self) {
        let now = self.context.now();
        if !self.context.trusts_clock() {
            return;
        }
        for id in self.homeless.clone() {
            let Some(open) = self.open.get(&id) else {
                self.homeless.remove(&id);
                continue;
            };
            let Stage::Homeless(why) = &open.stage else { continue };
            if self.is_unknown_yet(open.run.job) {
                continue;
            }
            let within = self.jobs.get(open.run.job).map(|slot| slot.misfire.within.get()).unwrap_or_default();
            let until = open.start_at.saturating_add(within).unwrap_or(Timestamp::MAX);
            if now > until && open.record.service.is_none() {
                let within = belfry_core::units::Span::from(within);
                let reason = format!("{why}; it waited for {within} after its instant (misfire.within)");
                match open.record.next {
                    None => self.decide(id, Verdict::Skipped, reason),
                    Some(_) => self.give_up(id, &reason),
                }
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
            self.context.nodes.void(bound.node, id);
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

    /// Sends the order, or that it is recalled; the same again changes nothing at the agent, a newer revision amends an order.
    pub(super) fn send_order(&mut self, id: RunId) -> Sent {
        let recall = self.recall(id);
        let order = if recall.is_none() { self.order(id) } else { None };
        let (now, knows_the_time) = (self.context.now(), self.context.knows_the_time());
        let sent_at = self.context.clock.boottime();
        let Some(open) = self.open.get_mut(&id) else { return Sent::NotNow };
        let Some(bound) = open.record.bound.as_ref() else { return Sent::NotNow };
        let message = match (recall, order) {
            (Some(recall), _) => recall.into(),
            // How long its node is to wait is not known: it may come out as hours.
            (None, Some(_)) if open.start_at > now && !knows_the_time => return Sent::NotNow,
            (None, Some(order)) => {
                open.run.revision = order.revision;
                order.into()
            }
            (None, None) => return Sent::NotNow,
        };
        let sent = self.context.sessions.order(bound.node, bound.incarnation, message);
        open.order_sent = (sent == Sent::Yes).then_some(sent_at);
        sent
    }

    /// The agent ends it as cancelled if it has not started, and refuses an order that it has not seen yet; its word is what is recorded.
    fn recall(&self, id: RunId) -> Option<session::Recall> {
        let open = self.open.get(&id)?;
        let (bound, why) = (open.record.bound.as_ref()?, open.recalled?);
        Some(session::Recall {
            key: Some(RunKey { run: id.to_string(), attempt: bound.attempt }),
            shard: self.id.0.into(),
            term: self.term.0,
            outcome: "cancelled".to_owned(),
            reason: why.to_owned(),
        })
    }

    /// None: it has no node, or its job is gone.
    pub(super) fn order(&self, id: RunId) -> Option<session::Dispatch> {
        let open = self.open.get(&id)?;
        let (bound, slot) = (open.record.bound.as_ref()?, self.jobs.get(open.run.job)?);
        Some(session::Dispatch {
            key: Some(RunKey { run: id.to_string(), attempt: bound.attempt }),
            incarnation: bound.incarnation.0,
            shard: self.id.0.into(),
            term: self.term.0,
            fence: open.run.fence.0,
            namespace: open.run.namespace.clone(),
            job: open.run.job_name.clone(),
            revision: slot.revision,
            document: slot.document_with(self.context.config.default_timeout.as_ref()),
            planned_ms: open.run.planned.as_millisecond(),
            start_in_ms: open.start_at.as_millisecond() - self.context.now().as_millisecond(),
            start_within_ms: match slot.service {
                None => slot.misfire.within.get().as_millis() as u64,
                Some(_) => SERVICE_WAITS_MS,
            },
            env: open.record.manual.env.clone().into_iter().collect(),
            reminder: matches!(open.stage, Stage::Running | Stage::Dispatched { taken: true }),
            exclusive: bound.exclusive,
            job_id: open.run.job.to_string(),
            beside: open.record.manual.force,
            service: slot.service.is_some(),
            script: self.script_of(open, slot),
            state: self.states.values(open.run.job).cloned().unwrap_or_default().into_iter().collect(),
            needs: machine::needs(slot.needs()),
        })
    }

    /// Of a job that names a stored one: as it is now.
    fn script_of(&self, open: &Open, slot: &JobSlot) -> Option<session::Script> {
        // Most jobs have none, and are not read for it.
        scripts::is_named_in(&slot.document).then_some(())?;
        match slot.document().ok()?.action {
            Action::Script(script) => self.context.scripts.for_agent(&open.run.namespace, &script.name?),
            _ => None,
        }
    }

    /// Orders that could not be sent or were not answered, and kills that have not worked yet, are sent again.
    pub(super) fn send_again(&mut self) {
        let now = self.context.clock.boottime();
        let mut unanswered = Vec::new();
        let mut dying = Vec::new();
        for (id, open) in &self.open {
            let is_overdue = open.order_sent.is_none_or(|at| now.saturating_sub(at) > ASK_AGAIN_AFTER);
            let awaits_answer = match open.stage {
                Stage::Dispatched { taken } => !taken || open.recalled.is_some(),
                _ => false,
            };
            // A node that has it from a former owner tells that one of it, until it hears from this one.
            let was_kept = open.order_sent.is_none() && matches!(open.stage, Stage::Dispatched { .. } | Stage::Running);
            if was_kept || awaits_answer && is_overdue {
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
            local: false,
        };
        self.context.sessions.order(bound.node, bound.incarnation, order.into());
    }

    pub(super) fn set_stage(&mut self, id: RunId, stage: Stage) {
        if let Some(open) = self.open.get_mut(&id) {
            open.stage = stage;
        }
    }
}

/// Where the job was placed, if the next run of it is to know.
fn bind(open: &mut Open, bound: Bound, decision: Arc<Decision>) -> Option<(JobId, LastNode)> {
    let is_sticky = matches!(decision.by, By::LastNode | By::Anew);
    let last = LastNode { node: bound.node, planned: open.run.planned };
    open.record.bound = Some(bound);
    open.run.placement = Some(decision);
    is_sticky.then_some((open.run.job, last))
}
