//! The zygote's loop: requests in, starts, exits and ended trees out. One thread, one poll; nothing in it waits for a child.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signalfd::SignalFd;

use super::clone::ChildStack;
use super::ending::{Ending, end_all_descendants};
use super::launch::{Failure, Given, Launch, Report, Started, Way};
use super::memory::Memory;
use super::mounts::Mounts;
use crate::clock;
use crate::deadline::Deadline;
use crate::prepared::RunTag;
use crate::socket;
use crate::wire::{Reply, Request, SpawnRequest, Step, Token, take_frames};

pub(super) struct Zygote {
    socket: OwnedFd,
    pub(super) exits: SignalFd,
    null: OwnedFd,
    deadline: Deadline,
    poll: Epoll,
    inbox: Vec<u8>,
    received: VecDeque<OwnedFd>,
    /// By process number, which nobody else can get before we have reaped it.
    pub(super) roots: HashMap<i32, Root>,
    pub(super) endings: Vec<Ending>,
    outbox: Vec<u8>,
    outbox_since: Duration,
    child_stack: ChildStack,
    mounts: Mounts,
    pub(super) memory: Memory,
}

/// The first process of a run.
pub(super) struct Root {
    pub token: Token,
    pub tag: RunTag,
    started_at_ns: u64,
    began: Duration,
    /// Some: exec has not been seen yet.
    report: Option<OwnedFd>,
    /// Its process is a shim, which says here how the program ended.
    pub shim: Option<OwnedFd>,
    /// It never became the program; its exit is no exit of a run.
    pub failed: bool,
}

const SOCKET_READY: u64 = 0;
const EXITS_READY: u64 = 1;
const EVENTS_PER_ROUND_MAX: usize = 64;
const REPLY_WAIT_MAX: Duration = Duration::from_millis(5);
const READ_BYTES_MAX: usize = 256 * 1024;

impl Zygote {
    pub(super) fn new(socket: OwnedFd, exits: SignalFd, null: OwnedFd, deadline: Deadline) -> io::Result<Zygote> {
        let poll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        poll.add(socket.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, SOCKET_READY))?;
        poll.add(exits.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, EXITS_READY))?;
        Ok(Zygote {
            socket,
            exits,
            null,
            deadline,
            poll,
            inbox: Vec::new(),
            received: VecDeque::new(),
            roots: HashMap::new(),
            endings: Vec::new(),
            outbox: Vec::new(),
            outbox_since: Duration::ZERO,
            child_stack: ChildStack::new(),
            mounts: Mounts::new(),
            memory: Memory::default(),
        })
    }

    /// Serves until the agent is gone, then ends everything that is left.
    pub(super) fn serve(mut self) -> io::Result<()> {
        let outcome = self.serve_until_agent_is_gone();
        end_all_descendants(|_, _| {});
        outcome
    }

    fn serve_until_agent_is_gone(&mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS_PER_ROUND_MAX];
        let mut read_buffer = vec![0; READ_BYTES_MAX];
        loop {
            let wait = if self.may_gather_replies() { EpollTimeout::ZERO } else { self.next_look() };
            let count = match self.poll.wait(&mut events, wait) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => return Err(errno.into()),
            };
            for event in &events[..count] {
                match event.data() {
                    SOCKET_READY => {
                        if !self.read_requests(&mut read_buffer)? {
                            return Ok(());
                        }
                    }
                    EXITS_READY => self.reap_exited(),
                    pid => self.settle_start(pid as i32),
                }
            }
            self.advance_endings();
            self.look_after_memory();
            let has_more_to_do = count > 0 && self.may_gather_replies();
            if !has_more_to_do {
                if socket::send_all(self.socket.as_fd(), &self.outbox).is_err() {
                    return Ok(());
                }
                self.outbox.clear();
            }
        }
    }

    /// In a herd of starts replies go in batches, since each wakes the agent, which wants the processor that the children
    /// want; but none waits long, and none waits while there is nothing else to do.
    fn may_gather_replies(&self) -> bool {
        !self.outbox.is_empty() && clock::monotonic().saturating_sub(self.outbox_since) < REPLY_WAIT_MAX
    }

    fn look_after_memory(&mut self) {
        if self.memory.next_look().is_some() {
            let exclusive = self.roots.values().filter(|root| root.shim.is_some());
            self.memory.look(clock::monotonic(), || exclusive.map(|root| root.began).min());
        }
    }

    /// How long the loop may sleep: for ever, or until the next look at a tree that is being ended, or at what is kept in memory.
    fn next_look(&self) -> EpollTimeout {
        match self.endings.iter().map(Ending::next_look).chain(self.memory.next_look()).min() {
            None => EpollTimeout::NONE,
            Some(at) => {
                let wait = at.saturating_sub(clock::monotonic()).min(Duration::from_secs(60));
                EpollTimeout::try_from(wait + Duration::from_micros(999)).unwrap_or(EpollTimeout::ZERO)
            }
        }
    }

    /// `false`: the agent is gone.
    fn read_requests(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        match socket::receive_now(self.socket.as_fd(), buffer, &mut self.received) {
            Ok(0) => return Ok(false),
            Ok(count) => self.inbox.extend(&buffer[..count]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => return Ok(true),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
            Err(e) => return Err(e),
        }
        for body in take_frames(&mut self.inbox) {
            match Request::decode(&body) {
                Some(Request::Spawn(request)) => self.start(*request)?,
                Some(Request::EndTree { token, tag, grace_ms }) => {
                    self.end_tree(token, tag, Duration::from_millis(grace_ms));
                }
                None => return Err(io::Error::other("a request of another version of belfry")),
            }
        }
        Ok(true)
    }

    fn start(&mut self, request: SpawnRequest) -> io::Result<()> {
        let (Some(stdout), Some(stderr)) = (self.received.pop_front(), self.received.pop_front()) else {
            return Err(io::Error::other("a start came without its descriptors"));
        };
        let stdin = request.has_stdin.then(|| self.received.pop_front()).flatten();
        if request.has_stdin && stdin.is_none() {
            return Err(io::Error::other("a start came without its stdin"));
        }
        let sealed = request.sealed.is_some().then(|| self.received.pop_front()).flatten();
        if request.sealed.is_some() && sealed.is_none() {
            return Err(io::Error::other("a start came without what it executes"));
        }
        let (token, tag, exclusive) = (request.token, request.tag.clone(), request.exclusive);
        let started_at_ns = clock::boottime_ns();
        let launch = Launch::new(request);
        let way = if exclusive {
            Way::BehindShim(&self.deadline)
        } else if launch.may_hang(&mut self.mounts) {
            Way::CopyingMemory
        } else {
            Way::SharingMemory(&mut self.child_stack)
        };
        let stdin = stdin.as_ref().unwrap_or(&self.null);
        let given = Given { standard: [stdin, &stdout, &stderr], sealed: sealed.as_ref() };
        match launch.start(way, &given) {
            Ok(Started { pid, report, shim }) => {
                let began = clock::monotonic();
                if exclusive {
                    self.memory.work_began(began);
                }
                let root = Root { token, tag, started_at_ns, began, report: None, shim, failed: false };
                let root = self.roots.entry(pid).insert_entry(root).into_mut();
                match report {
                    Report::Known(failure) => self.settle(pid, failure),
                    Report::Awaited(report) => {
                        self.poll.add(report.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, pid as u64))?;
                        root.report = Some(report);
                    }
                }
            }
            Err(cause) => {
                let errno = cause.raw_os_error().unwrap_or(0);
                self.answer(&Reply::SpawnFailed { token, step: Step::Fork, errno });
            }
        }
        Ok(())
    }

    /// The child has execed, or has said why not. Called once its report can be read without waiting.
    pub(super) fn settle_start(&mut self, pid: i32) {
        let Some(root) = self.roots.get_mut(&pid) else { return };
        let Some(report) = root.report.take() else { return };
        let failure = Failure::read_from(&report);
        self.settle(pid, failure);
    }

    fn settle(&mut self, pid: i32, failure: Option<Failure>) {
        let Some(root) = self.roots.get_mut(&pid) else { return };
        let reply = match failure {
            None => Reply::Spawned { token: root.token, pid: pid as u32, started_at_ns: root.started_at_ns },
            Some(Failure { step, errno }) => {
                root.failed = true;
                Reply::SpawnFailed { token: root.token, step, errno }
            }
        };
        self.answer(&reply);
    }

    pub(super) fn answer(&mut self, reply: &Reply) {
        if self.outbox.is_empty() {
            self.outbox_since = clock::monotonic();
        }
        reply.encode_into(&mut self.outbox);
    }
}
