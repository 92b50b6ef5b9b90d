//! Where results are kept: on the node's disk, or in the memory of a simulation.

use belfry_proto::session::{Ended, FromAgent, OutputChunk};

use super::memory::MemorySpool;
use super::{Reading, Space, Spool};
use crate::key::Key;

pub(crate) enum Place {
    Disk(Spool),
    Memory(MemorySpool),
}

/// The records of one run, on their way to a session.
pub(crate) enum Records {
    Disk(Reading),
    Memory(Vec<FromAgent>),
}

impl Place {
    /// A simulated disk has no end.
    pub(crate) fn space(&self) -> Space {
        match self {
            Place::Disk(spool) => spool.space(),
            Place::Memory(_) => Space::Enough,
        }
    }

    pub(crate) fn has_room_for_output(&self, bytes: usize) -> bool {
        match self {
            Place::Disk(spool) => spool.has_room_for_output(bytes),
            Place::Memory(_) => true,
        }
    }

    pub(crate) async fn pass_on(&self, chunk: OutputChunk) {
        match self {
            Place::Disk(spool) => spool.pass_on(chunk).await,
            Place::Memory(spool) => spool.pass_on(chunk),
        }
    }

    pub(crate) fn keep_end(&self, ended: Ended) {
        match self {
            Place::Disk(spool) => spool.keep_end(ended),
            Place::Memory(spool) => spool.keep_end(ended),
        }
    }

    pub(crate) fn forget(&self, keys: &[Key]) {
        match self {
            Place::Disk(spool) => spool.forget(keys),
            Place::Memory(spool) => spool.forget(keys),
        }
    }

    pub(crate) fn read(&self, key: Key, from_sequence: u32) -> Records {
        match self {
            Place::Disk(spool) => Records::Disk(spool.read(key, from_sequence)),
            Place::Memory(spool) => Records::Memory(spool.read(key, from_sequence)),
        }
    }

    pub(crate) async fn flush(&self) {
        match self {
            Place::Disk(spool) => spool.flush().await,
            Place::Memory(_) => {}
        }
    }
}

impl Records {
    /// The next ones; empty at the end.
    pub(crate) async fn next(&mut self) -> Vec<FromAgent> {
        match self {
            Records::Disk(reading) => reading.next().await,
            Records::Memory(records) => std::mem::take(records),
        }
    }
}
