//! A real HTTP receiver for what Belfry posts: it remembers every letter, and answers as it is told, or not at all.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// What was posted.
#[derive(Clone, Debug)]
pub struct Letter {
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

#[derive(Clone, Copy, Debug)]
pub enum Reply {
    Status(u16),
    /// The connection stays open without a word, until the receiver is gone.
    Never,
}

pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    is_over: AtomicBool,
}

#[derive(Default)]
struct State {
    heard: Vec<Letter>,
    /// The next replies for a path, and the one for all after them.
    replies: HashMap<String, VecDeque<Reply>>,
    for_all: HashMap<String, Reply>,
    unanswered: Vec<TcpStream>,
}

impl Receiver {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let shared = Arc::new(Shared::default());
        let acceptor = start_thread("receiver", {
            let shared = shared.clone();
            move || {
                for stream in listener.incoming().map_while(Result::ok) {
                    if shared.is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let shared = shared.clone();
                    start_thread("receiver-connection", move || drop(shared.serve(stream)));
                }
            }
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// For the next letters to this path, in this order; after them the last one holds. Without any, 204.
    pub fn replies(&self, path: &str, replies: &[Reply]) {
        let mut state = self.shared.lock();
        let (last, first) = replies.split_last().expect("at least one reply");
        state.replies.insert(path.to_owned(), first.iter().copied().collect());
        state.for_all.insert(path.to_owned(), *last);
    }

    /// All letters to this path so far.
    pub fn heard(&self, path: &str) -> Vec<Letter> {
        self.shared.lock().heard.iter().filter(|letter| letter.path == path).cloned().collect()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
        if let Some(acceptor) = self.acceptor.take() {
            let _ended = acceptor.join();
        }
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                headers.insert(name.to_ascii_lowercase(), value.to_owned());
            }
            let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let body = String::from_utf8_lossy(&body).into_owned();
            let reply = self.take(Letter { path, headers, body });
            match reply {
                Reply::Status(status) => write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n")?,
                Reply::Never => {
                    self.lock().unanswered.push(stream);
                    return Ok(());
                }
            }
        }
    }

    fn take(&self, letter: Letter) -> Reply {
        let mut state = self.lock();
        let next = state.replies.get_mut(&letter.path).and_then(VecDeque::pop_front);
        let reply = next.or_else(|| state.for_all.get(&letter.path).copied()).unwrap_or(Reply::Status(204));
        state.heard.push(letter);
        reply
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the lock")
    }
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).expect("a thread")
}
