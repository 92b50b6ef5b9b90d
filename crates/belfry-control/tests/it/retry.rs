//! Attempts after attempts: which result counts, who plans, where the next one goes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belfry_control::ManualRun;
use belfry_coord::{Clock, SystemClock};
use belfry_core::job::{Backoff, JobDocument, Overlap, Retry, RetryWhere};
use belfry_core::run::{Run, RunState};
use belfry_core::units::Span;
use belfry_core::{JobId, NodeId, RunId};
use belfry_proto::session::{self, ToAgent, to_agent};

use crate::cluster::{Stepped, ordered_until};
use crate::support::{Cluster, ENDLESS_TTL, Session, TTL, manual, run_at_owner, shards, until};

impl Session {
    /// The next order that is not a reminder of one before.
    async fn attempt(&mut self, number: u32) -> session::Dispatch {
        self.order_of(|key| key.attempt == number).await
    }
}

fn retried(on: &[&str], delay: Span, on_node: RetryWhere) -> impl FnOnce(&mut JobDocument) {
    let on = on.iter().map(|on| (*on).to_owned()).collect();
    let retry = Retry { attempts: 3, on, delay, backoff: Backoff::Fixed, max_delay: Span::from_secs(300), on_node };
    |document| document.retry = Some(retry)
}

fn state_is(state: RunState) -> impl Fn(&Run) -> bool {
    move |run| run.state == state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_while_the_clock_of_its_server_is_an_hour_ahead_is_not_tried_again_an_hour_later() {
    let clock = Stepped::default();
    let cluster = Cluster { clock: Arc::new(clock.clone()), ..Cluster::new().await };
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job_with(3, retried(&["failed"], Span::from_secs(1), RetryWhere::Any)).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let key = one.attempt(1).await.key.unwrap();
    one.start(&key).await;
    cluster.stored(run, state_is(RunState::Running)).await;
    clock.0.store(3600, Ordering::Relaxed);
    one.end(&key, "failed", 9).await;
    let waiting = cluster.stored(run, state_is(RunState::Waiting)).await;
    let soon = SystemClock.now() + jiff::SignedDuration::from_secs(60);
    assert!(waiting.next_attempt_at.is_some_and(|at| at < soon), "{:?}", waiting.next_attempt_at);
    clock.0.store(0, Ordering::Relaxed);
    let second = ordered_until(&mut one, |planned| !planned.is_empty()).await;
    assert_eq!(second, [waiting.planned.as_millisecond()]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_attempt_is_followed_on_another_node_and_its_late_result_does_not_end_the_run() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job_with(3, retried(&["lost"], Span::from_secs(3600), RetryWhere::Other)).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let first = one.attempt(1).await;
    assert!(first.exclusive);
    let first_key = first.key.unwrap();
    one.start(&first_key).await;
    cluster.stored(run, state_is(RunState::Running)).await;
    let mut two = Session::open(&server, 2).await;
    cluster.hold_dead(1).await;
    let second = two.attempt(2).await;
    assert!(second.fence > first.fence, "{} then {}", first.fence, second.fence);
    let second_key = second.key.unwrap();
    two.start(&second_key).await;
    cluster.stored(run, |run| run.state == RunState::Running && run.attempt == 2).await;

    one.end(&first_key, "succeeded", 0).await;
    one.until_stored(&first_key).await;
    let going = cluster.store.run(run).await.unwrap().unwrap();
    assert_eq!((going.state, going.attempt), (RunState::Running, 2), "its newest attempt decides");
    let attempts = cluster.store.attempts(run).await.unwrap();
    assert_eq!((attempts.len(), attempts[0].state, attempts[0].late), (1, RunState::Succeeded, true));
    two.end(&second_key, "failed", 9).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.attempt, ended.exit_code), (RunState::Failed, 2, Some(9)));
    assert_eq!(ended.node, Some(NodeId::from_u128(2)));
    server.stop().await;
}

/// Its node was not told to end it when contact is lost, so it may go on there for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_was_ordered_before_its_job_starts_again_when_lost_does_not() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job(3).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let order = one.attempt(1).await;
    assert!(!order.exclusive);
    one.start(&order.key.unwrap()).await;
    cluster.stored(run, state_is(RunState::Running)).await;
    cluster.change_job(job, retried(&["lost"], Span::from_secs(1), RetryWhere::Other)).await;
    server.jobs_changed().await;
    let _two = Session::open(&server, 2).await;
    cluster.hold_dead(1).await;
    let ended = cluster.stored(run, |run| run.state.is_ended() || run.attempt > 1).await;
    assert_eq!((ended.state, ended.attempt), (RunState::Lost, 1));
    let reason = ended.reason.unwrap();
    assert!(reason.contains("ordered before its job had `retry.on: lost`"), "{reason}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_result_beats_an_attempt_that_has_no_node_yet() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    // There is no other node, so the next attempt has to wait for one.
    let job = cluster.job_with(3, retried(&["lost"], Span::from_secs(1), RetryWhere::Other)).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let key = one.attempt(1).await.key.unwrap();
    one.start(&key).await;
    cluster.stored(run, state_is(RunState::Running)).await;
    cluster.hold_dead(1).await;
    cluster.stored(run, state_is(RunState::Waiting)).await;
    one.end(&key, "succeeded", 0).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.attempt, ended.late), (RunState::Succeeded, 1, true));
    until(|| server.cluster().open_runs == 0).await;
    server.stop().await;
}

/// The agent cannot reach the owner and tells another server, who does not know that more attempts are to come, and the owner does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_told_to_another_server_is_followed_by_the_next_attempt() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    let job = cluster.job_with(3, retried(&["failed"], Span::from_secs(0), RetryWhere::Other)).await;
    let (to_a, to_b) = (Session::open(&a, 1).await, Session::open(&b, 1).await);
    let [(owner, mut asked), (_, mut told)] = run_at_owner((a.clone(), to_a), (b.clone(), to_b), job).await;
    let key = asked.attempt(1).await.key.unwrap();
    asked.start(&key).await;
    let run: RunId = key.run.parse().unwrap();
    cluster.stored(run, state_is(RunState::Running)).await;
    let mut two = Session::open(&owner, 2).await;
    told.end(&key, "failed", 1).await;
    told.until_stored(&key).await;
    let second = two.attempt(2).await.key.unwrap();
    assert_eq!(cluster.store.attempts(run).await.unwrap()[0].state, RunState::Failed);
    two.end(&second, "succeeded", 0).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.attempt, ended.late), (RunState::Succeeded, 2, false));
    a.stop().await;
    b.stop().await;
}

/// Who takes the shard over goes on with the count, the time and the node of the attempt before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_keeps_the_count() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut one = Session::open(&a, 1).await;
    let job = cluster.job_with(3, retried(&["failed"], Span::from_secs(2), RetryWhere::Same)).await;
    let run = a.run_now(manual(job)).await.unwrap().id;
    let first = one.attempt(1).await;
    one.end(first.key.as_ref().unwrap(), "failed", 1).await;
    let waiting = cluster.stored(run, state_is(RunState::Waiting)).await;
    a.stop().await;
    let b = cluster.server("b").await;
    let mut two = Session::open(&b, 2).await;
    let mut one = Session::open(&b, 1).await;
    let second = one.attempt(2).await;
    assert!(SystemClock.now() >= waiting.next_attempt_at.unwrap(), "before its time");
    assert!(second.fence > first.fence);
    one.end(second.key.as_ref().unwrap(), "failed", 1).await;
    let third = one.attempt(3).await;
    one.end(third.key.as_ref().unwrap(), "failed", 7).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.attempt, ended.exit_code), (RunState::Failed, 3, Some(7)), "three in all");
    assert_eq!(cluster.store.attempts(run).await.unwrap().len(), 2);
    let is_order = |message: ToAgent| matches!(message.message, Some(to_agent::Message::Dispatch(_)));
    let stray = std::iter::from_fn(|| two.told.try_recv().ok()).any(is_order);
    assert!(!stray, "retry.where is same");
    b.stop().await;
}

/// The end of the attempt is in the store and the plan is not in the coordinator: its owner was killed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_end_only_the_store_has_is_followed_after_a_takeover() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut one = Session::open(&a, 1).await;
    let job = cluster.job_with(3, retried(&["failed"], Span::from_secs(0), RetryWhere::Any)).await;
    let run = a.run_now(manual(job)).await.unwrap().id;
    let key = one.attempt(1).await.key.unwrap();
    one.start(&key).await;
    let running = cluster.stored(run, state_is(RunState::Running)).await;
    a.stop().await;
    let ended = belfry_core::run::Ended {
        attempt: 1,
        outcome: belfry_core::run::Outcome::Failed,
        reason: Some("exit code 1".into()),
        started_at: running.started_at,
        ended_at: SystemClock.now(),
        exit_code: Some(1),
        signal: None,
        abandoned: false,
        usage: Default::default(),
        output: Default::default(),
        saves: None,
        overdue_at: None,
        script: None,
    };
    let attempt = belfry_core::attempt::Attempt::ended(&running, &ended);
    cluster.store.record_attempts(&[attempt]).await.unwrap();
    let b = cluster.server("b").await;
    let mut one = Session::open(&b, 1).await;
    one.attempt(2).await;
    b.stop().await;
}

/// It was claimed before the attempt that it waited for was started: whoever keeps the greatest fence must let it in all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_for_another_run_has_a_greater_fence_than_its_last_attempt() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut node = Session::open(&server, 1).await;
    let queued = |document: &mut JobDocument| {
        retried(&["failed"], Span::from_secs(1), RetryWhere::Any)(document);
        document.overlap = Overlap::Queue;
    };
    let job = cluster.job_with(3, queued).await;
    let first = server.run_now(manual(job)).await.unwrap().id;
    let order = node.attempt(1).await;
    let key = order.key.unwrap();
    node.start(&key).await;
    cluster.stored(first, state_is(RunState::Running)).await;
    let behind = server.run_now(manual(job)).await.unwrap();
    assert_eq!(behind.state, RunState::Claimed);

    node.end(&key, "failed", 1).await;
    let again = node.attempt(2).await;
    assert!(again.fence > order.fence, "{} then {}", order.fence, again.fence);
    let key = again.key.unwrap();
    node.start(&key).await;
    node.end(&key, "succeeded", 0).await;
    let last = node.attempt(1).await;
    assert_eq!(last.key.as_ref().unwrap().run, behind.id.to_string());
    assert!(last.fence > again.fence, "{} then {}", again.fence, last.fence);
    server.stop().await;
}

/// A former owner wrote it when it could reach the store again; the next attempt had been started meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_attempts_end_that_came_late_does_not_close_the_run_at_a_takeover() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut one = Session::open(&a, 1).await;
    let job = cluster.job_with(3, retried(&["lost"], Span::from_secs(0), RetryWhere::Other)).await;
    let run = a.run_now(manual(job)).await.unwrap().id;
    let key = one.attempt(1).await.key.unwrap();
    one.start(&key).await;
    let first = cluster.stored(run, state_is(RunState::Running)).await;
    let mut two = Session::open(&a, 2).await;
    cluster.hold_dead(1).await;
    let key = two.attempt(2).await.key.unwrap();
    two.start(&key).await;
    cluster.stored(run, |run| run.state == RunState::Running && run.attempt == 2).await;
    let late = Run { state: RunState::Succeeded, ended_at: Some(SystemClock.now()), exit_code: Some(0), ..first };
    cluster.store.record_runs(&[late]).await.unwrap();
    a.stop().await;

    let b = cluster.server("b").await;
    let two = Session::open(&b, 2).await;
    until(|| b.open_run(run).is_some_and(|open| open.state == RunState::Dispatched)).await;
    two.end(&key, "failed", 9).await;
    let ended = cluster.stored(run, |run| run.state.is_ended() && run.attempt == 2).await;
    assert_eq!((ended.state, ended.exit_code), (RunState::Failed, Some(9)));
    let attempts = cluster.store.attempts(run).await.unwrap();
    assert_eq!(attempts[0].state, RunState::Succeeded, "it is kept with its attempt");
    b.stop().await;
}

/// They started while `overlap` allowed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_that_were_lost_together_start_again_one_by_one() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let beside = |document: &mut JobDocument| {
        retried(&["lost"], Span::from_secs(0), RetryWhere::Other)(document);
        document.overlap = Overlap::Allow;
    };
    let job = cluster.job_with(3, beside).await;
    let mut lost = Vec::new();
    for _ in 0..2 {
        let run = server.run_now(manual(job)).await.unwrap().id;
        let key = one.order_of(|key| key.run == run.to_string()).await.key.unwrap();
        one.start(&key).await;
        cluster.stored(run, state_is(RunState::Running)).await;
        lost.push(run);
    }
    cluster.change_job(job, |document| document.overlap = Overlap::Forbid).await;
    server.jobs_changed().await;
    let mut two = Session::open(&server, 2).await;
    cluster.hold_dead(1).await;

    let first = two.attempt(2).await.key.unwrap();
    assert_eq!(first.run, lost[0].to_string(), "the earliest goes first");
    two.start(&first).await;
    cluster.stored(lost[0], |run| run.state == RunState::Running && run.attempt == 2).await;
    cluster.stored(lost[1], state_is(RunState::Waiting)).await;
    // A shard commits one thing after the other: what it had started by now would be ordered before this.
    let same_shard = (4..).find(|number| JobId::from_u128(*number).shard() == job.shard()).unwrap();
    let later = ManualRun { node: Some(two.node), ..manual(cluster.job(same_shard).await) };
    let later = server.run_now(later).await.unwrap().id;
    let next = two.order_of(|key| key.run != first.run).await.key.unwrap();
    assert_eq!(next.run, later.to_string(), "both started again at once");
    two.end(&first, "succeeded", 0).await;
    let second = two.attempt(2).await.key.unwrap();
    assert_eq!(second.run, lost[1].to_string());
    two.end(&second, "succeeded", 0).await;
    for run in lost {
        let ended = cluster.stored(run, |run| run.state.is_ended()).await;
        assert_eq!((ended.state, ended.attempt), (RunState::Succeeded, 2));
    }
    server.stop().await;
}

/// One server has not seen yet that a session has ended, when the node is already another incarnation for everybody else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_an_older_incarnation_tells_nothing_of_what_a_later_one_does() {
    // Its agents have no heartbeat, and the shards are to be shared soon.
    let cluster = Cluster::new().await.with_ttl(TTL * 6);
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    let _stale = Session::open(&b, 1).await;
    let mut one = Session::connect(&a, 1);
    one.hello(2).await;
    let mut number = 0;
    let run = loop {
        number += 1;
        let job = cluster.job_with(number, retried(&["lost"], Span::from_secs(0), RetryWhere::Any)).await;
        if let Ok(run) = a.run_now(manual(job)).await {
            break run.id;
        }
    };
    let key = one.attempt(1).await.key.unwrap();
    one.start(&key).await;
    cluster.stored(run, state_is(RunState::Running)).await;
    a.stop().await;
    until(|| shards(&b) == 16).await;
    let mut again = Session::connect(&b, 1);
    again.greet(session::Hello { running: vec![key.clone()], ..again.greeting(2) }).await;
    let order = again.order().await;
    assert_eq!((order.key.as_ref(), order.reminder), (Some(&key), true), "it was started again beside itself");
    again.end(&key, "succeeded", 0).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.attempt), (RunState::Succeeded, 1));
    b.stop().await;
}
