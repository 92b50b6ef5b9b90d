//! A started child, seen from the agent: its output, its exit, and the end of its whole tree.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::net::unix::pipe;
use tokio::sync::oneshot;

use crate::output::OutputCopy;
use crate::prepared::RunTag;
use crate::processes::Processes;
use crate::spawner::Spawner;
use crate::wire::{Exited, Token};
use crate::zygote::TREE_WILL_BE_ASKED;
use crate::{clock, wire};

/// A child that runs, or ran. Dropping it leaves the process alone.
pub struct Child {
    pub pid: u32,
    /// Since the machine booted, suspended time included.
    pub started_at: Duration,
    pub(crate) token: Token,
    pub(crate) tag: RunTag,
    pub(crate) is_behind_shim: bool,
    pub(crate) spawner: Spawner,
    pub(crate) output: Option<OutputPipes>,
    pub(crate) exit: ExitWait,
}

pub(crate) enum ExitWait {
    Pending(oneshot::Receiver<Exit>),
    Known(Exit),
}

/// How a child ended and what it used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    pub status: ExitStatus,
    pub cpu_user: Duration,
    pub cpu_system: Duration,
    pub max_rss_bytes: u64,
    /// Processes of the run that were still there. They are left alone unless the run is ended or the agent dies. One
    /// that left its process group is counted only when no other run was going on.
    pub left_behind: u32,
    /// Its shim has ended it because the deadline for what is exclusive was over.
    pub past_deadline: bool,
    /// Since the machine booted, as its start.
    pub ended_at: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
    /// The zygote was killed, and the child with it; nobody knows how far it came.
    Lost,
}

/// The reading ends of a child's stdout and stderr, for `capture`.
pub struct OutputPipes {
    pub(crate) stdout: pipe::Receiver,
    pub(crate) stderr: pipe::Receiver,
    /// Resolves, with a value or without, when the child has exited.
    pub(crate) exited: oneshot::Receiver<()>,
    pub(crate) copy: Option<OutputCopy>,
}

impl OutputPipes {
    /// For whoever reads them by itself.
    pub fn into_streams(self) -> (pipe::Receiver, pipe::Receiver) {
        (self.stdout, self.stderr)
    }

    /// Everything that is read goes there too, as it comes.
    pub fn copied_to(self, copy: Option<OutputCopy>) -> Self {
        Self { copy, ..self }
    }
}

/// Ends the whole tree of one child. Holds no output and no exit, so it can be given away.
#[derive(Clone)]
pub struct Killer {
    token: Token,
    tag: RunTag,
    root: u32,
    is_behind_shim: bool,
    spawner: Spawner,
}

impl Child {
    /// The output. Panics when taken twice, which is a mistake in the caller.
    pub fn take_output(&mut self) -> OutputPipes {
        self.output.take().expect("the output of a child is taken once")
    }

    /// Waits for the exit of the child itself, not for what it left behind. May be called again, and cancelled.
    pub async fn wait(&mut self) -> Exit {
        match &mut self.exit {
            ExitWait::Known(exit) => exit.clone(),
            ExitWait::Pending(pending) => {
                let exit = pending.await.unwrap_or_else(|_closed| Exit::lost());
                self.exit = ExitWait::Known(exit.clone());
                exit
            }
        }
    }

    pub fn killer(&self) -> Killer {
        let (token, tag, root, is_behind_shim) = (self.token, self.tag.clone(), self.pid, self.is_behind_shim);
        Killer { token, tag, root, is_behind_shim, spawner: self.spawner.clone() }
    }
}

impl Killer {
    /// TERM to every process of the run, `grace` to end by themselves, then KILL. Returns when nobody is left; also
    /// after the child has exited, for what it left behind. Once asked for, it happens even if this future is dropped.
    pub async fn end_tree(&self, grace: Duration) {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        let order = wire::Request::EndTree { token: self.token, tag: self.tag.clone(), grace_ms };
        if let Some(ended) = self.spawner.order_end(self.token, &order) {
            // An error means that the zygote died, and all its trees were ended on that occasion.
            let _ended_or_zygote_gone = ended.await;
        }
    }
}

impl Killer {
    /// A signal for every process that descends from the child, which may do with it what it likes. The child must not have been
    /// waited for yet.
    pub fn pass_on(&self, signal: Signal) {
        let seen = Processes::look();
        let root = self.root as i32;
        // What holds a run to its deadline is told only that its tree is asked to end.
        let for_root = match (self.is_behind_shim, signal) {
            (false, _) => Some(signal),
            (true, Signal::SIGTERM | Signal::SIGINT) => Some(TREE_WILL_BE_ASKED),
            (true, _) => None,
        };
        let first = seen.all().filter(|process| process.pid == root);
        first.for_each(|process| for_root.into_iter().for_each(|signal| process.signal(signal)));
        seen.descendants_of(root).iter().for_each(|process| process.signal(signal));
    }
}

impl Exit {
    pub(crate) fn lost() -> Exit {
        Exit {
            status: ExitStatus::Lost,
            cpu_user: Duration::ZERO,
            cpu_system: Duration::ZERO,
            max_rss_bytes: 0,
            left_behind: 0,
            past_deadline: false,
            ended_at: clock::boottime(),
        }
    }
}

impl From<Exited> for Exit {
    fn from(exited: Exited) -> Exit {
        Exit {
            status: exited.code.map_or(ExitStatus::Signal(exited.signal), ExitStatus::Code),
            cpu_user: Duration::from_micros(exited.user_us),
            cpu_system: Duration::from_micros(exited.system_us),
            max_rss_bytes: exited.max_rss_kib * 1024,
            left_behind: exited.left_behind,
            past_deadline: exited.past_deadline,
            ended_at: Duration::from_nanos(exited.ended_at_ns),
        }
    }
}
