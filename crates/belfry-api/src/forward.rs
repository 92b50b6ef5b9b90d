//! Requests about a shard that another server owns, or about a run that only its owner knows so far: whoever is asked passes them on,
//! and the answer back. It stands behind the gate, so that nobody without a credential makes servers ask each other; the other server
//! checks the caller again by itself, so nothing is trusted but the request. A request is passed on once, never in a ring.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::errors::{ApiError, Elsewhere};
use crate::input::{BODY_BYTES_MAX, read_body};
use crate::state::ApiState;

/// Says that a request was passed on, and by which server.
pub(crate) const FORWARDED_BY: HeaderName = HeaderName::from_static("belfry-forwarded-by");
/// Paths whose answer may be another server's alone: of runs, explanations, and these of jobs. They have small bodies or none.
const OF_RUNS: &str = "/api/v1/runs/";
const EXPLANATIONS: &str = "/api/v1/explain";
const OF_JOBS: [&str; 4] = ["/run", "/kill", "/move", "/state"];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two pieces of an answer; streams send something every 15 s.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn forward(State(state): State<ApiState>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let may_be_elsewhere =
        path.starts_with(OF_RUNS) || path == EXPLANATIONS || OF_JOBS.iter().any(|end| path.ends_with(end));
    if !may_be_elsewhere || request.headers().contains_key(FORWARDED_BY) {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let body = match read_body(Request::from_parts(parts.clone(), body), BODY_BYTES_MAX).await {
        Ok(body) => body,
        Err(refusal) => return refusal.into_response(),
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
            Err(cause) => {
                tracing::warn!(%server, "another server could not be asked: {cause}");
                // Only a request that never left is surely not being carried out.
                if again.method != Method::GET && !cause.is_connect() {
                    return no_answer().into_response();
                }
            }
        }
    }
    if knows_no_better || again.method != Method::GET {
        return own;
    }
    // Later than from the owner, but not never: this server reads what the owner has stored.
    let mut request = Request::from_parts(again, Body::empty());
    request.headers_mut().insert(FORWARDED_BY, HeaderValue::from_static("nobody"));
    next.run(request).await
}

fn no_answer() -> ApiError {
    let message =
        "the server that owns the job did not answer; it may have done what you asked for: look before you repeat it";
    ApiError::away("outcome_unknown", message)
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
    let answer = to_server(state, owner, method, path, headers).body(body).send().await?;
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    headers.remove(header::CONNECTION);
    headers.remove(header::TRANSFER_ENCODING);
    headers.remove(header::CONTENT_LENGTH);
    let mut response = Body::from_stream(answer.bytes_stream()).into_response();
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// The request of a caller, passed on.
pub(crate) fn to_server(
    state: &ApiState,
    server: &str,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> reqwest::RequestBuilder {
    let mut headers = headers.clone();
    // Not the host: a page's origin is compared with it.
    for of_this_connection in [header::CONNECTION, header::CONTENT_LENGTH, header::TRANSFER_ENCODING] {
        headers.remove(of_this_connection);
    }
    let by = state.control.cluster().server.to_string();
    headers.insert(FORWARDED_BY, HeaderValue::try_from(by).unwrap_or(HeaderValue::from_static("server")));
    state.peers.request(method.clone(), format!("{server}{path}")).headers(headers)
}

/// `ca`: trusted beside the system's.
pub(crate) fn client(ca: Option<&str>) -> reqwest::Client {
    let ca = ca.and_then(|ca| reqwest::Certificate::from_pem(ca.as_bytes()).ok());
    let builder = reqwest::Client::builder()
        .tls_certs_merge(ca)
        .connect_timeout(CONNECT_TIMEOUT)
        .read_timeout(READ_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    builder.build().expect("a client with these settings needs nothing that could fail")
}
