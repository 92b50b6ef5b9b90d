//! Where a command's output goes: into a file of its own for each stream, made when there is something to write; or on to whoever started
//! the wrapper. It may be kept in memory beside that. The pipes are always drained: a full disk does not stop the command.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belfry_core::wrapped::OUTPUT_BYTES_MAX;
use belfry_exec::{CaptureEvent, CaptureLimits, Kept, OutputPipes, Stream};
use nix::fcntl::OFlag;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use crate::folder::Folder;
use crate::tasks;

#[derive(Clone, Debug)]
pub(crate) enum Place {
    Files {
        folder: PathBuf,
        /// Without the ending that names the stream.
        base: String,
    },
    Passed,
}

pub(crate) struct Copies {
    both: [Copy; 2],
    kept: Option<Keeping>,
}

/// Of one stream.
struct Copy {
    stream: Stream,
    /// Read or written, so that one that is slow is told from one that hangs.
    moved: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

/// Both streams as they come, held beside where they go.
#[derive(Clone)]
struct Keeping {
    began: Instant,
    kept: Arc<Mutex<Kept>>,
}

const READ_BYTES_MAX: usize = 64 * 1024;
/// So little that also a slow taker has taken it before it counts as one that hangs.
const WRITE_BYTES_MAX: usize = 4 * 1024;
/// When the command and all that it started are gone, no more comes; what is left goes on for as long as something moves in this time.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// Somebody else may have been given the pipe, and write for ever.
const DRAIN_WITHIN_MAX: Duration = Duration::from_mins(10);

impl Place {
    /// A slash of an instance, as `%D` gives, must not make a folder.
    pub(crate) fn in_folder(folder: &Path, name: &str, instance: &str) -> Place {
        let base = if instance.is_empty() { name.to_owned() } else { format!("{name}.{instance}") };
        Place::Files { folder: folder.to_owned(), base: base.replace('/', "_") }
    }

    /// `keeps`: whoever finishes it gets what was printed.
    pub(crate) fn copy(&self, pipes: OutputPipes, keeps: bool) -> Copies {
        let (stdout, stderr) = pipes.into_streams();
        let file = |ending: &str| match self {
            Place::Files { folder, base } => Some((folder.clone(), format!("{base}.{ending}"))),
            Place::Passed => None,
        };
        let kept = keeps.then(Keeping::new);
        let copy = |stream, pipe, file| {
            let moved = Arc::new(AtomicU64::new(0));
            let from = Source { pipe, kept: kept.clone(), stream, moved: moved.clone() };
            // Fate: ends with the pipe, or is given up when nothing moves any more.
            let task = tasks::spawn("output", async move {
                match (file, stream) {
                    (Some((folder, name)), _) => to_file(from, folder, name).await,
                    (None, Stream::Stdout) => pass(from, tokio::io::stdout()).await,
                    (None, Stream::Stderr) => pass(from, tokio::io::stderr()).await,
                }
            });
            Copy { stream, moved, task }
        };
        let both = [copy(Stream::Stdout, stdout, file("stdout")), copy(Stream::Stderr, stderr, file("stderr"))];
        Copies { both, kept }
    }
}

impl Copies {
    /// What was printed, if that was to be kept.
    pub(crate) async fn finish(self) -> Vec<CaptureEvent> {
        let began = Instant::now();
        for copy in self.both {
            copy.finish(began, DRAIN_WITHIN).await;
        }
        self.kept.map(Keeping::take).unwrap_or_default()
    }
}

impl Copy {
    async fn finish(mut self, began: Instant, patience: Duration) {
        loop {
            let moved = self.moved.load(Ordering::Relaxed);
            if timeout(patience, &mut self.task).await.is_ok() {
                return;
            }
            if self.moved.load(Ordering::Relaxed) == moved || began.elapsed() > DRAIN_WITHIN_MAX {
                break;
            }
        }
        let stream = match self.stream {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        };
        tracing::warn!(
            "the rest of the command's {stream} is lost: the command has ended, but whoever takes it does not read on, or somebody else still has the pipe"
        );
        self.task.abort();
    }
}

impl Keeping {
    fn new() -> Keeping {
        let kept = Kept::new(CaptureLimits { keep_bytes: OUTPUT_BYTES_MAX });
        Keeping { began: Instant::now(), kept: Arc::new(Mutex::new(kept)) }
    }

    fn push(&self, stream: Stream, bytes: &[u8]) {
        let at_ms = self.began.elapsed().as_millis() as u64;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(stream, at_ms, bytes);
    }

    fn take(self) -> Vec<CaptureEvent> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *kept, Kept::new(CaptureLimits { keep_bytes: 0 })).into_events()
    }
}

struct Source {
    pipe: pipe::Receiver,
    kept: Option<Keeping>,
    stream: Stream,
    moved: Arc<AtomicU64>,
}

impl Source {
    /// 0: there is no more.
    async fn read(&mut self, buffer: &mut [u8]) -> usize {
        let count = self.pipe.read(buffer).await.unwrap_or(0);
        if let Some(kept) = self.kept.as_ref().filter(|_| count > 0) {
            kept.push(self.stream, &buffer[..count]);
        }
        self.moved(count);
        count
    }

    fn moved(&self, bytes: usize) {
        self.moved.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

async fn to_file(mut from: Source, folder: PathBuf, name: String) {
    let mut file: Option<File> = None;
    let mut has_failed = false;
    let mut buffer = vec![0; READ_BYTES_MAX];
    while let count @ 1.. = from.read(&mut buffer).await {
        let written = append(&mut file, &folder, &name, &buffer[..count]).await;
        from.moved(count);
        if let Err(cause) = written
            && !std::mem::replace(&mut has_failed, true)
        {
            let path = folder.join(&name);
            tracing::warn!(file = %path.display(), %cause, "the command's output cannot be written; it goes on without");
        }
    }
}

async fn append(file: &mut Option<File>, folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let open = match file {
        Some(open) => open,
        None => {
            let (folder, name) = (folder.to_owned(), name.to_owned());
            // It may be on a network mount that hangs, and heartbeats may not.
            let opened = spawn_blocking(move || Folder::make(&folder)?.file(&name, OFlag::O_APPEND, 0o640)).await;
            file.insert(File::from_std(opened.map_err(io::Error::other)??))
        }
    };
    open.write_all(bytes).await?;
    open.flush().await
}

async fn pass(mut from: Source, mut to: impl tokio::io::AsyncWrite + Unpin) {
    let mut buffer = vec![0; READ_BYTES_MAX];
    while let count @ 1.. = from.read(&mut buffer).await {
        let mut left = &buffer[..count];
        while !left.is_empty() {
            // An error: whoever read it is gone.
            let Ok(written @ 1..) = to.write(&left[..left.len().min(WRITE_BYTES_MAX)]).await else { break };
            let _whoever_read_it_is_gone = to.flush().await;
            from.moved(written);
            left = &left[written..];
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;

    const BYTES: usize = 20_000;
    const PATIENCE: Duration = Duration::from_millis(500);

    /// A command that has printed and ended, into a pipe that takes little at a time.
    async fn ended() -> (Copy, DuplexStream) {
        let (mut writer, pipe) = pipe::pipe().unwrap();
        writer.write_all(&[b'x'; BYTES]).await.unwrap();
        drop(writer);
        let moved = Arc::new(AtomicU64::new(0));
        let from = Source { pipe, kept: None, stream: Stream::Stdout, moved: moved.clone() };
        let (to, taker) = tokio::io::duplex(4096);
        (Copy { stream: Stream::Stdout, moved, task: tasks::spawn("output", pass(from, to)) }, taker)
    }

    #[tokio::test]
    async fn output_that_is_taken_slowly_is_taken_whole() {
        let (copy, mut taker) = ended().await;
        let taken = tasks::spawn("taker", async move {
            let (mut taken, mut buffer) = (0, [0; 1000]);
            while let Ok(count @ 1..) = taker.read(&mut buffer).await {
                taken += count;
                tokio::time::sleep(PATIENCE / 5).await;
            }
            taken
        });
        copy.finish(Instant::now(), PATIENCE).await;
        assert_eq!(taken.await.unwrap(), BYTES);
    }

    #[tokio::test]
    async fn output_that_nobody_takes_is_given_up() {
        let (copy, _taker) = ended().await;
        copy.finish(Instant::now(), PATIENCE).await;
    }
}
