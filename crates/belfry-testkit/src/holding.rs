//! A witness outside of the system: what is under test holds a connection to a listener for as long as it lives, so that the kernel says
//! when it began and ended, whatever became of those who started it.
#![expect(clippy::disallowed_methods, reason = "a witness that ends with the test")]

use std::sync::{Arc, Mutex};

use jiff::Timestamp;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::until::now;

/// One that held on, with what it said at first.
#[derive(Clone, Debug)]
pub struct Holding {
    pub words: Vec<String>,
    pub from: Timestamp,
    /// None: it still does.
    pub to: Option<Timestamp>,
}

pub struct Holdings {
    port: u16,
    all: Arc<Mutex<Vec<Holding>>>,
    listening: JoinHandle<()>,
}

impl Holdings {
    pub async fn listen() -> Self {
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("a listener");
        let port = listener.local_addr().expect("its address").port();
        let all = Arc::new(Mutex::new(Vec::new()));
        let listening = tokio::spawn(accept(listener, all.clone()));
        Self { port, all, listening }
    }

    /// What a script of bash says to hold on, with these words of the shell. `WITNESS` is where a host with a network of its own finds this one.
    pub fn hold(&self, words: &str) -> String {
        format!("exec 3<>/dev/tcp/${{WITNESS:-127.0.0.1}}/{} && echo {words} >&3", self.port)
    }

    /// In the order of their beginnings.
    pub fn all(&self) -> Vec<Holding> {
        let mut all = self.all.lock().expect("nobody panics with it").clone();
        all.sort_by_key(|holding| holding.from);
        all
    }
}

impl Drop for Holdings {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn accept(listener: TcpListener, all: Arc<Mutex<Vec<Holding>>>) {
    while let Ok((connection, _)) = listener.accept().await {
        let from = now();
        tokio::spawn(follow(connection, from, all.clone()));
    }
}

async fn follow(connection: TcpStream, from: Timestamp, all: Arc<Mutex<Vec<Holding>>>) {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    let _killed_at_once = reader.read_line(&mut line).await;
    if !line.ends_with('\n') {
        return;
    }
    let words = line.split_whitespace().map(str::to_owned).collect();
    let place = {
        let mut all = all.lock().expect("nobody panics with it");
        all.push(Holding { words, from, to: None });
        all.len() - 1
    };
    let _reset = reader.read_to_end(&mut Vec::new()).await;
    all.lock().expect("nobody panics with it")[place].to = Some(now());
}
