//! Several servers on one coordinator and one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use belfry_control::{Control, Disagreement, StartError};
use belfry_coord::faulty::Faulty;
use belfry_coord::{
    Clock, Commit, CoordError, Coordinator, Entry, Guard, Heartbeat, Hints, Life, Memory, SystemClock, Write, keys,
};
use belfry_core::cursor::Cursor;
use belfry_core::homes::Home;
use belfry_core::id::Slot;
use belfry_core::job::{Action, JobDocument, RunOn, Shell};
use belfry_core::job_table::{Firer, JobTable};
use belfry_core::run::{Marks, Run, RunState};
use belfry_core::{Job, JobId, NodeId, RunId, Timestamp};
use belfry_proto::session::{self, to_agent};
use belfry_store::{RunFilter, Store};

use crate::support::{
    Cluster, PATIENCE, Session, TTL, every_second, manual, run_at_owner, shards, sqlite, until, until_within,
};

impl Session {
    async fn beat(&mut self, sequence: u64) -> bool {
        self.say(session::Heartbeat { sequence }).await;
        self.beat_answered(sequence).await
    }

    async fn beat_answered(&mut self, sequence: u64) -> bool {
        self.until(|message| match message {
            to_agent::Message::Heartbeat(answer) if answer.sequence == sequence => Some(answer.accepted),
            _ => None,
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incarnation_that_was_marked_lost_never_comes_back() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::connect(&server, 1);
    session.hello(5).await;
    assert!(session.beat(1).await);
    cluster.hold_dead(1).await;

    // A new session of the same incarnation, as after a cut link: its runs were given up meanwhile.
    let mut again = Session::connect(&server, 1);
    again.hello(5).await;
    assert!(!again.beat(2).await, "a dead incarnation was accepted");
    // Nor does one that is older than what has registered.
    again.hello(6).await;
    assert!(again.beat(3).await);
    let mut late = Session::connect(&server, 1);
    late.hello(5).await;
    assert!(!late.beat(4).await, "an older incarnation was accepted");
    assert!(again.beat(5).await, "and the living one was disturbed");
    server.stop().await;
}

/// Keeps one commit of heartbeats of nodes for ever, as a member of etcd does for seconds that has lost its leader.
struct KeepsOne {
    inner: Memory,
    shall: AtomicBool,
}

#[async_trait::async_trait]
impl Coordinator for KeepsOne {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.inner.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        self.inner.list(prefix).await
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        let node = keys::node(NodeId::from_u128(1));
        let is_beat = writes.iter().any(|write| matches!(write, Write::Put(key, _) if *key == node));
        if is_beat && self.shall.swap(false, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.inner.commit(guards, writes).await
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        self.inner.watch(prefix).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_never_answered_does_not_keep_the_next_heartbeats_of_nodes_waiting() {
    let coordinator = Arc::new(KeepsOne { inner: Memory::default(), shall: AtomicBool::new(false) });
    let cluster = Cluster { coordinator: coordinator.clone(), ..Cluster::new().await };
    let server = cluster.server("a").await;
    let mut session = Session::connect(&server, 1);
    session.hello(5).await;
    assert!(session.beat(1).await);
    coordinator.shall.store(true, Ordering::Relaxed);
    session.say(session::Heartbeat { sequence: 2 }).await;
    until(|| !coordinator.shall.load(Ordering::Relaxed)).await;
    assert!(session.beat(3).await);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_told_to_another_server_closes_the_run_at_its_owner() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    let (to_a, to_b) = (Session::open(&a, 1).await, Session::open(&b, 1).await);
    // Saved a moment ago and not announced to anybody.
    let job = cluster.job(3).await;
    let [(owner, mut asked), (_, mut other)] = run_at_owner((a.clone(), to_a), (b.clone(), to_b), job).await;
    let key = asked.order().await.key.unwrap();
    asked.start(&key).await;
    until(|| owner.open_runs(|run| run.state == RunState::Running).len() == 1).await;
    // The link to the owner breaks; another server is told, and writes it down.
    drop(asked);
    // The owner's record of the start may still be on its way to the store; an agent says it again too.
    let run = key.run.parse().unwrap();
    cluster.stored(run, |_| true).await;
    other.end(&key, "succeeded", 0).await;
    other.until_stored(&key).await;
    // Its node lives on, so that nobody gives the run up.
    for sequence in 1.. {
        other.beat(sequence).await;
        assert!(sequence < 100, "the owner never learned of the end");
        if owner.cluster().open_runs == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let known = cluster.store.run(run).await.unwrap().unwrap();
    assert_eq!(known.state, RunState::Succeeded);
    a.stop().await;
    b.stop().await;
}

/// As when a server stops: many agents turn to another one, for which all their keys have moved on since they said hello.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_that_change_their_carrier_together_are_heard_at_the_first_beat() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
    for number in 1..=5 {
        for (sessions, server) in [(&mut to_a, &a), (&mut to_b, &b)] {
            sessions.push(Session::open(server, number).await);
        }
    }
    for session in &mut to_b {
        assert!(session.beat(1).await);
    }
    for session in &to_a {
        session.say(session::Heartbeat { sequence: 2 }).await;
    }
    for session in &mut to_a {
        assert!(session.beat_answered(2).await);
    }
    a.stop().await;
    b.stop().await;
}

/// It may have told it to a server that knows nothing of the run, before its owner had the shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_former_incarnation_finished_is_asked_for() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    server.run_now(manual(cluster.job(3).await)).await.unwrap();
    let key = session.order().await.key.unwrap();
    session.take(&key).await;
    until(|| server.open_runs(|run| run.state == RunState::Dispatched).len() == 1).await;
    session.greet(session::Hello { finished: vec![key.clone()], ..session.greeting(2) }).await;
    let asked = session.until(|message| match message {
        to_agent::Message::Dispatch(order) => order.key.map(|key| (key, order.reminder)),
        _ => None,
    });
    assert_eq!(asked.await, (key, true), "and it is never taken for an order to start");
    server.stop().await;
}

/// The agent would go on telling the former owner, who is no longer interested, if the new one did not say that it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_a_shard_over_tells_the_agents_that_have_its_runs() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut to_a = Session::open(&a, 1).await;
    let mut running = Vec::new();
    for number in 1..=20 {
        a.run_now(manual(cluster.job(number).await)).await.unwrap();
        let key = to_a.order().await.key.unwrap();
        to_a.take(&key).await;
        running.push(key);
    }
    let b = cluster.server("b").await;
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    let mut to_b = Session::connect(&b, 1);
    to_b.say(session::Hello { slots: 30, running, ..to_b.greeting(1) }).await;
    let mut untold: std::collections::HashSet<String> =
        b.open_runs(|_| true).iter().map(|run| run.id.to_string()).collect();
    assert!(!untold.is_empty(), "of twenty runs some are of shards that moved");
    while !untold.is_empty() {
        untold.remove(&to_b.order().await.key.unwrap().run);
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_callers_are_told_where_the_servers_are() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut session = Session::open(&a, 1).await;
    let b = cluster.server("b").await;
    let named = session.until(|message| match message {
        to_agent::Message::Servers(servers) if servers.addresses.len() == 2 => Some(servers.addresses),
        _ => None,
    });
    assert_eq!(named.await, ["http://a:2", "http://b:2"]);
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    for shard in b.cluster().shards {
        assert_eq!(a.owners_api(shard.shard).await.as_deref(), Some("http://b:1"));
        assert_eq!(b.owners_api(shard.shard).await, None, "it is its own");
    }
    // Given back at a graceful stop, without a TTL to wait for.
    b.stop().await;
    let entries = cluster.coordinator.list(keys::SERVERS).await.unwrap();
    let lives: Vec<Life> = entries.iter().map(|entry| Heartbeat::decode(entry).unwrap().life).collect();
    assert_eq!(lives, [Life::Beating, Life::Stopped], "it says so before it is gone");
    until(|| shards(&a) == 16).await;
    a.stop().await;
}

/// Each start makes one, and everybody reads all of them at each look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_of_servers_that_are_gone_are_removed() {
    let cluster = Cluster { coordinator: Arc::new(Memory::sole()), ..Cluster::new().await };
    for name in ["a", "b", "c"] {
        cluster.server(name).await.stop().await;
    }
    let last = cluster.server("d").await;
    let heartbeats = async || cluster.coordinator.list(keys::SERVERS).await.unwrap();
    let is_alone = async || (heartbeats().await.len() == 1).then_some(());
    assert!(until_within(PATIENCE, is_alone).await.is_some(), "{:?}", heartbeats().await);
    assert_eq!(heartbeats().await[0].key, keys::server(last.cluster().server));
    last.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_disagree_are_not_let_in() {
    let cluster = Cluster::new().await;
    let first = cluster.server("a").await;
    let store = Store::open(Arc::new(sqlite(&cluster.folder, "other.db"))).await.unwrap();
    let refusal = Cluster { store, ..cluster.clone() }.start("b").await.err().expect("a refusal");
    assert!(matches!(refusal, StartError::Meta(Disagreement::OtherCluster)), "{refusal:?}");
    let slower = cluster.with_ttl(TTL * 2);
    let refusal = slower.start("b").await.err().expect("a refusal");
    assert!(matches!(refusal, StartError::Meta(Disagreement::OtherTtl(TTL))), "{refusal:?}");
    // When all have stopped, the TTL may be changed.
    first.stop().await;
    slower.server("c").await.stop().await;
}

/// Ahead of the others, as after a wrong step. Time can be made to pass.
#[derive(Clone, Default)]
struct AnHourAhead {
    passed_s: Arc<AtomicU64>,
}

impl AnHourAhead {
    fn passed(&self) -> Duration {
        Duration::from_secs(self.passed_s.load(Ordering::Relaxed))
    }
}

impl Clock for AnHourAhead {
    fn now(&self) -> Timestamp {
        SystemClock.now() + jiff::SignedDuration::from_hours(1) + self.passed()
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime() + self.passed()
    }
}

/// Answers the server's questions for the time, by the right clock.
async fn tell_the_time(control: &Control, number: u128) -> Session {
    let mut session = Session::open(control, number).await;
    let token = session
        .until(|message| match message {
            to_agent::Message::Clock(question) => Some(question.token),
            _ => None,
        })
        .await;
    session.say(session::ClockAnswer { token, now_ms: SystemClock.now().as_millisecond(), boot_ms: 0 }).await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_off_gives_its_shards_to_the_others() {
    let cluster = Cluster::new().await;
    let right = cluster.server("a").await;
    let wrong = Cluster { clock: Arc::new(AnHourAhead::default()), ..cluster.clone() }.server("b").await;
    until(|| shards(&right) == 8 && shards(&wrong) == 8).await;
    let mut sessions = Vec::new();
    for number in [1, 2] {
        sessions.push(tell_the_time(&right, number).await);
    }
    // With one agent nobody can say whose clock is wrong.
    sessions.push(tell_the_time(&wrong, 1).await);
    until(|| wrong.nodes().iter().any(|node| node.clock_offset_ms.is_some())).await;
    assert!(wrong.nodes().iter().all(|node| node.clock_offset_ms.is_none_or(|ms| ms < -3_000_000)));
    sessions.push(tell_the_time(&wrong, 2).await);
    until(|| shards(&right) == 16 && shards(&wrong) == 0 && right.cluster().leader).await;
    let told = right.cluster().servers.into_iter().find_map(|server| server.clock_off_ms).expect("it is told");
    assert!((told - 3_600_000).abs() < 10_000, "{told}");
}

/// What a node is told, whose clock is so far ahead, when it has answered the server's question for the time: how far off that would be.
async fn told_off_ms(session: &mut Session, ahead_ms: i64) -> Option<i64> {
    let now_ms = || SystemClock.now().as_millisecond() + ahead_ms;
    let boot_ms = || SystemClock.boottime().as_millis() as u64;
    loop {
        let told = tokio::time::timeout(Duration::from_secs(1), session.told.recv()).await;
        match told.ok()?.expect("the session lives").message.expect("a message") {
            to_agent::Message::Clock(question) => {
                session.say(session::ClockAnswer { token: question.token, now_ms: now_ms(), boot_ms: boot_ms() }).await;
            }
            to_agent::Message::AgreedTime(agreed) => return Some(now_ms() - boot_ms() as i64 - agreed.booted_at_ms),
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_told_what_most_clocks_agree_on_unless_they_are_divided() {
    const HOUR_MS: i64 = 3_600_000;
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut wrong = Session::open(&server, 1).await;
    assert_eq!(told_off_ms(&mut wrong, HOUR_MS).await, None, "one against one");
    let mut right = Session::open(&server, 2).await;
    let off = told_off_ms(&mut right, 0).await.expect("two against one");
    assert!(off.abs() < 1000, "{off}");
    let mut again = Session::open(&server, 1).await;
    let off = told_off_ms(&mut again, HOUR_MS).await.expect("one against two");
    assert!((off - HOUR_MS).abs() < 1000, "{off}");
    // Of a server whose own clock is wrong: it says what the others agree on.
    let ahead = Cluster { clock: Arc::new(AnHourAhead::default()), ..Cluster::new().await };
    let server = ahead.server("b").await;
    let mut first = Session::open(&server, 1).await;
    assert_eq!(told_off_ms(&mut first, 0).await, None, "one against one");
    let mut second = Session::open(&server, 2).await;
    let off = told_off_ms(&mut second, 0).await.expect("two against one");
    assert!(off.abs() < 1000, "{off}");
}

/// Right until it is stepped.
#[derive(Clone, Default)]
pub struct Stepped(pub Arc<AtomicI64>);

impl Clock for Stepped {
    fn now(&self) -> Timestamp {
        SystemClock.now() + jiff::SignedDuration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }
}

/// Tells the right time whenever it is asked, until something is true; when the runs that were ordered meanwhile were planned.
pub async fn ordered_until(session: &mut Session, fact: impl Fn(&[i64]) -> bool) -> Vec<i64> {
    let mut planned = Vec::new();
    let waited = async {
        while !fact(&planned) {
            let Ok(told) = tokio::time::timeout(Duration::from_millis(50), session.told.recv()).await else { continue };
            match told.expect("the session lives").message.expect("a message") {
                to_agent::Message::Clock(question) => {
                    let now_ms = SystemClock.now().as_millisecond();
                    session.say(session::ClockAnswer { token: question.token, now_ms, boot_ms: 0 }).await;
                }
                to_agent::Message::Dispatch(order) => planned.push(order.planned_ms),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it comes true within a minute");
    planned
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_ahead_passes_over_no_fire() {
    let clock = Stepped::default();
    let cluster = Cluster { clock: Arc::new(clock.clone()), ..Cluster::new().await };
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    cluster.job_with(3, every_second).await;
    server.jobs_changed().await;
    let mut planned = ordered_until(&mut session, |planned| planned.len() > 1).await;
    clock.0.store(3600, Ordering::Relaxed);
    // With a single agent: its word is enough, since this clock was seen to step.
    let gave_up = || server.cluster().shards.is_empty();
    planned.extend(ordered_until(&mut session, |_| gave_up()).await);
    clock.0.store(0, Ordering::Relaxed);
    planned.extend(ordered_until(&mut session, |planned| planned.len() > 3).await);
    let ahead = planned.iter().filter(|at| **at > SystemClock.now().as_millisecond() + 2_000).count();
    assert_eq!(ahead, 0, "{planned:?}");
    // What was due while it stood in doubt is caught up with, or skipped by the job's rule: every second has its order or its record.
    let (first, last) = (planned[0], *planned.last().unwrap());
    for _ in 0..20 {
        let filter = RunFilter { limit: 500, ..RunFilter::default() };
        let recorded = cluster.store.list_runs(&filter).await.unwrap().items;
        let an_hour_ahead = SystemClock.now() + jiff::SignedDuration::from_secs(60);
        let far: Vec<_> = recorded.iter().filter(|run| run.planned > an_hour_ahead).collect();
        assert!(far.is_empty(), "fires of the hour ahead were decided: {far:?}");
        let known = |at: i64| planned.contains(&at) || recorded.iter().any(|run| run.planned.as_millisecond() == at);
        if (first..last).step_by(1000).all(known) {
            return;
        }
        planned.extend(ordered_until(&mut session, |planned| !planned.is_empty()).await);
    }
    panic!("not every fire between {first} and {last} is known: {planned:?}");
}

/// Jobs that fire every second were left a moment ago, and now a server starts whose clock is an hour ahead.
async fn left_to_a_server_that_is(clock: &AnHourAhead) -> (Cluster, Control) {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    cluster.job_with(3, every_second).await;
    server.jobs_changed().await;
    ordered_until(&mut session, |planned| planned.len() > 1).await;
    server.stop().await;
    let ahead = Cluster { clock: Arc::new(clock.clone()), ..cluster.clone() }.server("b").await;
    (cluster, ahead)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_starts_with_a_clock_that_is_ahead_passes_over_no_fire() {
    let (cluster, ahead) = left_to_a_server_that_is(&AnHourAhead::default()).await;
    let mut session = Session::open(&ahead, 1).await;
    let limit = SystemClock.now().as_millisecond() + 1_800_000;
    let is_over = |planned: &[i64]| shards(&ahead) == 0 || planned.iter().any(|at| *at > limit);
    let planned = ordered_until(&mut session, is_over).await;
    assert!(planned.iter().all(|at| *at < limit), "fires of the hour ahead were ordered: {planned:?}");
    let recorded = cluster.store.list_runs(&RunFilter { limit: 500, ..RunFilter::default() }).await.unwrap().items;
    let far: Vec<_> = recorded.iter().filter(|run| run.planned.as_millisecond() > limit).collect();
    assert!(far.is_empty(), "fires of the hour ahead were decided: {far:?}");
}

/// Until it hears from the new owner it tells the former one, who can do nothing with that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_hears_who_owns_what_it_was_given_also_from_a_server_that_did_not_know_the_time_at_first() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    cluster.job_with(3, every_second).await;
    server.jobs_changed().await;
    let kept = session.order().await.key.unwrap();
    session.take(&kept).await;
    drop(session);
    server.stop().await;

    let clock = Stepped::default();
    clock.0.store(-3600, Ordering::Relaxed);
    let server = Cluster { clock: Arc::new(clock.clone()), ..cluster.clone() }.server("b").await;
    let mut session = Session::connect(&server, 1);
    session.greet(session::Hello { running: vec![kept.clone()], ..session.greeting(1) }).await;
    clock.0.store(0, Ordering::Relaxed);
    let heard = async {
        loop {
            match session.told.recv().await.expect("the session lives").message.expect("a message") {
                to_agent::Message::Clock(question) => {
                    let now_ms = SystemClock.now().as_millisecond();
                    session.say(session::ClockAnswer { token: question.token, now_ms, boot_ms: 0 }).await;
                }
                to_agent::Message::Dispatch(order) if order.key.as_ref() == Some(&kept) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, heard).await.expect("the order of what it has");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_nobody_can_tell_the_time_believes_its_clock_in_the_end() {
    let clock = AnHourAhead::default();
    let (cluster, _alone) = left_to_a_server_that_is(&clock).await;
    clock.passed_s.store(20, Ordering::Relaxed);
    let limit = SystemClock.now().as_millisecond() + 1_800_000;
    let judged = async || {
        let filter = RunFilter { limit: 500, ..RunFilter::default() };
        let recorded = cluster.store.list_runs(&filter).await.unwrap().items;
        recorded.into_iter().find(|run| run.planned.as_millisecond() > limit)
    };
    assert!(until_within(PATIENCE, judged).await.is_some(), "without an agent it judges nothing");
}

/// What a node says of a run that it fired by itself.
pub fn fired_alone(job: JobId, by: NodeId, planned: Timestamp, home_term: u64) -> session::Ended {
    let run = RunId::of(job, planned, Slot::Node(by)).to_string();
    session::Ended {
        key: Some(session::RunKey { run, attempt: 1 }),
        outcome: "succeeded".into(),
        ended_at_ms: planned.as_millisecond() + 5,
        started_at_ms: Some(planned.as_millisecond()),
        local: Some(session::LocalRun {
            job_id: job.to_string(),
            namespace: "default".into(),
            job: "j3".into(),
            revision: 1,
            planned_ms: planned.as_millisecond(),
            claimed_at_ms: planned.as_millisecond() - 500,
            fence: 1,
            home_term,
            cut_off: true,
            incarnation: 1,
        }),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cannot_tell_of_runs_that_are_not_its_own() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server, 1).await;
    let (job, at) = (JobId::from_u128(3), Timestamp::from_second(1_800_000_000).unwrap());
    let of_another = fired_alone(job, NodeId::from_u128(5), at, 0);
    session.say(of_another.clone()).await;
    let own = fired_alone(job, session.node, at, 0);
    session.say(own.clone()).await;
    let stored = session
        .until(|message| match message {
            to_agent::Message::Stored(stored) => Some(stored.keys),
            _ => None,
        })
        .await;
    assert_eq!(stored, [own.key.clone().unwrap()], "it is told that the store has its own, and only that");
    let known = async |ended: &session::Ended| {
        cluster.store.run(ended.key.as_ref().unwrap().run.parse().unwrap()).await.unwrap()
    };
    assert!(known(&of_another).await.is_none(), "a node told of another's run");
    let run = known(&own).await.unwrap();
    assert_eq!((run.state, run.node), (RunState::Succeeded, Some(session.node)));
    assert_eq!(run.marks, Marks { local: true, cut_off: true, may_have_run_twice: false });
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_former_home_ran_after_it_was_held_dead_is_marked() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut former = Session::open(&server, 1).await;
    let alone = |document: &mut JobDocument| {
        document.run_on = RunOn::Home;
        document.schedule.0.push("@yearly".into());
    };
    let job = cluster.job_with(3, alone).await;
    server.jobs_changed().await;
    let own_jobs = |message: to_agent::Message| match message {
        to_agent::Message::LocalJobs(jobs) => jobs.put.into_iter().next(),
        _ => None,
    };
    let first = former.until(own_jobs).await;
    assert_eq!(first.id, job.to_string());
    // It falls silent for the servers; the other one is the home from then on.
    let mut next = Session::open(&server, 2).await;
    cluster.hold_dead(1).await;
    let second = next.until(own_jobs).await;
    assert!(second.home_term > first.home_term, "a term grows from home to home");
    let after_the_move = SystemClock.now().round(jiff::Unit::Millisecond).unwrap();
    let late = fired_alone(job, former.node, after_the_move, first.home_term);
    let mut again = Session::connect(&server, 1);
    again.hello(2).await;
    again.say(late.clone()).await;
    let own = fired_alone(job, next.node, after_the_move, second.home_term);
    next.say(own.clone()).await;
    for (ended, twice) in [(late, true), (own, false)] {
        let run = cluster.stored(ended.key.unwrap().run.parse().unwrap(), |_| true).await;
        assert_eq!(run.marks.may_have_run_twice, twice, "{run:?}");
    }
    server.stop().await;
}

/// How a former home tells of what it fired alone, to a server that has heard nothing of the new one.
enum Back {
    /// As a new incarnation, since it was told that it is held dead.
    Registered,
    /// It was paused, and goes on in the session that it had.
    GoneOn,
}

async fn told_to_a_server_that_knows_old_homes(back: Back) -> Run {
    let cluster = Cluster::new().await;
    let leader = cluster.server("a").await;
    let late_reader = Arc::new(Faulty::new(cluster.coordinator.clone()));
    let other = Cluster { coordinator: late_reader.clone(), ..cluster.clone() }.server("b").await;
    let former = Session::open(&leader, 1).await;
    let mut session = match back {
        Back::Registered => Session::connect(&other, 1),
        Back::GoneOn => Session::open(&other, 1).await,
    };
    let alone = |document: &mut JobDocument| {
        document.run_on = RunOn::Home;
        document.schedule.0.push("@yearly".into());
    };
    let job = cluster.job_with(3, alone).await;
    leader.jobs_changed().await;
    let term_of = async |node: NodeId| {
        let is_home = async || {
            let entry = cluster.coordinator.get(&keys::home(job)).await.unwrap()?;
            let home: Home = serde_json::from_slice(&entry.value).unwrap();
            (home.node == Some(node)).then_some(entry.version.0)
        };
        until_within(PATIENCE, is_home).await.expect("it becomes its home")
    };
    let term = term_of(former.node).await;
    late_reader.read_old_below(keys::HOMES).await.unwrap();
    let lists = late_reader.old_lists();
    let next = Session::open(&leader, 2).await;
    cluster.hold_dead(1).await;
    term_of(next.node).await;
    // It was told that something has changed, has read, and will read again only much later.
    until(|| late_reader.old_lists() > lists).await;
    late_reader.read_fresh();
    match back {
        Back::Registered => session.hello(2).await,
        // Nobody is held dead before that.
        Back::GoneOn => tokio::time::sleep(TTL / 2).await,
    }
    let after_the_move = SystemClock.now().round(jiff::Unit::Millisecond).unwrap();
    let late = fired_alone(job, former.node, after_the_move, term);
    session.say(late.clone()).await;
    let run = cluster.stored(late.key.unwrap().run.parse().unwrap(), |_| true).await;
    other.stop().await;
    leader.stop().await;
    run
}

/// The server that a former home comes back to need not be the one that gave its job away, and may have heard nothing of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_former_home_tells_a_server_that_knows_old_homes_is_marked() {
    let run = told_to_a_server_that_knows_old_homes(Back::Registered).await;
    assert!(run.marks.may_have_run_twice, "{run:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_former_home_tells_before_it_hears_that_it_was_held_dead_is_marked() {
    let run = told_to_a_server_that_knows_old_homes(Back::GoneOn).await;
    assert!(run.marks.may_have_run_twice, "{run:?}");
}

#[test]
fn a_cursor_inside_a_herd_neither_skips_nor_repeats() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let mut table = JobTable::new(Firer::Shard);
    let cursor = Cursor { at: at("2026-01-01T00:01:00Z"), job: JobId::from_u128(5) };
    for id in 1..=9 {
        let mut document = JobDocument::new(format!("j{id}"), Action::Shell(Shell { command: "true".into() }));
        document.schedule.0.push("* * * * *".into());
        let long_ago = at("2025-01-01T00:00:00Z");
        let id = JobId::from_u128(id);
        let job = Job { id, revision: 1, document, created_at: long_ago, updated_at: long_ago, counts_from: long_ago };
        table.upsert(&job, cursor).unwrap();
    }
    let mut ids = Vec::new();
    while let Some((_, id)) = table.peek().filter(|(fire, _)| *fire <= at("2026-01-01T00:01:00Z")) {
        ids.push(id.as_u128());
        table.pop();
    }
    assert_eq!(ids, [6, 7, 8, 9]);
}
