//! What is done to a job without editing its document: run it now, pause, resume, kill its runs.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use belfry_control::ManualRun;
use belfry_core::RunId;
use belfry_core::job::check_env;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job_view::JobView;
use super::jobs::{edit, load, show};
use super::runs::{RunView, view};
use crate::auth::Permit;
use crate::deeds;
use crate::errors::{Answer, ApiError};
use crate::input::{IfMatch, MaybeJsonBody, PathValues};
use crate::state::ApiState;

const KEY_BYTES_MAX: usize = 256;
const ENV_MAX: usize = 256;
/// They go through the coordinator, where a commit has its bound.
const ENV_BYTES_MAX: usize = 256 << 10;

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// A repeated request with the same key is the same run.
    idempotency_key: Option<String>,
    /// Added to the environment of the job, and over it.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Id or name of the node to run on.
    node: Option<String>,
    /// Run even if the job's `overlap` would not.
    #[serde(default)]
    force: bool,
}

/// Runs a job now, also a paused one.
#[utoipa::path(post, path = "/api/v1/jobs/{ns}/{name}/run", tag = "jobs", request_body = RunRequest, responses((status = 201, body = RunView)))]
pub async fn run_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    MaybeJsonBody(request): MaybeJsonBody<RunRequest>,
) -> Answer<(StatusCode, Json<RunView>)> {
    let job = load(&state, &ns, &name).await?;
    check_key(request.idempotency_key.as_deref())?;
    if request.env.len() > ENV_MAX {
        return Err(ApiError::invalid("env", format!("at most {ENV_MAX} variables are accepted")));
    }
    for (key, value) in &request.env {
        check_env("env", key, value)?;
    }
    if serde_json::to_string(&request.env).map_or(0, |text| text.len()) > ENV_BYTES_MAX {
        let message =
            format!("all variables together have at most {ENV_BYTES_MAX} bytes; put more into a file, or into the job");
        return Err(ApiError::invalid("env", message));
    }
    let node = request.node.map(|node| super::nodes::find(&state, &node).map(|node| node.id)).transpose()?;
    let wanted = ManualRun {
        idempotency_key: request.idempotency_key,
        env: request.env,
        node,
        force: request.force,
        ..ManualRun::new(job.id, &permit.caller.name)
    };
    let run = state.control.run_now(wanted).await?;
    deeds::record(&state, &permit, "job.run", &ns, &job.document.full_name()).await;
    Ok((StatusCode::CREATED, Json(view(&state, run).await?)))
}

pub(super) fn check_key(key: Option<&str>) -> Answer<()> {
    if key.is_some_and(|key| key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains(char::is_control)) {
        let message = format!("a key has 1 to {KEY_BYTES_MAX} bytes, and no control characters");
        return Err(ApiError::invalid("idempotency_key", message));
    }
    Ok(())
}

/// Pauses a job: from now on nothing of it is due until it is resumed. Running runs go on.
#[utoipa::path(post, path = "/api/v1/jobs/{ns}/{name}/pause", tag = "jobs", responses((status = 200, body = JobView)))]
pub async fn pause_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
) -> Answer<Json<JobView>> {
    set_enabled(&state, &permit, &ns, &name, false).await
}

/// Resumes a paused job; what passed in between was not due.
#[utoipa::path(post, path = "/api/v1/jobs/{ns}/{name}/resume", tag = "jobs", responses((status = 200, body = JobView)))]
pub async fn resume_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
) -> Answer<Json<JobView>> {
    set_enabled(&state, &permit, &ns, &name, true).await
}

async fn set_enabled(
    state: &ApiState,
    permit: &Permit,
    namespace: &str,
    name: &str,
    enabled: bool,
) -> Answer<Json<JobView>> {
    let job = edit(state, permit, namespace, name, IfMatch(None), |job| {
        let mut document = job.document.clone();
        document.enabled = enabled;
        document.validate(state.now())?;
        Ok(document)
    })
    .await?;
    let (_, body) = show(state, job).await?;
    Ok(body)
}

#[derive(Serialize, ToSchema)]
pub struct KilledRuns {
    /// The runs that were told to end; their records say how they did.
    #[schema(value_type = Vec<String>)]
    runs: Vec<RunId>,
}

/// Kills all runs of a job, wherever they are.
#[utoipa::path(post, path = "/api/v1/jobs/{ns}/{name}/kill", tag = "jobs", responses((status = 200, body = KilledRuns)))]
pub async fn kill_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
) -> Answer<Json<KilledRuns>> {
    let job = load(&state, &ns, &name).await?;
    let runs = state.control.kill_job(job.id, &permit.caller.name).await?;
    deeds::record(&state, &permit, "job.kill", &ns, &job.document.full_name()).await;
    Ok(Json(KilledRuns { runs }))
}
