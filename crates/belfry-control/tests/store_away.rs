//! A server whose store goes away and comes back, and an agent whose every word the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use belfry_control::{Control, ControlConfig, ControlError, ManualRun};
use belfry_coord::{Clock, Coordinator, Memory, SystemClock};
use belfry_core::job::{Action, Exec, JobDocument};
use belfry_core::run::RunState;
use belfry_core::{JobId, NodeId, RunId, ServerId};
use belfry_proto::session::{self, FromAgent, RunKey, ToAgent, to_agent};
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Sqlite, SqliteOptions, Statement, Step, Written};
use belfry_store::{Actor, Store};
use belfry_testkit::until;
use tokio::sync::mpsc;

/// A database that answers when it is told to.
struct Moody {
    sqlite: Sqlite,
    is_away: AtomicBool,
}

impl Moody {
    fn answers(&self) -> Result<(), SqlError> {
        if self.is_away.load(Ordering::SeqCst) { Err(SqlError::Away("it was told to be".into())) } else { Ok(()) }
    }

    fn be_away(&self, away: bool) {
        self.is_away.store(away, Ordering::SeqCst);
    }
}

#[async_trait]
impl Database for Moody {
    fn dialect(&self) -> Dialect {
        self.sqlite.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.answers()?;
        self.sqlite.read(statement).await
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.answers()?;
        self.sqlite.write(steps).await
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.answers()?;
        self.sqlite.migrate(scope, migrations).await
    }
}

struct Bed {
    _folder: tempfile::TempDir,
    database: Arc<Moody>,
    store: Store,
    coordinator: Arc<dyn Coordinator>,
}

impl Bed {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sqlite = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
        let database = Arc::new(Moody { sqlite, is_away: AtomicBool::new(false) });
        let store = Store::open(database.clone()).await.unwrap();
        Self { _folder: folder, database, store, coordinator: Arc::new(Memory::default()) }
    }

    async fn server(&self, config: ControlConfig) -> Control {
        let id = ServerId::new(SystemClock.now(), 1);
        Control::start(config, id, self.coordinator.clone(), self.store.clone(), Arc::new(SystemClock)).await.unwrap()
    }

    async fn job(&self, change: impl FnOnce(&mut JobDocument)) -> JobId {
        let mut document = JobDocument::new("j".to_owned(), Action::Exec(Exec { argv: vec!["true".into()] }));
        change(&mut document);
        let id = JobId::from_u128(1);
        self.store.create_job(document, id, SystemClock.now(), &Actor::new("test")).await.unwrap();
        id
    }
}

struct Agent {
    said: mpsc::Sender<FromAgent>,
    told: mpsc::Receiver<ToAgent>,
}

impl Agent {
    async fn connect(control: &Control) -> Self {
        let (orders, told) = mpsc::channel(1000);
        let (said, reports) = mpsc::channel(1000);
        control.connect_local(orders, reports);
        let mut agent = Self { said, told };
        let node = NodeId::from_u128(77).to_string();
        agent.say(session::Hello { node, name: "n".into(), incarnation: 1, slots: 10, ..Default::default() }).await;
        agent.until(|message| matches!(message, to_agent::Message::Welcome(_)).then_some(())).await;
        agent
    }

    async fn say(&self, message: impl Into<FromAgent>) {
        self.said.send(message.into()).await.expect("the server listens");
    }

    async fn until<T>(&mut self, wanted: impl Fn(to_agent::Message) -> Option<T>) -> T {
        let waited = async {
            loop {
                let message = self.told.recv().await.expect("the session lives").message.expect("a message");
                if let Some(found) = wanted(message) {
                    return found;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waited).await.expect("it is told within 30 s")
    }

    /// Output in pieces of 60 bytes, and the end.
    async fn tell_all(&self, key: &RunKey, chunks: u32) {
        for sequence in 0..chunks {
            let (key, bytes) = (Some(key.clone()), vec![b'x'; 60].into());
            let offset = u64::from(sequence) * 60;
            self.say(session::OutputChunk { key, sequence, stream: 1, offset, bytes, ..Default::default() }).await;
        }
        let (key, outcome) = (Some(key.clone()), "succeeded".to_owned());
        self.say(session::Ended { key, outcome, started_at_ms: Some(1), ended_at_ms: 2, chunks, ..Default::default() })
            .await;
    }
}

fn manual(job: JobId) -> ManualRun {
    ManualRun {
        job,
        by: "test".into(),
        idempotency_key: None,
        env: Default::default(),
        node: None,
        force: true,
        rerun_of: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_taken_only_with_all_of_the_output_before_it() {
    const CHUNKS: u32 = 5;
    let bed = Bed::new().await;
    let job = bed.job(|_| {}).await;
    let control = bed.server(ControlConfig { unrecorded_output_bytes_max: 130, ..ControlConfig::default() }).await;
    let mut agent = Agent::connect(&control).await;
    let run = control.run_now(manual(job)).await.unwrap();
    let key = agent
        .until(|message| match message {
            to_agent::Message::Dispatch(order) => order.key,
            _ => None,
        })
        .await;
    agent.say(session::Taken { key: Some(key.clone()), ..Default::default() }).await;
    agent.say(session::Started { key: Some(key.clone()), at_ms: 1, local: None }).await;

    bed.database.be_away(true);
    agent.tell_all(&key, CHUNKS).await;
    until("as much waits as may", async || (control.cluster().unrecorded.output_bytes == 120).then_some(())).await;
    bed.database.be_away(false);
    let mut asked = 0;
    loop {
        let acknowledged = agent
            .until(|message| match message {
                to_agent::Message::SendAgain(again) if again.keys.contains(&key) => Some(false),
                to_agent::Message::Stored(stored) if stored.keys.contains(&key) => Some(true),
                _ => None,
            })
            .await;
        if acknowledged {
            break;
        }
        asked += 1;
        agent.tell_all(&key, CHUNKS).await;
    }
    let kept = bed.store.read_output(run.id, 1, 0, usize::MAX).await.unwrap();
    assert_eq!(kept.len() as u32, CHUNKS, "the end of a run was acknowledged without its output");
    assert!(asked > 0);
    assert_eq!(bed.store.run(run.id).await.unwrap().unwrap().state, RunState::Succeeded);
    until("nothing waits", async || (control.cluster().unrecorded == Default::default()).then_some(())).await;
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_a_number_of_runs_that_wait_for_the_store_nothing_is_claimed_until_it_takes_them() {
    const RUNS_MAX: usize = 3;
    let bed = Bed::new().await;
    let config = ControlConfig { unrecorded_runs_max: RUNS_MAX, ..ControlConfig::default() };
    let control = bed.server(config).await;
    // No node: each run is claimed, and waits.
    let job = bed
        .job(|document| {
            document.schedule.0.push("* * * * * *".to_owned());
            document.overlap = belfry_core::job::Overlap::Allow;
        })
        .await;
    control.jobs_changed().await;
    bed.database.be_away(true);
    until("too much waits", async || control.cluster().unrecorded.full.then_some(())).await;
    let open = control.cluster().open_runs;
    assert!(matches!(control.run_now(manual(job)).await, Err(ControlError::TooMuchUnrecorded)));
    let first: Vec<RunId> = control.open_runs(|_| true).into_iter().map(|run| run.id).collect();
    bed.database.be_away(false);
    until("fires are claimed again", async || {
        let cluster = control.cluster();
        (!cluster.unrecorded.full && cluster.open_runs > open).then_some(())
    })
    .await;
    for run in first {
        assert!(bed.store.run(run).await.unwrap().is_some(), "{run} was claimed and has no record");
    }
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_runs_are_open_than_the_coordinator_has_room_for() {
    const OPEN_MAX: u64 = 5;
    let room_bytes = OPEN_MAX * 1024 * 16 * 2;
    let bed = Bed { coordinator: Arc::new(Memory::with_room(room_bytes)), ..Bed::new().await };
    let control = bed.server(ControlConfig::default()).await;
    // No node: each run is claimed, and waits.
    let job = bed
        .job(|document| {
            document.schedule.0.push("* * * * * *".to_owned());
            document.overlap = belfry_core::job::Overlap::Allow;
        })
        .await;
    control.jobs_changed().await;
    let is_full = |control: &Control| control.cluster().shards.iter().any(|shard| shard.full);
    until("the shard is full", async || is_full(&control).then_some(())).await;
    assert_eq!(control.cluster().open_runs, OPEN_MAX);
    assert!(matches!(control.run_now(manual(job)).await, Err(ControlError::NoRoom)));
    let first = control.open_runs(|_| true);
    let newest = first.iter().map(|run| run.planned).max();

    for run in &first {
        control.kill_run(run.id, "test").await.unwrap();
    }
    until("what was due meanwhile is claimed", async || {
        let open = control.open_runs(|run| Some(run.planned) > newest);
        assert!(control.cluster().open_runs <= OPEN_MAX);
        (!open.is_empty()).then_some(())
    })
    .await;
    control.stop().await;
}

#[test]
fn the_bug_that_this_is_about_is_caught() {
    belfry_testkit::planted::are_caught_in("belfry-control/store_away");
}
