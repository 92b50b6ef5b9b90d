//! The output of a child: both pipes are always drained, so the child never waits and memory never grows.

mod capture;
mod fail_on;
mod keep;
mod kept;

use bytes::Bytes;

pub use capture::{CaptureSummary, DRAIN_GRACE, OUTPUT_CHUNKS_IN_FLIGHT_MAX, capture};
pub use fail_on::{FailMatch, FailOn};
pub use kept::Kept;

/// Gets the bytes of both streams in the order in which they were read. It must not wait for anything: the child would, too.
pub type OutputCopy = Box<dyn FnMut(&[u8]) + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of output, as it was: it need not be UTF-8, nor end with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub stream: Stream,
    /// Place of the first byte in all that both streams produced, in the order of arrival.
    pub offset: u64,
    /// Milliseconds since the capture began.
    pub at_ms: u64,
    pub bytes: Bytes,
    /// Only for those who follow now: not to be stored. It comes again, not live, if it turns out to be in the kept tail.
    pub live_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CaptureEvent {
    Chunk(Chunk),
    /// What was produced between the kept head and the kept tail is gone; the tail follows.
    Gap {
        dropped_bytes: u64,
    },
}

/// How much of the output is kept: its first half from the beginning, the other half from the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureLimits {
    /// Default 1 MiB.
    pub keep_bytes: u64,
}

impl Default for CaptureLimits {
    fn default() -> Self {
        CaptureLimits { keep_bytes: 1024 * 1024 }
    }
}
