//! Several servers on one coordinator and one store, with agents whose every word the test says.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use belfry_control::{Addresses, Control, ControlConfig, ControlError, Disagreement, ManualRun, StartError};
use belfry_coord::observer::mark_lost;
use belfry_coord::{Clock, Coordinator, Heartbeat, Life, Memory, SystemClock, keys};
use belfry_core::cursor::Cursor;
use belfry_core::id::Slot;
use belfry_core::job::{Action, Exec, JobDocument, Overlap, RunOn, Shell};
use belfry_core::job_table::{Firer, JobTable};
use belfry_core::run::{Marks, RunState};
use belfry_core::{Job, JobId, NodeId, RunId, ServerId, Timestamp};
use belfry_proto::session::{self, FromAgent, ToAgent, to_agent};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, RunFilter, Store};
use tokio::sync::mpsc;

const TTL: Duration = Duration::from_secs(4);

struct Cluster {
    folder: tempfile::TempDir,
    store: Store,
    coordinator: Arc<dyn Coordinator>,
}

impl Cluster {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder, "store.db").await;
        Self { folder, store, coordinator: Arc::new(Memory::default()) }
    }

    async fn start(&self, name: &str, store: &Store, ttl: Duration) -> Result<Control, StartError> {
        self.start_with(name, store, ttl, Arc::new(SystemClock)).await
    }

    async fn start_with(
        &self,
        name: &str,
        store: &Store,
        ttl: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Control, StartError> {
        let id = ServerId::new(clock.now(), u128::from(name.as_bytes()[0]));
        let addresses = Addresses { api: format!("http://{name}:1"), agents: format!("http://{name}:2") };
        let config = ControlConfig { ttl, addresses, ..ControlConfig::default() };
        Control::start(config, id, self.coordinator.clone(), store.clone(), clock).await
    }

    async fn server(&self, name: &str) -> Control {
        self.start(name, &self.store, TTL).await.expect("a server")
    }

    async fn job(&self, number: u128) -> JobId {
        let document = JobDocument::new(format!("j{number}"), Action::Exec(Exec { argv: vec!["true".into()] }));
        let id = JobId::from_u128(number);
        self.store.create_job(document, id, SystemClock.now(), &Actor::new("test")).await.unwrap();
        id
    }
}

async fn store(folder: &tempfile::TempDir, name: &str) -> Store {
    let database = Sqlite::open(folder.path().join(name), SqliteOptions::default()).unwrap();
    Store::open(Arc::new(database)).await.unwrap()
}

/// One session of an agent with one server.
struct Session {
    said: mpsc::Sender<FromAgent>,
    told: mpsc::Receiver<ToAgent>,
}

impl Session {
    fn open(control: &Control) -> Self {
        let (orders, told) = mpsc::channel(1000);
        let (said, reports) = mpsc::channel(1000);
        control.connect_local(orders, reports);
        Self { said, told }
    }

    async fn say(&self, message: impl Into<FromAgent>) {
        self.said.send(message.into()).await.expect("the server listens");
    }

    async fn hello(&mut self, incarnation: u64) {
        self.hello_of(node(), incarnation, vec![]).await;
    }

    async fn hello_of(&mut self, node: NodeId, incarnation: u64, finished: Vec<session::RunKey>) {
        let node = node.to_string();
        self.say(session::Hello { node, name: "n".into(), incarnation, slots: 10, finished, ..Default::default() })
            .await;
        self.until(|message| matches!(message, to_agent::Message::Welcome(_)).then_some(())).await;
    }

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

    async fn order(&mut self) -> session::RunKey {
        self.until(|message| match message {
            to_agent::Message::Dispatch(order) => order.key,
            _ => None,
        })
        .await
    }
}

fn node() -> NodeId {
    NodeId::from_u128(77)
}

fn manual(job: JobId) -> ManualRun {
    ManualRun {
        job,
        by: "test".into(),
        idempotency_key: None,
        env: Default::default(),
        node: None,
        force: false,
        rerun_of: None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_incarnation_that_was_marked_lost_never_comes_back() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut session = Session::open(&server);
    session.hello(5).await;
    assert!(session.beat(1).await);
    let key = keys::node(node());
    let seen = cluster.coordinator.get(&key).await.unwrap().unwrap();
    mark_lost(&*cluster.coordinator, &key, seen.version).await.unwrap();

    // A new session of the same incarnation, as after a cut link: its runs were given up meanwhile.
    let mut again = Session::open(&server);
    again.hello(5).await;
    assert!(!again.beat(2).await, "a dead incarnation was accepted");
    // Nor does one that is older than what has registered.
    again.hello(6).await;
    assert!(again.beat(3).await);
    let mut late = Session::open(&server);
    late.hello(5).await;
    assert!(!late.beat(4).await, "an older incarnation was accepted");
    assert!(again.beat(5).await, "and the living one was disturbed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_told_to_another_server_closes_the_run_at_its_owner() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    until(|| a.cluster().shards.len() == 8 && b.cluster().shards.len() == 8).await;
    let (mut to_a, mut to_b) = (Session::open(&a), Session::open(&b));
    to_a.hello(1).await;
    to_b.hello(1).await;
    let job = cluster.job(3).await;
    // Whoever owns it: saved a moment ago and not announced to anybody.
    let (owner, mut asked, mut other) = match a.run_now(manual(job)).await {
        Ok(_) => (a.clone(), to_a, to_b),
        Err(ControlError::NotOwned(_)) => {
            b.run_now(manual(job)).await.unwrap();
            (b.clone(), to_b, to_a)
        }
        Err(cause) => panic!("{cause}"),
    };
    let key = asked.order().await;
    let now = SystemClock.now().as_millisecond();
    asked.say(session::Taken { key: Some(key.clone()), refused: String::new(), live: None }).await;
    asked.say(session::Started { key: Some(key.clone()), at_ms: now, local: None }).await;
    until(|| owner.open_runs(|run| run.state == RunState::Running).len() == 1).await;
    // The link to the owner breaks; another server is told, and writes it down.
    drop(asked);
    let ended = session::Ended {
        key: Some(key.clone()),
        outcome: "succeeded".into(),
        started_at_ms: Some(now),
        ended_at_ms: now + 1,
        exit_code: Some(0),
        ..Default::default()
    };
    // The owner's record of the start may still be on its way to the store; an agent says it again too.
    let run = key.run.parse().unwrap();
    while cluster.store.run(run).await.unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.say(ended).await;
    other.until(|message| matches!(message, to_agent::Message::Stored(_)).then_some(())).await;
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
    for number in 0..5 {
        for (sessions, server) in [(&mut to_a, &a), (&mut to_b, &b)] {
            let mut session = Session::open(server);
            session.hello_of(NodeId::from_u128(100 + number), 1, vec![]).await;
            sessions.push(session);
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
    let mut session = Session::open(&server);
    session.hello(1).await;
    server.run_now(manual(cluster.job(3).await)).await.unwrap();
    let key = session.order().await;
    session.say(session::Taken { key: Some(key.clone()), refused: String::new(), ..Default::default() }).await;
    until(|| server.open_runs(|run| run.state == RunState::Dispatched).len() == 1).await;
    session.hello_of(node(), 2, vec![key.clone()]).await;
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
    let mut to_a = Session::open(&a);
    to_a.hello(1).await;
    let mut running = Vec::new();
    for number in 1..=20 {
        a.run_now(manual(cluster.job(number).await)).await.unwrap();
        let key = to_a.order().await;
        to_a.say(session::Taken { key: Some(key.clone()), refused: String::new(), live: None }).await;
        running.push(key);
    }
    let b = cluster.server("b").await;
    until(|| a.cluster().shards.len() == 8 && b.cluster().shards.len() == 8).await;
    let mut to_b = Session::open(&b);
    let node = node().to_string();
    let hello = session::Hello { node, name: "n".into(), incarnation: 1, slots: 30, running, ..Default::default() };
    to_b.say(hello).await;
    let mut untold: std::collections::HashSet<String> =
        b.open_runs(|_| true).iter().map(|run| run.id.to_string()).collect();
    assert!(!untold.is_empty(), "of twenty runs some are of shards that moved");
    while !untold.is_empty() {
        untold.remove(&to_b.order().await.run);
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_and_callers_are_told_where_the_servers_are() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut session = Session::open(&a);
    session.hello(1).await;
    let b = cluster.server("b").await;
    let named = session.until(|message| match message {
        to_agent::Message::Servers(servers) if servers.addresses.len() == 2 => Some(servers.addresses),
        _ => None,
    });
    assert_eq!(named.await, ["http://a:2", "http://b:2"]);
    until(|| a.cluster().shards.len() == 8 && b.cluster().shards.len() == 8).await;
    for shard in b.cluster().shards {
        assert_eq!(a.owners_api(shard.shard).await.as_deref(), Some("http://b:1"));
        assert_eq!(b.owners_api(shard.shard).await, None, "it is its own");
    }
    // Given back at a graceful stop, without a TTL to wait for.
    b.stop().await;
    let entries = cluster.coordinator.list(keys::SERVERS).await.unwrap();
    let lives: Vec<Life> = entries.iter().map(|entry| Heartbeat::decode(entry).unwrap().life).collect();
    assert_eq!(lives, [Life::Beating, Life::Stopped], "it says so before it is gone");
    until(|| a.cluster().shards.len() == 16).await;
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_disagree_are_not_let_in() {
    let cluster = Cluster::new().await;
    let first = cluster.server("a").await;
    let other_store = store(&cluster.folder, "other.db").await;
    let refusal = cluster.start("b", &other_store, TTL).await.err().expect("a refusal");
    assert!(matches!(refusal, StartError::Meta(Disagreement::OtherCluster)), "{refusal:?}");
    let refusal = cluster.start("b", &cluster.store, TTL * 2).await.err().expect("a refusal");
    assert!(matches!(refusal, StartError::Meta(Disagreement::OtherTtl(TTL))), "{refusal:?}");
    // When all have stopped, the TTL may be changed.
    first.stop().await;
    cluster.start("c", &cluster.store, TTL * 2).await.expect("a server with another TTL").stop().await;
}

async fn until(fact: impl Fn() -> bool) {
    let waited = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it comes true within a minute");
}

/// Ahead of the others, as after a wrong step.
struct AnHourAhead;

impl Clock for AnHourAhead {
    fn now(&self) -> Timestamp {
        SystemClock.now() + jiff::SignedDuration::from_hours(1)
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }
}

/// Answers the server's questions for the time, by the right clock.
async fn tell_the_time(control: &Control, number: u128) -> Session {
    let mut session = Session::open(control);
    session.hello_of(NodeId::from_u128(number), 1, vec![]).await;
    let token = session
        .until(|message| match message {
            to_agent::Message::Clock(question) => Some(question.token),
            _ => None,
        })
        .await;
    session.say(session::ClockAnswer { token, now_ms: SystemClock.now().as_millisecond() }).await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_is_off_gives_its_shards_to_the_others() {
    let cluster = Cluster::new().await;
    let right = cluster.server("a").await;
    let wrong = cluster.start_with("b", &cluster.store, TTL, Arc::new(AnHourAhead)).await.expect("a server");
    let shards = |server: &Control| server.cluster().shards.len();
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

/// Right until it is stepped.
#[derive(Clone, Default)]
struct Stepped(Arc<AtomicI64>);

impl Clock for Stepped {
    fn now(&self) -> Timestamp {
        SystemClock.now() + jiff::SignedDuration::from_secs(self.0.load(Ordering::Relaxed))
    }

    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }
}

/// Tells the right time whenever it is asked, until something is true; when the runs that were ordered meanwhile were planned.
async fn ordered_until(session: &mut Session, fact: impl Fn(&[i64]) -> bool) -> Vec<i64> {
    let mut planned = Vec::new();
    let waited = async {
        while !fact(&planned) {
            let Ok(told) = tokio::time::timeout(Duration::from_millis(50), session.told.recv()).await else { continue };
            match told.expect("the session lives").message.expect("a message") {
                to_agent::Message::Clock(question) => {
                    let now_ms = SystemClock.now().as_millisecond();
                    session.say(session::ClockAnswer { token: question.token, now_ms }).await;
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
    let cluster = Cluster::new().await;
    let clock = Stepped::default();
    let server = cluster.start_with("a", &cluster.store, TTL, Arc::new(clock.clone())).await.expect("a server");
    let mut session = Session::open(&server);
    session.hello(1).await;
    let job = JobId::from_u128(3);
    let mut document = JobDocument::new("often", Action::Exec(Exec { argv: vec!["true".into()] }));
    document.overlap = Overlap::Allow;
    document.schedule.0.push("* * * * * *".into());
    cluster.store.create_job(document, job, SystemClock.now(), &Actor::new("test")).await.unwrap();
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

#[test]
fn planted_bugs_are_caught() {
    belfry_testkit::planted::are_caught_in("belfry-control/cluster");
}

/// What a node says of a run that it fired by itself.
fn fired_alone(job: JobId, by: NodeId, planned: Timestamp, home_term: u64) -> session::Ended {
    let run = RunId::of(job, planned, Slot::Node(by)).to_string();
    session::Ended {
        key: Some(session::RunKey { run, attempt: 1 }),
        outcome: "succeeded".into(),
        ended_at_ms: planned.as_millisecond() + 5,
        started_at_ms: Some(planned.as_millisecond()),
        local: Some(session::LocalRun {
            job_id: job.to_string(),
            namespace: "default".into(),
            job: "alone".into(),
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
    let mut session = Session::open(&server);
    session.hello(1).await;
    let (job, at) = (JobId::from_u128(3), Timestamp::from_second(1_800_000_000).unwrap());
    let of_another = fired_alone(job, NodeId::from_u128(5), at, 0);
    session.say(of_another.clone()).await;
    let own = fired_alone(job, node(), at, 0);
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
    assert_eq!((run.state, run.node), (RunState::Succeeded, Some(node())));
    assert_eq!(run.marks, Marks { local: true, cut_off: true, may_have_run_twice: false });
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_former_home_ran_after_it_was_held_dead_is_marked() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let (one, two) = (NodeId::from_u128(1), NodeId::from_u128(2));
    let mut former = Session::open(&server);
    former.hello_of(one, 1, vec![]).await;
    let job = JobId::from_u128(3);
    let mut document = JobDocument::new("alone", Action::Exec(Exec { argv: vec!["true".into()] }));
    document.run_on = RunOn::Home;
    document.schedule.0.push("@yearly".into());
    cluster.store.create_job(document, job, SystemClock.now(), &Actor::new("test")).await.unwrap();
    server.jobs_changed().await;
    let own_jobs = |message: to_agent::Message| match message {
        to_agent::Message::LocalJobs(jobs) => jobs.put.into_iter().next(),
        _ => None,
    };
    let first = former.until(own_jobs).await;
    assert_eq!(first.id, job.to_string());
    // It falls silent for the servers; the other one is the home from then on.
    let mut next = Session::open(&server);
    next.hello_of(two, 1, vec![]).await;
    let key = keys::node(one);
    let seen = cluster.coordinator.get(&key).await.unwrap().unwrap();
    mark_lost(&*cluster.coordinator, &key, seen.version).await.unwrap();
    let second = next.until(own_jobs).await;
    assert!(second.home_term > first.home_term, "a term grows from home to home");
    let after_the_move = SystemClock.now().round(jiff::Unit::Millisecond).unwrap();
    let late = fired_alone(job, one, after_the_move, first.home_term);
    let mut again = Session::open(&server);
    again.hello_of(one, 2, vec![]).await;
    again.say(late.clone()).await;
    let own = fired_alone(job, two, after_the_move, second.home_term);
    next.say(own.clone()).await;
    for (ended, twice) in [(late, true), (own, false)] {
        let id = ended.key.unwrap().run.parse().unwrap();
        let waited = async {
            loop {
                if let Some(run) = cluster.store.run(id).await.unwrap() {
                    return run;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let run = tokio::time::timeout(Duration::from_secs(30), waited).await.expect("it is recorded");
        assert_eq!(run.marks.may_have_run_twice, twice, "{run:?}");
    }
    server.stop().await;
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
