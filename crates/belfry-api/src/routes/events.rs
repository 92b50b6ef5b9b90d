//! Every change of a run that the caller may see, as it happens, wherever in the cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, header};
use axum::response::{IntoResponse, Response};
use belfry_core::role::Role;
use belfry_core::run::Run;
use futures_util::stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, broadcast, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Interval, interval};

use super::runs::RunView;
use super::stream::{KEEP_ALIVE, LOOK_AGAIN, take_stream};
use crate::auth::{LastingPermit, Permit};
use crate::errors::Answer;
use crate::forward::{FORWARDED_BY, to_server};
use crate::state::ApiState;

const PATH: &str = "/api/v1/events";
/// One that cannot be followed is tried again this often.
const FOLLOW_AGAIN: Duration = Duration::from_secs(5);
const FROM_OTHERS_MAX: usize = 64;
/// Larger than any event.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Follows the changes of all runs: `run` with the run, `missed` when some were too fast or unheard and the list is to be read again.
#[utoipa::path(get, path = "/api/v1/events", tag = "runs", responses((status = 200, content_type = "text/event-stream", body = RunView)))]
pub async fn events(State(state): State<ApiState>, permit: Permit, headers: HeaderMap) -> Answer<Response> {
    let turn = take_stream(&state)?;
    let (to, others) = mpsc::channel(FROM_OTHERS_MAX);
    let changes = state.control.live().changes();
    let mut tasks = JoinSet::new();
    // Who was asked by a server tells its own.
    if !headers.contains_key(FORWARDED_BY) {
        tasks.spawn(follow_others(state.clone(), headers.clone(), to));
    }
    let follower = Follower {
        changes,
        others,
        _tasks: tasks,
        permit: LastingPermit { permit, headers },
        look_again: interval(LOOK_AGAIN),
        keep_alive: interval(KEEP_ALIVE),
        state,
        _turn: turn,
    };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok::<_, std::convert::Infallible>(event), follower))
    });
    Ok(([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(events)).into_response())
}

struct Follower {
    changes: broadcast::Receiver<Arc<Run>>,
    /// Whole events, as the other servers wrote them.
    others: mpsc::Receiver<Bytes>,
    /// End with the follower.
    _tasks: JoinSet<()>,
    permit: LastingPermit,
    look_again: Interval,
    keep_alive: Interval,
    state: ApiState,
    _turn: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            tokio::select! {
                biased;
                _ = self.look_again.tick() => self.permit.renew(&self.state).await.ok()?,
                change = self.changes.recv() => match change {
                    Ok(run) if self.permit.permit.caller.grants.allow(&run.namespace, Role::Viewer) => {
                        return Some(event("run", &RunView::of(Run::clone(&run), None)));
                    }
                    Ok(_) => {}
                    Err(RecvError::Lagged(missed)) => return Some(missed_event(missed)),
                    Err(RecvError::Closed) => return None,
                },
                Some(event) = self.others.recv() => return Some(event),
                _ = self.keep_alive.tick() => return Some(Bytes::from_static(b":\n\n")),
            }
        }
    }
}

fn event(name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n").into()
}

fn missed_event(missed: u64) -> Bytes {
    event("missed", &serde_json::json!({ "missed": missed }))
}

/// Each server hears of its own shards and agents only. They check the caller by themselves.
async fn follow_others(state: ApiState, headers: HeaderMap, to: mpsc::Sender<Bytes>) {
    let mut tasks = JoinSet::new();
    let mut followed: HashMap<String, AbortHandle> = HashMap::new();
    loop {
        followed.retain(|_, task| !task.is_finished());
        for server in state.control.other_apis() {
            followed.entry(server).or_insert_with_key(|server| {
                let (state, headers, to) = (state.clone(), headers.clone(), to.clone());
                tasks.spawn(follow_other(state, server.clone(), headers, to))
            });
        }
        while tasks.try_join_next().is_some() {}
        tokio::time::sleep(FOLLOW_AGAIN).await;
    }
}

async fn follow_other(state: ApiState, server: String, mut headers: HeaderMap, to: mpsc::Sender<Bytes>) {
    headers.remove(header::ACCEPT_ENCODING);
    let answer = to_server(&state, &server, &Method::GET, PATH, &headers).send().await;
    // Nothing to tell: the client was told when it broke off, and will be when it is there again. A client that reads its list at each
    // try would ask as often as one that hears nothing.
    let Ok(mut answer) = answer.and_then(reqwest::Response::error_for_status) else { return };
    // What happened there before it is followed.
    let _ = to.send(missed_event(0)).await;
    let mut rest = Vec::new();
    while let Ok(Some(bytes)) = answer.chunk().await {
        rest.extend_from_slice(&bytes);
        if rest.len() > EVENT_BYTES_MAX {
            break;
        }
        let Some(whole) = end_of_events(&rest) else { continue };
        let events: Vec<u8> = rest.drain(..whole).collect();
        if to.send(events.into()).await.is_err() {
            return;
        }
    }
    let _ = to.send(missed_event(0)).await;
}

/// Where the last event ends that has come whole.
fn end_of_events(bytes: &[u8]) -> Option<usize> {
    bytes.windows(2).rposition(|two| two == b"\n\n").map(|at| at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_passed_on_whole() {
        for (come, whole) in [("event: run\n", None), ("a: 1\n\n", Some(6)), ("a: 1\n\n:\n\nevent: r", Some(9))] {
            assert_eq!(end_of_events(come.as_bytes()), whole, "{come:?}");
        }
    }
}
