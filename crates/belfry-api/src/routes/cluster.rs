//! How this server and the cluster are, and the numbers of the front page.

use axum::Json;
use axum::extract::State;
use belfry_control::{ClusterView, Health};
use belfry_core::run::RunState;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::QueryValues;
use crate::moment::Moment;
use crate::state::ApiState;

const DAYS_DEFAULT: u32 = 7;
const DAYS_MAX: u32 = 90;

#[derive(Serialize, ToSchema)]
pub struct ClusterAnswer {
    /// This start of the server that answers.
    server: String,
    version: String,
    started_at: Moment,
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
    /// The shards that it owns.
    shards: Vec<u8>,
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
                shards: server.shards.into_iter().map(|shard| shard.0).collect(),
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

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OverviewQuery {
    /// How many days of counts, today included: 1 to 90, 7 when left out.
    days: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub struct OverviewAnswer {
    jobs: u64,
    jobs_enabled: u64,
    /// Runs that have not ended, by state.
    open: Vec<StateCount>,
    /// Runs that have ended, by UTC day of their planned instant and by state.
    days: Vec<DayView>,
    nodes: u64,
    nodes_healthy: u64,
}

#[derive(Serialize, ToSchema)]
pub struct StateCount {
    #[schema(value_type = String)]
    state: RunState,
    runs: u64,
}

#[derive(Serialize, ToSchema)]
pub struct DayView {
    day: Moment,
    #[schema(value_type = String)]
    state: RunState,
    runs: u64,
}

/// Counts for the front page, of what the caller may see.
#[utoipa::path(get, path = "/api/v1/overview", tag = "cluster", params(OverviewQuery), responses((status = 200, body = OverviewAnswer)))]
pub async fn get_overview(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<OverviewQuery>,
) -> Answer<Json<OverviewAnswer>> {
    let days = match query.days.unwrap_or(DAYS_DEFAULT) {
        days @ 1..=DAYS_MAX => i64::from(days),
        other => {
            return Err(ApiError::bad_request(
                "invalid",
                "days",
                format!("`{other}` is out of range; 1 to {DAYS_MAX} are accepted"),
            ));
        }
    };
    let now = state.now();
    let from = now.checked_sub(SignedDuration::from_hours(24 * (days - 1))).unwrap_or(now);
    let overview = state.store.overview(permit.namespaces().as_deref(), from, now).await?;
    let nodes = state.control.nodes();
    Ok(Json(OverviewAnswer {
        jobs: overview.jobs,
        jobs_enabled: overview.jobs_enabled,
        open: overview.open.into_iter().map(|(state, runs)| StateCount { state, runs }).collect(),
        days: overview
            .days
            .into_iter()
            .map(|day| DayView { day: day.day.into(), state: day.state, runs: day.runs })
            .collect(),
        nodes: nodes.len() as u64,
        nodes_healthy: nodes.iter().filter(|node| node.takes_work()).count() as u64,
    }))
}
