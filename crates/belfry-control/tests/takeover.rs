//! Two servers on one coordinator: the one that is held dead while it lives gets nothing done any more, and no fire is started by
//! both. Each has an agent that only counts what it is told to start.
#![expect(clippy::disallowed_methods, reason = "a test spawns its agents")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belfry_control::{Control, ControlConfig, ManualRun};
use belfry_coord::faulty::{Fault, Faulty};
use belfry_coord::{Clock, Coordinator, Memory, SystemClock, Write, keys};
use belfry_core::job::{Action, Exec, JobDocument, Overlap};
use belfry_core::{JobId, NodeId, ServerId};
use belfry_proto::session::{self, FromAgent, ToAgent, to_agent};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, Store};
use tokio::sync::mpsc;

const TTL: Duration = Duration::from_secs(8);
/// Shorter than the pause between two heartbeats of a server with the other TTL.
const IMPATIENT_TTL: Duration = Duration::from_secs(1);

/// Orders by run, and by which server they came.
type Started = Arc<Mutex<HashMap<String, Vec<&'static str>>>>;

async fn server(
    name: &'static str,
    coordinator: Arc<dyn Coordinator>,
    store: &Store,
    ttl: Duration,
    started: &Started,
) -> Control {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let config = ControlConfig { ttl, ..ControlConfig::default() };
    let id = ServerId::new(clock.now(), u128::from(name.as_bytes()[0]));
    let control = Control::start(config, id, coordinator, store.clone(), clock).await.expect("a server");
    let (orders, mut told) = mpsc::channel::<ToAgent>(10_000);
    let (said, reports) = mpsc::channel::<FromAgent>(10_000);
    control.connect_local(orders, reports);
    let started = started.clone();
    tokio::spawn(async move {
        let node = NodeId::new(SystemClock.now(), u128::from(name.as_bytes()[0])).to_string();
        let hello = session::Hello { node, name: name.to_owned(), incarnation: 1, slots: 1000, ..Default::default() };
        said.send(hello.into()).await.expect("the server listens");
        while let Some(message) = told.recv().await {
            if let Some(to_agent::Message::Dispatch(order)) = message.message {
                let key = order.key.expect("an order has a key");
                started.lock().unwrap().entry(key.run.clone()).or_default().push(name);
                let ended = session::Ended {
                    key: Some(key),
                    outcome: "succeeded".into(),
                    ended_at_ms: order.planned_ms,
                    ..Default::default()
                };
                let _ = said.send(ended.into()).await;
            }
        }
    });
    control
}

async fn two_servers_one_of_them_deposed() {
    let folder = tempfile::tempdir().unwrap();
    let database = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
    let store = Store::open(Arc::new(database)).await.unwrap();
    let coordinator: Arc<dyn Coordinator> = Arc::new(Memory::default());
    let started = Started::default();
    for n in 0..40u128 {
        let mut document = JobDocument::new(format!("j{n}"), Action::Exec(Exec { argv: vec!["true".into()] }));
        document.schedule.0.push("* * * * * *".into());
        document.overlap = Overlap::Allow;
        let id = JobId::from_u128(n << 7 | 1);
        store.create_job(document, id, SystemClock.now(), &Actor::new("test")).await.unwrap();
    }
    let first = server("first", coordinator.clone(), &store, TTL, &started).await;
    until(|| by(&started, "first") > 40).await;

    // The second is misconfigured: it holds the first dead between two of its heartbeats, and takes its shards while it lives. That
    // it may start at all, what the servers agreed on is lost first.
    coordinator.commit(vec![], vec![Write::Delete(keys::META.into())]).await.unwrap();
    let second = server("second", coordinator, &store, IMPATIENT_TTL, &started).await;
    until(|| by(&started, "second") > 80).await;

    // The same order again to the same incarnation starts nothing; it is what a server does that has its shard back.
    let both = |by: &Vec<&str>| by.iter().any(|server| *server != by[0]);
    let doubled: Vec<String> =
        started.lock().unwrap().iter().filter(|(_, by)| both(by)).map(|(run, by)| format!("{run}: {by:?}")).collect();
    assert!(doubled.is_empty(), "started by both: {doubled:?}");
    second.stop().await;
    first.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_server_starts_nothing_more() {
    two_servers_one_of_them_deposed().await;
}

/// The same test in a process of its own whose commits do not guard the seat: it must fail, else it shows nothing.
#[test]
fn removing_the_claims_guard_is_noticed() {
    belfry_testkit::planted::are_caught_in("belfry-control/takeover");
}

/// With nothing heard of the giving back, the seats are still the first one's, which has all of its share without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_giving_back_was_lost_does_not_stand_still() {
    const LOST: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let database = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
    let store = Store::open(Arc::new(database)).await.unwrap();
    let coordinator: Arc<dyn Coordinator> = Arc::new(Memory::default());
    let way = Arc::new(Faulty::new(coordinator.clone()));
    let started = Started::default();
    let first = server("first", way.clone(), &store, TTL, &started).await;
    let shards = |server: &Control| server.cluster().shards.len();
    until(|| shards(&first) == 16).await;
    // Eight are given back at once; the others are heartbeats.
    way.plan([Fault::LoseRequest; LOST]);
    let before = way.commits();
    let second = server("second", coordinator, &store, TTL, &started).await;
    until(|| way.commits() > before + LOST as u64 && shards(&first) == 8 && shards(&second) == 8).await;
    second.stop().await;
    first.stop().await;
}

/// The seat is read fresh and the runs are not: two reads may be answered by two members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_waits_for_a_list_that_is_not_older_than_its_taking() {
    let folder = tempfile::tempdir().unwrap();
    let database = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
    let store = Store::open(Arc::new(database)).await.unwrap();
    let coordinator: Arc<dyn Coordinator> = Arc::new(Memory::default());
    let way = Arc::new(Faulty::new(coordinator.clone()));
    let job = JobId::from_u128(1);
    let document = JobDocument::new("j", Action::Exec(Exec { argv: vec!["true".into()] }));
    store.create_job(document, job, SystemClock.now(), &Actor::new("test")).await.unwrap();
    // Without a node: the run is claimed, and waits.
    let alone = async |name: u128, coordinator: Arc<dyn Coordinator>| {
        let (id, clock) = (ServerId::new(SystemClock.now(), name), Arc::new(SystemClock));
        Control::start(ControlConfig::default(), id, coordinator, store.clone(), clock).await.expect("a server")
    };
    let first = alone(1, coordinator).await;
    way.read_old_below("open/").await.unwrap();
    let wanted = ManualRun {
        job,
        by: "test".into(),
        idempotency_key: None,
        env: Default::default(),
        node: None,
        force: false,
        rerun_of: None,
    };
    let run = first.run_now(wanted).await.unwrap().id;
    first.stop().await;
    let second = alone(2, way.clone()).await;
    until(|| way.old_lists() >= 16).await;
    way.read_fresh();
    until(|| second.cluster().shards.len() == 16).await;
    assert_eq!(second.open_runs(|open| open.id == run).len(), 1, "the run was left out");
    second.stop().await;
}

fn by(started: &Started, server: &str) -> usize {
    started.lock().unwrap().values().flatten().filter(|name| **name == server).count()
}

async fn until(fact: impl Fn() -> bool) {
    let waited = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it comes true within a minute");
}
