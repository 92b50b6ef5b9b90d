//! The leader's chores, each an idempotent look at the cluster: nodes that fell silent are marked lost, old runs are removed,
//! the coordinator is tidied up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belfry_coord::observer::mark_lost;
use belfry_coord::{Commit, CoordError, Heartbeat, Observer, keys};
use belfry_core::Incarnation;
use belfry_store::RetentionRules;
use tracing::warn;

use crate::context::Context;
use crate::shard::ShardMessage;

const PRUNE_EVERY: Duration = Duration::from_secs(60);
const TIDY_EVERY: Duration = Duration::from_secs(300);
const FORGET_EVERY: Duration = Duration::from_secs(30);
/// Runs removed in one transaction.
const PRUNE_BATCH: usize = 500;

/// Never ends.
pub async fn chores(context: Arc<Context>) {
    let mut nodes = Observer::new(context.config.ttl);
    let mut look = tokio::time::interval(context.config.ttl / 4);
    let mut prune = tokio::time::interval(PRUNE_EVERY);
    let mut tidy = tokio::time::interval(TIDY_EVERY);
    let mut forget = tokio::time::interval(FORGET_EVERY);
    loop {
        tokio::select! {
            _ = look.tick() => {
                if let Err(cause) = rescue(&context, &mut nodes).await {
                    context.coordinator_health.away(context.now(), &cause);
                }
            }
            _ = prune.tick() => remove_old_runs(&context).await,
            _ = tidy.tick() => tidy_up(&context).await,
            _ = forget.tick() => context.live.forget_unfollowed(),
        }
    }
}

/// Marks silent nodes lost, guarded by the very heartbeat that was seen to stand still; only then are their runs given up. The
/// marks of others are acted on as well: whoever owns a shard must hear of them.
async fn rescue(context: &Context, nodes: &mut Observer) -> Result<(), CoordError> {
    let entries = context.coordinator.list(keys::NODES).await?;
    let boottime = context.clock.boottime();
    nodes.observe(&entries, boottime);
    if context.leader.load(Ordering::Relaxed) {
        for (key, version) in nodes.stood_still(boottime) {
            if let Commit::Applied(_) = mark_lost(&*context.coordinator, &key, version).await? {
                warn!("{key} was silent for {:?} and is marked lost", context.config.ttl);
            }
        }
    }
    for entry in context.coordinator.list(keys::NODES).await? {
        let Ok(heartbeat) = Heartbeat::decode(&entry) else { continue };
        let node = entry.key.strip_prefix(keys::NODES).and_then(|id| id.parse().ok());
        let incarnation = heartbeat.info.get("incarnation").and_then(serde_json::Value::as_u64).map(Incarnation);
        if let (belfry_coord::Life::Lost, Some(node), Some(incarnation)) = (heartbeat.life, node, incarnation) {
            for (_, inbox) in context.shards.all() {
                let _ = inbox.send(ShardMessage::NodeLost(node, incarnation)).await;
            }
        }
    }
    Ok(())
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
