//! Services: always running, on one node, never two at once. A service is a job whose next run is due when its last one has ended, so
//! claim, dispatch, takeover and the end of exclusive work are those of any run, and a move is an end that is followed by a start elsewhere:
//! nothing is placed before the end of the one before it is known, or its node is held dead.

use std::collections::HashMap;
use std::time::Duration;

use belfry_core::place::{LastNode, why_not_selected};
use belfry_core::run::{RunState, Verdict};
use belfry_core::service::Ended;
use belfry_core::{JobId, NodeId, RunId, Timestamp};

use super::{Shard, Stage};
use crate::error::ControlError;

/// What is remembered of a service while this server owns it.
#[derive(Default)]
pub(super) struct Kept {
    /// Ends in a row after a short time.
    quick_ends: u32,
    /// Each run has an instant of its own, and with it an id.
    last_planned: Option<Timestamp>,
    next: Next,
}

/// Where its next run goes, if somebody has said so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Next {
    #[default]
    Anywhere,
    To(NodeId),
    AwayFrom(NodeId),
}

pub(super) type Services = HashMap<JobId, Kept>;

const MILLISECOND: Duration = Duration::from_millis(1);

impl Shard {
    /// Starts the services that do not run, and stops what is not as it is wanted. May be called at any time.
    pub(super) fn keep_services(&mut self) {
        if !self.loaded {
            return;
        }
        let now = self.context.now();
        for job in self.jobs.services() {
            let is_off = self.jobs.get(job).is_some_and(|slot| slot.enabled && slot.next().is_none());
            if is_off && !self.is_going(job, None) {
                self.jobs.service_due(job, now);
            }
        }
        let unwanted: Vec<(RunId, String)> =
            self.open.keys().filter_map(|id| Some((*id, self.why_stop_service(*id)?))).collect();
        for (id, why) in unwanted {
            self.stop_service(id, why);
        }
    }

    /// A run of the job that has not come to its end, beside this one.
    fn is_going(&self, job: JobId, beside: Option<RunId>) -> bool {
        let runs = self.by_job.get(&job).into_iter().flatten();
        runs.filter(|run| Some(**run) != beside).any(|run| self.has_not_ended(*run))
    }

    fn why_stop_service(&self, id: RunId) -> Option<String> {
        let open = self.open.get(&id).filter(|open| open.kill.is_none())?;
        if self.outdated.contains(&open.run.job) {
            return None;
        }
        let started_as = open.record.service?;
        let Some(slot) = self.jobs.get(open.run.job) else { return Some("its job was removed".to_owned()) };
        let rule = slot.service.filter(|_| slot.enabled);
        let Some(rule) = rule else { return Some("its job was paused".to_owned()) };
        let bound = open.record.bound.as_ref()?;
        if rule.digest != started_as {
            return Some("its definition was changed, and it starts again".to_owned());
        }
        let node = self.context.nodes.candidate(bound.node)?;
        let select = slot.document().ok()?.select;
        let why = why_not_selected(&select, &node)?;
        Some(format!("it moves to another node ({}: {})", bound.node_name, why.in_words()))
    }

    fn stop_service(&mut self, id: RunId, why: String) {
        match self.open.get(&id).map(|open| &open.stage) {
            Some(Stage::Dispatched { .. } | Stage::Running) => self.send_kill(id, &why),
            Some(Stage::Claiming | Stage::Placing | Stage::Behind { .. } | Stage::Homeless(_)) => {
                self.decide(id, Verdict::Cancelled, why);
            }
            // Its end is near anyway.
            _ => {}
        }
    }

    /// When the next run is planned: as soon as it is due, and never at an instant that a former run had. A new owner does not know that one,
    /// but that it is not beyond the cursor.
    pub(super) fn service_instant(&self, job: JobId, due: Timestamp) -> Timestamp {
        let last = self.services.get(&job).and_then(|kept| kept.last_planned).unwrap_or(self.cursor.at);
        // Not after it is due: fires have their turn in the order in which they are due.
        let whole_ms = Timestamp::from_millisecond(due.as_millisecond()).unwrap_or(due);
        whole_ms.max(last.saturating_add(MILLISECOND).unwrap_or(Timestamp::MAX))
    }

    pub(super) fn service_planned(&mut self, job: JobId, planned: Timestamp) {
        self.services.entry(job).or_default().last_planned = Some(planned);
    }

    /// Where somebody wants its next run, asked once.
    pub(super) fn service_goes(&mut self, job: JobId) -> Next {
        self.services.get_mut(&job).map(|kept| std::mem::take(&mut kept.next)).unwrap_or_default()
    }

    /// A run of a service has its end: the next one is due.
    pub(super) fn service_ended(&mut self, id: RunId) {
        let now = self.context.now();
        let Some(open) = self.open.get(&id).filter(|open| open.record.service.is_some()) else { return };
        let (job, state, abandoned) = (open.run.job, open.run.state, open.abandoned);
        let at = open.run.node.zip(open.run.incarnation);
        let ran = open.run.started_at.zip(open.run.ended_at).map(|(from, to)| to.duration_since(from));
        let ran = ran.and_then(|ran| Duration::try_from(ran).ok()).unwrap_or_default();
        // Its end may be told a second time, when `lost` is corrected.
        if self.is_going(job, Some(id)) {
            return;
        }
        let Some(rule) = self.jobs.get(job).and_then(|slot| slot.service) else { return };
        let kept = self.services.entry(job).or_default();
        let (delay, quick_ends) = rule.next_start(kept.quick_ends, Ended::of(state, ran, abandoned));
        kept.quick_ends = quick_ends;
        if let Some((node, incarnation)) = at {
            self.last_nodes.insert(job, LastNode { node, planned: now });
            // One that is held dead, or was cut off, may still have a session here, and could not start it.
            let is_doubtful = state == RunState::Lost || abandoned;
            if is_doubtful && kept.next == Next::Anywhere && self.context.nodes.incarnation(node) == Some(incarnation) {
                kept.next = Next::AwayFrom(node);
            }
        }
        self.jobs.service_due(job, now.saturating_add(delay).unwrap_or(Timestamp::MAX));
    }

    /// The node is asked to end it, and when it has, it starts on another one: on `to`, if somebody says so.
    pub(super) fn move_service(&mut self, job: JobId, to: Option<NodeId>, by: &str) -> Result<RunId, ControlError> {
        let slot = self.jobs.get(job).ok_or(ControlError::NoSuchJob(job))?;
        if slot.service.is_none() {
            return Err(ControlError::NotAService);
        }
        let is_going = |id: &&RunId| {
            let stage = self.open.get(id).map(|open| &open.stage);
            matches!(stage, Some(Stage::Dispatched { .. } | Stage::Running))
        };
        let id = self.by_job.get(&job).into_iter().flatten().find(is_going).copied().ok_or(ControlError::NotRunning)?;
        let from = self.open.get(&id).and_then(|open| open.record.bound.as_ref()).map(|bound| bound.node);
        let select = slot.document().map(|document| document.select).unwrap_or_default();
        let mut others = self.context.nodes.candidates().into_iter().filter(|node| Some(node.id) != from);
        let is_fit = |node: &belfry_core::place::Candidate| {
            node.connected && node.weight > 0 && why_not_selected(&select, node).is_none()
        };
        let next = match (to, from) {
            (Some(to), _) if others.any(|node| node.id == to && is_fit(&node)) => Next::To(to),
            (Some(_), _) => return Err(ControlError::CannotMoveThere),
            (None, Some(from)) if others.any(|node| is_fit(&node)) => Next::AwayFrom(from),
            (None, _) => return Err(ControlError::NowhereToMove),
        };
        self.services.entry(job).or_default().next = next;
        self.send_kill(id, &format!("moved to another node by {by}"));
        Ok(id)
    }
}
