//! Services: which there are, where each runs and since when, how often it was started again; and moving one.

use axum::Json;
use axum::extract::State;
use belfry_core::run::{Run, RunState};
use belfry_core::{Job, JobId, RunId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::jobs::load;
use super::runs::freshest;
use crate::auth::Permit;
use crate::deeds;
use crate::errors::Answer;
use crate::input::{MaybeJsonBody, PathValues};
use crate::moment::Moment;
use crate::state::ApiState;

const COUNTED_HOURS: i64 = 24;
/// The one that goes on, and the one that ended last.
const NEWEST_RUNS: usize = 2;

#[derive(Serialize, ToSchema)]
pub struct ServiceView {
    namespace: String,
    name: String,
    /// `running`; `starting`: it has or looks for a node; `waiting`: it ended, and is started again soon; `paused`.
    state: &'static str,
    node_name: Option<String>,
    /// Since when it runs.
    since: Option<Moment>,
    /// Its run, or the last one.
    #[schema(value_type = Option<String>)]
    run: Option<RunId>,
    /// What it waits for, while it is not running.
    reason: Option<String>,
    /// How often it ended within the last day, for whatever reason.
    restarts_24h: u64,
    last_exit: Option<LastExit>,
}

#[derive(Serialize, ToSchema)]
pub struct LastExit {
    #[schema(value_type = String)]
    state: RunState,
    reason: Option<String>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    node_name: Option<String>,
    at: Option<Moment>,
}

#[derive(Serialize, ToSchema)]
pub struct Services {
    items: Vec<ServiceView>,
}

/// Lists services with where each runs and how it has been.
#[utoipa::path(get, path = "/api/v1/services", tag = "services", responses((status = 200, body = Services)))]
pub async fn list_services(State(state): State<ApiState>, permit: Permit) -> Answer<Json<Services>> {
    let mut jobs = state.store.services().await?;
    let namespaces = permit.namespaces();
    jobs.retain(|job| namespaces.as_ref().is_none_or(|mine| mine.contains(&job.document.namespace)));
    jobs.sort_by_key(|job| job.document.full_name());
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    let day = state.now().saturating_sub(jiff::SignedDuration::from_hours(COUNTED_HOURS)).unwrap_or(Timestamp::MIN);
    let mut runs = state.store.newest_runs(&ids, NEWEST_RUNS).await?;
    let restarts = state.store.ended_runs_since(&ids, day).await?;
    let view = |job: &Job| {
        let newest = runs.remove(&job.id).unwrap_or_default();
        view(&state, job, newest, restarts.get(&job.id).copied().unwrap_or(0))
    };
    Ok(Json(Services { items: jobs.iter().map(view).collect() }))
}

fn view(state: &ApiState, job: &Job, newest: Vec<Run>, restarts_24h: u64) -> ServiceView {
    let ended = newest.iter().find(|run| run.state.is_ended()).cloned();
    let last = newest.into_iter().next().map(|run| freshest(state, run));
    let going = last.as_ref().filter(|run| !run.state.is_ended());
    let word = match going.map(|run| run.state) {
        Some(RunState::Running) => "running",
        Some(_) => "starting",
        None if job.document.enabled => "waiting",
        None => "paused",
    };
    let is_running = |run: &&Run| run.state == RunState::Running;
    ServiceView {
        namespace: job.document.namespace.clone(),
        name: job.document.name.clone(),
        state: word,
        node_name: going.and_then(|run| run.node_name.clone()),
        since: going.filter(is_running).and_then(|run| run.started_at).map(Moment),
        run: last.as_ref().map(|run| run.id),
        reason: going.filter(|run| !is_running(run)).and_then(|run| run.reason.clone()),
        restarts_24h,
        last_exit: ended.map(|run| LastExit {
            state: run.state,
            reason: run.reason,
            exit_code: run.exit_code,
            signal: run.signal,
            node_name: run.node_name,
            at: run.ended_at.map(Moment),
        }),
    }
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// Id or name of the node to move to; left out: any other one.
    node: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct Moved {
    /// The run that was told to end; the next one starts elsewhere when it has.
    #[schema(value_type = String)]
    run: RunId,
}

/// Moves a service: it is ended where it runs, and started on another node when it has ended.
#[utoipa::path(post, path = "/api/v1/jobs/{ns}/{name}/move", tag = "services", request_body = MoveRequest, responses((status = 200, body = Moved)))]
pub async fn move_service(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    MaybeJsonBody(request): MaybeJsonBody<MoveRequest>,
) -> Answer<Json<Moved>> {
    let job = load(&state, &ns, &name).await?;
    let to = request.node.map(|node| super::nodes::find(&state, &node).map(|node| node.id)).transpose()?;
    let run = state.control.move_service(job.id, to, &permit.caller.name).await?;
    deeds::record(&state, &permit, "service.move", &ns, &job.document.full_name()).await;
    Ok(Json(Moved { run }))
}
