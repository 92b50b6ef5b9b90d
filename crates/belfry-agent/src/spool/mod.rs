//! Results on this node's disk, from the moment they exist until a server has stored them. Segments are only appended to;
//! one is deleted when nothing in it is needed any more. It never decides where a result is sent.
//!
//! A record is in the kernel's hands before the message is handed on, so a killed agent loses nothing that it reported;
//! it is on the disk at most about 100 ms later. The bytes it holds have a bound, see `room`.

mod index;
mod memory;
mod place;
mod record;
mod room;
mod segment;
mod sync;
mod writer;

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use belfry_proto::session::{Ended, FromAgent, OutputChunk, from_agent};
use tokio::sync::{Semaphore, oneshot};

use crate::key::Key;
use index::{Index, Location};
pub use memory::MemoryDisk;
pub(crate) use memory::MemorySpool;
pub(crate) use place::Place;
use room::Room;
pub(crate) use room::Space;

/// Cheap to clone; the files are closed when the last clone is gone.
#[derive(Clone)]
pub(crate) struct Spool {
    shared: Arc<Shared>,
    _closes: Arc<CloseOnDrop>,
}

struct Shared {
    folder: PathBuf,
    submitted: Mutex<Submitted>,
    something_submitted: Condvar,
    index: Mutex<Index>,
    room: Room,
    /// Bytes of output that may still be submitted before the writer has caught up.
    room_bytes: Semaphore,
}

#[derive(Default)]
struct Submitted {
    messages: Vec<FromAgent>,
    flushes: Vec<oneshot::Sender<()>>,
    closed: bool,
}

struct CloseOnDrop(Arc<Shared>);

/// Is called by the writer with messages that are safe to send, in their order. May wait.
pub(crate) type HandOn = Box<dyn Fn(Vec<FromAgent>) + Send>;

const UNWRITTEN_OUTPUT_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How many bytes are read from disk at once for sending.
const READ_BATCH_BYTES: usize = 256 * 1024;

impl Spool {
    /// Opens the folder, making it when it is missing, and finds what a former incarnation could not deliver.
    pub(crate) fn open(folder: &Path, max_bytes: u64, hand_on: HandOn) -> io::Result<Spool> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let (index, next_segment) = segment::replay(folder)?;
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            submitted: Mutex::default(),
            something_submitted: Condvar::new(),
            room: Room::new(max_bytes, index.needed_bytes()),
            index: Mutex::new(index),
            room_bytes: Semaphore::new(UNWRITTEN_OUTPUT_BYTES_MAX),
        });
        writer::start(Arc::clone(&shared), next_segment, hand_on)?;
        Ok(Spool { _closes: Arc::new(CloseOnDrop(Arc::clone(&shared))), shared })
    }

    pub(crate) fn space(&self) -> Space {
        self.shared.room.space()
    }

    /// Whether so many bytes of output may be kept; what may not is left out, and that is marked.
    pub(crate) fn has_room_for_output(&self, bytes: usize) -> bool {
        self.shared.room.is_enough_for_output(bytes as u64)
    }

    /// Keeps a piece of output, unless only followers are to see it; handed on in its turn either way. Waits while the disk does not keep up.
    pub(crate) async fn pass_on(&self, chunk: OutputChunk) {
        let bytes = u32::try_from(chunk.bytes.len()).unwrap_or(u32::MAX).min(UNWRITTEN_OUTPUT_BYTES_MAX as u32);
        if let Ok(room) = self.shared.room_bytes.acquire_many(bytes).await {
            room.forget();
        }
        self.shared.submit(from_agent::Message::Output(chunk));
    }

    /// Keeps the end of a run. Never waits: there are not more ends than runs.
    pub(crate) fn keep_end(&self, ended: Ended) {
        self.shared.submit(from_agent::Message::Ended(ended));
    }

    /// A server has stored these.
    pub(crate) fn forget(&self, keys: &[Key]) {
        let unneeded = {
            let mut index = self.shared.index();
            let bytes = keys.iter().map(|key| index.forget(*key)).sum();
            self.shared.room.give_back(bytes);
            index.take_unneeded_segments()
        };
        segment::remove(&self.shared.folder, &unneeded);
    }

    /// All that ended and is not known to be stored.
    pub(crate) fn finished(&self) -> Vec<Key> {
        self.shared.index().finished()
    }

    /// Of what ended, the runs that this node fired by itself.
    pub(crate) fn fired_here(&self) -> Vec<Key> {
        self.shared.index().fired_here()
    }

    /// What is kept of a run, its chunks from `from_sequence` on, in order, in pieces of moderate size.
    pub(crate) fn read(&self, key: Key, from_sequence: u32) -> Reading {
        let mut left = self.shared.index().locations(key, from_sequence);
        left.reverse();
        Reading { spool: self.clone(), left }
    }

    /// Returns when everything submitted before is on the disk, or cannot be written.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.shared.submitted().flushes.push(done);
        self.shared.something_submitted.notify_one();
        let _writer_gone = flushed.await;
    }
}

impl Shared {
    fn submit(&self, message: from_agent::Message) {
        let message = FromAgent { message: Some(message) };
        if record::is_kept(&message) {
            self.room.take(record::bytes(&message));
        }
        self.submitted().messages.push(message);
        self.something_submitted.notify_one();
    }

    fn submitted(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.submitted().closed = true;
        self.0.something_submitted.notify_one();
    }
}

/// The records of one run, on their way from the disk.
pub(crate) struct Reading {
    spool: Spool,
    /// Last one first.
    left: Vec<Location>,
}

impl Reading {
    /// The next ones; empty at the end. What was stored and removed meanwhile is passed over.
    pub(crate) async fn next(&mut self) -> Vec<FromAgent> {
        while !self.left.is_empty() {
            let mut left = std::mem::take(&mut self.left);
            let folder = self.spool.shared.folder.clone();
            let read = tokio::task::spawn_blocking(move || {
                let batch = segment::read_batch(&folder, &mut left, READ_BATCH_BYTES);
                (batch, left)
            });
            let Ok((batch, left)) = read.await else { return Vec::new() };
            self.left = left;
            if !batch.is_empty() {
                return batch;
            }
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests;
