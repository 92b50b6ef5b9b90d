//! Starts children through the zygote, and keeps a zygote running.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::net::unix::pipe;
use tokio::sync::{Semaphore, oneshot};

use crate::child::{Child, Exit, ExitWait, OutputPipes};
use crate::deadline::Deadline;
use crate::environment::CLEAN_PATH;
use crate::error::{Asked, SpawnError};
use crate::link::{Link, Started, Waiting};
use crate::prepared::{ATTEMPT, Prepared, RUN_ID, RunTag};
use crate::sealed::Sealed;
use crate::survivors::Lost;
use crate::wire::{FRAME_BYTES_MAX, Request, SpawnRequest, Token};
use crate::{socket, survivors, tasks};

/// How to start the zygote: a program whose `main` calls `zygote_main`.
#[derive(Clone, Debug)]
pub struct ZygoteCommand {
    pub program: PathBuf,
    pub args: Vec<String>,
}

/// Starts children. Cheap to clone; when the last clone, child and killer are gone, all trees are ended.
#[derive(Clone)]
pub struct Spawner {
    shared: Arc<Shared>,
}

struct Shared {
    current: Mutex<Current>,
    next_token: AtomicU64,
    /// Each start in flight has descriptors on the way, of which the kernel allows a process about a thousand.
    in_flight: Semaphore,
    /// Dropped with this: tells the keeper to let the zygote go.
    _alive: oneshot::Sender<()>,
}

#[derive(Clone)]
struct Current {
    link: Arc<Link>,
    pid: u32,
}

const STARTS_IN_FLIGHT_MAX: usize = 256;
/// The kernel's limit for one argument or environment entry, with its closing NUL.
const ARGUMENT_BYTES_MAX: usize = 128 * 1024 - 1;
const RESTART_DELAY: Duration = Duration::from_secs(1);

impl Spawner {
    /// Starts the zygote. `deadline`: of what is exclusive. Must be called inside a tokio runtime.
    pub fn start(command: ZygoteCommand, deadline: Deadline) -> io::Result<Spawner> {
        let (zygote, current) = start_zygote(&command, &deadline)?;
        let (alive, released) = oneshot::channel();
        let shared = Arc::new(Shared {
            current: Mutex::new(current.clone()),
            next_token: AtomicU64::new(1),
            in_flight: Semaphore::new(STARTS_IN_FLIGHT_MAX),
            _alive: alive,
        });
        // Fate: ends when the last user of this spawner is gone; it fails only together with the zygote, which it restarts.
        tasks::spawn("zygote-keeper", keep(command, deadline, zygote, current, Arc::downgrade(&shared), released));
        Ok(Spawner { shared })
    }

    pub fn zygote_pid(&self) -> u32 {
        self.shared.current().pid
    }

    /// Starts a child; returns when it runs the program. When this future is dropped before, the child is ended.
    pub async fn spawn(&self, what: Prepared) -> Result<Child, SpawnError> {
        self.spawn_unless(std::future::pending(), Duration::ZERO, what).await
    }

    /// The same. Once `given_up` resolves while the start still hangs, as on a network mount that is dead, its tree has `grace` to end; it is
    /// then told as a child that a signal has ended, or that runs, if it began at that moment.
    pub async fn spawn_unless(
        &self,
        given_up: impl Future<Output = ()>,
        grace: Duration,
        what: Prepared,
    ) -> Result<Child, SpawnError> {
        let (tag, is_behind_shim) = (what.tag.clone(), what.exclusive);
        let token = Token(self.shared.next_token.fetch_add(1, Ordering::Relaxed));
        let sealed = what.sealed.as_ref().map(Sealed::descriptor).transpose();
        let sealed = sealed.map_err(|cause| SpawnError::os("copy a descriptor", &cause))?;
        let stdin = what.stdin.as_ref().map(|stdin| stdin.try_clone()).transpose();
        let stdin = stdin.map_err(|cause| SpawnError::os("copy a descriptor", &cause))?;
        let (request, asked) = into_request(token, what)?;
        let _in_flight = self.shared.in_flight.acquire().await.map_err(|_closed| SpawnError::ZygoteGone)?;
        let (stdout, child_stdout) = output_pipe()?;
        let (stderr, child_stderr) = output_pipe()?;
        let (started_sender, mut started) = oneshot::channel();
        let (exit_sender, exit) = oneshot::channel();
        let (exited_sender, exited) = oneshot::channel();
        let waiting = Waiting {
            asked: Some(asked),
            tag: tag.clone(),
            pid: None,
            is_behind_shim,
            started: Some(started_sender),
            exit: exit_sender,
            exited: exited_sender,
        };
        let descriptors = [child_stdout, child_stderr].into_iter().chain(stdin).chain(sealed).collect();
        if !self.shared.current().link.ask_start(token, request, descriptors, waiting) {
            return Err(SpawnError::ZygoteGone);
        }
        let started = tokio::select! {
            biased;
            started = &mut started => started,
            () = given_up => {
                let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
                // The zygote reads this after the request to start it. Nobody waits for the answer: its end is told as any other.
                drop(self.order_end(token, &Request::EndTree { token, tag: tag.clone(), grace_ms }));
                started.await
            }
        };
        let Started { pid, started_at_ns } = started.map_err(|_closed| SpawnError::ZygoteGone)??;
        Ok(Child {
            pid,
            started_at: Duration::from_nanos(started_at_ns),
            token,
            tag,
            is_behind_shim,
            spawner: self.clone(),
            output: Some(OutputPipes { stdout, stderr, exited, copy: None }),
            exit: ExitWait::Pending(exit),
        })
    }

    pub(crate) fn order_end(&self, token: Token, order: &Request) -> Option<oneshot::Receiver<()>> {
        self.shared.current().link.ask_end(token, order.encode())
    }
}

impl Shared {
    fn current(&self) -> Current {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[expect(clippy::disallowed_methods, reason = "the one child that the zygote cannot start: itself")]
fn start_zygote(command: &ZygoteCommand, deadline: &Deadline) -> io::Result<(std::process::Child, Current)> {
    let (ours, theirs) = socket::pair()?;
    // Socket and memory go as stdin and stdout: no work between fork and exec, so this is fast for an agent of any size.
    let zygote = Command::new(&command.program)
        .args(&command.args)
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::from(deadline.file()?))
        .stderr(Stdio::inherit())
        .spawn()?;
    let current = Current { link: Link::new(ours)?, pid: zygote.id() };
    Ok((zygote, current))
}

/// Serves one zygote after the other, until nobody needs one.
async fn keep(
    command: ZygoteCommand,
    deadline: Deadline,
    mut zygote: std::process::Child,
    mut current: Current,
    shared: Weak<Shared>,
    mut released: oneshot::Receiver<()>,
) {
    loop {
        let link = Arc::clone(&current.link);
        let lost = tokio::select! {
            () = link.deliver(|token, tag| end_unwanted(&link, token, tag)) => true,
            _ = &mut released => false,
        };
        let (runs, endings) = link.close();
        if !lost {
            // The zygote sees the socket close, ends what is left, and goes.
            drop((link, current));
            let _reaped = tokio::task::spawn_blocking(move || zygote.wait()).await;
            return;
        }
        tracing::warn!(
            pid = current.pid,
            runs = runs.len(),
            "the zygote is gone; its runs are lost, a new one is started"
        );
        let lost = |Waiting { pid, is_behind_shim, tag, .. }: &Waiting| {
            let root = pid.map(|pid| pid as i32);
            Lost { root, is_behind_shim: *is_behind_shim, tag: tag.clone() }
        };
        let trees: Vec<Lost> = runs.iter().map(lost).collect();
        let _swept = tokio::task::spawn_blocking(move || {
            // It may have given up by itself instead of having been killed; two zygotes would be one too many.
            let _already_dead = zygote.kill();
            let _reaped = zygote.wait();
            if !trees.is_empty() {
                survivors::end(&trees);
            }
        })
        .await;
        // A new one first: who hears of the loss may want to start something at once.
        let started = loop {
            match start_zygote(&command, &deadline) {
                Ok(started) => break started,
                Err(cause) => tracing::error!(%cause, program = %command.program.display(), "start the zygote"),
            }
            tokio::select! {
                () = tokio::time::sleep(RESTART_DELAY) => {}
                _ = &mut released => return,
            }
        };
        (zygote, current) = started;
        if let Some(shared) = shared.upgrade() {
            *shared.current.lock().unwrap_or_else(PoisonError::into_inner) = current.clone();
        }
        for waiting in runs {
            let _nobody_captures = waiting.exited.send(());
            let _nobody_waits = waiting.exit.send(Exit::lost());
        }
        drop(endings);
    }
}

/// A child whose `spawn` was dropped meanwhile has no owner who could ever end it.
fn end_unwanted(link: &Link, token: Token, tag: RunTag) {
    drop(link.ask_end(token, Request::EndTree { token, tag, grace_ms: 0 }.encode()));
}

fn output_pipe() -> Result<(pipe::Receiver, OwnedFd), SpawnError> {
    let os = |cause: io::Error| SpawnError::os("make an output pipe", &cause);
    let (read, write) = pipe2(OFlag::O_CLOEXEC).map_err(|errno| os(errno.into()))?;
    Ok((pipe::Receiver::from_owned_fd(read).map_err(os)?, write))
}

fn into_request(token: Token, what: Prepared) -> Result<(Vec<u8>, Asked), SpawnError> {
    let Prepared {
        argv,
        program: place,
        sealed,
        env,
        stdin,
        directory,
        umask,
        identity,
        no_new_privileges,
        limits,
        cage,
        exclusive,
        tag,
    } = what;
    let program = argv.first().ok_or(SpawnError::NotText { what: "the command" })?.to_string_lossy().into_owned();
    let (argv, sealed) = match &sealed {
        None => (argv, None),
        Some(sealed) => (sealed.argv(argv), Some(sealed.start())),
    };
    let executed = place.map_or_else(|| argv.first().cloned().unwrap_or_default(), PathBuf::into_os_string);
    let mut entries = tag.entries().to_vec();
    let own = |name: &OsStr| name == RUN_ID || name == ATTEMPT;
    entries.extend(
        env.iter()
            .filter(|(name, _)| !own(name))
            .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat()),
    );
    let path = env.iter().find(|(name, _)| name == "PATH").map_or(OsStr::new(CLEAN_PATH), |(_, value)| value);
    let argv: Vec<Vec<u8>> = argv.iter().map(|argument| argument.as_bytes().to_vec()).collect();
    let directory = directory.unwrap_or_else(|| Path::new("/").to_owned());
    check("the command", argv.first().map_or(b"".as_slice(), Vec::as_slice), 1)?;
    argv.iter().try_for_each(|argument| check("an argument of the command", argument, 0))?;
    entries.iter().try_for_each(|entry| check("an entry of the environment", entry, 1))?;
    check("the directory", directory.as_os_str().as_bytes(), 1)?;
    let asked = Asked {
        program,
        path_searched: path.to_string_lossy().into_owned(),
        directory: directory.clone(),
        uid_gid: identity.as_ref().map_or((0, 0), |identity| (identity.uid, identity.gid)),
        bytes: argv.iter().chain(&entries).map(|text| text.len() + 1).sum(),
    };
    let directory = directory.into_os_string().as_bytes().to_vec();
    let entrances = cage.iter().flat_map(|cage| cage.entrances());
    let entrances = entrances.map(|path| path.into_os_string().as_bytes().to_vec()).collect();
    let request = SpawnRequest {
        token,
        program: executed.as_bytes().to_vec(),
        argv,
        env: entries,
        has_stdin: stdin.is_some(),
        directory,
        umask,
        identity,
        no_new_privileges,
        limits,
        entrances,
        sealed,
        exclusive,
        tag,
    };
    let bytes = Request::Spawn(Box::new(request)).encode();
    if bytes.len() > FRAME_BYTES_MAX {
        let what = "the command with its environment";
        return Err(SpawnError::TooLong { what, bytes: asked.bytes, limit_bytes: FRAME_BYTES_MAX });
    }
    Ok((bytes, asked))
}

fn check(what: &'static str, text: &[u8], bytes_min: usize) -> Result<(), SpawnError> {
    if text.len() < bytes_min || text.contains(&0) {
        return Err(SpawnError::NotText { what });
    }
    if text.len() > ARGUMENT_BYTES_MAX {
        return Err(SpawnError::TooLong { what, bytes: text.len(), limit_bytes: ARGUMENT_BYTES_MAX });
    }
    Ok(())
}
