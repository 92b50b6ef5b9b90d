//! A TCP proxy between a client and a real server that loses answers, cuts connections, and holds bytes back or lets them vanish
//! in either direction when it is told.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::servers::Port;

const CHUNK_BYTES: usize = 64 * 1024;
/// To listen, or to stop listening.
const LISTENING_PATIENCE: Duration = Duration::from_secs(30);
const LISTEN_AGAIN_AFTER: Duration = Duration::from_millis(5);
/// An answer is over when the server has said nothing for so long. Its first bytes may be a mere receipt: HTTP/2 grants room
/// before the request was looked at.
const ANSWER_OVER_AFTER: Duration = Duration::from_millis(150);

pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: String,
    /// Where clients come in.
    address: String,
    _port: Port,
    state: Mutex<State>,
    changed: Condvar,
    /// Wakes the listener, which waits for connections and not for the condition.
    link_changed: EventFd,
}

/// Seen from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Requests,
    Answers,
}

impl Direction {
    pub const BOTH: [Direction; 2] = [Direction::Requests, Direction::Answers];
}

#[derive(Default)]
struct State {
    link: Link,
    requests: Flow,
    answers: Flow,
    listening: bool,
    connections_made: u64,
    requested_bytes: u64,
    withheld_bytes: u64,
    /// The answer to the next request with these bytes is lost.
    lose: Option<Vec<u8>>,
    answers_lost: u64,
    connections: Vec<Arc<Connection>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Open,
    Cut,
    /// The proxy is being dropped.
    Ended,
}

/// What becomes of bytes in one direction.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Flow {
    #[default]
    Open,
    /// They wait, and arrive late: a network that lost packets sends them again.
    Held,
    /// They vanish, while both sides hold the connection open.
    Lost,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// The request whose answer is to be lost went through here. Written and read under the lock of the state.
    doomed: Mutex<bool>,
    /// Bytes of it vanished, so what comes after them makes no sense.
    torn: AtomicBool,
}

impl Connection {
    fn cut(&self) {
        // An error says that it is closed already.
        let _closed = self.client.shutdown(Shutdown::Both);
        let _closed = self.server.shutdown(Shutdown::Both);
    }

    fn is_doomed(&self) -> bool {
        *self.doomed.lock().expect("no thread panics with the lock")
    }
}

impl Proxy {
    /// Before the server at `target`, as `127.0.0.1:2379`. The server need not run yet; a client's connection is closed when
    /// there is none.
    pub fn before(target: &str) -> Self {
        Self::at("127.0.0.1", target)
    }

    /// The same at another address of this machine.
    pub fn at(host: &str, target: &str) -> Self {
        let port = Port::free();
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            address: format!("{host}:{}", port.number()),
            _port: port,
            state: Mutex::default(),
            changed: Condvar::new(),
            link_changed: EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).expect("an event"),
        });
        let acceptor = start_thread("proxy-accept", {
            let shared = shared.clone();
            move || accept_all(&shared)
        });
        let proxy = Self { shared, acceptor: Some(acceptor) };
        proxy.until_listening(true);
        proxy
    }

    /// `127.0.0.1:PORT`, if it is not at another address.
    pub fn address(&self) -> String {
        self.shared.address.clone()
    }

    /// The next bytes that a client sends are a request: it is passed on, the server's answer is swallowed, and when the
    /// answer is over the connection is cut on both sides. So the request is surely applied while its answer is lost. After
    /// that everything is normal. The first bytes of a new connection count as a request too.
    pub fn lose_next_answer(&self) {
        self.lose_answer_to(b"");
    }

    /// The same for the next request that has these bytes in it, as `COMMIT` or the name of a key.
    pub fn lose_answer_to(&self, request_with: &[u8]) {
        self.shared.lock().lose = Some(request_with.to_owned());
    }

    /// Connections are cut, and new ones are refused until `heal`.
    pub fn cut(&self) {
        self.shared.set(Link::Cut);
        self.until_listening(false);
        let connections = std::mem::take(&mut self.shared.lock().connections);
        connections.iter().for_each(|connection| connection.cut());
    }

    /// Bytes wait in both directions until `heal`; connections stay.
    pub fn stall(&self) {
        Direction::BOTH.into_iter().for_each(|direction| self.hold(direction));
    }

    /// Bytes in this direction wait until `heal`, and arrive then; connections stay.
    pub fn hold(&self, direction: Direction) {
        *self.shared.lock().flow(direction) = Flow::Held;
    }

    /// Bytes in this direction vanish until `heal`; connections stay until then.
    pub fn swallow(&self, direction: Direction) {
        *self.shared.lock().flow(direction) = Flow::Lost;
    }

    /// What was held in this direction arrives now, whatever the other direction does.
    pub fn let_through(&self, direction: Direction) {
        *self.shared.lock().flow(direction) = Flow::Open;
        self.shared.changed.notify_all();
    }

    pub fn heal(&self) {
        for direction in Direction::BOTH {
            self.let_through(direction);
        }
        self.shared.set(Link::Open);
        self.until_listening(true);
        let connections = self.shared.lock().connections.clone();
        connections.iter().filter(|connection| connection.torn.load(Ordering::Relaxed)).for_each(|torn| torn.cut());
    }

    pub fn connections_made(&self) -> u64 {
        self.shared.lock().connections_made
    }

    /// How many bytes of requests were passed on.
    pub fn requested_bytes(&self) -> u64 {
        self.shared.lock().requested_bytes
    }

    /// How many bytes had to wait or vanished.
    pub fn withheld_bytes(&self) -> u64 {
        self.shared.lock().withheld_bytes
    }

    pub fn answers_lost(&self) -> u64 {
        self.shared.lock().answers_lost
    }

    fn until_listening(&self, wanted: bool) {
        let (state, is_not) = (self.shared.lock(), |state: &mut State| state.listening != wanted);
        let waited = self.shared.changed.wait_timeout_while(state, LISTENING_PATIENCE, is_not);
        let (state, waited) = waited.expect("no thread panics");
        drop(state);
        assert!(!waited.timed_out(), "the proxy at {} did not come to listen: {wanted}", self.shared.address);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.set(Link::Ended);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the proxy's thread ends");
        }
        self.shared.lock().connections.iter().for_each(|connection| connection.cut());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the lock")
    }

    fn set(&self, link: Link) {
        self.lock().link = link;
        self.changed.notify_all();
        self.link_changed.write(1).expect("an event counts far");
    }

    /// Decides about a chunk, and holds it back while it has to wait.
    fn passage(&self, direction: Direction, bytes: usize) -> Passage<'_> {
        let mut state = self.lock();
        if *state.flow(direction) != Flow::Open {
            state.withheld_bytes += bytes as u64;
        }
        let is_held = |state: &mut State| state.link == Link::Open && *state.flow(direction) == Flow::Held;
        let mut state = self.changed.wait_while(state, is_held).expect("no thread panics");
        match (state.link, *state.flow(direction)) {
            (Link::Cut | Link::Ended, _) => Passage::Cut,
            (Link::Open, Flow::Lost) => Passage::Lost,
            (Link::Open, Flow::Open | Flow::Held) => Passage::Open(state),
        }
    }
}

impl State {
    fn flow(&mut self, direction: Direction) -> &mut Flow {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Answers => &mut self.answers,
        }
    }
}

enum Passage<'a> {
    Open(MutexGuard<'a, State>),
    Lost,
    /// What waited is lost with the connection.
    Cut,
}

/// Listens while the link is not cut: a closed listener is what refuses a connection.
fn accept_all(shared: &Arc<Shared>) {
    loop {
        let state = shared.lock();
        let state = shared.changed.wait_while(state, |state| state.link == Link::Cut).expect("no thread panics");
        if state.link == Link::Ended {
            return;
        }
        drop(state);
        let listener = listen(&shared.address);
        shared.lock().listening = true;
        shared.changed.notify_all();
        while shared.lock().link == Link::Open {
            let (clients, change) = (listener.as_fd(), shared.link_changed.as_fd());
            let mut ready = [clients, change].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // An interrupted wait is a wait that found nothing.
            let _found = poll(&mut ready, PollTimeout::NONE);
            if ready[1].any() == Some(true) {
                shared.link_changed.read().expect("an event that has come");
            } else if ready[0].any() == Some(true)
                && let Ok((client, _)) = listener.accept()
            {
                join(shared, client);
            }
        }
        drop(listener);
        shared.lock().listening = false;
        shared.changed.notify_all();
    }
}

/// A program that another thread is just starting has all our descriptors until its exec, a listener that was closed here among them: the
/// port is then ours, and taken, for a moment.
#[expect(clippy::disallowed_methods, reason = "a thread of its own, which has nothing else to do")]
fn listen(address: &str) -> TcpListener {
    let mut waited = Duration::ZERO;
    loop {
        match TcpListener::bind(address) {
            Ok(listener) => return listener,
            Err(cause) if cause.kind() == ErrorKind::AddrInUse && waited < LISTENING_PATIENCE / 2 => {
                std::thread::sleep(LISTEN_AGAIN_AFTER);
                waited += LISTEN_AGAIN_AFTER;
            }
            Err(cause) => panic!("listen at {address}, a port that is ours: {cause}"),
        }
    }
}

/// Without a server the client's connection is dropped.
fn join(shared: &Arc<Shared>, client: TcpStream) {
    let Ok(server) = TcpStream::connect(&shared.target) else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("an option of an open socket");
    }
    let connection = Arc::new(Connection { client, server, doomed: Mutex::new(false), torn: AtomicBool::new(false) });
    let mut state = shared.lock();
    state.connections_made += 1;
    state.connections.push(connection.clone());
    drop(state);
    start_thread("proxy-requests", {
        let (shared, connection) = (shared.clone(), connection.clone());
        move || {
            pass_requests(&shared, &connection);
            connection.cut();
        }
    });
    start_thread("proxy-answers", {
        let shared = shared.clone();
        move || {
            pass_answers(&shared, &connection);
            connection.cut();
            shared.lock().connections.retain(|other| !Arc::ptr_eq(other, &connection));
        }
    });
}

/// Until either side is closed.
fn pass_requests(shared: &Shared, connection: &Connection) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = (&connection.client).read(&mut chunk) {
        let mut state = match shared.passage(Direction::Requests, count) {
            Passage::Open(state) => state,
            Passage::Lost => {
                connection.torn.store(true, Ordering::Relaxed);
                continue;
            }
            Passage::Cut => return,
        };
        state.requested_bytes += count as u64;
        if state.lose.as_deref().is_some_and(|wanted| contains(&chunk[..count], wanted)) {
            state.lose = None;
            *connection.doomed.lock().expect("no thread panics with the lock") = true;
        }
        drop(state);
        if (&connection.server).write_all(&chunk[..count]).is_err() {
            return;
        }
    }
}

/// Until either side is closed, or an answer was lost.
fn pass_answers(shared: &Shared, connection: &Connection) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(count @ 1..) = (&connection.server).read(&mut chunk) {
        match shared.passage(Direction::Answers, count) {
            Passage::Open(_) => {}
            Passage::Lost => {
                connection.torn.store(true, Ordering::Relaxed);
                continue;
            }
            Passage::Cut => return,
        }
        if connection.is_doomed() {
            connection.server.set_read_timeout(Some(ANSWER_OVER_AFTER)).expect("an option of an open socket");
            while let Ok(1..) = (&connection.server).read(&mut chunk) {}
            shared.lock().answers_lost += 1;
            return;
        }
        if (&connection.client).write_all(&chunk[..count]).is_err() {
            return;
        }
    }
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    wanted.is_empty() || bytes.windows(wanted.len()).any(|window| window == wanted)
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread")
}
