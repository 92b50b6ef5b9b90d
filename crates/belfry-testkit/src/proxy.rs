//! A TCP proxy between a client and a real server that loses answers, cuts connections and holds bytes back when it is told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::servers::Port;

const CHUNK_BYTES: usize = 64 * 1024;
/// How soon the listener sees that it should close.
const ACCEPT_TURN_MS: u16 = 5;
/// An answer is over when the server has said nothing for so long. Its first bytes may be a mere receipt: HTTP/2 grants room
/// before the request was looked at.
const ANSWER_OVER_AFTER: Duration = Duration::from_millis(150);

pub struct Proxy {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: String,
    port: Port,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    link: Link,
    listening: bool,
    /// The answer to the next request with these bytes is lost.
    lose: Option<Vec<u8>>,
    answers_lost: u64,
    connections: Vec<Arc<Connection>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Link {
    #[default]
    Open,
    Stalled,
    Cut,
    /// The proxy is being dropped.
    Ended,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// The request whose answer is to be lost went through here. Written and read under the lock of the state.
    doomed: Mutex<bool>,
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
        let shared = Arc::new(Shared {
            target: target.to_owned(),
            port: Port::free(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let acceptor = start_thread("proxy-accept", {
            let shared = shared.clone();
            move || accept_all(&shared)
        });
        let proxy = Self { shared, acceptor: Some(acceptor) };
        proxy.until_listening(true);
        proxy
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.shared.port.address()
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
        self.shared.set(Link::Stalled);
    }

    pub fn heal(&self) {
        self.shared.set(Link::Open);
        self.until_listening(true);
    }

    pub fn answers_lost(&self) -> u64 {
        self.shared.lock().answers_lost
    }

    fn until_listening(&self, wanted: bool) {
        let state = self.shared.lock();
        drop(self.shared.changed.wait_while(state, |state| state.listening != wanted).expect("no thread panics"));
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
    }

    /// Holds a chunk back while the link is stalled. None when it is cut instead: what waited is lost with it.
    fn when_open(&self) -> Option<MutexGuard<'_, State>> {
        let state = self.lock();
        let state = self.changed.wait_while(state, |state| state.link == Link::Stalled).expect("no thread panics");
        (state.link == Link::Open).then_some(state)
    }
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
        let listener = TcpListener::bind(shared.port.address()).expect("listen on a port that is ours");
        shared.lock().listening = true;
        shared.changed.notify_all();
        while matches!(shared.lock().link, Link::Open | Link::Stalled) {
            let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            if matches!(poll(&mut ready, PollTimeout::from(ACCEPT_TURN_MS)), Ok(1..))
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

/// Without a server the client's connection is dropped.
fn join(shared: &Arc<Shared>, client: TcpStream) {
    let Ok(server) = TcpStream::connect(&shared.target) else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("an option of an open socket");
    }
    let connection = Arc::new(Connection { client, server, doomed: Mutex::new(false) });
    shared.lock().connections.push(connection.clone());
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
        let Some(mut state) = shared.when_open() else { return };
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
        if shared.when_open().is_none() {
            return;
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
