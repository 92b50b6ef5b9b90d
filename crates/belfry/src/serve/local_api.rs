//! The local API of a node over HTTP: a few routes on a loopback address, with a token that only who can read the data folder knows.
//! Every answer is `{ret, data}`: 0 and what was asked for, or an error code and a message.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use axum::extract::{Path as InPath, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use belfry_agent::{Agent, NoReply, Question, Reply};
use belfry_control::Tasks;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

const TOKEN_FILE: &str = "local-api-token";
/// For clients that cannot send `Authorization`.
const TOKEN_HEADER: &str = "x-belfry-token";

/// Bound, and not served yet.
pub struct LocalApi {
    listener: TcpListener,
    address: SocketAddr,
}

#[derive(Clone)]
struct Api {
    agent: Agent,
    /// Compared by their hashes, so that the time of a comparison tells nothing.
    token: Arc<[u8]>,
}

impl LocalApi {
    pub async fn bind(address: SocketAddr) -> anyhow::Result<LocalApi> {
        let listener = TcpListener::bind(address).await.with_context(|| {
            let owner = super::process::owner_of_port(address).unwrap_or_default();
            format!("{address} cannot be listened on{owner}; choose another with --local-api")
        })?;
        let address = listener.local_addr()?;
        Ok(LocalApi { listener, address })
    }

    /// `folder`: the agent's data folder, where the token is kept.
    pub fn serve(self, agent: Agent, folder: &Path, tasks: &Tasks) -> anyhow::Result<()> {
        let (path, token) = token(folder)?;
        tracing::info!("local API: http://{}, its token is in {}", self.address, path.display());
        let router = router(Api { agent, token: hashed(&token) });
        tasks.spawn("local api", async move {
            if let Err(cause) = axum::serve(self.listener, router).await {
                tracing::error!("the local API ends: {cause}");
            }
        });
        Ok(())
    }
}

/// Only this machine can reach it: what it can do, it does without asking the centre.
pub fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| format!("`{text}` is not an address; write one such as 127.0.0.1:8001"))?;
    if !address.ip().is_loopback() {
        return Err(format!("`{text}` can be reached from other machines; write 127.0.0.1:8001 or [::1]:8001"));
    }
    Ok(address)
}

/// Made at the first start, and kept.
fn token(folder: &Path) -> anyhow::Result<(PathBuf, String)> {
    let path = folder.join(TOKEN_FILE);
    let known = std::fs::read_to_string(&path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let token = match known {
        Some(token) => token,
        None => {
            let mut random = [0; 32];
            getrandom::fill(&mut random).map_err(|cause| anyhow::anyhow!("no random numbers: {cause}"))?;
            random.iter().map(|byte| format!("{byte:02x}")).collect()
        }
    };
    super::data_dir::write_secret(&path, &token)?;
    Ok((path, token))
}

fn hashed(token: &str) -> Arc<[u8]> {
    Sha256::digest(token.as_bytes()).as_slice().into()
}

fn router(api: Api) -> Router {
    let fetch = |State(api): State<Api>, InPath(id): InPath<String>| ask(api, Question::Fetch(id));
    let jobs: MethodRouter<Api> = get(|State(api): State<Api>| ask(api, Question::Jobs));
    let job = get(|State(api): State<Api>, InPath(id): InPath<String>| ask(api, Question::Job(id)))
        .post(fetch)
        .put(fetch)
        .delete(|State(api): State<Api>, InPath(id): InPath<String>| ask(api, Question::Disable(id)));
    let task = get(|State(api): State<Api>, InPath(id): InPath<String>| ask(api, Question::Task(id)))
        .delete(|State(api): State<Api>, InPath(id): InPath<String>| ask(api, Question::Kill(id)));
    Router::new()
        .route("/jobs", jobs)
        .route("/jobs/{id}", job)
        .route("/tasks", get(|State(api): State<Api>| ask(api, Question::Tasks)))
        .route("/tasks/{id}", task)
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "there are /jobs, /jobs/{id}, /tasks and /tasks/{id}") })
        .method_not_allowed_fallback(|| async {
            refuse(
                StatusCode::METHOD_NOT_ALLOWED,
                "no definition can be made here; see the README for what can be asked",
            )
        })
        .layer(from_fn_with_state(api.clone(), only_with_token))
        .with_state(api)
}

async fn only_with_token(State(api): State<Api>, headers: HeaderMap, request: Request, next: Next) -> Response {
    let text = |value: &axum::http::HeaderValue| value.to_str().ok().map(str::to_owned);
    let bearer = headers.get(header::AUTHORIZATION).and_then(text);
    let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ").map(|token| token.trim().to_owned()));
    let shown = bearer.or_else(|| headers.get(TOKEN_HEADER).and_then(text));
    if shown.is_some_and(|shown| hashed(&shown) == api.token) {
        return next.run(request).await;
    }
    refuse(
        StatusCode::UNAUTHORIZED,
        "send the token of the file that the agent named at its start, as `Authorization: Bearer TOKEN` or `X-Belfry-Token: TOKEN`",
    )
}

async fn ask(api: Api, question: Question) -> Response {
    let reply = api.agent.ask(question).await.map(|reply| match reply {
        Reply::Jobs(jobs) => json!(jobs),
        Reply::Job(job) => json!(job),
        Reply::Tasks(tasks) => json!(tasks),
        Reply::Task(task) => json!(task),
    });
    match reply {
        Ok(data) => Json(json!({"ret": 0, "data": data})).into_response(),
        Err(why) => refuse(status(&why), &why.to_string()),
    }
}

fn status(why: &NoReply) -> StatusCode {
    match why {
        NoReply::NotFound(_) => StatusCode::NOT_FOUND,
        NoReply::Refused(_) => StatusCode::CONFLICT,
        NoReply::NoServer | NoReply::NotWritten | NoReply::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        NoReply::TooLate(_) => StatusCode::GATEWAY_TIMEOUT,
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let body: Value = json!({"ret": status.as_u16(), "data": message});
    (status, Json(body)).into_response()
}
