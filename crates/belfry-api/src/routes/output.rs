//! What a run printed: as plain text, or as chunks with their stream and time. A gap in the middle is marked where it is.

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belfry_core::RunId;
use belfry_store::{OutputChunk, Store, StoreError, Stream};
use futures_util::stream;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::runs::load;
use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::{PathValues, QueryValues};
use crate::moment::Moment;
use crate::state::ApiState;

/// Read from the store and sent at once; bounds the memory of a request.
const PIECE_BYTES_MAX: usize = 256 * 1024;
/// A page of chunks as JSON.
const JSON_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChunkView {
    pub attempt: u32,
    pub seq: u64,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// Where its bytes start in everything that the stream printed.
    pub offset: u64,
    pub at: Moment,
    /// Since 1970, for programs.
    pub at_ms: i64,
    /// Bytes that were left out right before this chunk.
    pub dropped_bytes: u64,
    /// The bytes as text, when they are UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The bytes otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
}

impl From<&OutputChunk> for ChunkView {
    fn from(chunk: &OutputChunk) -> Self {
        let (text, base64) = match std::str::from_utf8(&chunk.bytes) {
            Ok(text) => (Some(text.to_owned()), None),
            Err(_) => (None, Some(STANDARD.encode(&chunk.bytes))),
        };
        Self {
            attempt: chunk.attempt,
            seq: chunk.seq,
            stream: match chunk.stream {
                Stream::Stdout => "stdout",
                Stream::Stderr => "stderr",
            },
            offset: chunk.offset,
            at: chunk.at.into(),
            at_ms: chunk.at.as_millisecond(),
            dropped_bytes: chunk.dropped_bytes,
            text,
            base64,
        }
    }
}

#[derive(Serialize, ToSchema)]
pub struct OutputAnswer {
    attempt: u32,
    chunks: Vec<ChunkView>,
    /// Send it back as `from` for what follows; null when there is no more at the moment.
    next: Option<u64>,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// The chunk to begin with, by its `seq`.
    from: Option<u64>,
    /// The last attempt when left out.
    attempt: Option<u32>,
}

/// Reads the output of a run: text, or with `Accept: application/json` chunks.
#[utoipa::path(get, path = "/api/v1/runs/{id}/output", tag = "runs", params(OutputQuery),
    responses((status = 200, content((String = "text/plain"), (OutputAnswer = "application/json")))))]
pub async fn get_output(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
    QueryValues(query): QueryValues<OutputQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let run = load(&state, &permit, &id).await?;
    let attempt = query.attempt.unwrap_or(run.attempt.max(1));
    let from = query.from.unwrap_or(0);
    if attempt == 0 || attempt > run.attempt.max(1) {
        let message = format!("there is no attempt {attempt}; the run has had {}", run.attempt);
        return Err(ApiError::bad_request("invalid", "attempt", message));
    }
    let wants_json =
        headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).is_some_and(|accept| accept.contains("json"));
    if wants_json {
        let chunks = state.store.read_output(run.id, attempt, from, JSON_BYTES_MAX).await?;
        let bytes: usize = chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        let next = chunks.last().filter(|_| bytes >= JSON_BYTES_MAX).map(|last| last.seq + 1);
        return Ok(
            Json(OutputAnswer { attempt, chunks: chunks.iter().map(ChunkView::from).collect(), next }).into_response()
        );
    }
    let name = format!("inline; filename=\"{}.{attempt}.txt\"", run.id);
    let kind = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8".to_owned()),
        // It is whatever the job printed; no browser may take it for a page.
        (header::CONTENT_DISPOSITION, name),
    ];
    // The first piece before the headers are sent: a store that is away is a refusal, not a broken body.
    let first = piece(&state.store, run.id, attempt, from).await?;
    Ok((kind, Body::from_stream(text_of(state.store.clone(), run.id, attempt, first))).into_response())
}

type Piece = (Vec<u8>, Option<u64>);

async fn piece(store: &Store, run: RunId, attempt: u32, from: u64) -> Result<Piece, StoreError> {
    let chunks = store.read_output(run, attempt, from, PIECE_BYTES_MAX).await?;
    let mut text = Vec::new();
    for chunk in &chunks {
        text.extend(gap_text(chunk.dropped_bytes).into_bytes());
        text.extend(&chunk.bytes);
    }
    Ok((text, chunks.last().map(|last| last.seq + 1)))
}

/// What stands for bytes that were not kept.
pub fn gap_text(dropped_bytes: u64) -> String {
    if dropped_bytes == 0 { String::new() } else { format!("\n… {dropped_bytes} bytes left out …\n") }
}

fn text_of(
    store: Store,
    run: RunId,
    attempt: u32,
    first: Piece,
) -> impl futures_util::Stream<Item = Result<Vec<u8>, StoreError>> {
    stream::unfold((store, Some(first)), move |(store, ready)| async move {
        let (text, next) = ready?;
        let after = match next {
            None => None,
            Some(from) => match piece(&store, run, attempt, from).await {
                Ok(piece) => Some(piece),
                Err(error) => return Some((Err(error), (store, None))),
            },
        };
        Some((Ok(text), (store, after)))
    })
}
