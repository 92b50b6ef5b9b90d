//! What a job keeps from run to run, read and set by people. Its runs write it themselves, see `belfry_control`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::header;
use belfry_control::SavedView;
use belfry_core::Version;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::jobs::load;
use crate::auth::Permit;
use crate::deeds;
use crate::errors::Answer;
use crate::input::{IfMatch, JsonBody, PathValues, etag};
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct StateView {
    /// The next run gets each as `BELFRY_STATE_<KEY>`.
    values: BTreeMap<String, String>,
    /// Grows at each change; the answer's `ETag`. 0: nothing was ever saved.
    version: u64,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StateRequest {
    /// All that the job keeps from now on: at most 32 keys of capital letters, digits and `_`, with values of up to 4096 bytes.
    values: BTreeMap<String, String>,
}

type StateAnswer = ([(header::HeaderName, header::HeaderValue); 1], Json<StateView>);

fn answer(saved: SavedView) -> StateAnswer {
    let version = saved.version.0;
    ([(header::ETAG, etag(version))], Json(StateView { values: saved.values, version }))
}

/// Reads what a job keeps from run to run.
#[utoipa::path(get, path = "/api/v1/jobs/{ns}/{name}/state", tag = "jobs", responses((status = 200, body = StateView)))]
pub async fn get_state(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
) -> Answer<StateAnswer> {
    let job = load(&state, &ns, &name).await?;
    Ok(answer(state.control.state(job.id).await?))
}

/// Sets what a job keeps from run to run. The next run gets it; a run that is going writes over it when it saves the same keys.
#[utoipa::path(put, path = "/api/v1/jobs/{ns}/{name}/state", tag = "jobs", request_body = StateRequest,
    params(("If-Match" = Option<String>, Header, description = "the version that the change is meant for")), responses((status = 200, body = StateView)))]
pub async fn set_state(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    IfMatch(expected): IfMatch,
    JsonBody(request): JsonBody<StateRequest>,
) -> Answer<StateAnswer> {
    let job = load(&state, &ns, &name).await?;
    let saved = state.control.set_state(job.id, request.values, expected.map(Version)).await?;
    deeds::record(&state, &permit, "job.state", &ns, &job.document.full_name()).await;
    Ok(answer(saved))
}
