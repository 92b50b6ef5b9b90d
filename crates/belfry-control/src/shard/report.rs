//! What agents say about runs, and what the coming and going of nodes means for them.

use std::collections::HashMap;

use belfry_core::run::{Ended, Event, RunState, Verdict};
use belfry_core::{Incarnation, NodeId, RunId, Timestamp};
use belfry_proto::session::{self, RunKey, Stored};

use crate::open_run::Bound;

use super::{Found, Gone, LOOK_INTO_STORE_EVERY, NodeReport, Shard, ShardMessage, Stage, retry};

impl Shard {
    /// A refusal is remembered by the agent for ever, so the run may go elsewhere. It is said as often as the order was sent: the second one
    /// may come when the run is another node's.
    pub(super) fn taken(&mut self, id: RunId, attempt: u32, from: (NodeId, Incarnation), refused: Option<String>) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let is_asked = |bound: &Bound| bound.attempt == attempt && (bound.node, bound.incarnation) == from;
        let Some(bound) = open.record.bound.clone().filter(is_asked) else { return };
        if !matches!(open.stage, Stage::Dispatched { .. }) {
            return;
        }
        match (refused, open.unwanted()) {
            (None, _) => open.stage = Stage::Dispatched { taken: true },
            // It will not start there, and is not to start anywhere.
            (Some(_), Some(unwanted)) => self.decide(id, Verdict::Cancelled, unwanted),
            (Some(why), None) => {
                tracing::warn!(run = %id, node = %bound.node_name, "the node refused the run: {why}");
                open.record.bound = None;
                open.not_on.push((bound.node, bound.incarnation));
                open.stage = Stage::Homeless(format!("{} refused it: {why}", bound.node_name));
                self.homeless.insert(id);
                self.place(id);
            }
        }
    }

    pub(super) fn happened(&mut self, id: RunId, from: NodeId, event: Event) {
        let bound = self.open.get(&id).and_then(|open| open.record.bound.as_ref());
        if bound.is_some_and(|bound| bound.node != from && event.attempt() == Some(bound.attempt)) {
            tracing::warn!(run = %id, node = %from, "a node tells of an attempt that another one has; it is ignored");
            return;
        }
        let job = self.open.get(&id).map(|open| open.run.job);
        let event = match event {
            // What follows from its end is the job's to say.
            Event::Ended(ended) if job.is_some_and(|job| self.is_unknown_yet(job)) => {
                self.early.insert((id, ended.attempt), (from, ended));
                return;
            }
            Event::Ended(ended) => match self.end_after_saving(id, from, ended) {
                Some(ended) => Event::Ended(ended),
                None => return,
            },
            event => event,
        };
        let Some(open) = self.open.get_mut(&id) else { return };
        let going = open.record.bound.as_ref().map(|bound| bound.attempt);
        match (event, &open.stage) {
            (Event::Ended(ended), Stage::Dispatched { .. } | Stage::Running | Stage::Asking { .. })
                if going == Some(ended.attempt) =>
            {
                self.attempt_ended(id, ended);
            }
            (Event::Ended(ended), Stage::Deciding | Stage::Recording | Stage::LastLook | Stage::Closing) => {
                self.ended_again(id, from, ended);
            }
            (Event::Ended(ended), _) => self.late_result(id, from, ended),
            (event @ Event::Overdue { .. }, Stage::Running) if open.run.on(event.clone()).is_ok() => {
                self.context.recorder.run(open.run.clone());
                self.publish(id);
            }
            (Event::Overdue { .. }, _) => {}
            (event, Stage::Dispatched { .. }) if open.run.on(event.clone()).is_ok() => {
                open.stage = Stage::Running;
                self.context.recorder.run(open.run.clone());
                self.publish(id);
            }
            _ => {}
        }
    }

    /// A result of a run that has its end, or is being decided: it corrects `lost`, or the agent missed that it is stored.
    fn ended_again(&mut self, id: RunId, from: NodeId, ended: Ended) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let is_old = open.run.state == RunState::Waiting && !open.is_given_up(ended.attempt);
        let is_decided = open.run.state.is_ended();
        if ended.attempt < open.run.attempt || is_old || (ended.is_attempt_not_made() && !is_decided) {
            return self.late_result(id, from, ended);
        }
        let attempt = ended.attempt;
        if open.run.on(Event::Ended(ended)).is_ok() {
            open.stage = Stage::Recording;
            self.ended(id);
        } else if open.stage == Stage::Closing {
            let keys = vec![RunKey { run: id.to_string(), attempt }];
            self.context.sessions.tell(from, Stored { keys }.into());
        }
    }

    /// The same incarnation goes on with what it has, and gets what it missed. A new one will never start an old order, so what
    /// the old one neither finished nor reports is lost.
    pub(super) fn node_arrived(&mut self, report: &NodeReport) {
        let of_node = |open: &super::Open| open.record.bound.as_ref().is_some_and(|bound| bound.node == report.node);
        let runs: Vec<RunId> = self.open.iter().filter(|(_, open)| of_node(open)).map(|(id, _)| *id).collect();
        let mut lost = Vec::new();
        for id in runs {
            let Some(open) = self.open.get_mut(&id) else { continue };
            let Some(bound) = open.record.bound.clone() else { continue };
            if !matches!(open.stage, Stage::Dispatched { .. } | Stage::Running) {
                continue;
            }
            let key = (id, bound.attempt);
            let has = report.running.contains(&key) || report.finished.contains(&key);
            if bound.incarnation == report.incarnation {
                if has && open.stage != Stage::Running {
                    open.stage = Stage::Dispatched { taken: true };
                }
                // Also if it has it: the order tells the agent who owns the run now, and that one is told how it goes on.
                self.send_order(id);
            } else if report.incarnation < bound.incarnation {
                // A session that is not known yet to have ended tells nothing of what a later incarnation does.
            } else if report.finished.contains(&key) {
                // It may have told a server that knows nothing of the run.
                if let Some(reminder) = self.order(id) {
                    self.context.sessions.tell(report.node, session::Dispatch { reminder: true, ..reminder }.into());
                }
            } else {
                if belfry_core::planted::is("order_not_bound_to_incarnation") {
                    open.record.bound = Some(Bound { incarnation: report.incarnation, ..bound });
                    self.send_order(id);
                    continue;
                }
                if belfry_core::planted::is("lost_run_is_forgotten") {
                    open.stage = Stage::Closing;
                    self.commit_by_and_by(id);
                    continue;
                }
                lost.push((id, started_again(&report.name)));
            }
        }
        self.lost(lost);
        self.try_homeless();
    }

    /// An agent that was cut off from here, or that was told by a former owner that all is stored, tells this server nothing more
    /// of a run. So the store is asked for the end of those that go on for long; with a single server there is no other to tell.
    pub(super) fn look_into_store(&mut self, now: Timestamp) {
        let never =
            self.context.coordinator.sole_user() || belfry_core::planted::is("owner_never_looks_into_the_store");
        if now < self.look_into_store_at || never {
            return;
        }
        self.look_into_store_at = next_look_into_store(now);
        let long_ago = now.saturating_sub(LOOK_INTO_STORE_EVERY).unwrap_or(Timestamp::MIN);
        let goes_on = |open: &super::Open| {
            matches!(open.stage, Stage::Dispatched { .. } | Stage::Running)
                && open.run.dispatched_at.is_none_or(|at| at < long_ago)
        };
        let ids: Vec<RunId> = self.open.iter().filter(|(_, open)| goes_on(open)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        self.record_what_others_will_hear_of(&ids);
        // One look at a time, however long the store takes: the next one follows its answer.
        self.look_into_store_at = Timestamp::MAX;
        let (context, shard) = (self.context.clone(), self.id);
        self.context.tasks.spawn("look into the store", async move {
            let found = retry::look(&context.store, &ids).await.unwrap_or_else(|cause| {
                context.store_health.away(context.now(), crate::chain(&cause));
                Found::default()
            });
            if let Some(inbox) = context.shards.inbox(shard) {
                let _ = inbox.send(ShardMessage::Found(Box::new(found))).await;
            }
        });
    }

    /// A server that is told the end of a run puts it into the store only if the store knows the run. Of one whose start was never told here
    /// it does not, as long as its node cannot come here.
    fn record_what_others_will_hear_of(&mut self, ids: &[RunId]) {
        for id in ids {
            let Some(open) = self.open.get_mut(id) else { continue };
            let Some(bound) = &open.record.bound else { continue };
            let is_here = self.context.sessions.incarnation(bound.node) == Some(bound.incarnation);
            let is_recorded = open.recorded_for_others == Some(bound.attempt);
            if !is_here && !is_recorded && matches!(open.stage, Stage::Dispatched { .. }) {
                open.recorded_for_others = Some(bound.attempt);
                self.context.recorder.run(open.run.clone());
            }
        }
    }

    pub(super) fn nodes_gone(&mut self, nodes: &HashMap<NodeId, Gone>) {
        let why = |open: &super::Open| {
            let bound = open.record.bound.as_ref()?;
            let gone = nodes.get(&bound.node)?;
            matches!(open.stage, Stage::Dispatched { .. } | Stage::Running).then_some(())?;
            if bound.incarnation < gone.newest {
                return Some(started_again(&bound.node_name));
            }
            let is_gone = bound.incarnation == gone.newest && gone.is_lost;
            is_gone.then(|| format!("node {} was silent for longer than the TTL", bound.node_name))
        };
        let runs = self.open.iter().filter_map(|(id, open)| Some((*id, why(open)?))).collect();
        self.lost(runs);
    }
}

fn started_again(node: &str) -> String {
    format!("the agent on {node} ended while it had the run, and was started again")
}

pub(super) fn next_look_into_store(now: Timestamp) -> Timestamp {
    now.saturating_add(LOOK_INTO_STORE_EVERY).unwrap_or(Timestamp::MAX)
}
