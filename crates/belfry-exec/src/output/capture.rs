//! Reads a child's two pipes until they close, and hands on what is kept. Whoever takes the chunks may be slow or gone:
//! the pipes are drained all the same.

use std::io;
use std::time::Duration;

use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::fail_on::Watch;
use super::keep::{CHUNK_BYTES_MAX, COALESCE_MS, Keep};
use super::{CaptureEvent, CaptureLimits, FailMatch, FailOn, OutputCopy, Stream};
use crate::child::OutputPipes;

/// How long the pipes may stay open after the child's exit, held by something it left in the background.
pub const DRAIN_GRACE: Duration = Duration::from_millis(500);

/// A fitting capacity for the channel given to `capture`: with chunks of 16 KiB, 1 MiB at most is on the way.
pub const OUTPUT_CHUNKS_IN_FLIGHT_MAX: usize = 64;

const LIVE_BYTES_PER_WINDOW_MAX: usize = 64 * 1024;
const LIVE_WINDOW: Duration = Duration::from_millis(100);
/// What a pipe holds by default.
const READ_BYTES_MAX: usize = 64 * 1024;

/// What came out, when all is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureSummary {
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub dropped_bytes: u64,
    pub failed_on: Option<FailMatch>,
    /// A process left in the background still held a pipe; what it writes from now on is not seen.
    pub held_open: bool,
}

/// Drains both pipes until they close, or until `DRAIN_GRACE` after the child's exit.
///
/// The first half of `limits.keep_bytes` goes to `sink` as it comes, no more than 50 ms late; the last half follows at
/// the end, after `Gap` if anything had to be dropped. In between `sink` gets some of it as `live_only`. While `sink`
/// is full, output waits in the ring for the tail; the child never does.
pub async fn capture(
    pipes: OutputPipes,
    limits: CaptureLimits,
    fail_on: Option<FailOn>,
    sink: mpsc::Sender<CaptureEvent>,
) -> CaptureSummary {
    let OutputPipes { stdout, stderr, mut exited, copy } = pipes;
    let (mut stdout, mut stderr) = (Some(stdout), Some(stderr));
    let mut capture = Capture::new(limits, fail_on, copy, sink);
    let mut give_up_at = None;
    while stdout.is_some() || stderr.is_some() {
        let flush_at = capture.flush_at;
        tokio::select! {
            () = readable(&stdout) => capture.read(&mut stdout, Stream::Stdout),
            () = readable(&stderr) => capture.read(&mut stderr, Stream::Stderr),
            () = until(flush_at) => capture.flush(),
            _ = &mut exited, if give_up_at.is_none() => give_up_at = Some(Instant::now() + DRAIN_GRACE),
            () = until(give_up_at) => {
                capture.summary.held_open = true;
                break;
            }
        }
    }
    drop((stdout, stderr));
    capture.finish().await
}

struct Capture {
    keep: Keep,
    watch: Watch,
    copy: Option<OutputCopy>,
    sink: mpsc::Sender<CaptureEvent>,
    began: Instant,
    flush_at: Option<Instant>,
    live_window_began: Instant,
    live_bytes_in_window: usize,
    summary: CaptureSummary,
}

impl Capture {
    fn new(
        limits: CaptureLimits,
        fail_on: Option<FailOn>,
        copy: Option<OutputCopy>,
        sink: mpsc::Sender<CaptureEvent>,
    ) -> Capture {
        let began = Instant::now();
        Capture {
            keep: Keep::new(limits.keep_bytes),
            watch: Watch::new(fail_on),
            copy,
            sink,
            began,
            flush_at: None,
            live_window_began: began,
            live_bytes_in_window: 0,
            summary: CaptureSummary::default(),
        }
    }

    /// Reads once. Closes the pipe at its end; any error is an end too.
    fn read(&mut self, pipe: &mut Option<pipe::Receiver>, stream: Stream) {
        // On the stack, and only here: ten thousand silent children need no buffers.
        let mut buffer = [0; READ_BYTES_MAX];
        let Some(open) = pipe else { return };
        match open.try_read(&mut buffer) {
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Ok(0) | Err(_) => *pipe = None,
            Ok(count) => self.take(stream, &buffer[..count]),
        }
    }

    fn take(&mut self, stream: Stream, bytes: &[u8]) {
        let now = Instant::now();
        match stream {
            Stream::Stdout => self.summary.stdout_bytes += bytes.len() as u64,
            Stream::Stderr => self.summary.stderr_bytes += bytes.len() as u64,
        }
        self.watch.look(stream, bytes);
        if let Some(copy) = &mut self.copy {
            copy(bytes);
        }
        self.keep.push(stream, now.duration_since(self.began).as_millis() as u64, bytes);
        if self.keep.waiting_bytes() >= CHUNK_BYTES_MAX as u64 || self.keep.is_over() {
            self.flush();
        } else if self.flush_at.is_none() {
            self.flush_at = Some(now + Duration::from_millis(COALESCE_MS));
        }
        self.keep.trim();
    }

    /// Hands on what waits, as far as `sink` has room.
    fn flush(&mut self) {
        self.flush_at = None;
        while self.keep.is_in_head() && self.keep.waiting_bytes() > 0 {
            match self.sink.try_reserve() {
                Ok(room) => drop(self.keep.take_head().map(|chunk| room.send(CaptureEvent::Chunk(chunk)))),
                Err(mpsc::error::TrySendError::Full(())) => {
                    self.flush_at = Some(Instant::now() + Duration::from_millis(COALESCE_MS));
                    return;
                }
                Err(mpsc::error::TrySendError::Closed(())) => return,
            }
        }
        if !self.keep.is_in_head() {
            self.flush_live();
        }
    }

    fn flush_live(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.live_window_began) >= LIVE_WINDOW {
            self.live_window_began = now;
            self.live_bytes_in_window = 0;
        }
        while self.live_bytes_in_window < LIVE_BYTES_PER_WINDOW_MAX {
            let Ok(room) = self.sink.try_reserve() else { break };
            let Some(chunk) = self.keep.next_live(LIVE_BYTES_PER_WINDOW_MAX - self.live_bytes_in_window) else { break };
            self.live_bytes_in_window += chunk.bytes.len();
            room.send(CaptureEvent::Chunk(chunk));
        }
        self.keep.skip_live();
    }

    /// Now waiting for `sink` holds up nobody: the pipes are closed.
    async fn finish(mut self) -> CaptureSummary {
        let mut gap_told = false;
        while let Some(event) = self.keep.next_at_end(&mut gap_told) {
            if self.sink.send(event).await.is_err() {
                break;
            }
        }
        self.summary.dropped_bytes = self.keep.dropped_bytes();
        self.summary.failed_on = self.watch.found();
        self.summary
    }
}

async fn readable(pipe: &Option<pipe::Receiver>) {
    match pipe {
        // An error shows again at the read, which handles it.
        Some(pipe) => drop(pipe.readable().await),
        None => std::future::pending().await,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
