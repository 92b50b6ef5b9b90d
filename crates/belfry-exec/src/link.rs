//! The agent's side of the socket: requests go out without waiting, replies wake those who wait for them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};

use crate::child::Exit;
use crate::error::{Asked, SpawnError};
use crate::prepared::RunTag;
use crate::socket;
use crate::wire::{Reply, Token, take_frames};

/// What is asked of one zygote, and who waits for the answers. Lives as long as that zygote.
pub(crate) struct Link {
    socket: UnixStream,
    desk: Mutex<Desk>,
    /// The socket was full: the task that reads replies also waits for room.
    unsent: Notify,
}

#[derive(Default)]
struct Desk {
    outbox: VecDeque<Outgoing>,
    runs: HashMap<Token, Waiting>,
    endings: HashMap<Token, Vec<oneshot::Sender<()>>>,
    closed: bool,
}

struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Closed here once they are on their way.
    descriptors: Vec<OwnedFd>,
}

/// Those who wait for something of one run.
pub(crate) struct Waiting {
    pub asked: Option<Asked>,
    pub tag: RunTag,
    pub pid: Option<u32>,
    /// Whose process `pid` then is.
    pub is_behind_shim: bool,
    pub started: Option<oneshot::Sender<Result<Started, SpawnError>>>,
    pub exit: oneshot::Sender<Exit>,
    pub exited: oneshot::Sender<()>,
}

#[derive(Debug)]
pub(crate) struct Started {
    pub pid: u32,
    pub started_at_ns: u64,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Arc<Link>> {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        Ok(Arc::new(Link { socket, desk: Mutex::default(), unsent: Notify::new() }))
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a start. `false`: the zygote is gone.
    pub(crate) fn ask_start(&self, token: Token, bytes: Vec<u8>, descriptors: Vec<OwnedFd>, waiting: Waiting) -> bool {
        let mut desk = self.desk();
        if desk.closed {
            return false;
        }
        desk.runs.insert(token, waiting);
        self.post(&mut desk, Outgoing { bytes, sent: 0, descriptors });
        true
    }

    /// Asks for the end of a tree. `None`: the zygote is gone, and the tree with it.
    pub(crate) fn ask_end(&self, token: Token, bytes: Vec<u8>) -> Option<oneshot::Receiver<()>> {
        let (sender, receiver) = oneshot::channel();
        let mut desk = self.desk();
        if desk.closed {
            return None;
        }
        desk.endings.entry(token).or_default().push(sender);
        self.post(&mut desk, Outgoing { bytes, sent: 0, descriptors: Vec::new() });
        Some(receiver)
    }

    /// Sent at once if the socket has room: a hop to another task would be part of each start's lag.
    fn post(&self, desk: &mut Desk, outgoing: Outgoing) {
        desk.outbox.push_back(outgoing);
        if desk.outbox.len() > 1 || !desk.flush(&self.socket) {
            self.unsent.notify_one();
        }
    }

    /// Delivers replies until the zygote is gone. `cancelled` gets the tokens of children nobody waits for any more.
    pub(crate) async fn deliver(&self, mut cancelled: impl FnMut(Token, RunTag)) {
        let mut inbox = Vec::new();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            tokio::select! {
                ready = self.socket.readable() => {
                    if ready.is_err() {
                        return;
                    }
                    let receive = || socket::receive_now(self.socket.as_fd(), &mut buffer, &mut Vec::new());
                    match self.socket.try_io(Interest::READABLE, receive) {
                        Ok(0) => return,
                        Ok(count) => inbox.extend(&buffer[..count]),
                        Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                        Err(_gone) => return,
                    }
                    for body in take_frames(&mut inbox) {
                        let Some(reply) = Reply::decode(&body) else { return };
                        // Not within the `if let`: its lock would still be held when the callback asks for it.
                        let unwanted = self.desk().settle(reply);
                        if let Some((token, tag)) = unwanted {
                            cancelled(token, tag);
                        }
                    }
                }
                () = self.send_rest() => {}
            }
        }
    }

    /// Sends what could not be sent at once. Starts from what it finds, since a reply may cut it off anywhere.
    async fn send_rest(&self) {
        loop {
            if self.desk().outbox.is_empty() {
                self.unsent.notified().await;
            } else if self.socket.writable().await.is_err() || self.desk().flush(&self.socket) {
                return;
            }
        }
    }

    /// The zygote is gone: no more requests. Returns those whose children ran or were about to.
    pub(crate) fn close(&self) -> (Vec<Waiting>, Vec<oneshot::Sender<()>>) {
        let mut desk = self.desk();
        desk.closed = true;
        desk.outbox.clear();
        let runs = desk.runs.drain().map(|(_, waiting)| waiting).collect();
        let endings = desk.endings.drain().flat_map(|(_, waiting)| waiting).collect();
        (runs, endings)
    }
}

impl Desk {
    /// `true`: everything is sent, or never will be because the zygote is gone, which the reader notices.
    fn flush(&mut self, socket: &UnixStream) -> bool {
        while let Some(next) = self.outbox.front_mut() {
            let raw: Vec<RawFd> = next.descriptors.iter().map(AsRawFd::as_raw_fd).collect();
            let send = || socket::send_now(socket.as_fd(), &next.bytes[next.sent..], &raw);
            match socket.try_io(Interest::WRITABLE, send) {
                Ok(count) => {
                    next.sent += count;
                    next.descriptors.clear();
                    if next.sent == next.bytes.len() {
                        self.outbox.pop_front();
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_gone) => return true,
            }
        }
        true
    }

    /// Wakes who waits for `reply`. `Some`: a child has started that nobody waits for.
    fn settle(&mut self, reply: Reply) -> Option<(Token, RunTag)> {
        match reply {
            Reply::Spawned { token, pid, started_at_ns } => {
                let waiting = self.runs.get_mut(&token)?;
                waiting.pid = Some(pid);
                waiting.asked = None;
                let started = waiting.started.take()?;
                let unwanted = started.send(Ok(Started { pid, started_at_ns })).is_err();
                unwanted.then(|| (token, waiting.tag.clone()))
            }
            Reply::SpawnFailed { token, step, errno } => {
                let waiting = self.runs.remove(&token)?;
                let cause = waiting.asked?.failed_at(step, errno);
                // Nobody waits: then nobody needs to know.
                let _cancelled = waiting.started?.send(Err(cause));
                None
            }
            Reply::Exited(exited) => {
                let waiting = self.runs.remove(&exited.token)?;
                let _nobody_captures = waiting.exited.send(());
                let _nobody_waits = waiting.exit.send(exited.into());
                None
            }
            Reply::TreeEnded { token } => {
                for ended in self.endings.remove(&token)? {
                    let _nobody_waits = ended.send(());
                }
                None
            }
        }
    }
}
