//! A server as the agent sees one: it welcomes, acknowledges, orders, and remembers what it was told.

use std::path::Path;
use std::time::Duration;

use belfry_agent::{Agent, AgentConfig, LocalLink};
use belfry_core::{RunId, Timestamp};
use belfry_exec::ZygoteCommand;
use belfry_proto::session::{
    ClockQuestion, Dispatch, Ended, FromAgent, Heartbeat, HeartbeatAck, Hello, Kill, OutputChunk, Recall, RunKey,
    Stored, Taken, ToAgent, Welcome, from_agent, to_agent,
};
use serde_json::{Value, json};

pub struct Server {
    link: LocalLink,
    pub hello: Hello,
    /// Whether heartbeats are acknowledged, and how.
    pub acknowledges: Option<bool>,
    /// Whether results are acknowledged.
    pub stores: bool,
    pub term: u64,
}

pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn config(folder: &Path) -> AgentConfig {
    AgentConfig {
        data_dir: folder.join("agent"),
        name: "node1".into(),
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        slots: 100,
        allow_root: true,
        default_user: None,
        policy: None,
        quit_time: Duration::from_secs(5),
        disk_floor_bytes: None,
        spool_max_bytes: 1 << 30,
        run_logs: None,
        zygote: ZygoteCommand { program: env!("CARGO_BIN_EXE_agent-zygote").into(), args: Vec::new() },
        join: None,
    }
}

pub async fn start(folder: &Path) -> (Agent, Server) {
    start_with(config(folder)).await
}

pub async fn start_with(config: AgentConfig) -> (Agent, Server) {
    let agent = Agent::start(config).await.expect("the agent starts");
    let server = Server::welcome(agent.connect_local(), Duration::from_secs(10)).await;
    (agent, server)
}

pub fn key(run: u32) -> RunKey {
    RunKey { run: RunId::from_u128(u128::from(run)).to_string(), attempt: 1 }
}

/// A run of `command`, due at once.
pub fn shell(run: u32, command: &str) -> Dispatch {
    with_document(run, &json!({"name": "job", "action": {"shell": {"command": command}}}))
}

pub fn with_document(run: u32, document: &Value) -> Dispatch {
    Dispatch {
        key: Some(key(run)),
        shard: 3,
        fence: 77,
        namespace: "default".into(),
        job: "job".into(),
        revision: 1,
        document: document.to_string().into_bytes().into(),
        planned_ms: Timestamp::now().as_millisecond(),
        start_within_ms: 60_000,
        ..Default::default()
    }
}

impl Server {
    /// Waits for hello, welcomes, and waits until heartbeats flow.
    pub async fn welcome(link: LocalLink, ttl: Duration) -> Server {
        let mut server = Server::connected(link).await;
        server.send_welcome(ttl).await;
        server
    }

    /// Has heard hello and said nothing.
    pub async fn connected(mut link: LocalLink) -> Server {
        let first = tokio::time::timeout(PATIENCE, link.from_agent.recv()).await.expect("in time").expect("open");
        let Some(from_agent::Message::Hello(hello)) = first.message else { panic!("hello is first, not {first:?}") };
        Server { link, hello, acknowledges: Some(true), stores: true, term: 5 }
    }

    pub async fn send_welcome(&mut self, ttl: Duration) {
        let welcome = Welcome { server: "s1".into(), ttl_ms: ttl.as_millis() as u64 };
        self.send(to_agent::Message::Welcome(welcome)).await;
    }

    pub async fn send(&self, message: to_agent::Message) {
        self.link.to_agent.send(ToAgent { message: Some(message) }).await.expect("the agent listens");
    }

    pub async fn dispatch(&self, dispatch: Dispatch) {
        let dispatch = Dispatch { incarnation: self.hello.incarnation, term: self.term, ..dispatch };
        self.send(to_agent::Message::Dispatch(dispatch)).await;
    }

    pub async fn kill(&self, run: u32, grace_ms: u64, reason: &str) {
        let reason = reason.into();
        let kill = Kill { key: Some(key(run)), shard: 3, term: self.term, grace_ms, reason, local: false };
        self.send(to_agent::Message::Kill(kill)).await;
    }

    pub async fn recall(&self, run: u32, outcome: &str, reason: &str) {
        let (outcome, reason) = (outcome.into(), reason.into());
        self.send(to_agent::Message::Recall(Recall {
            key: Some(key(run)),
            shard: 3,
            term: self.term,
            outcome,
            reason,
        }))
        .await;
    }

    /// The next message that is no heartbeat; these are answered, and so are results. `None`: the agent hung up.
    pub async fn next_or_end(&mut self) -> Option<from_agent::Message> {
        loop {
            let message = self.next_raw().await?;
            match message {
                from_agent::Message::Heartbeat(beat) => {
                    if let Some(accepted) = self.acknowledges {
                        let ack = HeartbeatAck { sequence: beat.sequence, accepted };
                        self.send(to_agent::Message::Heartbeat(ack)).await;
                    }
                }
                other => {
                    if let from_agent::Message::Ended(ended) = &other
                        && self.stores
                    {
                        self.store(ended.key.clone()).await;
                    }
                    return Some(other);
                }
            }
        }
    }

    pub async fn next(&mut self) -> from_agent::Message {
        self.next_or_end().await.expect("the agent speaks")
    }

    /// Heartbeats too; not the load, which comes with each of them to whoever does not get it.
    pub async fn next_raw(&mut self) -> Option<from_agent::Message> {
        loop {
            let received = tokio::time::timeout(PATIENCE, self.link.from_agent.recv()).await;
            let FromAgent { message } = received.expect("a message in time")?;
            if !matches!(message, Some(from_agent::Message::Load(_))) {
                return message;
            }
        }
    }

    /// The next one, which is left unanswered.
    pub async fn heartbeat(&mut self) -> Heartbeat {
        loop {
            match self.next_raw().await.expect("the agent speaks") {
                from_agent::Message::Heartbeat(beat) => return beat,
                _what_else_it_says => {}
            }
        }
    }

    pub async fn store(&self, key: Option<RunKey>) {
        self.send(to_agent::Message::Stored(Stored { keys: key.into_iter().collect() })).await;
    }

    /// Reads until `wanted` finds what it wants.
    pub async fn until<T>(&mut self, mut wanted: impl FnMut(from_agent::Message) -> Option<T>) -> T {
        loop {
            if let Some(found) = wanted(self.next().await) {
                return found;
            }
        }
    }

    pub async fn until_started(&mut self, run: u32) {
        self.until(|message| {
            matches!(message, from_agent::Message::Started(started) if started.key == Some(key(run))).then_some(())
        })
        .await;
    }

    pub async fn until_taken(&mut self, run: u32) -> Taken {
        self.until(|message| match message {
            from_agent::Message::Taken(taken) if taken.key == Some(key(run)) => Some(taken),
            _ => None,
        })
        .await
    }

    pub async fn until_ended(&mut self, run: u32) -> Ended {
        self.result(run).await.1
    }

    /// The run's output and end.
    pub async fn result(&mut self, run: u32) -> (Vec<OutputChunk>, Ended) {
        let mut chunks = Vec::new();
        let ended = self
            .until(|message| match message {
                from_agent::Message::Output(chunk) if chunk.key == Some(key(run)) => {
                    chunks.push(chunk);
                    None
                }
                from_agent::Message::Ended(ended) if ended.key == Some(key(run)) => Some(ended),
                _ => None,
            })
            .await;
        (chunks, ended)
    }

    /// All that was sent before has reached the agent's desk.
    pub async fn until_heard(&mut self) {
        self.send(to_agent::Message::Clock(ClockQuestion { token: 1 })).await;
        self.until(|message| matches!(message, from_agent::Message::Clock(_)).then_some(())).await;
    }

    /// Reads for some time and gives what came.
    pub async fn listen_for(&mut self, time: Duration) -> Vec<from_agent::Message> {
        let mut heard = Vec::new();
        let listening = async {
            loop {
                let message = self.next().await;
                heard.push(message);
            }
        };
        let _over: Result<std::convert::Infallible, _> = tokio::time::timeout(time, listening).await;
        heard
    }
}

/// Stdout as text.
pub fn stdout(chunks: &[OutputChunk]) -> String {
    let bytes: Vec<u8> =
        chunks.iter().filter(|chunk| chunk.stream == 1).flat_map(|chunk| chunk.bytes.to_vec()).collect();
    String::from_utf8(bytes).expect("text")
}
