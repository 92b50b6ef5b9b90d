//! While the store writes output more of it comes, so that there is never a moment when nothing waits.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_control::Control;
use belfry_coord::Memory;
use belfry_core::RunId;
use belfry_core::run::RunState;
use belfry_proto::session::{self, FromAgent, RunKey};
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Sqlite, Statement, Step, Written};
use belfry_store::Store;
use tokio::sync::{Mutex, mpsc};

use crate::support::{Cluster, ENDLESS_TTL, Session, manual, sqlite};

/// Two of them do not fit into one write.
const LARGE_BYTES: usize = 5 << 19;
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A run that prints.
struct Source {
    control: Control,
    said: mpsc::Sender<FromAgent>,
    key: RunKey,
    pieces: u32,
    piece_bytes: usize,
}

impl Source {
    fn of(control: &Control, session: &Session, piece_bytes: usize) -> Self {
        let key = RunKey { run: RunId::from_u128(1).to_string(), attempt: 1 };
        Self { control: control.clone(), said: session.said.clone(), key, pieces: 0, piece_bytes }
    }

    async fn print(&mut self) {
        let before = self.control.cluster().unrecorded.output_bytes;
        let (key, bytes) = (Some(self.key.clone()), vec![b'x'; self.piece_bytes].into());
        let piece = session::OutputChunk { key, sequence: self.pieces, stream: 1, bytes, ..Default::default() };
        self.said.send(piece.into()).await.expect("the server listens");
        self.pieces += 1;
        while self.control.cluster().unrecorded.output_bytes <= before {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Each of its writes of output ends when the source has printed once more.
struct Flooded {
    sqlite: Sqlite,
    source: Mutex<Option<Source>>,
}

impl Flooded {
    async fn begin(&self, mut source: Source, pieces: u32) {
        let mut place = self.source.lock().await;
        for _ in 0..pieces {
            source.print().await;
        }
        *place = Some(source);
    }

    /// How often it has printed.
    async fn end(&self) -> u32 {
        self.source.lock().await.take().map_or(0, |source| source.pieces)
    }
}

#[async_trait]
impl Database for Flooded {
    fn dialect(&self) -> Dialect {
        self.sqlite.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.sqlite.read(statement).await
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        if steps.iter().any(|step| step.statement.sql.contains("INTO output_chunks"))
            && let Some(source) = &mut *self.source.lock().await
        {
            source.print().await;
        }
        self.sqlite.write(steps).await
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.sqlite.migrate(scope, migrations).await
    }
}

async fn cluster() -> (Cluster, Arc<Flooded>) {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let database = Arc::new(Flooded { sqlite: sqlite(&cluster.folder, "flooded.db"), source: Mutex::default() });
    let store = Store::open(database.clone()).await.unwrap();
    (Cluster { store, ..cluster }, database)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_told_to_a_server_that_does_not_own_the_run_is_kept_while_output_never_stops() {
    let (cluster, database) = cluster().await;
    let owner = cluster.server("a").await;
    let mut session = Session::open(&owner, 1).await;
    let run = owner.run_now(manual(cluster.job(1).await)).await.unwrap().id;
    let key = session.order().await.key.unwrap();
    session.start(&key).await;
    cluster.stored(run, |run| run.state == RunState::Running).await;
    // To the next one it is a run that it finds in the store only.
    owner.stop().await;
    let other = Cluster { coordinator: Arc::new(Memory::default()), ..cluster.clone() }.server("b").await;
    let mut session = Session::open(&other, 1).await;
    database.begin(Source::of(&other, &session, 60), 1).await;
    session.end(&key, "succeeded", 0).await;
    session.until_stored(&key).await;
    database.end().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_recorded_while_more_output_comes_than_is_written_at_once() {
    let (cluster, database) = cluster().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let run = server.run_now(manual(cluster.job(1).await)).await.unwrap().id;
    let key = session.order().await.key.unwrap();
    database.begin(Source::of(&server, &session, LARGE_BYTES), 2).await;
    session.start(&key).await;
    session.end(&key, "succeeded", 0).await;
    session.until_stored(&key).await;
    assert_eq!(cluster.store.run(run).await.unwrap().map(|run| run.state), Some(RunState::Succeeded));
    database.end().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_waits_for_what_was_said_before_and_not_for_all_that_comes() {
    let (cluster, database) = cluster().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let run = server.run_now(manual(cluster.job(1).await)).await.unwrap().id;
    let key = session.order().await.key.unwrap();
    database.begin(Source::of(&server, &session, 60), 1).await;
    session.start(&key).await;
    session.end(&key, "succeeded", 0).await;
    let is_heard = async || server.open_runs(|open| open.id == run && open.state == RunState::Succeeded).len() == 1;
    while cluster.store.run(run).await.unwrap().is_none_or(|run| run.state != RunState::Succeeded) && !is_heard().await
    {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    server.stop().await;
    assert_eq!(cluster.store.run(run).await.unwrap().map(|run| run.state), Some(RunState::Succeeded));
    let pieces = database.end().await;
    assert!(pieces < 100, "it printed {pieces} times before the server was done");
}
