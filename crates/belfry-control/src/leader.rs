//! The leader's chores, each an idempotent look at the cluster: nodes that fell silent are marked lost, homes are assigned, old runs
//! are removed, the coordinator is tidied up. Each goes at its own pace: marking nodes waits for the coordinator alone, whatever the
//! store does to the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belfry_coord::observer::mark_lost;
use belfry_coord::{Commit, CoordError, Entry, Heartbeat, Life, Observer, keys};
use belfry_core::run::{Event, Run, Verdict};
use belfry_core::{Incarnation, NodeId};
use belfry_store::RetentionRules;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use crate::context::Context;
use crate::homes::Assigner;
use crate::shard::{Gone, ShardMessage};

/// However long the TTL is: a lost node is noticed this soon after it, also by those who only hear of the mark.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const TIDY_EVERY: Duration = Duration::from_secs(2);
const FORGET_EVERY: Duration = Duration::from_secs(30);
const GIVE_UP_AGAIN_EVERY: Duration = Duration::from_secs(10);
/// Runs removed in one transaction.
const PRUNE_BATCH: usize = 500;

/// Never ends. What it sees goes to [`settle_homes`].
pub async fn rescue_nodes(context: Arc<Context>, seen: watch::Sender<Vec<Beat>>) {
    let mut nodes = Observer::new(context.config.ttl);
    let mut elsewhere = Elsewhere::default();
    let mut look = tokio::time::interval((context.config.ttl / 4).min(LOOK_AT_LEAST_EVERY));
    loop {
        look.tick().await;
        match rescue(&context, &mut nodes, &mut elsewhere).await {
            Ok(beats) => drop(seen.send_replace(beats)),
            Err(cause) => context.coordinator_health.away(context.now(), &cause),
        }
    }
}

/// After each look at the nodes, or as many of them as it takes. Ends with whoever looks.
pub async fn settle_homes(context: Arc<Context>, mut seen: watch::Receiver<Vec<Beat>>) {
    let mut assigner = Assigner::default();
    let mut local_runs = LocalRuns::default();
    while seen.changed().await.is_ok() {
        let beats = seen.borrow_and_update().clone();
        if !context.leader.load(Ordering::Relaxed) {
            local_runs = LocalRuns::default();
            continue;
        }
        local_runs.give_up(&context, &beats).await;
        let beating = beats.iter().filter(|(life, ..)| *life != Life::Lost).map(|(_, node, _)| *node);
        if let Err(cause) = assigner.assign(&context, &beating.collect()).await {
            context.coordinator_health.away(context.now(), &cause);
        }
    }
}

/// Never ends.
pub async fn remove_what_is_old(context: Arc<Context>) {
    let mut prune = tokio::time::interval(PRUNE_EVERY);
    prune.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        prune.tick().await;
        remove_old_runs(&context).await;
    }
}

/// Never ends.
pub async fn keep_house(context: Arc<Context>) {
    let mut tidy = tokio::time::interval(TIDY_EVERY);
    let mut forget = tokio::time::interval(FORGET_EVERY);
    loop {
        tokio::select! {
            _ = tidy.tick() => tidy_up(&context).await,
            _ = forget.tick() => {
                context.learn_room().await;
                context.live.forget_unfollowed();
                context.recorder.forget_idle(&context);
            }
        }
    }
}

/// Marks silent nodes lost, guarded by the very heartbeat that was seen to stand still; only then are their runs given up. The
/// marks of others are acted on as well: whoever owns a shard must hear of them.
async fn rescue(context: &Context, nodes: &mut Observer, elsewhere: &mut Elsewhere) -> Result<Vec<Beat>, CoordError> {
    let mut entries = context.coordinator.list(keys::NODES).await?;
    let boottime = context.clock.boottime();
    nodes.observe(&entries, boottime);
    let mut has_marked = false;
    if context.leader.load(Ordering::Relaxed) {
        for (key, version) in nodes.stood_still(boottime) {
            let Commit::Applied(_) = mark_lost(&*context.coordinator, &key, version).await? else { continue };
            has_marked = true;
            if let Some((_, node, incarnation)) = entries.iter().find(|entry| entry.key == key).and_then(read) {
                let ttl = context.config.ttl;
                warn!("what was silent for {ttl:?} is marked lost: node {node}, incarnation {incarnation}");
            }
        }
    }
    if has_marked {
        entries = context.coordinator.list(keys::NODES).await?;
    }
    let beats: Vec<Beat> = entries.iter().filter_map(read).collect();
    // Each time all of them, for a run may have been on its way there; in one message, for their keys stay and there may be thousands.
    let gone = Arc::new(elsewhere.gone(&beats, context, boottime));
    for (_, inbox) in context.shards.all().into_iter().filter(|_| !gone.is_empty()) {
        let _ = inbox.send(ShardMessage::NodesGone(gone.clone())).await;
    }
    Ok(beats)
}

/// Incarnations that beat and have no session with this server, and since when. What came before them is over, and nobody tells this
/// server so: a node that comes here says itself what it had and has (`node_arrived`), one that cannot come here never does.
#[derive(Default)]
struct Elsewhere {
    since: HashMap<(NodeId, Incarnation), Duration>,
}

impl Elsewhere {
    fn gone(&mut self, beats: &[Beat], context: &Context, boottime: Duration) -> HashMap<NodeId, Gone> {
        let is_here = |node, incarnation| context.sessions.incarnation(node).is_some_and(|here| here >= incarnation);
        let mut since = HashMap::new();
        let mut gone = HashMap::new();
        for &(life, node, incarnation) in beats {
            if life == Life::Lost {
                gone.insert(node, Gone { newest: incarnation, is_lost: true });
            } else if !is_here(node, incarnation) {
                let first = *self.since.get(&(node, incarnation)).unwrap_or(&boottime);
                since.insert((node, incarnation), first);
                // As long as it takes results of the one before to reach the store through the server that it went to.
                if boottime.saturating_sub(first) >= context.config.ttl {
                    gone.insert(node, Gone { newest: incarnation, is_lost: false });
                }
            }
        }
        self.since = since;
        gone
    }
}

/// What a node fired by itself and was running when it fell silent is not known any more. Its own word corrects that when it comes
/// back; therefore nothing of this is acknowledged to it.
#[derive(Default)]
struct LocalRuns {
    of: HashMap<NodeId, Incarnation>,
    looked_at: Option<Duration>,
}

impl LocalRuns {
    /// Again and again: a server that could not reach the store may write a start down long after the node is gone.
    async fn give_up(&mut self, context: &Context, beats: &[Beat]) {
        let lost = beats.iter().filter(|(life, ..)| *life == Life::Lost);
        let lost: HashMap<NodeId, Incarnation> = lost.map(|(_, node, incarnation)| (*node, *incarnation)).collect();
        let now = context.clock.boottime();
        let is_fresh = self.looked_at.is_some_and(|at| now.saturating_sub(at) < GIVE_UP_AGAIN_EVERY);
        if lost.is_empty() || (is_fresh && self.of == lost) {
            return;
        }
        let done = async {
            let mut runs = context.store.open_local_runs().await?;
            let is_gone = |run: &Run| lost.get(&run.node?).map(|lost| run.incarnation.is_none_or(|of| of <= *lost));
            runs.retain(|run| is_gone(run) == Some(true));
            let at = context.now();
            for run in &mut runs {
                let reason = format!("node {} fell silent", run.node_name.as_deref().unwrap_or("?"));
                let _ = run.on(Event::Decided { at, verdict: Verdict::Lost, reason });
            }
            context.store.record_runs(&runs).await
        };
        match done.await {
            Ok(()) => *self = Self { of: lost, looked_at: Some(now) },
            Err(cause) => context.store_health.away(context.now(), crate::chain(&cause)),
        }
    }
}

pub type Beat = (Life, NodeId, Incarnation);

fn read(entry: &Entry) -> Option<Beat> {
    let heartbeat = Heartbeat::decode(entry).ok()?;
    let node = entry.key.strip_prefix(keys::NODES)?.parse().ok()?;
    let incarnation = heartbeat.info.get("incarnation").and_then(serde_json::Value::as_u64)?;
    Some((heartbeat.life, node, Incarnation(incarnation)))
}

async fn tidy_up(context: &Context) {
    if context.config.tidy
        && context.leader.load(Ordering::Relaxed)
        && let Err(cause) = context.coordinator.tidy().await
    {
        warn!("the coordinator could not be tidied up: {cause}");
    }
}

async fn remove_old_runs(context: &Context) {
    if !context.leader.load(Ordering::Relaxed) {
        return;
    }
    let rules = RetentionRules { age: Some(context.config.retention_age), runs: Some(context.config.retention_runs) };
    let mut from = None;
    loop {
        match context.store.prune_runs(context.now(), rules, from, PRUNE_BATCH).await {
            Ok(batch) if batch.next.is_some() => from = batch.next,
            Ok(_) => return,
            Err(cause) => return context.store_health.away(context.now(), crate::chain(&cause)),
        }
    }
}
