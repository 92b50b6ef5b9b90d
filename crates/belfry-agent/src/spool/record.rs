//! One record: its length, a checksum, and the message as it will be sent. Knows nothing of files.

use belfry_proto::session::{FromAgent, from_agent};
use prost::Message;
use xxhash_rust::xxh3::xxh3_64;

use crate::key::Key;

pub(super) const HEADER_BYTES: usize = 8;
/// Far above what a chunk or an end needs; a length beyond it is rubbish.
pub(super) const BODY_BYTES_MAX: usize = 4 * 1024 * 1024;

pub(super) struct Header {
    pub length: usize,
    checksum: u32,
}

pub(super) fn append(out: &mut Vec<u8>, message: &FromAgent) {
    let start = out.len();
    out.extend([0; HEADER_BYTES]);
    // Encoding fails only for lack of room, which a vector always has.
    let _always_fits = message.encode(out);
    let body = &out[start + HEADER_BYTES..];
    let (length, checksum) = (body.len() as u32, checksum(body));
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    out[start + 4..start + HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

/// What it takes on the disk.
pub(super) fn bytes(message: &FromAgent) -> u64 {
    (HEADER_BYTES + message.encoded_len()) as u64
}

impl Header {
    /// `None`: there is no record here. Zeros, as a file may have at its end after a crash, are no record.
    pub(super) fn parse(bytes: &[u8]) -> Option<Header> {
        let length = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
        let checksum = u32::from_le_bytes(bytes.get(4..HEADER_BYTES)?.try_into().ok()?);
        (1..=BODY_BYTES_MAX).contains(&length).then_some(Header { length, checksum })
    }

    /// `None`: the body is not what was written.
    pub(super) fn message(&self, body: &[u8]) -> Option<FromAgent> {
        (checksum(body) == self.checksum).then(|| FromAgent::decode(body).ok()).flatten()
    }
}

fn checksum(body: &[u8]) -> u32 {
    xxh3_64(body) as u32
}

/// Not what only followers are to see.
pub(super) fn is_kept(message: &FromAgent) -> bool {
    !matches!(&message.message, Some(from_agent::Message::Output(chunk)) if chunk.live_only)
}

/// Whose record it is, and whether it is the end of the run.
pub(super) fn key_of(message: &FromAgent) -> Option<(Key, Kind)> {
    match message.message.as_ref()? {
        from_agent::Message::Output(chunk) => Some((Key::from_wire(chunk.key.as_ref())?, Kind::Chunk)),
        from_agent::Message::Ended(ended) => {
            let kind = if ended.local.is_some() { Kind::EndOfLocal } else { Kind::End };
            Some((Key::from_wire(ended.key.as_ref())?, kind))
        }
        from_agent::Message::Hello(_)
        | from_agent::Message::Heartbeat(_)
        | from_agent::Message::Taken(_)
        | from_agent::Message::Started(_)
        | from_agent::Message::Clock(_)
        | from_agent::Message::Load(_)
        | from_agent::Message::Host(_)
        | from_agent::Message::AskJobs(_)
        | from_agent::Message::DisabledJobs(_)
        | from_agent::Message::Released(_)
        | from_agent::Message::SaveState(_) => None,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chunk,
    End,
    /// Of a run that this node fired by itself.
    EndOfLocal,
}

/// How much of the writer's room it took.
pub(super) fn output_bytes(message: &FromAgent) -> usize {
    match &message.message {
        Some(from_agent::Message::Output(chunk)) => chunk.bytes.len(),
        _ => 0,
    }
}
