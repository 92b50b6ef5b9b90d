//! The front page: counts, what needs attention and what is going, of what the caller may see. It gathers facts, from kept counts and
//! standings and from this server's memory; `belfry_core::attention` judges them.

use axum::Json;
use axum::extract::State;
use belfry_core::attention::{self, Kind, Notice};
use belfry_core::run::{Run, RunState};
use belfry_core::usual::Usual;
use belfry_core::{RunId, Timestamp};
use belfry_store::Overview;
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::job_view::UsualView;
use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::QueryValues;
use crate::moment::Moment;
use crate::state::ApiState;

mod facts;

use facts::Gathered;

const DAYS_DEFAULT: u32 = 7;
const DAYS_MAX: u32 = 90;
const ATTENTION_MAX: usize = 100;
const RUNNING_SHOWN_MAX: usize = 100;

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
    /// What somebody should look at, most urgent first, at most 100. What is of the whole cluster, only for those who may see all of it.
    attention: Vec<AttentionView>,
    /// How much more there is.
    attention_left_out: u64,
    /// What is going, at most 100: those furthest beyond their usual time first.
    running: Vec<RunningView>,
    running_total: u64,
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

#[derive(Serialize, ToSchema)]
pub struct AttentionView {
    /// `coordinator`, `store`, `clock`, `node_down`, `service_down`, `lost`, `failing`, `missed`, `late` or `overdue`.
    #[schema(value_type = String)]
    kind: Kind,
    namespace: Option<String>,
    job: Option<String>,
    #[schema(value_type = Option<String>)]
    run: Option<RunId>,
    /// Its name.
    node: Option<String>,
    /// `failing`: the end of its newest run; `lost`: the newest end; `missed`, `late`: the planned instant.
    since: Option<Moment>,
    /// `failing`: failures in a row; `lost`: runs within the last day.
    count: Option<u64>,
    message: String,
}

impl From<Notice> for AttentionView {
    fn from(notice: Notice) -> Self {
        let (namespace, job) = notice.job.unzip();
        let Notice { kind, run, node, since, count, message, .. } = notice;
        Self { kind, namespace, job, run, node, since: since.map(Moment), count, message }
    }
}

#[derive(Serialize, ToSchema)]
pub struct RunningView {
    #[schema(value_type = String)]
    run: RunId,
    namespace: String,
    job: String,
    attempt: u32,
    node_name: Option<String>,
    started_at: Option<Moment>,
    /// How long runs of its job usually take.
    usual: Option<UsualView>,
}

impl RunningView {
    fn of((run, usual): (Run, Option<Usual>)) -> Self {
        Self {
            run: run.id,
            namespace: run.namespace,
            job: run.job_name,
            attempt: run.attempt,
            node_name: run.node_name,
            started_at: run.started_at.map(Moment),
            usual: usual.map(UsualView::from),
        }
    }
}

/// Counts, what needs attention and what is going, of what the caller may see.
#[utoipa::path(get, path = "/api/v1/overview", tag = "cluster", params(OverviewQuery), responses((status = 200, body = OverviewAnswer)))]
pub async fn get_overview(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<OverviewQuery>,
) -> Answer<Json<OverviewAnswer>> {
    let days = read_days(query.days)?;
    let now = state.now();
    let from = now.checked_sub(SignedDuration::from_hours(24 * (days - 1))).unwrap_or(now);
    let namespaces = permit.namespaces();
    let overview = state.store.overview(namespaces.as_deref(), from, now).await?;
    let gathered = facts::gather(&state, namespaces.as_deref(), now).await?;
    Ok(Json(answer(&state, overview, gathered, now)))
}

fn answer(state: &ApiState, overview: Overview, gathered: Gathered, now: Timestamp) -> OverviewAnswer {
    let nodes = state.control.nodes();
    let Gathered { facts, more_failing, mut running, all_running } = gathered;
    let (attention, left_out) = attention::attention(facts, now, ATTENTION_MAX);
    attention::furthest_beyond_usual(&mut running, now);
    let open_in = |wanted| overview.open.iter().filter(|(state, _)| *state == wanted).map(|(_, runs)| *runs).sum();
    let running_total = if all_running { running.len() as u64 } else { open_in(RunState::Running) };
    OverviewAnswer {
        jobs: overview.namespaces.iter().map(|namespace| namespace.jobs).sum(),
        jobs_enabled: overview.namespaces.iter().map(|namespace| namespace.jobs_enabled).sum(),
        nodes: nodes.len() as u64,
        nodes_healthy: nodes.iter().filter(|node| node.takes_work()).count() as u64,
        attention: attention.into_iter().map(AttentionView::from).collect(),
        attention_left_out: left_out + more_failing,
        running: running.into_iter().take(RUNNING_SHOWN_MAX).map(RunningView::of).collect(),
        running_total,
        open: overview.open.into_iter().map(|(state, runs)| StateCount { state, runs }).collect(),
        days: overview
            .days
            .into_iter()
            .map(|day| DayView { day: day.day.into(), state: day.state, runs: day.runs })
            .collect(),
    }
}

fn read_days(days: Option<u32>) -> Answer<i64> {
    match days.unwrap_or(DAYS_DEFAULT) {
        days @ 1..=DAYS_MAX => Ok(i64::from(days)),
        other => Err(ApiError::bad_request(
            "invalid",
            "days",
            format!("`{other}` is out of range; 1 to {DAYS_MAX} are accepted"),
        )),
    }
}
