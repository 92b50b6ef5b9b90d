//! What runs printed, in chunks, byte for byte. A chunk is compressed where that helps; sending one twice changes nothing. It
//! keeps what it is given: how much of an output is kept is decided where it is captured.

use belfry_core::run::OutputFacts;
use belfry_core::{RunId, Timestamp};
use belfry_sql::{Row, Statement, Step, Value, Written, sql};

use crate::columns::{bits, instant, ms, word};
use crate::dialect::{IfThere, if_there, insert, pieces};
use crate::{Store, StoreError};

/// Below this, zstd's frame costs more than it saves.
const COMPRESS_FROM_BYTES: usize = 128;
const COMPRESS_LEVEL: i32 = 1;
/// A chunk that claims to be larger than this is damaged.
const PLAIN_BYTES_MAX: usize = 64 * 1024 * 1024;
const READ_ROWS: u64 = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of one stream of one attempt. `seq` orders the pieces of both streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputChunk {
    pub run: RunId,
    pub attempt: u32,
    pub seq: u64,
    pub stream: Stream,
    /// Where its bytes start in everything that the stream printed.
    pub offset: u64,
    pub at: Timestamp,
    pub bytes: Vec<u8>,
    /// Bytes that were dropped right before this chunk: the gap in the middle.
    pub dropped_bytes: u64,
}

/// What became of an output that was told as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// It is there, byte for byte, since now or from an earlier time.
    Kept,
    /// The attempt has printed something else.
    Otherwise,
    /// There is no such run, or no longer.
    NoRun,
}

impl Store {
    /// All that an attempt of a recorded run printed, from somebody who tells it once. Never without its run: so it goes when the run does.
    pub async fn tell_output(
        &self,
        run: RunId,
        attempt: u32,
        chunks: &[OutputChunk],
        facts: OutputFacts,
    ) -> Result<Told, StoreError> {
        // First of all: of two who tell it at once one waits here for the other. The row has the facts of its last attempt.
        let text = "UPDATE runs SET output_bytes = CASE WHEN attempt = ? THEN ? ELSE output_bytes END, \
             output_dropped_bytes = CASE WHEN attempt = ? THEN ? ELSE output_dropped_bytes END WHERE id = ?";
        let facts = sql!(text, attempt, facts.bytes, attempt, facts.dropped_bytes, word(run)).touching(1);
        let is_there = "SELECT seq FROM output_chunks WHERE run = ? AND attempt = ? LIMIT 1";
        let mut steps = vec![facts, sql!(is_there, word(run), attempt).returning(0)];
        steps.extend(pieces(chunks).map(|piece| self.append(piece)));
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(Told::Kept),
            Written::Refused { step: 0, .. } => Ok(Told::NoRun),
            Written::Refused { .. } => {
                let kept = self.read_output(run, attempt, 0, usize::MAX).await?;
                Ok(if kept == chunks { Told::Kept } else { Told::Otherwise })
            }
        }
    }

    /// Idempotent by (run, attempt, seq): the first that came stays.
    pub async fn append_output(&self, chunks: &[OutputChunk]) -> Result<(), StoreError> {
        if chunks.is_empty() {
            return Ok(());
        }
        let steps = pieces(chunks).map(|piece| self.append(piece)).collect();
        self.write(steps).await.map(drop)
    }

    fn append(&self, chunks: &[OutputChunk]) -> Step {
        let columns = [
            "run",
            "attempt",
            "seq",
            "stream",
            "byte_offset",
            "at",
            "dropped_bytes",
            "packed",
            "plain_bytes",
            "content",
        ];
        let text = insert("output_chunks", &columns, chunks.len())
            + &if_there(self.dialect(), "output_chunks", &["run", "attempt", "seq"], &IfThere::Keep);
        let mut args = Vec::with_capacity(chunks.len() * columns.len());
        for chunk in chunks {
            let (packed, content) = pack(&chunk.bytes);
            args.extend([word(chunk.run), chunk.attempt.into(), chunk.seq.into(), stream_number(chunk.stream).into()]);
            args.extend([bits(chunk.offset), ms(chunk.at).into(), bits(chunk.dropped_bytes)]);
            args.extend([Value::from(packed), Value::from(chunk.bytes.len() as u64), Value::Blob(content)]);
        }
        Statement { sql: text.into(), args }.anything()
    }

    /// Chunks from `from_seq` on, in order, until `limit_bytes` are reached; at least one if there is one.
    pub async fn read_output(
        &self,
        run: RunId,
        attempt: u32,
        from_seq: u64,
        limit_bytes: usize,
    ) -> Result<Vec<OutputChunk>, StoreError> {
        self.collect_output(run, attempt, Some(from_seq), limit_bytes).await
    }

    /// The last chunks, in order, so many that they hold at least `bytes` bytes, or all.
    pub async fn tail_output(&self, run: RunId, attempt: u32, bytes: usize) -> Result<Vec<OutputChunk>, StoreError> {
        let mut chunks = self.collect_output(run, attempt, None, bytes).await?;
        chunks.reverse();
        Ok(chunks)
    }

    /// The attempts of a run that have printed something.
    pub async fn output_attempts(&self, run: RunId) -> Result<Vec<u32>, StoreError> {
        let text = "SELECT DISTINCT attempt FROM output_chunks WHERE run = ? ORDER BY attempt";
        Ok(self.read(sql!(text, word(run))).await?.iter().map(|row| row.int(0) as u32).collect())
    }

    /// Forward from a chunk, or backward from the end.
    async fn collect_output(
        &self,
        run: RunId,
        attempt: u32,
        from: Option<u64>,
        limit_bytes: usize,
    ) -> Result<Vec<OutputChunk>, StoreError> {
        let (range, order) = if from.is_some() { (">=", "ASC") } else { ("<", "DESC") };
        let text = format!(
            "SELECT seq, stream, byte_offset, at, dropped_bytes, packed, plain_bytes, content FROM output_chunks \
             WHERE run = ? AND attempt = ? AND seq {range} ? ORDER BY seq {order} LIMIT {READ_ROWS}"
        );
        let mut bound = from.map_or(Value::Int(i64::MAX), Value::from);
        let mut chunks: Vec<OutputChunk> = Vec::new();
        let mut bytes = 0;
        loop {
            let rows = self.read(sql!(text.clone(), word(run), attempt, bound)).await?;
            for row in &rows {
                if bytes >= limit_bytes && !chunks.is_empty() {
                    return Ok(chunks);
                }
                let chunk = chunk(run, attempt, row)?;
                bytes += chunk.bytes.len();
                chunks.push(chunk);
            }
            match chunks.last() {
                Some(last) if rows.len() as u64 == READ_ROWS => {
                    bound = if from.is_some() { (last.seq + 1).into() } else { last.seq.into() };
                }
                _ => return Ok(chunks),
            }
        }
    }
}

fn chunk(run: RunId, attempt: u32, row: &Row) -> Result<OutputChunk, StoreError> {
    let unreadable = |cause: std::io::Error| StoreError::unreadable(format!("output of run {run}"), cause);
    let bytes = match row.int(5) {
        0 => row.blob(7).to_vec(),
        _ => zstd::bulk::decompress(row.blob(7), (row.int(6) as usize).min(PLAIN_BYTES_MAX)).map_err(unreadable)?,
    };
    Ok(OutputChunk {
        run,
        attempt,
        seq: row.int(0) as u64,
        stream: if row.int(1) == 2 { Stream::Stderr } else { Stream::Stdout },
        offset: row.int(2) as u64,
        at: instant(row.int(3)),
        dropped_bytes: row.int(4) as u64,
        bytes,
    })
}

/// As file descriptors are counted.
fn stream_number(stream: Stream) -> i64 {
    match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
    }
}

/// Compressed, if that saves at least an eighth.
fn pack(bytes: &[u8]) -> (bool, Vec<u8>) {
    if bytes.len() >= COMPRESS_FROM_BYTES
        && let Ok(packed) = zstd::bulk::compress(bytes, COMPRESS_LEVEL)
        && packed.len() <= bytes.len() / 8 * 7
    {
        return (true, packed);
    }
    (false, bytes.to_vec())
}
