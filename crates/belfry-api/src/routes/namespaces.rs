//! Namespaces: those that have a job, and how many.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::Permit;
use crate::errors::Answer;
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct NamespaceView {
    name: String,
    jobs: u64,
    jobs_enabled: u64,
}

#[derive(Serialize, ToSchema)]
pub struct Namespaces {
    items: Vec<NamespaceView>,
}

/// Lists namespaces that have a job, of those that the caller may see.
#[utoipa::path(get, path = "/api/v1/namespaces", tag = "jobs", responses((status = 200, body = Namespaces)))]
pub async fn list_namespaces(State(state): State<ApiState>, permit: Permit) -> Answer<Json<Namespaces>> {
    let counts = state.store.namespaces(permit.namespaces().as_deref()).await?;
    let view = |count: belfry_store::NamespaceCount| NamespaceView {
        name: count.namespace,
        jobs: count.jobs,
        jobs_enabled: count.jobs_enabled,
    };
    Ok(Json(Namespaces { items: counts.into_iter().map(view).collect() }))
}
