//! In front of every route: refuses unknown query parameters, finds the caller, asks the access table, counts the request.

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::RequestExt;
use axum::extract::{ConnectInfo, MatchedPath, RawPathParams, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use belfry_core::Timestamp;
use belfry_store::{SecretHash, TokenOwner};

use super::{Caller, Credential, Permit, SESSION_COOKIE, common_grants};
use crate::access::{Access, access_of, methods_of};
use crate::errors::{Answer, ApiError};
use crate::state::ApiState;

/// Sent by our console with every change: a foreign page cannot set it without asking us first, which we never allow.
const CSRF_HEADER: &str = "x-belfry";

#[derive(Clone)]
pub(crate) struct Gate {
    pub state: ApiState,
    /// What each operation's query may hold, from the OpenAPI document.
    pub query_names: Arc<HashMap<(Method, String), BTreeSet<String>>>,
}

pub(crate) async fn gate(State(gate): State<Gate>, matched: MatchedPath, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), matched.as_str().to_owned());
    let from = gate.state.now();
    let response = match gate.permit(&method, &path, request).await {
        Ok(request) => next.run(request).await,
        Err(refused) => refused,
    };
    let took_ms = (gate.state.now().as_millisecond() - from.as_millisecond()).max(0);
    let labels = [("method", method.to_string()), ("path", path), ("status", response.status().as_u16().to_string())];
    metrics::counter!("belfry_http_requests_total", &labels).increment(1);
    metrics::histogram!("belfry_http_request_seconds", &labels[..2]).record(took_ms as f64 / 1000.0);
    response
}

impl Gate {
    async fn permit(&self, method: &Method, path: &str, mut request: Request) -> Result<Request, Response> {
        let Some(access) = access_of(method, path) else { return Err(refuse_method(path)) };
        let refused = |error: ApiError| error.into_response();
        // No name and no text that is looked for has it, and databases refuse it.
        if request.uri().path_and_query().is_some_and(|all| all.as_str().contains("%00")) {
            return Err(refused(ApiError::bad_request("invalid", "", "no name or text here has the character U+0000")));
        }
        let address = address_of(&request);
        let caller = match access {
            Access::Open => Caller::without_credential(address),
            _ => find_caller(&self.state, method, request.headers(), address).await.map_err(refused)?,
        };
        check_held(access, &caller).map_err(refused)?;
        let permit = Permit { caller, access };
        if let Access::Namespace(_) = access {
            check_path(&permit, &mut request).await.map_err(refused)?;
        }
        self.check_query(method, path, request.uri().query()).map_err(refused)?;
        request.extensions_mut().insert(permit);
        Ok(request)
    }

    fn check_query(&self, method: &Method, path: &str, query: Option<&str>) -> Answer<()> {
        let Some(query) = query else { return Ok(()) };
        let key = (if *method == Method::HEAD { Method::GET } else { method.clone() }, path.to_owned());
        let names = self.query_names.get(&key);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let name = part.split('=').next().unwrap_or_default();
            if names.is_some_and(|names| names.contains(name)) {
                continue;
            }
            let known: Vec<&str> = names.iter().flat_map(|names| names.iter().map(String::as_str)).collect();
            let accepted =
                if known.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", known.join(", ")) };
            let message = format!("`{name}` is not a query parameter of {method} {path}; {accepted}");
            return Err(ApiError::bad_request("unknown_parameter", name, message));
        }
        Ok(())
    }
}

pub(super) async fn find_caller(
    state: &ApiState,
    method: &Method,
    headers: &HeaderMap,
    address: Option<IpAddr>,
) -> Answer<Caller> {
    let now = state.now();
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let token =
            value.to_str().ok().and_then(|text| text.strip_prefix("Bearer ")).ok_or_else(ApiError::unauthorized)?;
        return caller_of_token(state, token.trim(), address, now).await;
    }
    let secret = cookie(headers, SESSION_COOKIE).ok_or_else(ApiError::unauthorized)?;
    let hash = SecretHash::of(secret);
    let (name, grants) = match state.store.session_user(hash.clone(), now).await {
        Ok(user) => user.map(|user| (user.name, user.grants)).ok_or_else(ApiError::unauthorized)?,
        Err(away) if away.is_transient() => state.contact.caller_of_session(&hash, now).ok_or(away)?,
        Err(cause) => return Err(cause.into()),
    };
    if !method.is_safe() && !comes_from_our_page(headers) {
        return Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "cross_site",
            "a change with a session cookie needs the header `X-Belfry: 1`, or an Origin that is this host",
        ));
    }
    Ok(Caller::new(name, grants, Credential::Session(secret.to_owned()), address))
}

async fn caller_of_token(state: &ApiState, secret: &str, address: Option<IpAddr>, now: Timestamp) -> Answer<Caller> {
    let store = &state.store;
    let hash = SecretHash::of(secret);
    let token = match store.token_of(hash.clone(), now).await {
        Ok(token) => token.ok_or_else(ApiError::unauthorized)?,
        // What is answered from memory is answered while the store is away, to those who were known before.
        Err(away) if away.is_transient() => {
            let (owner, grants) = state.contact.caller_of_token(&hash, now).ok_or(away)?;
            let name = owner.name().to_owned();
            // Nothing that lasts is made with it now.
            return Ok(Caller {
                token_ends: Some(now),
                ..Caller::new(name, grants, Credential::Token(owner), address)
            });
        }
        Err(cause) => return Err(cause.into()),
    };
    let grants = match &token.owner {
        TokenOwner::Service(_) => token.grants.clone(),
        TokenOwner::User(name) => {
            let user = store.user(name).await?.ok_or_else(ApiError::unauthorized)?;
            common_grants(&token.grants, &user.grants)
        }
    };
    // A full disk or a store that only reads must not lock programs out of reading.
    if let Err(error) = store.token_used(&token, now).await {
        tracing::warn!(token = token.id, %error, "the use of a token could not be noted");
    }
    let name = token.owner.name().to_owned();
    let caller = Caller::new(name, grants, Credential::Token(token.owner), address);
    Ok(Caller { token_ends: token.expires_at, ..caller })
}

/// No row: another method of a path that we know, or a route that nobody may use until it has a row.
fn refuse_method(path: &str) -> Response {
    let allowed = methods_of(path).join(", ");
    if allowed.is_empty() {
        return ApiError::forbidden("nobody may use this route").into_response();
    }
    let message = format!("this path answers {allowed}");
    let mut response = ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response();
    if let Ok(value) = HeaderValue::from_str(&allowed) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}

/// What can be judged before an object is loaded.
fn check_held(access: Access, caller: &Caller) -> Answer<()> {
    let allowed = match access {
        Access::Open | Access::SignedIn => true,
        Access::Everywhere(needed) => caller.grants.allow_everywhere(needed),
        Access::Somewhere(needed) => caller.grants.allow_somewhere(needed),
        // Judged by the object: in the path (here, next), in the body or in the store (by the route).
        Access::Namespace(_) => true,
    };
    if allowed {
        return Ok(());
    }
    Err(ApiError::forbidden(format!("this needs {}; ask an admin for it", access.in_words())))
}

async fn check_path(permit: &Permit, request: &mut Request) -> Answer<()> {
    let Ok(params) = request.extract_parts::<RawPathParams>().await else { return Ok(()) };
    let value_of = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    match (value_of("ns"), value_of("name")) {
        (Some(namespace), Some(name)) => permit.on(namespace, "job", format!("{namespace}/{name}")),
        _ => Ok(()),
    }
}

fn address_of(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip().to_canonical())
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|text| text.split(';')).find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

fn comes_from_our_page(headers: &HeaderMap) -> bool {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let marked = headers.get(CSRF_HEADER).is_some_and(|value| value == "1");
    let same_host = match (text(header::ORIGIN), text(header::HOST)) {
        (Some(origin), Some(host)) => origin.split_once("://").is_some_and(|(_, origin_host)| origin_host == host),
        _ => false,
    };
    marked || same_host
}
