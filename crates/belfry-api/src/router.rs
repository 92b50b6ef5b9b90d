//! Every route on one page. Who may call which is in `access`; what stands before all of them is at the end.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::{Gate, gate};
use crate::errors::{ApiError, panicked};
use crate::forward::forward;
use crate::openapi;
use crate::routes::{
    apply, audit, cluster, console, deliveries, events, explain, fires, forecast, health, job_actions, jobs,
    namespaces, nodes, output, overview, revisions, runs, scripts, services, session, state, stream, timeline, tokens,
    users, wrapped,
};
use crate::state::ApiState;

pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(console::page))
        .routes(routes!(console::asset))
        .routes(routes!(console::icon))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(health::openapi))
        .routes(routes!(session::login))
        .routes(routes!(session::logout))
        .routes(routes!(session::whoami))
        .routes(routes!(session::change_password))
        .routes(routes!(jobs::list_jobs, jobs::create_job))
        .routes(routes!(apply::apply))
        .routes(routes!(jobs::get_job, jobs::replace_job, jobs::patch_job, jobs::remove_job))
        .routes(routes!(revisions::list_revisions))
        .routes(routes!(fires::list_fires))
        .routes(routes!(state::get_state, state::set_state))
        .routes(routes!(job_actions::run_job))
        .routes(routes!(job_actions::pause_job))
        .routes(routes!(job_actions::resume_job))
        .routes(routes!(job_actions::kill_job))
        .routes(routes!(services::move_service))
        .routes(routes!(namespaces::list_namespaces))
        .routes(routes!(services::list_services))
        .routes(routes!(fires::preview))
        .routes(routes!(explain::explain))
        .routes(routes!(scripts::list_scripts))
        .routes(routes!(scripts::get_script, scripts::put_script, scripts::remove_script))
        .routes(routes!(scripts::list_versions))
        .routes(routes!(runs::list_runs, runs::forget_runs))
        .routes(routes!(runs::get_run))
        .routes(routes!(deliveries::list_deliveries))
        .routes(routes!(output::get_output))
        .routes(routes!(stream::stream_run))
        .routes(routes!(runs::kill_run))
        .routes(routes!(runs::rerun))
        .routes(routes!(wrapped::put_output))
        .routes(routes!(events::events))
        .routes(routes!(overview::get_overview))
        .routes(routes!(forecast::get_forecast))
        .routes(routes!(timeline::get_timeline))
        .routes(routes!(nodes::list_nodes))
        .routes(routes!(nodes::create_join_token))
        .routes(routes!(nodes::get_node, nodes::patch_node, nodes::remove_node))
        .routes(routes!(cluster::get_cluster))
        .routes(routes!(deliveries::get_secret, deliveries::rotate_secret))
        .routes(routes!(audit::list_audit))
        .routes(routes!(users::list_users, users::create_user))
        .routes(routes!(users::get_user, users::patch_user, users::remove_user))
        .routes(routes!(tokens::list_tokens, tokens::create_token))
        .routes(routes!(tokens::remove_token))
}

/// Serve it with `into_make_service_with_connect_info::<SocketAddr>()`, so that throttling and audit know the address.
pub fn router(state: ApiState) -> Router {
    let (router, _) = routes().split_for_parts();
    let gate_state = Gate { state: state.clone(), query_names: Arc::new(openapi::query_names(openapi::document())) };
    router
        .route_layer(from_fn_with_state(state.clone(), forward))
        .route_layer(from_fn_with_state(gate_state, gate))
        .fallback(nothing_here)
        .with_state(state)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(map_response(harden))
}

async fn nothing_here(uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::NOT_FOUND,
        "not_found",
        format!("there is nothing at {}; /api/openapi.json lists what there is", uri.path()),
    )
}

/// For browsers: nothing is guessed, framed or kept, and only what a page says itself is loaded.
async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"));
    response
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn boom() -> StatusCode {
        panic!("a secret in a panic")
    }

    #[tokio::test]
    async fn a_panic_is_an_answer_in_the_one_form_without_its_words() {
        let router: Router = Router::new().route("/", get(boom)).layer(CatchPanicLayer::custom(panicked));
        let response = router.oneshot(axum::http::Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = String::from_utf8(to_bytes(response.into_body(), 10_000).await.unwrap().to_vec()).unwrap();
        assert!(body.contains("\"code\":\"internal\"") && !body.contains("secret"), "{body}");
    }
}
