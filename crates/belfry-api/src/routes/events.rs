//! Every change of a run that the caller may see, as it happens.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use belfry_core::role::Role;
use belfry_core::run::Run;
use futures_util::{Stream, stream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::runs::RunView;
use super::stream::{KEEP_ALIVE, take_stream};
use crate::auth::Permit;
use crate::errors::Answer;
use crate::state::ApiState;

/// Follows the changes of all runs: `run` with the run, `missed` when some were too fast and the list is to be read again.
#[utoipa::path(get, path = "/api/v1/events", tag = "runs", responses((status = 200, content_type = "text/event-stream", body = RunView)))]
pub async fn events(
    State(state): State<ApiState>,
    permit: Permit,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let turn = take_stream(&state)?;
    let follower = Follower { changes: state.control.live().changes(), permit, _turn: turn };
    let events = stream::unfold(follower, |mut follower| async move {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

struct Follower {
    changes: Receiver<Arc<Run>>,
    permit: Permit,
    _turn: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            match self.changes.recv().await {
                Ok(run) if self.permit.caller.grants.allow(&run.namespace, Role::Viewer) => {
                    return Event::default().event("run").json_data(RunView::of(Run::clone(&run), None)).ok();
                }
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => {
                    return Event::default().event("missed").json_data(serde_json::json!({ "missed": missed })).ok();
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}
