//! What the tests of real processes share: a spawner, short commands, and a look at who lives.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belfry_exec::{
    CaptureEvent, CaptureLimits, CaptureSummary, Child, Deadline, Exit, ExitStatus, Prepared, RunTag, Spawner, Stream,
    ZygoteCommand, capture, clean_environment, current_user,
};
use tokio::sync::mpsc;

/// Far above what anything here takes; reached only when something hangs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn spawner() -> Spawner {
    spawner_with(Deadline::new().expect("memory for a deadline"))
}

pub fn spawner_with(deadline: Deadline) -> Spawner {
    Spawner::start(ZygoteCommand { program: env!("CARGO_BIN_EXE_belfry-zygote").into(), args: vec![] }, deadline)
        .expect("start the zygote")
}

/// A tag no other test has, so that survivors can be looked for in all of /proc.
pub fn fresh_tag() -> RunTag {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    RunTag { run: format!("test-{}", std::process::id()), attempt: NEXT.fetch_add(1, Ordering::Relaxed) }
}

pub fn exec<T: Into<OsString>>(argv: impl IntoIterator<Item = T>) -> Prepared {
    let env = clean_environment(&current_user(), &BTreeMap::new());
    Prepared::new(argv.into_iter().map(Into::into).collect(), env, fresh_tag())
}

pub fn shell(command: &str) -> Prepared {
    exec(["/bin/bash", "-c", command])
}

/// To be read from its beginning.
pub fn a_file_with(text: &str) -> Option<Arc<OwnedFd>> {
    let file = tempfile::tempfile().expect("a file");
    (&file).write_all(text.as_bytes()).and_then(|()| (&file).rewind()).expect("some bytes");
    Some(Arc::new(file.into()))
}

pub struct Ran {
    pub exit: Exit,
    pub stdout: String,
    pub stderr: String,
    pub summary: CaptureSummary,
}

impl Ran {
    pub fn code(&self) -> ExitStatus {
        self.exit.status
    }
}

pub async fn run(spawner: &Spawner, what: Prepared) -> Ran {
    let mut child = spawner.spawn(what).await.expect("start");
    let (events, summary) = collect(&mut child, CaptureLimits::default(), None).await;
    let exit = in_time("exit", child.wait()).await;
    Ran { exit, stdout: text(&events, Stream::Stdout), stderr: text(&events, Stream::Stderr), summary }
}

pub async fn collect(
    child: &mut Child,
    limits: CaptureLimits,
    fail_on: Option<belfry_exec::FailOn>,
) -> (Vec<CaptureEvent>, CaptureSummary) {
    let (sink, mut chunks) = mpsc::channel(64);
    let mut events = Vec::new();
    let gather = async {
        while let Some(event) = chunks.recv().await {
            events.push(event);
        }
    };
    let pipes = child.take_output();
    let both = async { tokio::join!(capture(pipes, limits, fail_on, sink), gather).0 };
    let summary = in_time("end of output", both).await;
    (events, summary)
}

/// What is to be stored of a stream.
pub fn text(events: &[CaptureEvent], wanted: Stream) -> String {
    let kept = events.iter().filter_map(|event| match event {
        CaptureEvent::Chunk(chunk) if chunk.stream == wanted && !chunk.live_only => Some(&chunk.bytes[..]),
        CaptureEvent::Chunk(_) | CaptureEvent::Gap { .. } => None,
    });
    String::from_utf8_lossy(&kept.collect::<Vec<_>>().concat()).into_owned()
}

pub async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_late| panic!("{what} did not come in {PATIENCE:?}"))
}

/// Waits until `fact` holds.
pub async fn until(what: &str, mut fact: impl FnMut() -> bool) {
    in_time(what, async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Living processes of a run, found by the test's own eyes: their environment names it.
pub fn alive(tag: &RunTag) -> Vec<i32> {
    let run = format!("BELFRY_RUN_ID={}", tag.run);
    let attempt = format!("BELFRY_ATTEMPT={}", tag.attempt);
    let numbers = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|pid: &i32| {
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut entries = [&run, &attempt]
                .into_iter()
                .map(|wanted| environ.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes()));
            entries.all(|found| found)
        })
        .collect()
}

pub fn exists(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub fn we_are_root() -> bool {
    let root = current_user().uid == 0;
    if !root {
        println!("note: not root; the part with other users is not tested");
    }
    root
}
