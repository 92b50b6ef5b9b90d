//! Requests about a shard that another server owns, or about a run that only its owner knows so far: whoever is asked passes them on,
//! and the answer back. The other server checks the caller itself, so nothing is trusted but the request. A request is passed on
//! once, never in a ring.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::errors::{ApiError, Elsewhere};
use crate::state::ApiState;

/// Says that a request was passed on, and by which server.
pub(crate) const FORWARDED_BY: HeaderName = HeaderName::from_static("belfry-forwarded-by");
/// Paths whose answer may be another server's alone: of runs, and these of jobs. They have small bodies or none.
const OF_RUNS: &str = "/api/v1/runs/";
const OF_JOBS: [&str; 2] = ["/run", "/kill"];
const BODY_BYTES_MAX: usize = 2 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two pieces of an answer; streams send something every 15 s.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn forward(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let may_be_elsewhere = path.starts_with(OF_RUNS) || OF_JOBS.iter().any(|end| path.ends_with(end));
    if !may_be_elsewhere || request.headers().contains_key(FORWARDED_BY) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let body = match to_bytes(body, BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(_) => {
            let message = format!("the body is longer than {BODY_BYTES_MAX} bytes, or broke off");
            return ApiError::bad_request("invalid", "", message).into_response();
        }
    };
    let again = parts.clone();
    let own = next.clone().run(Request::from_parts(parts, Body::from(body.clone()))).await;
    let servers = match own.extensions().get() {
        None => return own,
        Some(Elsewhere::Owner(shard)) => Vec::from_iter(state.control.owners_api(*shard).await),
        Some(Elsewhere::Anybody) => state.control.other_apis(),
    };
    let knows_no_better = own.status() == StatusCode::NOT_FOUND;
    for server in servers {
        match ask(&state, &server, &again.method, &again.uri, &again.headers, body.clone()).await {
            Ok(answer) if knows_no_better && answer.status() == StatusCode::NOT_FOUND => {}
            Ok(answer) => return answer,
            Err(cause) => tracing::warn!(%server, "another server could not be asked: {cause}"),
        }
    }
    if knows_no_better {
        return own;
    }
    if again.method != Method::GET {
        return own;
    }
    // Later than from the owner, but not never: this server reads what the owner has stored.
    let mut request = Request::from_parts(again, Body::empty());
    request.headers_mut().insert(FORWARDED_BY, HeaderValue::from_static("nobody"));
    next.run(request).await
}

async fn ask(
    state: &ApiState,
    owner: &str,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: Bytes,
) -> Result<Response, reqwest::Error> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut headers = headers.clone();
    for of_this_connection in [header::HOST, header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        headers.remove(of_this_connection);
    }
    let server = state.control.cluster().server.to_string();
    headers.insert(FORWARDED_BY, HeaderValue::try_from(server).unwrap_or(HeaderValue::from_static("server")));
    let request = state.peers.request(method.clone(), format!("{owner}{path}")).headers(headers).body(body);
    let answer = request.send().await?;
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove(header::CONNECTION);
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    let mut response = Body::from_stream(answer.bytes_stream()).into_response();
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

pub(crate) fn client() -> reqwest::Client {
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    // Fails only where no socket could be used at all.
    builder.build().unwrap_or_default()
}
