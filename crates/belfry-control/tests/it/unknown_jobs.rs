//! A new owner that does not know the jobs of its open runs yet: nothing follows from that.

use std::cell::Cell;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use belfry_control::ControlConfig;
use belfry_coord::{Clock, SystemClock, keys};
use belfry_core::JobId;
use belfry_core::job::{Backoff, JobDocument, Retry, RetryWhere, RunOn};
use belfry_core::run::RunState;
use belfry_core::units::Span;
use belfry_proto::session::to_agent;
use belfry_store::{Actor, Store};
use belfry_testkit::until;

use crate::store_away::{self, roomy};
use crate::support::{Cluster, ENDLESS_TTL, Session, every_second, manual, shards, sqlite};

fn tried_again(document: &mut JobDocument) {
    document.retry = Some(Retry {
        attempts: 3,
        on: vec!["failed".to_owned(), "lost".to_owned()],
        delay: Span::from_secs(4),
        backoff: Backoff::Fixed,
        max_delay: Span::from_secs(300),
        on_node: RetryWhere::Any,
    });
}

/// What the former owner had decided is recorded before the jobs are read, and then the next run of that job is looked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_came_due_goes_on_when_its_shard_is_taken_over_with_a_decision_that_was_not_recorded() {
    let (cluster, database) = store_away::cluster(ControlConfig { ttl: ENDLESS_TTL, ..ControlConfig::default() }).await;
    let job = cluster
        .job_with(1, |document| {
            document.schedule.0.push("* * * * * *".to_owned());
            tried_again(document);
        })
        .await;
    let server = cluster.server("a").await;
    let mut session = roomy(&server).await;
    let key = session.order().await.key.unwrap();
    session.start(&key).await;
    cluster.stored(key.run.parse().unwrap(), |run| run.state == RunState::Running).await;
    database.be_away(true);
    session.end(&key, "failed", 1).await;
    // The plan of the next attempt, and what was skipped meanwhile.
    until("a fire was skipped meanwhile", async || {
        let open = cluster.coordinator.list(&keys::open_runs(job.shard())).await.unwrap();
        open.iter().any(|entry| String::from_utf8_lossy(&entry.value).contains("overlap is forbid")).then_some(())
    })
    .await;
    drop(session);
    // It is given back at once, and comes due while this one waits for the store.
    server.stop().await;

    // For the first one, which could write down what it knows, the store stays away.
    let store = Store::open(Arc::new(sqlite(&cluster.folder, "moody.db"))).await.unwrap();
    let server = Cluster { store, ..cluster.clone() }.server("b").await;
    let mut session = roomy(&server).await;
    let order = session.order_of(|again| again.run == key.run).await;
    assert_eq!(order.key.unwrap().attempt, 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_judged_by_a_job_that_the_snapshot_lacks_and_no_node_loses_one() {
    let (without, database) = store_away::cluster(ControlConfig { ttl: ENDLESS_TTL, ..ControlConfig::default() }).await;
    let snapshot = without.folder.path().join("snapshot.jsonl");
    let with = Cluster {
        config: ControlConfig { snapshot: Some(snapshot.clone()), ..without.config.clone() },
        ..without.clone()
    };
    // All in one shard: when one of them fires there, it has read the snapshot.
    let shard = JobId::from_u128(1).shard();
    let mut numbers = (1..).filter(|number| JobId::from_u128(*number).shard() == shard);
    let [known, young, removed, each] = std::array::from_fn(|_| numbers.next().unwrap());
    let known = without.job_with(known, every_second).await.to_string();
    let server = with.server("a").await;
    until("there is a snapshot", async || snapshot.exists().then_some(())).await;
    server.stop().await;

    let server = without.server("b").await;
    let mut session = roomy(&server).await;
    let (young, removed) = (without.job_with(young, tried_again).await, without.job_with(removed, tried_again).await);
    let each = without
        .job_with(each, |document| {
            document.schedule.0.push("0 4 * * *".to_owned());
            document.run_on = RunOn::Each;
        })
        .await
        .to_string();
    server.jobs_changed().await;
    let mut keys = Vec::new();
    for job in [young, removed] {
        let run = server.run_now(manual(job)).await.unwrap().id.to_string();
        let key = session.order_of(|key| key.run == run).await.key.unwrap();
        session.start(&key).await;
        without.stored(key.run.parse().unwrap(), |run| run.state == RunState::Running).await;
        keys.push(key);
    }
    drop(session);
    server.stop().await;
    without.store.remove_job(removed, None, SystemClock.now(), &Actor::new("test")).await.unwrap();

    database.be_away(true);
    let server = with.server("c").await;
    let mut session = roomy(&server).await;
    let of_known = async |session: &mut Session| {
        session
            .until(|message| match message {
                to_agent::Message::LocalJobs(list) => {
                    assert!(!list.whole && !list.remove.contains(&each), "the snapshot lacks one: {list:?}");
                    None
                }
                to_agent::Message::Dispatch(order) => (order.job_id == known).then_some(()),
                _ => None,
            })
            .await;
    };
    of_known(&mut session).await;
    for key in &keys {
        session.end(key, "failed", 1).await;
    }
    // What is ordered after them was claimed after they were heard, of two that were claimed together the second one at the latest.
    of_known(&mut session).await;
    of_known(&mut session).await;
    database.be_away(false);
    server.jobs_changed().await;
    let (is_told, is_tried_again) = (Cell::new(false), Cell::new(false));
    while !is_told.get() || !is_tried_again.get() {
        session
            .until(|message| match message {
                to_agent::Message::LocalJobs(list) if list.whole => {
                    is_told.set(is_told.get() || list.only.contains(&each));
                    Some(())
                }
                to_agent::Message::Dispatch(order) => {
                    let key = order.key?;
                    assert_ne!(key.run, keys[1].run, "its job was removed");
                    is_tried_again.set(is_tried_again.get() || (key.run == keys[0].run && key.attempt == 2));
                    Some(())
                }
                _ => None,
            })
            .await;
    }
    let failed = without.stored(keys[1].run.parse().unwrap(), |run| run.state == RunState::Failed).await;
    assert_eq!(failed.attempt, 1);
    server.stop().await;
}

/// It was saved after the snapshot, and its first fires were the former owner's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_former_owner_fired_of_a_job_that_the_snapshot_lacks_does_not_fire_again() {
    let (without, database) = store_away::cluster(ControlConfig { ttl: ENDLESS_TTL, ..ControlConfig::default() }).await;
    let snapshot = without.folder.path().join("snapshot.jsonl");
    let with = |snapshot: &Path| {
        let config = ControlConfig { snapshot: Some(snapshot.to_owned()), ..without.config.clone() };
        Cluster { config, ..without.clone() }
    };
    let shard = JobId::from_u128(1).shard();
    let mut numbers = (1..).filter(|number| JobId::from_u128(*number).shard() == shard);
    let [known, young] = std::array::from_fn(|_| numbers.next().unwrap());
    let known = without.job_with(known, every_second).await.to_string();
    let server = with(&snapshot).server("a").await;
    until("there is a snapshot", async || snapshot.exists().then_some(())).await;
    server.stop().await;
    // It would go on to be kept as the store is.
    let old = without.folder.path().join("old.jsonl");
    std::fs::copy(snapshot, &old).unwrap();

    let server = without.server("b").await;
    let mut session = roomy(&server).await;
    let young = without.job_with(young, every_second).await.to_string();
    server.jobs_changed().await;
    let mut ran = HashSet::new();
    while ran.len() < 3 {
        let order = session.order().await;
        let key = order.key.unwrap();
        session.start(&key).await;
        session.end(&key, "succeeded", 0).await;
        session.until_stored(&key).await;
        if order.job_id == young {
            ran.insert(key.run);
        }
    }
    drop(session);
    server.stop().await;

    database.be_away(true);
    let server = with(&old).server("c").await;
    let mut session = roomy(&server).await;
    let taken_ms = SystemClock.now().as_millisecond();
    while session.order().await.job_id != known {}
    database.be_away(false);
    server.jobs_changed().await;
    loop {
        let order = session.order().await;
        assert!(!ran.contains(&order.key.unwrap().run), "{} fired twice", order.planned_ms);
        if order.job_id == young && order.planned_ms > taken_ms {
            break;
        }
    }
    server.stop().await;
}

/// Whoever takes the shards next fires from its snapshot; what is not recorded is on disks and in the coordinator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_gives_its_shards_away_before_it_waits_for_a_store_that_is_away() {
    let (without, database) = store_away::cluster(ControlConfig::default()).await;
    let snapshot = without.folder.path().join("snapshot.jsonl");
    let config = ControlConfig { snapshot: Some(snapshot.clone()), ..without.config.clone() };
    let with = Cluster { config, ..without.clone() };
    let (stopping, staying) = (without.server("a").await, with.server("b").await);
    until("the shards are shared", async || (shards(&stopping) == 8 && shards(&staying) == 8).then_some(())).await;
    let mut session = roomy(&stopping).await;
    let mut numbers = 1..;
    let key = loop {
        let job = without.job(numbers.next().unwrap()).await;
        if stopping.run_now(manual(job)).await.is_ok() {
            break session.order().await.key.unwrap();
        }
    };
    session.start(&key).await;
    until("there is a snapshot", async || snapshot.exists().then_some(())).await;
    let run = key.run.parse().unwrap();
    without.stored(run, |run| run.state == RunState::Running).await;
    database.be_away(true);
    session.end(&key, "succeeded", 0).await;
    until("it waits for the store", async || (stopping.cluster().unrecorded.runs == 1).then_some(())).await;
    let stop = async { stopping.stop().await };
    let taken = async {
        until("all are the other's", async || (shards(&staying) == 16).then_some(())).await;
    };
    tokio::pin!(stop, taken);
    tokio::select! {
        biased;
        () = &mut stop => panic!("it kept its shards until it gave up on the store"),
        () = &mut taken => {}
    }
    database.be_away(false);
    stop.await;
    without.stored(run, |run| run.state == RunState::Succeeded).await;
    staying.stop().await;
}
