//! A run as it happens, as server-sent events: `state` when it moves on, `output` for each chunk, `end` once. What was printed before
//! comes first, and no chunk is missed or shown twice on the way from stored to live.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use belfry_control::{ControlError, Followed, LiveChunk, LiveEvent};
use belfry_core::RunId;
use belfry_core::run::{Run, RunState};
use belfry_store::OutputChunk;
use futures_util::{Stream, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};
use utoipa::{IntoParams, ToSchema};

use super::output::ChunkView;
use super::runs::{RunView, load, view};
use crate::auth::{LastingPermit, Permit};
use crate::errors::{Answer, ApiError};
use crate::forward::FORWARDED_BY;
use crate::input::{PathValues, QueryValues};
use crate::state::ApiState;

/// Below the idle limits of common proxies.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Another server may write what this one is not told, and the caller may lose the right to see it: both are looked at this often.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);
const READ_BYTES_MAX: usize = 256 * 1024;

/// One of the bounded number of streams, held until the client goes.
pub fn take_stream(state: &ApiState) -> Answer<OwnedSemaphorePermit> {
    state.streams.clone().try_acquire_owned().map_err(|none| match none {
        TryAcquireError::NoPermits | TryAcquireError::Closed => ApiError::away(
            "too_many_streams",
            format!("all {} live streams are in use; close one or try again", state.settings.streams_max),
        ),
    })
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// The chunk to begin with, by its `seq`; the beginning when left out. A reconnect with `Last-Event-ID` goes on behind it.
    from: Option<u64>,
    /// The attempt to begin with; the current one when left out.
    attempt: Option<u32>,
}

/// The data of an `output` event.
#[derive(Serialize, ToSchema)]
pub struct StreamedChunk {
    #[serde(flatten)]
    chunk: ChunkView,
    /// From the part of the output that is not kept: it is not shown again later.
    live_only: bool,
}

/// Follows a run until it ends.
#[utoipa::path(get, path = "/api/v1/runs/{id}/stream", tag = "runs", params(StreamQuery),
    responses((status = 200, content_type = "text/event-stream", body = StreamedChunk)))]
pub async fn stream_run(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
    QueryValues(query): QueryValues<StreamQuery>,
    headers: HeaderMap,
) -> Answer<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let run = load(&state, &permit, &id).await?;
    let is_here = run.state.is_ended() || state.control.open_run(run.id).is_some();
    if !is_here && !headers.contains_key(FORWARDED_BY) {
        // Its owner hears each line as it comes; without one to be asked, the store is looked at from here.
        return Err(ControlError::NotOwned(run.job.shard()).into());
    }
    let turn = take_stream(&state)?;
    let begin = match headers.get("last-event-id") {
        Some(last) => last.to_str().ok().and_then(Place::parse).map(Place::following).ok_or_else(|| {
            ApiError::bad_request("invalid", "Last-Event-ID", "send back the id of an event as it came, such as 1:42")
        })?,
        None => Place { attempt: query.attempt.unwrap_or(run.attempt.max(1)).max(1), seq: query.from.unwrap_or(0) },
    };
    let first = view(&state, run.clone()).await?;
    let permit = LastingPermit { permit, headers };
    let follower = Follower::new(Watched { state, permit, _turn: turn }, run, begin, first, LOOK_AGAIN);
    let events = stream::unfold(follower, |mut follower| async move {
        let happening = follower.next().await?;
        Some((Ok(happening.event()), follower))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)))
}

/// Where a follower is: the next chunk it has not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    attempt: u32,
    seq: u64,
}

impl Place {
    fn of(chunk: &OutputChunk) -> Self {
        Self { attempt: chunk.attempt, seq: chunk.seq }
    }

    fn following(self) -> Self {
        Self { seq: self.seq + 1, ..self }
    }

    fn parse(text: &str) -> Option<Self> {
        let (attempt, seq) = text.split_once(':')?;
        Some(Self { attempt: attempt.parse().ok()?, seq: seq.parse().ok()? })
    }
}

/// What a client is told.
enum Happening {
    State(Box<RunView>),
    Output {
        /// None: it is kept nowhere, so nobody comes back for what follows it.
        place: Option<Place>,
        chunk: Box<StreamedChunk>,
    },
    End(Box<RunView>),
    /// The store does not answer; the client comes back with `Last-Event-ID`.
    Broken(String),
}

impl Happening {
    fn event(self) -> Event {
        let made = match self {
            Happening::State(run) => Event::default().event("state").json_data(run),
            Happening::Output { place, chunk } => {
                let event = Event::default().event("output");
                place
                    .map_or(event.clone(), |Place { attempt, seq }| event.id(format!("{attempt}:{seq}")))
                    .json_data(chunk)
            }
            Happening::End(run) => Event::default().event("end").json_data(run),
            Happening::Broken(message) => {
                Event::default().event("broken").json_data(serde_json::json!({ "message": message }))
            }
        };
        made.unwrap_or_default()
    }
}

/// Where a follower learns about its run; the tests bring their own.
trait Source: Send {
    fn follow(&self, run: RunId) -> Followed;
    fn changes(&self) -> Receiver<Arc<Run>>;
    /// Fails also when the caller may no longer see it.
    fn run(&mut self, run: RunId) -> impl Future<Output = Answer<Option<Run>>> + Send;
    fn read_output(&self, run: RunId, from: Place) -> impl Future<Output = Answer<Vec<OutputChunk>>> + Send;
}

struct Watched {
    state: ApiState,
    permit: LastingPermit,
    /// Given back when the client goes.
    _turn: OwnedSemaphorePermit,
}

impl Source for Watched {
    fn follow(&self, run: RunId) -> Followed {
        self.state.control.live().follow(run)
    }

    fn changes(&self) -> Receiver<Arc<Run>> {
        self.state.control.live().changes()
    }

    async fn run(&mut self, run: RunId) -> Answer<Option<Run>> {
        self.permit.renew(&self.state).await?;
        let stored = self.state.store.run(run).await?;
        let open = self.state.control.open_run(run);
        // An end counts when the store has it, and so all of the output; until then the run is not over for a follower.
        let found = match (stored, open) {
            (Some(stored), Some(open))
                if !stored.state.is_ended() && !open.state.is_ended() && open.progress() > stored.progress() =>
            {
                Some(open)
            }
            (Some(stored), _) => Some(stored),
            (None, open) => open.filter(|open| !open.state.is_ended()),
        };
        if let Some(found) = &found {
            self.permit.permit.on(&found.namespace, "run", run)?;
        }
        Ok(found)
    }

    async fn read_output(&self, run: RunId, from: Place) -> Answer<Vec<OutputChunk>> {
        Ok(self.state.store.read_output(run, from.attempt, from.seq, READ_BYTES_MAX).await?)
    }
}

struct Follower<S> {
    source: S,
    run: RunId,
    /// Shown to the client with each state; the command does not change.
    shown: RunView,
    at: Place,
    ready: VecDeque<Happening>,
    live: Option<(Receiver<LiveEvent>, Receiver<Arc<Run>>)>,
    look_again: tokio::time::Interval,
    over: bool,
}

impl<S: Source> Follower<S> {
    fn new(source: S, run: Run, at: Place, shown: RunView, look_again: Duration) -> Self {
        let ready = VecDeque::from([Happening::State(Box::new(shown.clone()))]);
        Self {
            source,
            run: run.id,
            shown,
            at,
            ready,
            live: None,
            look_again: tokio::time::interval(look_again),
            over: false,
        }
    }

    async fn next(&mut self) -> Option<Happening> {
        loop {
            if let Some(happening) = self.ready.pop_front() {
                return Some(happening);
            }
            if self.over {
                return None;
            }
            let step = match self.live.take() {
                None => self.catch_up().await,
                Some((events, changes)) => {
                    self.wait(events, changes).await;
                    Ok(())
                }
            };
            if let Err(error) = step {
                self.over = true;
                return Some(Happening::Broken(error.to_string()));
            }
        }
    }

    /// Follow first, then the store, then what was pending: a chunk is in at least one of them, and is told once by its place.
    async fn catch_up(&mut self) -> Answer<()> {
        let followed = self.source.follow(self.run);
        let changes = self.source.changes();
        let run = self.source.run(self.run).await?;
        self.tell_stored(run.as_ref().map_or(self.at.attempt, |run| run.attempt)).await?;
        for pending in followed.pending {
            self.tell(&pending);
        }
        match run {
            Some(run) if run.state.is_ended() => self.end(run),
            Some(run) => {
                self.tell_state(run);
                self.live = Some((followed.events, changes));
            }
            None => self.live = Some((followed.events, changes)),
        }
        Ok(())
    }

    async fn tell_stored(&mut self, last_attempt: u32) -> Answer<()> {
        loop {
            let chunks = self.source.read_output(self.run, self.at).await?;
            for chunk in &chunks {
                self.tell(&LiveChunk { chunk: Arc::new(chunk.clone()), live_only: false });
            }
            if chunks.is_empty() {
                if self.at.attempt >= last_attempt {
                    return Ok(());
                }
                self.at = Place { attempt: self.at.attempt + 1, seq: 0 };
            }
        }
    }

    async fn wait(&mut self, mut events: Receiver<LiveEvent>, mut changes: Receiver<Arc<Run>>) {
        let heard = tokio::select! {
            biased;
            // First: a run that prints without end must not keep it from being looked at.
            _ = self.look_again.tick() => {
                // Some of it is kept nowhere else.
                while let Ok(LiveEvent::Chunk(chunk)) = events.try_recv() {
                    self.tell(&chunk);
                }
                false
            }
            event = events.recv() => match event {
                Ok(LiveEvent::Chunk(chunk)) => {
                    self.tell(&chunk);
                    true
                }
                // The store has the end and all output: catching up finds both.
                Ok(LiveEvent::Ended(_)) | Err(RecvError::Lagged(_)) => false,
                Err(RecvError::Closed) => false,
            },
            change = changes.recv() => {
                match change {
                    Ok(run) if run.id == self.run && !run.state.is_ended() => self.tell_state(Run::clone(&run)),
                    Ok(_) | Err(_) => {}
                }
                true
            }
        };
        if heard {
            self.live = Some((events, changes));
        }
    }

    fn tell(&mut self, live: &LiveChunk) {
        let place = Place::of(&live.chunk);
        if place < self.at {
            return;
        }
        // What is not kept has the number of the next chunk that is, and many may have the same.
        let place = (!live.live_only).then_some(place);
        self.at = place.map_or(self.at, Place::following);
        let chunk = StreamedChunk { chunk: ChunkView::from(&*live.chunk), live_only: live.live_only };
        self.ready.push_back(Happening::Output { place, chunk: Box::new(chunk) });
    }

    fn tell_state(&mut self, run: Run) {
        let (state, attempt): (RunState, u32) = (run.state, run.attempt);
        if (state, attempt) != (self.shown.state, self.shown.attempt) {
            self.shown = RunView::of(run, self.shown.command.clone());
            self.ready.push_back(Happening::State(Box::new(self.shown.clone())));
        }
    }

    fn end(&mut self, run: Run) {
        self.shown = RunView::of(run, self.shown.command.clone());
        self.ready.push_back(Happening::End(Box::new(self.shown.clone())));
        self.over = true;
    }
}

#[cfg(test)]
mod tests;
