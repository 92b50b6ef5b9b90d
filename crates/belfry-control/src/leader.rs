//! The leader's chores, each an idempotent look at the cluster: nodes that fell silent are marked lost, homes are assigned, old runs
//! are removed, the coordinator is tidied up. Each goes at its own pace: marking nodes waits for the coordinator alone, whatever the
//! store does to the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belfry_coord::observer::mark_lost;
use belfry_coord::{Commit, CoordError, Entry, Heartbeat, Life, Observer, keys};
use belfry_core::run::{Event, Verdict};
use belfry_core::{Incarnation, NodeId};
use belfry_store::RetentionRules;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::warn;

use crate::context::Context;
use crate::homes::Assigner;
use crate::shard::ShardMessage;

/// However long the TTL is: a lost node is noticed this soon after it, also by those who only hear of the mark.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(1);
const PRUNE_EVERY: Duration = Duration::from_secs(60);
const TIDY_EVERY: Duration = Duration::from_secs(2);
const FORGET_EVERY: Duration = Duration::from_secs(30);
/// Runs removed in one transaction.
const PRUNE_BATCH: usize = 500;

/// Never ends. What it sees goes to [`settle_homes`].
pub async fn rescue_nodes(context: Arc<Context>, seen: watch::Sender<Vec<Beat>>) {
    let mut nodes = Observer::new(context.config.ttl);
    let mut look = tokio::time::interval((context.config.ttl / 4).min(LOOK_AT_LEAST_EVERY));
    loop {
        look.tick().await;
        match rescue(&context, &mut nodes).await {
            Ok(beats) => drop(seen.send_replace(beats)),
            Err(cause) => context.coordinator_health.away(context.now(), &cause),
        }
    }
}

/// After each look at the nodes, or as many of them as it takes. Ends with whoever looks.
pub async fn settle_homes(context: Arc<Context>, mut seen: watch::Receiver<Vec<Beat>>) {
    let mut assigner = Assigner::default();
    let mut given_up = HashSet::new();
    while seen.changed().await.is_ok() {
        let beats = seen.borrow_and_update().clone();
        if !context.leader.load(Ordering::Relaxed) {
            given_up.clear();
            continue;
        }
        give_up_local_runs(&context, &beats, &mut given_up).await;
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
async fn rescue(context: &Context, nodes: &mut Observer) -> Result<Vec<Beat>, CoordError> {
    let entries = context.coordinator.list(keys::NODES).await?;
    let boottime = context.clock.boottime();
    nodes.observe(&entries, boottime);
    if context.leader.load(Ordering::Relaxed) {
        for (key, version) in nodes.stood_still(boottime) {
            if let Commit::Applied(_) = mark_lost(&*context.coordinator, &key, version).await?
                && let Some((_, node, incarnation)) = entries.iter().find(|entry| entry.key == key).and_then(read)
            {
                let ttl = context.config.ttl;
                warn!("what was silent for {ttl:?} is marked lost: node {node}, incarnation {incarnation}");
            }
        }
    }
    let beats: Vec<Beat> = context.coordinator.list(keys::NODES).await?.iter().filter_map(read).collect();
    // Each time all of them, for a run may have been on its way there; in one message, for their keys stay and there may be thousands.
    let lost = Arc::new(lost_among(&beats));
    for (_, inbox) in context.shards.all().into_iter().filter(|_| !lost.is_empty()) {
        let _ = inbox.send(ShardMessage::NodesLost(lost.clone())).await;
    }
    Ok(beats)
}

fn lost_among(beats: &[Beat]) -> HashSet<(NodeId, Incarnation)> {
    beats.iter().filter(|(life, ..)| *life == Life::Lost).map(|(_, node, incarnation)| (*node, *incarnation)).collect()
}

/// What a node fired by itself and was running when it fell silent is not known any more. Its own word corrects that when it comes
/// back; therefore nothing of this is acknowledged to it.
async fn give_up_local_runs(context: &Context, beats: &[Beat], given_up: &mut HashSet<(NodeId, Incarnation)>) {
    let lost = lost_among(beats);
    given_up.retain(|known| lost.contains(known));
    for (node, incarnation) in lost {
        if given_up.contains(&(node, incarnation)) {
            continue;
        }
        let done = async {
            let mut runs = context.store.open_local_runs(node).await?;
            let at = context.now();
            for run in &mut runs {
                let reason = format!("node {} fell silent", run.node_name.as_deref().unwrap_or("?"));
                let _ = run.on(Event::Decided { at, verdict: Verdict::Lost, reason });
            }
            context.store.record_runs(&runs).await
        };
        match done.await {
            Ok(()) => drop(given_up.insert((node, incarnation))),
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
