//! What servers share, the servers on it, and sessions in which the test plays the agent.

use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use belfry_control::{Addresses, Control, ControlConfig, ControlError, ManualRun, StartError};
use belfry_coord::observer::mark_lost;
use belfry_coord::{Clock, Coordinator, Memory, SystemClock, keys};
use belfry_core::job::{Action, Exec, JobDocument, Overlap};
use belfry_core::run::Run;
use belfry_core::{JobId, NodeId, RunId, ServerId};
use belfry_proto::session::{self, FromAgent, RunKey, ToAgent, to_agent};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, Store};
pub use belfry_testkit::until_within;
use tempfile::TempDir;
use tokio::sync::mpsc;

pub const TTL: Duration = Duration::from_secs(4);
/// Longer than any test: for agents that have no heartbeat.
pub const ENDLESS_TTL: Duration = Duration::from_secs(300);
pub const PATIENCE: Duration = Duration::from_secs(30);
const LONG_PATIENCE: Duration = Duration::from_secs(60);
const MESSAGES_IN_FLIGHT_MAX: usize = 10_000;

/// What its servers are started with; one that differs is of a clone with another value.
#[derive(Clone)]
pub struct Cluster {
    /// Removed with the last clone.
    pub folder: Arc<TempDir>,
    pub store: Store,
    pub coordinator: Arc<dyn Coordinator>,
    pub clock: Arc<dyn Clock>,
    pub config: ControlConfig,
}

impl Cluster {
    pub async fn new() -> Self {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        let store = Store::open(Arc::new(sqlite(&folder, "store.db"))).await.unwrap();
        let config = ControlConfig { ttl: TTL, ..ControlConfig::default() };
        Self { folder, store, coordinator: Arc::new(Memory::default()), clock: Arc::new(SystemClock), config }
    }

    pub fn with_ttl(&self, ttl: Duration) -> Self {
        Self { config: ControlConfig { ttl, ..self.config.clone() }, ..self.clone() }
    }

    pub async fn start(&self, name: &str) -> Result<Control, StartError> {
        let id = ServerId::new(self.clock.now(), u128::from(name.as_bytes()[0]));
        let addresses = Addresses { api: format!("http://{name}:1"), agents: format!("http://{name}:2") };
        let config = ControlConfig { addresses, ..self.config.clone() };
        Control::start(config, id, self.coordinator.clone(), self.store.clone(), self.clock.clone()).await
    }

    pub async fn server(&self, name: &str) -> Control {
        self.start(name).await.expect("a server")
    }

    pub async fn job(&self, number: u128) -> JobId {
        self.job_with(number, |_| {}).await
    }

    pub async fn job_with(&self, number: u128, change: impl FnOnce(&mut JobDocument)) -> JobId {
        let mut document = JobDocument::new(format!("j{number}"), Action::Exec(Exec { argv: vec!["true".into()] }));
        change(&mut document);
        let id = JobId::from_u128(number);
        self.store.create_job(document, id, SystemClock.now(), &Actor::new("test")).await.unwrap();
        id
    }

    pub async fn change_job(&self, job: JobId, change: impl FnOnce(&mut JobDocument)) {
        let mut known = self.store.job_by_id(job).await.unwrap().unwrap();
        change(&mut known.document);
        let now = SystemClock.now();
        self.store.update_job(job, known.revision, known.document, now, &Actor::new("test")).await.unwrap();
    }

    /// As the leader does when a node was silent for a TTL.
    pub async fn hold_dead(&self, node: u128) {
        let key = keys::node(NodeId::from_u128(node));
        let seen = self.coordinator.get(&key).await.unwrap().unwrap();
        mark_lost(&*self.coordinator, &key, seen.version).await.unwrap();
    }

    /// The run's record, once it is as wanted.
    pub async fn stored(&self, run: RunId, wanted: impl Fn(&Run) -> bool) -> Run {
        let look = async || self.store.run(run).await.unwrap().filter(&wanted);
        match until_within(PATIENCE, look).await {
            Some(run) => run,
            None => panic!("in vain: {:?}", self.store.run(run).await.unwrap()),
        }
    }
}

pub fn sqlite(folder: &TempDir, name: &str) -> Sqlite {
    Sqlite::open(folder.path().join(name), SqliteOptions::default()).unwrap()
}

/// It may run beside itself.
pub fn every_second(document: &mut JobDocument) {
    document.schedule.0.push("* * * * * *".to_owned());
    document.overlap = Overlap::Allow;
}

pub fn manual(job: JobId) -> ManualRun {
    ManualRun::new(job, "test")
}

pub fn shards(server: &Control) -> usize {
    server.cluster().shards.len()
}

/// A run of the job now, whoever of the two owns it; the owner comes first in the answer.
pub async fn run_at_owner(a: (Control, Session), b: (Control, Session), job: JobId) -> [(Control, Session); 2] {
    match a.0.run_now(manual(job)).await {
        Ok(_) => [a, b],
        Err(ControlError::NotOwned(_)) => {
            b.0.run_now(manual(job)).await.unwrap();
            [b, a]
        }
        Err(cause) => panic!("{cause}"),
    }
}

#[track_caller]
pub fn until(fact: impl Fn() -> bool) -> impl Future<Output = ()> {
    let asked_at = Location::caller();
    async move {
        let came_true = until_within(LONG_PATIENCE, async || fact().then_some(())).await;
        assert!(came_true.is_some(), "what {asked_at} waits for did not come true within {LONG_PATIENCE:?}");
    }
}

/// One session of a node with one server.
pub struct Session {
    pub node: NodeId,
    pub said: mpsc::Sender<FromAgent>,
    pub told: mpsc::Receiver<ToAgent>,
}

impl Session {
    /// Welcomed, in the node's first incarnation.
    pub async fn open(control: &Control, node: u128) -> Self {
        let mut session = Self::connect(control, node);
        session.hello(1).await;
        session
    }

    /// Nothing is said yet.
    pub fn connect(control: &Control, node: u128) -> Self {
        let (orders, told) = mpsc::channel(MESSAGES_IN_FLIGHT_MAX);
        let (said, reports) = mpsc::channel(MESSAGES_IN_FLIGHT_MAX);
        control.connect_local(orders, reports);
        Self { node: NodeId::from_u128(node), said, told }
    }

    pub async fn hello(&mut self, incarnation: u64) {
        self.greet(self.greeting(incarnation)).await;
    }

    pub fn greeting(&self, incarnation: u64) -> session::Hello {
        let (node, name) = (self.node.to_string(), format!("n{}", self.node.as_u128()));
        session::Hello { node, name, incarnation, slots: 10, ..Default::default() }
    }

    pub async fn greet(&mut self, hello: session::Hello) {
        self.say(hello).await;
        self.until(|message| matches!(message, to_agent::Message::Welcome(_)).then_some(())).await;
    }

    pub async fn say(&self, message: impl Into<FromAgent>) {
        self.said.send(message.into()).await.expect("the server listens");
    }

    pub async fn until<T>(&mut self, wanted: impl Fn(to_agent::Message) -> Option<T>) -> T {
        let waited = async {
            loop {
                let message = self.told.recv().await.expect("the session lives").message.expect("a message");
                if let Some(found) = wanted(message) {
                    return found;
                }
            }
        };
        tokio::time::timeout(PATIENCE, waited).await.expect("it is told within 30 s")
    }

    /// The next order, or one before it again.
    pub async fn order(&mut self) -> session::Dispatch {
        self.order_of(|_| true).await
    }

    pub async fn order_of(&mut self, wanted: impl Fn(&RunKey) -> bool) -> session::Dispatch {
        self.until(|message| match message {
            to_agent::Message::Dispatch(order) if order.key.as_ref().is_some_and(&wanted) => Some(order),
            _ => None,
        })
        .await
    }

    pub async fn take(&self, key: &RunKey) {
        self.say(session::Taken { key: Some(key.clone()), ..Default::default() }).await;
    }

    pub async fn refuse(&self, key: &RunKey) {
        self.say(session::Taken { key: Some(key.clone()), refused: "draining".into(), ..Default::default() }).await;
    }

    pub async fn start(&self, key: &RunKey) {
        self.take(key).await;
        let at_ms = SystemClock.now().as_millisecond();
        self.say(session::Started { key: Some(key.clone()), at_ms, ..Default::default() }).await;
    }

    pub async fn end(&self, key: &RunKey, outcome: &str, code: i32) {
        let now = SystemClock.now().as_millisecond();
        self.say(session::Ended {
            key: Some(key.clone()),
            outcome: outcome.into(),
            reason: format!("exit code {code}"),
            started_at_ms: Some(now - 1),
            ended_at_ms: now,
            exit_code: Some(code),
            ..Default::default()
        })
        .await;
    }

    pub async fn until_stored(&mut self, key: &RunKey) {
        self.until(|message| match message {
            to_agent::Message::Stored(stored) => stored.keys.contains(key).then_some(()),
            _ => None,
        })
        .await;
    }
}
