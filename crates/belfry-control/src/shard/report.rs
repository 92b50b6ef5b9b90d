//! What agents say about runs, and what the coming and going of nodes means for them.

use belfry_core::run::{Event, Run, Verdict};
use belfry_core::{Incarnation, NodeId, RunId, Timestamp};
use belfry_proto::session::{RunKey, Stored};
use belfry_store::StoreError;

use super::{LOOK_INTO_STORE_EVERY, NodeReport, Shard, ShardMessage, Stage};
use crate::context::Context;

impl Shard {
    /// A refusal is remembered by the agent for ever, so the run may go elsewhere.
    pub(super) fn taken(&mut self, id: RunId, attempt: u32, refused: Option<String>) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let Some(bound) = open.record.bound.clone().filter(|bound| bound.attempt == attempt) else { return };
        if !matches!(open.stage, Stage::Dispatched { .. }) {
            return;
        }
        match refused {
            None => open.stage = Stage::Dispatched { taken: true },
            Some(why) => {
                tracing::warn!(run = %id, node = %bound.node_name, "the node refused the run: {why}");
                self.context.nodes.freed(bound.node, bound.incarnation);
                open.booked = false;
                open.record.bound = None;
                open.not_on.push((bound.node, bound.incarnation));
                open.stage = Stage::Homeless(format!("{} refused it: {why}", bound.node_name));
                self.homeless.insert(id);
                self.try_homeless();
            }
        }
    }

    pub(super) fn happened(&mut self, id: RunId, event: Event) {
        let Some(open) = self.open.get_mut(&id) else { return };
        let ends = matches!(event, Event::Ended(_));
        if open.run.on(event).is_err() {
            if ends && open.stage == Stage::Closing {
                // The store has it; the agent missed that it was told.
                if let Some(node) = open.run.node {
                    let keys = vec![RunKey { run: id.to_string(), attempt: open.run.attempt }];
                    self.context.sessions.tell(node, Stored { keys }.into());
                }
            }
            return;
        }
        if ends {
            open.stage = Stage::Recording;
            self.ended(id);
        } else {
            open.stage = Stage::Running;
            self.context.recorder.run(open.run.clone());
            self.publish(id);
        }
    }

    /// The same incarnation goes on with what it has, and gets what it missed. A new one will never start an old order, so what
    /// the old one neither finished nor reports is lost.
    pub(super) fn node_arrived(&mut self, report: &NodeReport) {
        let of_node = |open: &super::Open| open.record.bound.as_ref().is_some_and(|bound| bound.node == report.node);
        let runs: Vec<RunId> = self.open.iter().filter(|(_, open)| of_node(open)).map(|(id, _)| *id).collect();
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
            } else if !report.finished.contains(&key) {
                if belfry_core::planted::is("order_not_bound_to_incarnation") {
                    open.record.bound = Some(crate::open_run::Bound { incarnation: report.incarnation, ..bound });
                    self.send_order(id);
                    continue;
                }
                if belfry_core::planted::is("lost_run_is_forgotten") {
                    open.stage = Stage::Closing;
                    self.commit_by_and_by(id);
                    continue;
                }
                let reason = format!("the agent on {} ended while it had the run, and was started again", report.name);
                self.decide(id, Verdict::Lost, reason);
            }
        }
        self.try_homeless();
    }

    /// An agent that was cut off from here, or that was told by a former owner that all is stored, tells this server nothing more
    /// of a run. So the store is asked for the end of those that go on for long; with a single server there is no other to tell.
    pub(super) fn look_into_store(&mut self, now: Timestamp) {
        if now < self.look_into_store_at || self.context.coordinator.sole_user() {
            return;
        }
        self.look_into_store_at = now.saturating_add(LOOK_INTO_STORE_EVERY).unwrap_or(Timestamp::MAX);
        let long_ago = now.saturating_sub(LOOK_INTO_STORE_EVERY).unwrap_or(Timestamp::MIN);
        let goes_on = |open: &super::Open| {
            matches!(open.stage, Stage::Dispatched { .. } | Stage::Running)
                && open.run.dispatched_at.is_none_or(|at| at < long_ago)
        };
        let ids: Vec<RunId> = self.open.iter().filter(|(_, open)| goes_on(open)).map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        let (context, shard) = (self.context.clone(), self.id);
        self.context.tasks.spawn("look into the store", async move {
            match ended_runs(&context, &ids).await {
                Ok(runs) if runs.is_empty() => {}
                Ok(runs) => {
                    if let Some(inbox) = context.shards.inbox(shard) {
                        let _ = inbox.send(ShardMessage::FoundEnded(runs)).await;
                    }
                }
                Err(cause) => context.store_health.away(context.now(), crate::chain(&cause)),
            }
        });
    }

    pub(super) fn found_ended(&mut self, runs: Vec<Run>) {
        for run in runs {
            let id = run.id;
            let open = self.open.get_mut(&id);
            if let Some(open) = open.filter(|open| matches!(open.stage, Stage::Dispatched { .. } | Stage::Running)) {
                open.run = run;
                open.stage = Stage::Recording;
                self.ended(id);
            }
        }
    }

    pub(super) fn node_lost(&mut self, node: NodeId, incarnation: Incarnation) {
        let bound_there = |open: &super::Open| {
            open.record.bound.as_ref().is_some_and(|bound| bound.node == node && bound.incarnation == incarnation)
                && matches!(open.stage, Stage::Dispatched { .. } | Stage::Running)
        };
        let runs: Vec<RunId> = self.open.iter().filter(|(_, open)| bound_there(open)).map(|(id, _)| *id).collect();
        for id in runs {
            let name = self.open.get(&id).and_then(|open| open.run.node_name.clone()).unwrap_or_default();
            self.decide(id, Verdict::Lost, format!("node {name} was silent for longer than the TTL"));
        }
    }
}

async fn ended_runs(context: &Context, ids: &[RunId]) -> Result<Vec<Run>, StoreError> {
    let mut runs = Vec::new();
    for (id, _) in context.store.ended_among(ids).await? {
        runs.extend(context.store.run(id).await?);
    }
    Ok(runs)
}
