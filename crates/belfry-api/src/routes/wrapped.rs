//! What a wrapped command (`dcron`) printed, told by its wrapper after the end. Nothing is kept without the run that it belongs to: where the
//! leader has not copied the record yet, the run is recorded here, as the leader does once more.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use belfry_core::RunId;
use belfry_core::Timestamp;
use belfry_core::run::{OutputFacts, Run};
use belfry_core::wrapped::{NAMESPACE, OUTPUT_BYTES_MAX, run_of};
use belfry_store::{OutputChunk, Stream, Told};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::JsonBody;
use crate::state::ApiState;

/// What is kept, as JSON.
const TOLD_BYTES_MAX: usize = 8 << 20;
/// Both streams in turn, a few bytes each.
const CHUNKS_MAX: usize = 40_000;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WrappedOutput {
    /// The part of `DCRON_NAME` before its last dot.
    name: String,
    /// What the rest of it stood for.
    instance: String,
    /// When its host claimed the instance, as the record says: milliseconds since 1970.
    claimed_at_ms: i64,
    attempt: u32,
    /// In the order in which they were printed, at most 1 MiB in all.
    chunks: Vec<ToldChunk>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToldChunk {
    stream: ToldStream,
    /// When it was printed: milliseconds since 1970.
    at_ms: i64,
    /// Bytes that were left out right before this chunk.
    #[serde(default)]
    dropped_bytes: u64,
    /// The bytes as text, when they are UTF-8.
    text: Option<String>,
    /// The bytes otherwise.
    base64: Option<String>,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ToldStream {
    Stdout,
    Stderr,
}

#[derive(Serialize, ToSchema)]
pub struct WrappedOutputView {
    /// Where it is read: `GET /api/v1/runs/{id}/output`.
    #[schema(value_type = String)]
    run: RunId,
}

/// Keeps what one attempt of a wrapped command printed. The same once more changes nothing; something else is refused.
#[utoipa::path(put, path = "/api/v1/wrapped/output", tag = "runs", request_body = WrappedOutput, responses((status = 200, body = WrappedOutputView)))]
pub async fn put_output(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(told): JsonBody<WrappedOutput, TOLD_BYTES_MAX>,
) -> Answer<Json<WrappedOutputView>> {
    let claimed_at = Timestamp::from_millisecond(told.claimed_at_ms)
        .map_err(|_| ApiError::invalid("claimed_at_ms", format!("`{}` is no instant", told.claimed_at_ms)))?;
    let id = run_of(&told.name, &told.instance, claimed_at);
    permit.on(NAMESPACE, "run", id)?;
    let run = find(&state, &told, id, claimed_at).await?;
    if told.attempt == 0 || told.attempt > run.attempt {
        let message = format!("there is no attempt {}; the run has had {}", told.attempt, run.attempt);
        return Err(ApiError::invalid("attempt", message));
    }
    let (chunks, facts) = read(id, &told)?;
    match state.store.tell_output(id, told.attempt, &chunks, facts).await? {
        Told::Kept => Ok(Json(WrappedOutputView { run: id })),
        Told::NoRun => Err(not_there(&told)),
        Told::Otherwise => Err(ApiError::new(
            StatusCode::CONFLICT,
            "already_told",
            format!("attempt {} of run {id} has printed something else; what is there stays", told.attempt),
        )),
    }
}

async fn find(state: &ApiState, told: &WrappedOutput, id: RunId, claimed_at: Timestamp) -> Answer<Run> {
    if let Some(run) = state.store.run(id).await? {
        // Ids come from what was said: nobody may talk himself into another namespace's run.
        return if run.namespace == NAMESPACE { Ok(run) } else { Err(not_there(told)) };
    }
    let unrecorded = state.control.unrecorded_wrapped(&told.name, &told.instance, claimed_at).await?;
    let run = unrecorded.ok_or_else(|| not_there(told))?;
    state.store.record_runs(std::slice::from_ref(&run)).await?;
    Ok(run)
}

fn not_there(told: &WrappedOutput) -> ApiError {
    let message = format!(
        "there is no run of `{}` `{}` that was claimed then and has ended; is this server on the coordinator that DCRON_COORD names?",
        told.name, told.instance
    );
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

fn read(run: RunId, told: &WrappedOutput) -> Answer<(Vec<OutputChunk>, OutputFacts)> {
    if told.chunks.len() > CHUNKS_MAX {
        let message = format!("{} chunks are too many; at most {CHUNKS_MAX} are kept", told.chunks.len());
        return Err(ApiError::invalid("chunks", message));
    }
    let mut chunks = Vec::with_capacity(told.chunks.len());
    let mut facts = OutputFacts::default();
    let mut kept_bytes: u64 = 0;
    for (seq, chunk) in (0..).zip(&told.chunks) {
        let field = format!("chunks[{seq}]");
        let bytes = match (&chunk.text, &chunk.base64) {
            (Some(text), None) => text.clone().into_bytes(),
            (None, Some(text)) => STANDARD
                .decode(text)
                .map_err(|wrong| ApiError::invalid(format!("{field}.base64"), format!("it is no base64: {wrong}")))?,
            (Some(_), Some(_)) | (None, None) => {
                return Err(ApiError::invalid(field, "its bytes are either in `text` or in `base64`"));
            }
        };
        let at = Timestamp::from_millisecond(chunk.at_ms)
            .map_err(|_| ApiError::invalid(format!("{field}.at_ms"), format!("`{}` is no instant", chunk.at_ms)))?;
        facts.dropped_bytes = facts.dropped_bytes.saturating_add(chunk.dropped_bytes);
        let offset = kept_bytes.saturating_add(facts.dropped_bytes);
        kept_bytes += bytes.len() as u64;
        let (attempt, dropped_bytes) = (told.attempt, chunk.dropped_bytes);
        let stream = match chunk.stream {
            ToldStream::Stdout => Stream::Stdout,
            ToldStream::Stderr => Stream::Stderr,
        };
        chunks.push(OutputChunk { run, attempt, seq, stream, offset, at, bytes, dropped_bytes });
    }
    if kept_bytes > OUTPUT_BYTES_MAX {
        let message = format!(
            "{kept_bytes} bytes are too much; at most {OUTPUT_BYTES_MAX} are kept: leave out the middle, and say so in `dropped_bytes`"
        );
        return Err(ApiError::invalid("chunks", message));
    }
    facts.bytes = kept_bytes.saturating_add(facts.dropped_bytes);
    // What no database has a number for was not counted by anybody.
    if i64::try_from(facts.bytes).is_err() {
        return Err(ApiError::invalid("chunks", "so many bytes were never left out"));
    }
    Ok((chunks, facts))
}
