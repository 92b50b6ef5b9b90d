//! What an agent is told when it starts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use belfry_core::join::JoinToken;
use belfry_exec::ZygoteCommand;

use crate::run_logs::RunLogsConfig;

#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Holds the node's id and credential, the lock and the spool. Made when it is missing.
    pub data_dir: PathBuf,
    /// The name people know this node by.
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// How many runs execute at once; the others wait in the order of their instants.
    pub slots: u32,
    /// What jobs may do on this machine, see `belfry_core::policy`; beats what the next two say.
    pub policy: Option<PathBuf>,
    /// Whether jobs may run as root.
    pub allow_root: bool,
    /// Who jobs without `as.user` run as when the agent is root and may not run them as root. Default `nobody`.
    pub default_user: Option<String>,
    /// How long a drain waits for runs to end by themselves.
    pub quit_time: Duration,
    /// How many bytes of results may wait on disk until a server has stored them. Beyond three quarters output of runs is left out, and
    /// that is marked; beyond all of it the node takes no new work. Ends of runs are always kept.
    pub spool_max_bytes: u64,
    /// What runs print goes into files on this machine too. Default: it does not.
    pub run_logs: Option<RunLogsConfig>,
    /// With less free disk in the data folder no new work is taken; 0 switches that off. Default 256 MiB, or a twentieth of a smaller disk.
    pub disk_floor_bytes: Option<u64>,
    pub zygote: ZygoteCommand,
    /// Joins the cluster of this token first, unless it has joined with it before.
    pub join: Option<JoinToken>,
}
