//! Runs whose owner does not hear of their node, or whose node never heard of them: each has an end all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use belfry_coord::faulty::Faulty;
use belfry_coord::{Clock, Guard, SystemClock, Write, keys};
use belfry_core::job::{Backoff, Retry, RetryWhere};
use belfry_core::run::RunState;
use belfry_core::units::Span;
use belfry_core::{JobId, RunId, ShardId, Timestamp};
use belfry_proto::session::{self, RunKey, to_agent};
use belfry_store::Actor;
use bytes::Bytes;

use crate::cluster::fired_alone;
use crate::support::{
    Cluster, ENDLESS_TTL, PATIENCE, Session, every_second, manual, run_at_owner, shards, until, until_within,
};

/// The least that is allowed.
const SHORT_TTL: Duration = Duration::from_secs(2);

/// A run that one of two servers has ordered, and that nobody has answered; its owner comes first.
async fn ordered(cluster: &Cluster) -> ([(belfry_control::Control, Session); 2], RunKey) {
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    let (to_a, to_b) = (Session::open(&a, 1).await, Session::open(&b, 1).await);
    let job = cluster.job(3).await;
    let [(owner, mut asked), other] = run_at_owner((a, to_a), (b, to_b), job).await;
    let key = asked.order().await.key.unwrap();
    ([(owner, asked), other], key)
}

async fn is_lost_when_its_node_starts_again_elsewhere(and_goes_on: bool) {
    let cluster = Cluster::new().await.with_ttl(SHORT_TTL);
    let ([(owner, asked), (carrier, mut other)], key) = ordered(&cluster).await;
    asked.start(&key).await;
    // Its first incarnation is not to fall silent before the second is there.
    let mut sequence = 0;
    let is_running = async || {
        sequence += 1;
        asked.say(session::Heartbeat { sequence }).await;
        owner.open_runs(|run| run.state == RunState::Running).pop()
    };
    until_within(PATIENCE, is_running).await.expect("it runs");
    drop(asked);
    other.hello(2).await;
    let id: RunId = key.run.parse().unwrap();
    let is_lost = async || {
        if and_goes_on {
            sequence += 1;
            other.say(session::Heartbeat { sequence }).await;
        }
        cluster.store.run(id).await.unwrap().filter(|run| run.state == RunState::Lost)
    };
    let run = until_within(PATIENCE, is_lost).await.expect("it is given up");
    assert_eq!(run.reason.as_deref(), Some("the agent on n1 ended while it had the run, and was started again"));
    owner.stop().await;
    carrier.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_given_up_when_its_node_started_again_where_its_owner_does_not_hear_of_it() {
    is_lost_when_its_node_starts_again_elsewhere(true).await;
}

/// The mark says that the later incarnation is lost, and never said so of the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_is_given_up_when_also_the_incarnation_after_its_own_is_lost() {
    is_lost_when_its_node_starts_again_elsewhere(false).await;
}

/// The order came through, and nothing after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_told_to_another_server_closes_a_run_whose_start_its_owner_never_heard_of() {
    let cluster = Cluster::new().await;
    let ([(owner, asked), (carrier, mut other)], key) = ordered(&cluster).await;
    drop(asked);
    let mut sequence = 0;
    let is_closed = async || {
        sequence += 1;
        other.say(session::Heartbeat { sequence }).await;
        // As an agent does that is not told that it is stored.
        other.end(&key, "succeeded", 0).await;
        (owner.cluster().open_runs == 0).then_some(())
    };
    until_within(PATIENCE, is_closed).await.expect("its owner learns of the end");
    other.until_stored(&key).await;
    let run = cluster.stored(key.run.parse().unwrap(), |run| run.state.is_ended()).await;
    assert_eq!(run.state, RunState::Succeeded);
    owner.stop().await;
    carrier.stop().await;
}

/// What an agent says of a recall or kill of what it never had.
async fn refuse_what_never_came(session: &mut Session, wanted: impl Fn(to_agent::Message) -> Option<RunKey>) {
    let key = session.until(wanted).await;
    session.refuse(&key).await;
}

fn recalled(message: to_agent::Message) -> Option<RunKey> {
    match message {
        to_agent::Message::Recall(recall) => recall.key,
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_order_was_lost_is_cancelled_when_its_job_is_removed() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let job = cluster.job(3).await;
    server.run_now(manual(job)).await.unwrap();
    let key = session.order().await.key.unwrap();
    cluster.store.remove_job(job, None, SystemClock.now(), &Actor::new("test")).await.unwrap();
    server.jobs_changed().await;
    // The first word of it is lost as well.
    session.until(recalled).await;
    refuse_what_never_came(&mut session, recalled).await;
    let run = cluster.stored(key.run.parse().unwrap(), |run| run.state.is_ended()).await;
    assert_eq!(
        (run.state, run.reason.as_deref()),
        (RunState::Cancelled, Some("its job was removed before it started"))
    );
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_order_was_lost_is_cancelled_when_it_is_killed() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    // Another node could take it.
    let _other = Session::open(&server, 2).await;
    let run =
        server.run_now(belfry_control::ManualRun { node: Some(session.node), ..manual(cluster.job(3).await) }).await;
    let key = session.order().await.key.unwrap();
    server.kill_run(run.unwrap().id, "ada").await.unwrap();
    refuse_what_never_came(&mut session, |message| match message {
        to_agent::Message::Kill(kill) => kill.key,
        _ => None,
    })
    .await;
    let run = cluster.stored(key.run.parse().unwrap(), |run| run.state.is_ended()).await;
    let reason = Some("killed by ada before it started");
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, reason));
    server.stop().await;
}

async fn order_that_waits_for(session: &mut Session, longer_than_ms: i64) -> RunKey {
    loop {
        let order = session.order().await;
        if order.start_in_ms > longer_than_ms {
            return order.key.unwrap();
        }
    }
}

/// A run waits at its node for its jitter; its job is paused while the node cannot be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_paused_before_its_instant_is_recalled_when_its_node_is_heard_again() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let job = cluster
        .job_with(3, |document| {
            every_second(document);
            document.jitter = Some(Span::from_secs(30));
        })
        .await;
    server.jobs_changed().await;
    let key = order_that_waits_for(&mut session, 10_000).await;
    drop(session);
    cluster.change_job(job, |document| document.enabled = false).await;
    server.jobs_changed().await;
    let mut session = Session::connect(&server, 1);
    session.hello(1).await;
    session
        .until(|message| match message {
            to_agent::Message::Dispatch(order) if order.key.as_ref() == Some(&key) => {
                panic!("{key:?} was paused, and is ordered again")
            }
            to_agent::Message::Recall(recall) => (recall.key.as_ref() == Some(&key)).then_some(()),
            _ => None,
        })
        .await;
    session.refuse(&key).await;
    let run = cluster.stored(key.run.parse().unwrap(), |run| run.state.is_ended()).await;
    let reason = Some("its job was paused before its instant");
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Cancelled, reason));
    server.stop().await;
}

/// Nobody wants it to start any more, and whether it did is not known: that it starts again when lost is no reason to start it elsewhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_recalled_and_lost_before_it_was_known_to_start_is_not_tried_again() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let job = cluster
        .job_with(3, |document| {
            every_second(document);
            document.jitter = Some(Span::from_secs(30));
            document.retry = Some(retry_on("lost"));
        })
        .await;
    server.jobs_changed().await;
    let key = order_that_waits_for(&mut session, 10_000).await;
    cluster.change_job(job, |document| document.enabled = false).await;
    server.jobs_changed().await;
    session.until(|message| recalled(message).filter(|recalled| *recalled == key)).await;
    cluster.hold_dead(1).await;
    let run = cluster.stored(key.run.parse().unwrap(), |run| run.state.is_ended()).await;
    assert_eq!((run.state, run.attempt), (RunState::Lost, 1));
    server.stop().await;
}

fn retry_on(state: &str) -> Retry {
    let (on, delay, max_delay) = (vec![state.to_owned()], Span::from_secs(0), Span::from_secs(300));
    Retry { attempts: 2, on, delay, backoff: Backoff::Fixed, max_delay, on_node: RetryWhere::Any }
}

/// It was recalled when it had started already: that says nothing of what its job's `retry` wants.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_recalled_too_late_is_tried_again() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let job = cluster
        .job_with(3, |document| {
            every_second(document);
            document.jitter = Some(Span::from_secs(5));
            document.retry = Some(retry_on("failed"));
        })
        .await;
    server.jobs_changed().await;
    let first = order_that_waits_for(&mut session, 2_000).await;
    cluster.change_job(job, |document| document.enabled = false).await;
    server.jobs_changed().await;
    session.until(|message| recalled(message).filter(|key| *key == first)).await;
    session.start(&first).await;
    cluster.stored(first.run.parse().unwrap(), |run| run.state == RunState::Running).await;
    session.end(&first, "failed", 1).await;
    let second = RunKey { attempt: 2, ..first };
    session
        .until(|message| match message {
            to_agent::Message::Recall(recall) if recall.key.as_ref() == Some(&second) => panic!("{}", recall.reason),
            to_agent::Message::Dispatch(order) => (order.key.as_ref() == Some(&second)).then_some(()),
            _ => None,
        })
        .await;
    server.stop().await;
}

/// Paused and resumed again, all before the instant of a fire that its node has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_resumed_before_its_instant_is_not_recalled_any_more() {
    const RECALLS_IN_BETWEEN_MAX: usize = 2;
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let job = cluster.job_with(3, every_second).await;
    server.jobs_changed().await;
    let key = loop {
        let order = session.order().await;
        for enabled in [false, true] {
            cluster.change_job(job, |document| document.enabled = enabled).await;
            server.jobs_changed().await;
        }
        // Else it was not in time.
        let resumed_at = cluster.store.job_by_id(job).await.unwrap().unwrap().counts_from;
        if resumed_at.as_millisecond() < order.planned_ms && SystemClock.now().as_millisecond() < order.planned_ms {
            break order.key.unwrap();
        }
        session.refuse(&order.key.unwrap()).await;
    };
    let recalls = AtomicUsize::new(0);
    session
        .until(|message| match message {
            to_agent::Message::Recall(recall) if recall.key.as_ref() == Some(&key) => {
                let before = recalls.fetch_add(1, Ordering::Relaxed);
                assert!(before < RECALLS_IN_BETWEEN_MAX, "it is recalled again and again");
                None
            }
            to_agent::Message::Dispatch(order) => (order.key.as_ref() == Some(&key)).then_some(()),
            _ => None,
        })
        .await;
    server.stop().await;
}

/// Goes ahead when it is told to.
#[derive(Default)]
struct Ahead(AtomicU64);

impl Clock for Ahead {
    fn boottime(&self) -> Duration {
        SystemClock.boottime() + Duration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn now(&self) -> Timestamp {
        SystemClock.now()
    }
}

/// It was given up as lost, and the record of that was removed by age before the node came back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_runs_that_history_has_forgotten_are_acknowledged() {
    let clock = Arc::new(Ahead::default());
    let cluster = Cluster { clock: clock.clone(), ..Cluster::new().await.with_ttl(ENDLESS_TTL) };
    let way = Arc::new(Faulty::new(cluster.coordinator.clone()));
    let server = Cluster { coordinator: way.clone(), ..cluster.clone() }.server("a").await;
    let mut session = Session::open(&server, 1).await;
    until(|| shards(&server) == 16).await;
    let key = |ago: Duration, number: u128| {
        let first = RunId::first_at(SystemClock.now() - ago);
        RunKey { run: RunId::from_u128(first.as_u128() + number).to_string(), attempt: 1 }
    };
    let (hours, minutes) = (Duration::from_secs(3 * 3600), Duration::from_secs(180));
    let forgotten = [key(hours, 1), key(hours, 2)];
    // That it is open is not seen at first. Its owner has not written it down.
    let open = key(hours, 3);
    way.read_old_below("open/").await.unwrap();
    let its_key = keys::open_run(ShardId(7), open.run.parse().unwrap());
    let write = Write::Put(its_key.clone(), Bytes::from_static(b"{}"));
    cluster.coordinator.commit(vec![Guard::Absent(its_key)], vec![write]).await.unwrap();
    // The last one of them was claimed late.
    let told = [(&open, hours), (&key(minutes, 4), minutes), (&key(hours, 5), minutes), (&forgotten[0], hours)];
    let mut acknowledged = Vec::new();
    for _ in 0..5 {
        for (key, ago) in told {
            ended(&session, key, SystemClock.now() - ago).await;
        }
        acknowledged.extend(stored_within(&mut session, Duration::from_millis(200)).await);
    }
    assert_eq!(acknowledged, [], "one look proves nothing");
    way.read_fresh();
    // The second one comes last, when all has been said about the others.
    for last in [None, Some(&forgotten[1])] {
        while !acknowledged.contains(last.unwrap_or(&forgotten[0])) {
            clock.0.fetch_add(60, Ordering::Relaxed);
            for (key, ago) in told.into_iter().chain(last.map(|key| (key, hours))) {
                ended(&session, key, SystemClock.now() - ago).await;
            }
            acknowledged.extend(stored_within(&mut session, Duration::from_millis(200)).await);
        }
    }
    acknowledged.retain(|key| !forgotten.contains(key));
    assert_eq!(acknowledged, []);
    server.stop().await;
}

async fn ended(session: &Session, key: &RunKey, at: Timestamp) {
    let (key, outcome, ended_at_ms) = (Some(key.clone()), "succeeded".to_owned(), at.as_millisecond());
    session.say(session::Ended { key, outcome, ended_at_ms, ..Default::default() }).await;
}

/// What is acknowledged in this time.
async fn stored_within(session: &mut Session, time: Duration) -> Vec<RunKey> {
    let mut keys = Vec::new();
    let listen = async {
        while let Some(message) = session.told.recv().await {
            if let Some(to_agent::Message::Stored(stored)) = message.message {
                keys.extend(stored.keys);
            }
        }
    };
    let _ = tokio::time::timeout(time, listen).await;
    keys
}

/// What a server hears late, or writes down late because it could not reach the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_lost_node_had_fired_by_itself_is_given_up_however_late_it_is_written_down() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let session = Session::open(&server, 1).await;
    let tell_started = async |planned: Timestamp| {
        let session::Ended { key, local, .. } = fired_alone(JobId::from_u128(3), session.node, planned, 0);
        let started = session::Started { key, local, at_ms: planned.as_millisecond(), ..Default::default() };
        let run = started.key.as_ref().unwrap().run.parse().unwrap();
        session.say(started).await;
        run
    };
    let at = SystemClock.now().round(jiff::Unit::Second).unwrap();
    let before = tell_started(at).await;
    cluster.hold_dead(1).await;
    cluster.stored(before, |run| run.state == RunState::Lost).await;
    let late = tell_started(at + Duration::from_secs(1)).await;
    cluster.stored(late, |run| run.state == RunState::Lost).await;
    server.stop().await;
}
