//! Two servers on one coordinator: the one that is held dead while it lives gets nothing done any more, and no fire is started by
//! both. Each has an agent that only counts what it is told to start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belfry_control::Control;
use belfry_coord::faulty::{Fault, Faulty};
use belfry_coord::{Clock, SystemClock, Write, keys};
use belfry_core::attempt::Attempt;
use belfry_core::id::Slot;
use belfry_core::run::{Event, RunState, Verdict};
use belfry_core::{JobId, RunId, Timestamp};
use belfry_proto::session::{self, to_agent};
use belfry_store::Actor;
use jiff::SignedDuration;

use crate::support::{Cluster, PATIENCE, Session, every_second, manual, shards, until, until_within};

const TTL: Duration = Duration::from_secs(8);
/// Shorter than the pause between two heartbeats of a server with the other TTL.
const IMPATIENT_TTL: Duration = Duration::from_secs(1);

/// Orders by run, and by which server they came.
type Started = Arc<Mutex<HashMap<String, Vec<&'static str>>>>;

#[expect(clippy::disallowed_methods, reason = "a test spawns its agents")]
async fn server(cluster: &Cluster, name: &'static str, started: &Started) -> Control {
    let control = cluster.server(name).await;
    let mut agent = Session::connect(&control, u128::from(name.as_bytes()[0]));
    agent.say(session::Hello { slots: 1000, ..agent.greeting(1) }).await;
    let started = started.clone();
    tokio::spawn(async move {
        while let Some(message) = agent.told.recv().await {
            if let Some(to_agent::Message::Dispatch(order)) = message.message {
                let key = order.key.expect("an order has a key");
                started.lock().unwrap().entry(key.run.clone()).or_default().push(name);
                let ended = session::Ended {
                    key: Some(key),
                    outcome: "succeeded".into(),
                    ended_at_ms: order.planned_ms,
                    ..Default::default()
                };
                let _ = agent.said.send(ended.into()).await;
            }
        }
    });
    control
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deposed_server_starts_nothing_more() {
    let cluster = Cluster::new().await.with_ttl(TTL);
    let started = Started::default();
    for number in 0..40 {
        cluster.job_with(number << 7 | 1, every_second).await;
    }
    let first = server(&cluster, "first", &started).await;
    until(|| by(&started, "first") > 40).await;

    // The second is misconfigured: it holds the first dead between two of its heartbeats, and takes its shards while it lives. That
    // it may start at all, what the servers agreed on is lost first.
    cluster.coordinator.commit(vec![], vec![Write::Delete(keys::META.into())]).await.unwrap();
    let second = server(&cluster.with_ttl(IMPATIENT_TTL), "second", &started).await;
    until(|| by(&started, "second") > 80).await;

    // The same order again to the same incarnation starts nothing; it is what a server does that has its shard back.
    let both = |by: &Vec<&str>| by.iter().any(|server| *server != by[0]);
    let doubled: Vec<String> =
        started.lock().unwrap().iter().filter(|(_, by)| both(by)).map(|(run, by)| format!("{run}: {by:?}")).collect();
    assert!(doubled.is_empty(), "started by both: {doubled:?}");
    second.stop().await;
    first.stop().await;
}

/// With nothing heard of the giving back, the seats are still the first one's, which has all of its share without them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_whose_giving_back_was_lost_does_not_stand_still() {
    const LOST: usize = 12;
    let cluster = Cluster::new().await.with_ttl(TTL);
    let way = Arc::new(Faulty::new(cluster.coordinator.clone()));
    let started = Started::default();
    let first = server(&Cluster { coordinator: way.clone(), ..cluster.clone() }, "first", &started).await;
    until(|| shards(&first) == 16).await;
    // Eight are given back at once; the others are heartbeats.
    way.plan([Fault::LoseRequest; LOST]);
    let before = way.commits();
    let second = server(&cluster, "second", &started).await;
    until(|| way.commits() > before + LOST as u64 && shards(&first) == 8 && shards(&second) == 8).await;
    second.stop().await;
    first.stop().await;
}

/// The seat is read fresh and the runs are not: two reads may be answered by two members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_owner_waits_for_a_list_that_is_not_older_than_its_taking() {
    let cluster = Cluster::new().await.with_ttl(TTL);
    let way = Arc::new(Faulty::new(cluster.coordinator.clone()));
    let job = cluster.job(1).await;
    // Without a node: the run is claimed, and waits.
    let first = cluster.server("first").await;
    way.read_old_below("open/").await.unwrap();
    let run = first.run_now(manual(job)).await.unwrap().id;
    first.stop().await;
    let second = Cluster { coordinator: way.clone(), ..cluster.clone() }.server("second").await;
    until(|| way.old_lists() >= 16).await;
    way.read_fresh();
    until(|| shards(&second) == 16).await;
    assert_eq!(second.open_runs(|open| open.id == run).len(), 1, "the run was left out");
    second.stop().await;
}

fn by(started: &Started, server: &str) -> usize {
    started.lock().unwrap().values().flatten().filter(|name| **name == server).count()
}

/// The end of its last run is in the coordinator, and the store was not told yet: the new owner records it, and fires after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_fires_after_its_end_goes_on_when_its_shard_was_taken_with_the_end_half_told() {
    let cluster = Cluster::new().await.with_ttl(TTL);
    let job = cluster.job_with(3, |document| document.schedule.0.push("@after 1s".to_owned())).await;
    let server = cluster.server("first").await;
    let mut agent = Session::open(&server, 1).await;
    let first = agent.order().await.key.unwrap();
    agent.start(&first).await;
    let run = first.run.parse().unwrap();
    cluster.stored(run, |run| run.state == RunState::Running).await;
    server.stop().await;
    // As another server records what it was told: the key stays for the next owner.
    let mut ended = cluster.store.run(run).await.unwrap().unwrap();
    let lost = Event::Decided { at: SystemClock.now(), verdict: Verdict::Lost, reason: "gone".to_owned() };
    ended.on(lost).unwrap();
    cluster.store.record_runs(&[ended]).await.unwrap();
    let server = cluster.server("second").await;
    let mut agent = Session::connect(&server, 1);
    agent.hello(2).await;
    let next = agent.order_of(|key| *key != first).await;
    assert_eq!(next.job_id, job.to_string());
    server.stop().await;
}

/// Its owner gave a run up as lost and stopped before its last look; meanwhile another server was told the end, found the run open in the
/// store, put the end beside it, and told the node that it is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_that_nobody_had_seen_beside_a_lost_run_is_seen_by_the_next_owner() {
    let cluster = Cluster::new().await.with_ttl(TTL);
    cluster.job(3).await;
    let server = cluster.server("first").await;
    let mut agent = Session::open(&server, 1).await;
    let id = server.run_now(manual(JobId::from_u128(3))).await.unwrap().id;
    let key = agent.order().await.key.unwrap();
    agent.start(&key).await;
    let going = cluster.stored(id, |run| run.state == RunState::Running).await;
    server.stop().await;
    let now = SystemClock.now();
    let end = Attempt { state: RunState::Succeeded, exit_code: Some(0), ..Attempt::lost(&going, now, String::new()) };
    let mut lost = going;
    lost.on(Event::Decided { at: now, verdict: Verdict::Lost, reason: "silent".to_owned() }).unwrap();
    cluster.store.record_runs(&[lost]).await.unwrap();
    cluster.store.record_attempts(&[end]).await.unwrap();
    let server = cluster.server("second").await;
    let corrected = cluster.stored(id, |run| run.state == RunState::Succeeded).await;
    assert!(corrected.late);
    until(|| server.cluster().open_runs == 0).await;
    server.stop().await;
}

/// A change came when its fire was behind the cursor already, and its server died before it had claimed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fire_behind_the_cursor_that_nobody_claimed_is_not_lost() {
    let cluster = Cluster::new().await.with_ttl(TTL);
    let changed = JobId::from_u128(1);
    let steady = (2..).map(JobId::from_u128).find(|job| job.shard() == changed.shard()).unwrap();
    cluster.job_with(1, |document| document.enabled = false).await;
    cluster.job_with(steady.as_u128(), every_second).await;
    let first = cluster.server("first").await;
    let key = keys::shard(changed.shard());
    let cursor = async || {
        let seat = cluster.coordinator.get(&key).await.unwrap()?;
        let seat = String::from_utf8_lossy(&seat.value).into_owned();
        let at = seat.split_once("\"at\":")?.1.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
        seat.contains(&steady.to_string()).then(|| Timestamp::from_millisecond(at).unwrap())
    };
    until_within(PATIENCE, cursor).await.expect("a cursor that has passed a fire");
    first.stop().await;
    let passed = cursor().await.unwrap();
    let mut known = cluster.store.job_by_id(changed).await.unwrap().unwrap();
    known.document.enabled = true;
    every_second(&mut known.document);
    let just_before = passed - SignedDuration::from_millis(300);
    let actor = Actor::new("test");
    cluster.store.update_job(changed, known.revision, known.document, just_before, &actor).await.unwrap();
    let second = cluster.server("second").await;
    let run = RunId::of(changed, passed, Slot::Only);
    cluster.stored(run, |_| true).await;
    second.stop().await;
}
