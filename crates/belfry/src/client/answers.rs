//! What the API answers, as far as tables show it. `--json` prints the answer itself, so nothing is lost here.

use std::collections::BTreeMap;
use std::fmt;

use belfry_core::{RunId, Timestamp};
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
pub struct JobAnswer {
    pub namespace: String,
    pub name: String,
    pub revision: u64,
    pub document: Value,
    pub command: String,
    pub enabled: bool,
    pub updated_at: Timestamp,
    pub next_fire: Option<Timestamp>,
    #[serde(default)]
    pub recent: Vec<RecentRun>,
}

#[derive(Debug, Deserialize)]
pub struct RecentRun {
    pub id: RunId,
    pub state: String,
}

#[derive(Debug, Deserialize)]
pub struct RevisionAnswer {
    pub revision: u64,
    pub at: Timestamp,
    pub author: String,
}

/// What an apply changes, or would change.
#[derive(Debug, Deserialize)]
pub struct Plan {
    pub created: Vec<PlannedJob>,
    pub changed: Vec<ChangedJob>,
    pub unchanged: Vec<PlannedJob>,
    pub removed: Vec<PlannedJob>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.created.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

#[derive(Debug, Deserialize)]
pub struct PlannedJob {
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for PlannedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Debug, Deserialize)]
pub struct ChangedJob {
    pub namespace: String,
    pub name: String,
    pub fields: Vec<FieldChange>,
}

#[derive(Debug, Deserialize)]
pub struct FieldChange {
    pub field: String,
    pub from: Value,
    pub to: Value,
}

/// What a webhook was told of a run.
#[derive(Debug, Deserialize)]
pub struct DeliveryAnswer {
    pub news: String,
    pub state: String,
    pub receiver: String,
    pub tries: u32,
    pub last_error: Option<String>,
    pub next_try_at: Option<Timestamp>,
    pub delivered_at: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub struct RunAnswer {
    pub id: RunId,
    pub namespace: String,
    pub job_name: String,
    pub revision: u64,
    pub command: Option<String>,
    pub state: String,
    pub reason: Option<String>,
    pub trigger: String,
    pub triggered_by: Option<String>,
    pub instance: Option<String>,
    pub rerun_of: Option<RunId>,
    pub attempt: u32,
    pub next_attempt_at: Option<Timestamp>,
    #[serde(default)]
    pub attempts: Vec<AttemptAnswer>,
    pub node_name: Option<String>,
    #[serde(default)]
    pub fence: u64,
    pub planned: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub lag_ms: Option<i64>,
    pub duration_ms: Option<i64>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    #[serde(default)]
    pub late: bool,
    #[serde(default)]
    pub overdue_at: Option<Timestamp>,
    #[serde(default)]
    pub marks: Vec<String>,
    #[serde(default)]
    pub cpu_ms: u64,
    #[serde(default)]
    pub max_rss_bytes: u64,
    #[serde(default)]
    pub limits_held: Vec<String>,
    #[serde(default)]
    pub left_behind: u32,
    #[serde(default)]
    pub output_bytes: u64,
    #[serde(default)]
    pub output_dropped_bytes: u64,
    pub script: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct AttemptAnswer {
    pub attempt: u32,
    pub state: String,
    pub reason: Option<String>,
    pub node_name: Option<String>,
    pub started_at: Option<Timestamp>,
    pub duration_ms: Option<i64>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub late: bool,
}

impl AttemptAnswer {
    pub fn outcome(&self) -> String {
        let late = if self.late { ", late" } else { "" };
        outcome(&self.state, self.exit_code, self.signal) + late
    }
}

/// The state, and the exit code or signal where they say more.
fn outcome(state: &str, exit_code: Option<i32>, signal: Option<i32>) -> String {
    match (exit_code, signal) {
        (_, Some(signal)) => format!("{state} (signal {signal})"),
        (Some(code), None) if code != 0 => format!("{state} (exit {code})"),
        _ => state.to_owned(),
    }
}

impl RunAnswer {
    /// How it stands, in words.
    pub fn outcome(&self) -> String {
        match self.state.as_str() {
            "waiting" | "cancelled" => self.state.clone(),
            state => outcome(state, self.exit_code, self.signal),
        }
    }

    pub fn is_ended(&self) -> bool {
        belfry_core::run::RunState::parse(&self.state).is_some_and(belfry_core::run::RunState::is_ended)
    }
}

#[derive(Debug, Deserialize)]
pub struct NodeAnswer {
    pub id: String,
    pub name: String,
    pub version: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub weight: u32,
    pub slots: u32,
    pub load: u32,
    #[serde(default)]
    pub homes: u32,
    pub draining: bool,
    pub excluded: bool,
    #[serde(default)]
    pub spool_full: bool,
    #[serde(default)]
    pub disk_low: bool,
    #[serde(default)]
    pub clock_off: bool,
    pub host: Option<HostAnswer>,
    pub free_for_needs: Option<AmountsAnswer>,
    #[serde(default)]
    pub disabled_jobs: Vec<DisabledJobAnswer>,
    pub connected: bool,
    pub last_heartbeat: Option<Timestamp>,
    pub clock_offset_ms: Option<i64>,
    pub runs_as: String,
}

#[derive(Debug, Deserialize)]
pub struct ServiceAnswer {
    pub namespace: String,
    pub name: String,
    pub state: String,
    pub node_name: Option<String>,
    pub since: Option<Timestamp>,
    pub reason: Option<String>,
    pub restarts_24h: u64,
    pub last_exit: Option<LastExitAnswer>,
}

#[derive(Debug, Deserialize)]
pub struct LastExitAnswer {
    pub state: String,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub at: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub struct HostAnswer {
    pub measured_at: Timestamp,
    pub cpus: f64,
    pub cpu_use: Option<f64>,
    pub load: [f64; 3],
    pub memory_total: u64,
    pub memory_available: u64,
    pub disk_total: u64,
    pub disk_free: u64,
    pub disk_floor: u64,
    pub booted_at: Timestamp,
    pub kernel: String,
    pub os: String,
}

#[derive(Debug, Deserialize)]
pub struct DisabledJobAnswer {
    pub id: String,
    pub name: String,
}

#[derive(Debug, Deserialize)]
pub struct AmountsAnswer {
    pub memory: u64,
    pub cpus: f64,
    pub disk: u64,
}

#[derive(Debug, Deserialize)]
pub struct UserAnswer {
    pub name: String,
    pub grants: BTreeMap<String, String>,
    pub disabled: bool,
    pub created_at: Timestamp,
}

#[derive(Debug, Deserialize)]
pub struct TokenAnswer {
    pub id: String,
    pub owner: String,
    pub label: String,
    pub grants: BTreeMap<String, String>,
    pub expires_at: Option<Timestamp>,
    pub last_used_at: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub struct AuditAnswer {
    pub at: Timestamp,
    pub actor: String,
    pub origin: Option<String>,
    pub action: String,
    pub subject: String,
    #[serde(default)]
    pub detail: Value,
}

/// `*=admin` reads as `admin everywhere`.
pub fn grants_in_words(grants: &BTreeMap<String, String>) -> String {
    let words = grants.iter().map(|(namespace, role)| match namespace.as_str() {
        belfry_core::role::EVERYWHERE => format!("{role} everywhere"),
        namespace => format!("{role} in {namespace}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[derive(Debug, Deserialize)]
pub struct StateAnswer {
    pub values: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
pub struct ScriptAnswer {
    pub namespace: String,
    pub name: String,
    pub version: u64,
    pub sha256: String,
    pub at: Timestamp,
    pub author: String,
}
