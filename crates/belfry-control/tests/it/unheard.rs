//! Runs whose owner does not hear of their node, or whose node never heard of them: each has an end all the same.

use std::time::Duration;

use belfry_coord::{Clock, Guard, SystemClock, Write, keys};
use belfry_core::run::RunState;
use belfry_core::units::Span;
use belfry_core::{JobId, RunId, ShardId, Timestamp};
use belfry_proto::session::{self, RunKey, to_agent};
use belfry_store::Actor;
use bytes::Bytes;

use crate::cluster::fired_alone;
use crate::support::{Cluster, PATIENCE, Session, every_second, manual, run_at_owner, shards, until, until_within};

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
    until(|| owner.open_runs(|run| run.state == RunState::Running).len() == 1).await;
    drop(asked);
    other.hello(2).await;
    let id: RunId = key.run.parse().unwrap();
    let mut sequence = 0;
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
    let cluster = Cluster::new().await;
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
    let cluster = Cluster::new().await;
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

/// A run waits at its node for its jitter; its job is paused while the node cannot be told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_paused_before_its_instant_is_recalled_when_its_node_is_heard_again() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let job = cluster
        .job_with(3, |document| {
            every_second(document);
            document.jitter = Some(Span::from_secs(30));
        })
        .await;
    server.jobs_changed().await;
    let key = loop {
        let order = session.order().await;
        if order.start_in_ms > 10_000 {
            break order.key.unwrap();
        }
    };
    drop(session);
    cluster.change_job(job, |document| document.enabled = false).await;
    server.jobs_changed().await;
    let mut session = Session::connect(&server, 1);
    session.hello(1).await;
    session
        .until(|message| match message {
            to_agent::Message::Dispatch(order) => panic!("{:?} was paused, and is ordered again", order.key),
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

/// It was given up as lost, and the record of that was removed by age before the node came back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_of_runs_that_history_has_forgotten_are_acknowledged() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let key = |ago: Duration, number: u128| {
        let first = RunId::first_at(SystemClock.now() - ago);
        RunKey { run: RunId::from_u128(first.as_u128() + number).to_string(), attempt: 1 }
    };
    let (hours, minutes) = (Duration::from_secs(3 * 3600), Duration::from_secs(180));
    let (forgotten, open, new) = (key(hours, 1), key(hours, 2), key(minutes, 3));
    // Of another server's, who has not written it down.
    let its_key = keys::open_run(ShardId(7), open.run.parse().unwrap());
    let write = Write::Put(its_key.clone(), Bytes::from_static(b"{}"));
    cluster.coordinator.commit(vec![Guard::Absent(its_key)], vec![write]).await.unwrap();
    for key in [&open, &new, &forgotten] {
        session.end(key, "succeeded", 0).await;
    }
    let first_stored = session
        .until(|message| match message {
            to_agent::Message::Stored(stored) => Some(stored.keys),
            _ => None,
        })
        .await;
    assert_eq!(first_stored, [forgotten]);
    server.stop().await;
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
