//! How this server and the cluster are.

use axum::Json;
use axum::extract::State;
use belfry_control::{ClusterView, Health};
use serde::Serialize;
use utoipa::ToSchema;

use crate::moment::Moment;
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct ClusterAnswer {
    /// This start of the server that answers.
    server: String,
    version: String,
    started_at: Moment,
    /// It is this server that leads; see `servers` for who does.
    leader: bool,
    default_timezone: String,
    jobs: u64,
    open_runs: u64,
    coordinator: HealthView,
    /// What whoever keeps the coordinator should see to before it fails.
    coordinator_warning: Option<String>,
    store: HealthView,
    unrecorded: UnrecordedView,
    /// The servers that live, as the one that answers sees them.
    servers: Vec<ServerAnswer>,
    /// The shards that this server owns.
    shards: Vec<ShardAnswer>,
}

/// What the server that answers holds in memory until the store has it.
#[derive(Serialize, ToSchema)]
pub struct UnrecordedView {
    /// Runs and attempts.
    runs: u64,
    output_bytes: u64,
    /// So many runs wait that no fire is claimed; those that pass follow `misfire`.
    full: bool,
}

#[derive(Serialize, ToSchema)]
pub struct ServerAnswer {
    id: String,
    /// Where it serves API and console.
    api: String,
    /// Where agents reach it; empty when none are expected.
    agents: String,
    /// Its clock is off by so much against those of its agents that it fires nothing; null when it is not.
    clock_off_ms: Option<i64>,
    leader: bool,
    /// The shards that it owns.
    shards: Vec<OwnedShard>,
}

#[derive(Serialize, ToSchema)]
pub struct OwnedShard {
    shard: u8,
    /// Grows whenever the shard gets another owner.
    term: u64,
}

#[derive(Serialize, ToSchema)]
pub struct ShardAnswer {
    shard: u8,
    term: u64,
    jobs: u64,
    open_runs: u64,
    /// The coordinator has room for no more; what is due waits.
    full: bool,
    next_fire: Option<Moment>,
}

#[derive(Serialize, ToSchema)]
pub struct HealthView {
    ok: bool,
    since: Option<Moment>,
    message: Option<String>,
}

impl From<Health> for HealthView {
    fn from(health: Health) -> Self {
        match health {
            Health::Ok => Self { ok: true, since: None, message: None },
            Health::Away { since, message } => Self { ok: false, since: Some(since.into()), message: Some(message) },
        }
    }
}

/// Shows the server that answers: what it owns and what it reaches.
#[utoipa::path(get, path = "/api/v1/cluster", tag = "cluster", responses((status = 200, body = ClusterAnswer)))]
pub async fn get_cluster(State(state): State<ApiState>) -> Json<ClusterAnswer> {
    let ClusterView {
        server,
        version,
        started_at,
        leader,
        servers,
        shards,
        jobs,
        open_runs,
        coordinator,
        store,
        unrecorded,
    } = state.control.cluster();
    let belfry_control::Unrecorded { runs, output_bytes, full } = unrecorded;
    Json(ClusterAnswer {
        server: server.to_string(),
        version,
        started_at: started_at.into(),
        leader,
        default_timezone: state.settings.default_timezone.clone(),
        jobs,
        open_runs,
        coordinator: coordinator.into(),
        coordinator_warning: state.control.coordinator_warning().await,
        store: store.into(),
        unrecorded: UnrecordedView { runs, output_bytes, full },
        servers: servers
            .into_iter()
            .map(|server| ServerAnswer {
                id: server.id.to_string(),
                api: server.api,
                agents: server.agents,
                clock_off_ms: server.clock_off_ms,
                leader: server.leader,
                shards: server
                    .shards
                    .into_iter()
                    .map(|(shard, term)| OwnedShard { shard: shard.0, term: term.0 })
                    .collect(),
            })
            .collect(),
        shards: shards
            .into_iter()
            .map(|shard| ShardAnswer {
                shard: shard.shard.0,
                term: shard.term.0,
                jobs: shard.jobs,
                open_runs: shard.open_runs,
                full: shard.full,
                next_fire: shard.next_fire.map(Moment),
            })
            .collect(),
    })
}
