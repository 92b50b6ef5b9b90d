//! Where things lie in the coordinator: the one place that spells a key.

use belfry_core::id::SHARD_COUNT;
use belfry_core::{JobId, NodeId, RunId, ServerId, ShardId};

pub const META: &str = "meta";
pub const LEADER: &str = "leader";
/// Heartbeats of servers.
pub const SERVERS: &str = "servers/";
pub const SHARDS: &str = "shards/";
/// Heartbeats of nodes.
pub const NODES: &str = "nodes/";
pub const HOMES: &str = "homes/";
/// What edits bump, so that other servers look at the store.
pub const CHANGED: &str = "changed/";
/// Bumped at each edit of a job.
pub const CHANGED_JOBS: &str = "changed/jobs";
/// Bumped at each change of a node by people.
pub const CHANGED_NODES: &str = "changed/nodes";

/// Bumped by whoever gave shards back, so that the others need not wait for their next look.
pub const VACATED: &str = "vacated";

pub fn server(id: ServerId) -> String {
    format!("{SERVERS}{id}")
}

pub fn shard(shard: ShardId) -> String {
    format!("{SHARDS}{:02}", shard.0)
}

/// Whose seat a key is.
pub fn shard_of(key: &str) -> Option<ShardId> {
    let number = key.strip_prefix(SHARDS)?.parse().ok()?;
    (number < SHARD_COUNT).then_some(ShardId(number))
}

/// All runs of a shard that are claimed and not ended.
pub fn open_runs(shard: ShardId) -> String {
    format!("open/{:02}/", shard.0)
}

/// Beside them, written by whoever takes the shard.
pub fn taken(shard: ShardId) -> String {
    format!("open/{:02}/taken", shard.0)
}

pub fn open_run(shard: ShardId, run: RunId) -> String {
    format!("open/{:02}/{run}", shard.0)
}

pub fn node(id: NodeId) -> String {
    format!("{NODES}{id}")
}

pub fn home(job: JobId) -> String {
    format!("{HOMES}{job}")
}

pub fn state(job: JobId) -> String {
    format!("state/{job}")
}
