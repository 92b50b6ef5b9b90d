//! Wrapped commands beside a server: what the leader writes down of them, copies and removes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use belfry_control::ControlConfig;
use belfry_coord::wrapped::{decode, encode};
use belfry_coord::{
    Clock, Commit, CoordError, Coordinator, Entry, Guard, Heartbeat, Hints, Life, Memory, SystemClock,
    WRITES_PER_COMMIT_MAX, Write, keys,
};
use belfry_core::Timestamp;
use belfry_core::run::{Run, RunState};
use belfry_core::wrapped::{End, NAMESPACE, Outcome, Phase, Record, Rule};
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Sqlite, Statement, Step, Written};
use belfry_store::{JobRef, RunFilter, Store};
use belfry_testkit::until_within;

use crate::store_away;
use crate::support::{Cluster, sqlite};

const PATIENCE: Duration = Duration::from_secs(60);
/// The leader looks every five seconds.
const A_LOOK_OR_TWO: Duration = Duration::from_secs(7);
const KEEP: Duration = Duration::from_mins(10);

fn running(rule: Rule) -> Record {
    Record {
        host: "db1".into(),
        rule,
        attempt: 1,
        attempts_max: 2,
        claimed_at: SystemClock.now(),
        ttl_ms: 2000,
        keep_s: KEEP.as_secs(),
        phase: Phase::Running,
        fence: 0,
        quick_ends: 0,
        copied: false,
    }
}

fn failed(rule: Rule, at: Timestamp) -> Record {
    let end = End { outcome: Outcome::Failed, exit_code: Some(3), signal: None, at, reason: String::new() };
    Record { claimed_at: at, phase: Phase::Ended(end), ..running(rule) }
}

/// As its holder does.
async fn write(coordinator: &dyn Coordinator, name: &str, record: &Record) {
    let life = if record.phase == Phase::Running { Life::Beating } else { Life::Stopped };
    let heartbeat = Heartbeat { beat: 77, life, info: encode(record) };
    let key = keys::wrapped(name, "0230");
    let guard = Guard::Absent(key.clone());
    coordinator.commit(vec![guard], vec![Write::Put(key, heartbeat.encode().unwrap())]).await.unwrap();
}

async fn record(coordinator: &dyn Coordinator, name: &str) -> Option<Record> {
    let entry = coordinator.get(&keys::wrapped(name, "0230")).await.unwrap()?;
    Some(decode(&entry).unwrap().0)
}

async fn runs(store: &Store, name: &str) -> Vec<Run> {
    let job = Some(JobRef::Name { namespace: NAMESPACE.into(), name: name.into() });
    store.list_runs(&RunFilter { job, limit: 10, ..RunFilter::default() }).await.unwrap().items
}

/// The only run of the name, once it is there and its record says so.
async fn copied(cluster: &Cluster, name: &str) -> Run {
    let is_copied = async || record(&*cluster.coordinator, name).await.is_some_and(|it| it.copied).then_some(());
    assert!(until_within(PATIENCE, is_copied).await.is_some(), "{:?}", record(&*cluster.coordinator, name).await);
    let mut runs = runs(&cluster.store, name).await;
    assert_eq!(runs.len(), 1, "{runs:?}");
    runs.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_stood_still_is_lost_and_what_others_may_take_over_is_not() {
    let cluster = Cluster::new().await;
    write(&*cluster.coordinator, "once", &running(Rule::AtMostOnce)).await;
    write(&*cluster.coordinator, "out", &Record { attempt: 2, ..running(Rule::Crash) }).await;
    write(&*cluster.coordinator, "again", &running(Rule::Crash)).await;
    write(&*cluster.coordinator, "always", &running(Rule::LongLived)).await;
    let server = cluster.server("a").await;
    for (name, attempt) in [("once", 1), ("out", 2)] {
        let run = copied(&cluster, name).await;
        assert_eq!((run.state, run.attempt), (RunState::Lost, attempt), "{run:?}");
        assert_eq!((run.node_name.as_deref(), run.exit_code), (Some("db1"), None));
        assert!(run.reason.unwrap().contains("its host db1 died"));
    }
    for name in ["again", "always"] {
        assert_eq!(record(&*cluster.coordinator, name).await.unwrap().phase, Phase::Running, "{name}");
        assert!(runs(&cluster.store, name).await.is_empty());
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_record_is_removed_only_when_the_store_has_it() {
    let (cluster, database) = store_away::cluster(ControlConfig::default()).await;
    let server = cluster.server("a").await;
    database.be_away(true);
    let long_ago = SystemClock.now() - 2 * KEEP;
    write(&*cluster.coordinator, "old", &failed(Rule::Crash, long_ago)).await;
    write(&*cluster.coordinator, "new", &failed(Rule::Crash, SystemClock.now())).await;
    write(&*cluster.coordinator, "always", &failed(Rule::LongLived, long_ago)).await;
    // What needs no copy shows that the leader has looked.
    let is_gone = async |name| record(&*cluster.coordinator, name).await.is_none().then_some(());
    assert!(until_within(PATIENCE, async || is_gone("always").await).await.is_some());
    tokio::time::sleep(A_LOOK_OR_TWO).await;
    assert_eq!(record(&*cluster.coordinator, "old").await, Some(failed(Rule::Crash, long_ago)));

    database.be_away(false);
    assert!(until_within(PATIENCE, async || is_gone("old").await).await.is_some());
    let old = runs(&cluster.store, "old").await;
    assert_eq!(old.len(), 1, "{old:?}");
    assert_eq!((old[0].state, old[0].exit_code, old[0].planned), (RunState::Failed, Some(3), ms(long_ago)));
    assert_eq!(copied(&cluster, "new").await.state, RunState::Failed);
    assert!(runs(&cluster.store, "always").await.is_empty());
    server.stop().await;
}

/// As precise as the store is.
fn ms(at: Timestamp) -> Timestamp {
    Timestamp::from_millisecond(at.as_millisecond()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_copied_and_forgotten_does_not_come_back_with_the_next_leader() {
    let cluster = Cluster::new().await;
    write(&*cluster.coordinator, "backup", &failed(Rule::AtMostOnce, SystemClock.now())).await;
    let first = cluster.server("a").await;
    copied(&cluster, "backup").await;
    first.stop().await;
    let actor = belfry_store::Actor::new("test");
    let (now, later) = (SystemClock.now(), SystemClock.now() + KEEP);
    assert_eq!(cluster.store.delete_runs_before(later, None, now, &actor).await.unwrap(), 1);

    let second = cluster.server("b").await;
    write(&*cluster.coordinator, "next", &failed(Rule::AtMostOnce, now)).await;
    copied(&cluster, "next").await;
    assert!(runs(&cluster.store, "backup").await.is_empty());
    second.stop().await;
}

/// A database that refuses for good whatever speaks of poison.
struct Picky(Sqlite);

#[async_trait]
impl Database for Picky {
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.0.read(statement).await
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        let is_poison = steps.iter().any(|step| format!("{:?}", step.statement.args).contains("poison"));
        if is_poison { Err(SqlError::Broken("poison".into())) } else { self.0.write(steps).await }
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.0.migrate(scope, migrations).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_store_refuses_for_good_does_not_keep_the_rest_out_of_history() {
    let cluster = Cluster::new().await;
    let store = Store::open(Arc::new(Picky(sqlite(&cluster.folder, "picky.db")))).await.unwrap();
    let cluster = Cluster { store, ..cluster };
    // More than are copied at once; keys are listed in their order.
    write(&*cluster.coordinator, "a-poison", &failed(Rule::AtMostOnce, SystemClock.now())).await;
    for number in 0..WRITES_PER_COMMIT_MAX {
        write(&*cluster.coordinator, &format!("b{number}"), &failed(Rule::AtMostOnce, SystemClock.now())).await;
    }
    write(&*cluster.coordinator, "z", &failed(Rule::AtMostOnce, SystemClock.now())).await;
    let server = cluster.server("a").await;
    assert_eq!(copied(&cluster, "z").await.state, RunState::Failed);
    assert!(!record(&*cluster.coordinator, "a-poison").await.unwrap().copied);
    server.stop().await;
}

/// Counts how often all records are read.
struct Counting {
    memory: Memory,
    lists: AtomicUsize,
}

#[async_trait]
impl Coordinator for Counting {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.memory.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        if prefix == keys::WRAPPED {
            self.lists.fetch_add(1, Ordering::SeqCst);
        }
        self.memory.list(prefix).await
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        self.memory.commit(guards, writes).await
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        self.memory.watch(prefix).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_are_only_kept_are_not_read_again_until_something_is_written() {
    let counting = Arc::new(Counting { memory: Memory::default(), lists: AtomicUsize::new(0) });
    let cluster = Cluster { coordinator: counting.clone(), ..Cluster::new().await };
    write(&*cluster.coordinator, "done", &failed(Rule::AtMostOnce, SystemClock.now())).await;
    let server = cluster.server("a").await;
    copied(&cluster, "done").await;
    // The mark that it was copied is a change too, and is looked at once.
    tokio::time::sleep(A_LOOK_OR_TWO).await;
    let before = counting.lists.load(Ordering::SeqCst);
    tokio::time::sleep(2 * A_LOOK_OR_TWO).await;
    assert_eq!(counting.lists.load(Ordering::SeqCst), before);

    write(&*cluster.coordinator, "next", &failed(Rule::AtMostOnce, SystemClock.now())).await;
    let is_copied = async || record(&*cluster.coordinator, "next").await.is_some_and(|it| it.copied).then_some(());
    assert!(until_within(A_LOOK_OR_TWO, is_copied).await.is_some(), "a hint is enough");
    // What runs is watched.
    write(&*cluster.coordinator, "dies", &running(Rule::AtMostOnce)).await;
    assert_eq!(copied(&cluster, "dies").await.state, RunState::Lost);
    server.stop().await;
}
