//! For supervisors and monitoring: alive, ready, metrics, and the API's own description.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belfry_control::Health;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::errors::{Answer, ApiError};
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct Ready {
    ready: bool,
    /// What is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<&'static str>,
}

/// Answers while the process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, body = Ready)))]
pub async fn healthz() -> Json<Ready> {
    Json(Ready { ready: true, missing: Vec::new() })
}

/// Answers 503 and says what is missing while the store or the coordinator is away.
#[utoipa::path(get, path = "/readyz", tag = "health", responses((status = 200, body = Ready), (status = 503, body = Ready)))]
pub async fn readyz(State(state): State<ApiState>) -> Response {
    let cluster = state.control.cluster();
    let mut missing = Vec::new();
    if matches!(cluster.coordinator, Health::Away { .. }) {
        missing.push("coordinator");
    }
    if matches!(cluster.store, Health::Away { .. }) || state.store.setting("cluster").await.is_err() {
        missing.push("store");
    }
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Ready { ready: missing.is_empty(), missing })).into_response()
}

/// The metrics of this server as Prometheus reads them.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, content_type = "text/plain", body = String)))]
pub async fn metrics(State(state): State<ApiState>) -> Answer<impl IntoResponse> {
    let handle = state
        .metrics
        .as_ref()
        .ok_or_else(|| ApiError::away("no_metrics", "this server was started without metrics"))?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], handle.render()))
}

/// This document.
#[utoipa::path(get, path = "/api/openapi.json", tag = "health", responses((status = 200, body = Object)))]
pub async fn openapi() -> Json<&'static Value> {
    Json(crate::openapi::document())
}
