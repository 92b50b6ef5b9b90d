//! What a server tells about itself and its nodes, as values for API and CLI.

use std::collections::BTreeMap;

use belfry_core::due::Due;
use belfry_core::place::Decision;
use belfry_core::room::{Host, Room};
use belfry_core::state::Values;
use belfry_core::{Incarnation, JobId, NodeId, RunId, ServerId, ShardId, Term, Timestamp, Version};
use serde::Serialize;

/// A node that has joined, connected or not.
#[derive(Clone, Debug, Serialize)]
pub struct NodeView {
    pub id: NodeId,
    pub name: String,
    pub version: String,
    pub labels: BTreeMap<String, String>,
    pub weight: u32,
    pub slots: u32,
    /// Runs it executes or keeps ready.
    pub load: u32,
    /// Jobs that have it as their home.
    pub homes: u32,
    pub draining: bool,
    pub excluded: bool,
    /// It takes no work until the servers have stored what waits on its disk.
    pub spool_full: bool,
    /// It takes no work until it has more free disk than its floor.
    pub disk_low: bool,
    /// It gets no work: its clock differs from this server's by more than is allowed.
    pub clock_off: bool,
    /// What runs with `needs` can have of it.
    #[serde(skip)]
    pub room: Option<Room>,
    /// The machine as it was measured last, and when this server heard of it.
    #[serde(skip)]
    pub host: Option<(Host, Timestamp)>,
    /// Jobs that are switched off there by its local API, with their names.
    pub disabled_jobs: BTreeMap<JobId, String>,
    pub connected: bool,
    pub incarnation: Incarnation,
    pub connected_since: Option<Timestamp>,
    pub last_heartbeat: Option<Timestamp>,
    /// Its clock minus this server's.
    pub clock_offset_ms: Option<i64>,
    /// The user that jobs without `as` run as.
    pub runs_as: String,
}

impl NodeView {
    pub fn takes_work(&self) -> bool {
        let is_short = self.spool_full || self.disk_low;
        self.connected && !self.draining && !self.excluded && !is_short && !self.clock_off
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct ClusterView {
    pub server: ServerId,
    pub version: String,
    pub started_at: Timestamp,
    pub leader: bool,
    /// All that live, this one among them.
    pub servers: Vec<ServerView>,
    /// Of this server.
    pub shards: Vec<ShardView>,
    pub jobs: u64,
    pub open_runs: u64,
    pub coordinator: Health,
    pub store: Health,
    pub unrecorded: Unrecorded,
}

/// What this server holds until the store has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Unrecorded {
    pub runs: u64,
    pub output_bytes: u64,
    /// So many runs wait that no fire is claimed.
    pub full: bool,
}

/// A server that lives, as the one that answers sees it.
#[derive(Clone, Debug, Serialize)]
pub struct ServerView {
    pub id: ServerId,
    pub api: String,
    pub agents: String,
    /// Its clock is off by so much that it fires nothing.
    pub clock_off_ms: Option<i64>,
    pub leader: bool,
    pub shards: Vec<(ShardId, Term)>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ShardView {
    pub shard: ShardId,
    pub term: Term,
    pub jobs: u64,
    pub open_runs: u64,
    /// The coordinator has room for no more; what is due waits.
    pub full: bool,
    pub next_fire: Option<Timestamp>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    Ok,
    /// What is wrong, for how long.
    Away {
        since: Timestamp,
        message: String,
    },
}

/// A request to run a job now.
#[derive(Clone, Debug)]
pub struct ManualRun {
    pub job: JobId,
    pub by: String,
    /// A repeated request with the same key is the same run.
    pub idempotency_key: Option<String>,
    pub env: BTreeMap<String, String>,
    pub node: Option<NodeId>,
    /// Ignore `overlap`.
    pub force: bool,
    /// Set for a rerun.
    pub rerun_of: Option<RunId>,
}

impl ManualRun {
    pub fn new(job: JobId, by: impl Into<String>) -> Self {
        let (by, env) = (by.into(), BTreeMap::new());
        Self { job, by, idempotency_key: None, env, node: None, force: false, rerun_of: None }
    }
}

/// What a job keeps from run to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedView {
    pub values: Values,
    /// Of the coordinator; 0 when nothing was ever saved.
    pub version: Version,
}

/// What a shard's owner knows of one of its jobs at an instant.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// Every fire up to the instant is claimed or decided.
    pub passed: bool,
    /// A fire that passed and is not claimed yet: what would become of it now.
    pub missed: Option<Due>,
    /// Runs of the job that are going or about to, and those that wait behind them.
    pub going: usize,
    pub waiting: usize,
    /// Where a run of that instant would go if it were placed now, and why.
    pub node: Option<String>,
    pub decision: Decision,
    pub fired_by: FiredBy,
    /// Nodes that are to fire it by themselves and on which it is switched off by their local API.
    pub disabled_on: Vec<String>,
}

/// Who starts a job at its instants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FiredBy {
    /// The owner of its shard orders it.
    Owner,
    /// Each of these nodes, by itself.
    Each(Vec<String>),
    /// Its home, by itself. None: it has none at the moment.
    Home(Option<String>),
}

/// What became of a request to kill a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KillAnswer {
    /// Its node was told; the outcome will be in the record.
    Told,
    /// It does not run, and will not.
    Cancelled,
    /// It has ended already.
    AlreadyEnded,
}
