//! Attempts after attempts, with agents whose every word the test says: which result counts, who plans, where the next one goes.

use std::sync::Arc;
use std::time::Duration;

use belfry_control::{Addresses, Control, ControlConfig, ControlError, ManualRun};
use belfry_coord::observer::mark_lost;
use belfry_coord::{Clock, Coordinator, Memory, SystemClock, keys};
use belfry_core::job::{Action, Backoff, Exec, JobDocument, Overlap, Retry, RetryWhere};
use belfry_core::run::{Run, RunState};
use belfry_core::units::Span;
use belfry_core::{JobId, NodeId, RunId, ServerId};
use belfry_proto::session::{self, FromAgent, RunKey, ToAgent, to_agent};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, Store};
use tokio::sync::mpsc;

const TTL: Duration = Duration::from_secs(4);

struct Cluster {
    store: Store,
    coordinator: Arc<dyn Coordinator>,
    _folder: tempfile::TempDir,
}

impl Cluster {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
        let store = Store::open(Arc::new(database)).await.unwrap();
        Self { store, coordinator: Arc::new(Memory::default()), _folder: folder }
    }

    async fn server(&self, name: &str) -> Control {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let id = ServerId::new(clock.now(), u128::from(name.as_bytes()[0]));
        let addresses = Addresses { api: format!("http://{name}:1"), agents: format!("http://{name}:2") };
        let config = ControlConfig { ttl: TTL, addresses, ..ControlConfig::default() };
        Control::start(config, id, self.coordinator.clone(), self.store.clone(), clock).await.expect("a server")
    }

    async fn job(&self, retry: Retry) -> JobId {
        self.job_with(retry, Overlap::default()).await
    }

    async fn job_with(&self, retry: Retry, overlap: Overlap) -> JobId {
        let mut document = JobDocument::new("job", Action::Exec(Exec { argv: vec!["true".into()] }));
        document.retry = Some(retry);
        document.overlap = overlap;
        let id = JobId::from_u128(3);
        self.store.create_job(document, id, SystemClock.now(), &Actor::new("test")).await.unwrap();
        id
    }

    /// As the leader does when a node was silent for a TTL.
    async fn hold_dead(&self, node: u128) {
        let key = keys::node(NodeId::from_u128(node));
        let seen = self.coordinator.get(&key).await.unwrap().unwrap();
        mark_lost(&*self.coordinator, &key, seen.version).await.unwrap();
    }

    async fn stored(&self, run: RunId, wanted: impl Fn(&Run) -> bool) -> Run {
        let waited = async {
            loop {
                if let Some(run) = self.store.run(run).await.unwrap().filter(&wanted) {
                    return run;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(30), waited).await;
        match found {
            Ok(run) => run,
            Err(_) => panic!("in vain: {:?}", self.store.run(run).await.unwrap()),
        }
    }
}

/// One session of a node with one server.
struct Session {
    said: mpsc::Sender<FromAgent>,
    told: mpsc::Receiver<ToAgent>,
}

impl Session {
    async fn open(control: &Control, node: u128) -> Self {
        let (orders, told) = mpsc::channel(1000);
        let (said, reports) = mpsc::channel(1000);
        control.connect_local(orders, reports);
        let mut session = Self { said, told };
        let (id, name) = (NodeId::from_u128(node).to_string(), format!("n{node}"));
        let hello = session::Hello { node: id, name, incarnation: 1, slots: 10, ..Default::default() };
        session.say(hello).await;
        session.until(|message| matches!(message, to_agent::Message::Welcome(_)).then_some(())).await;
        session
    }

    async fn say(&self, message: impl Into<FromAgent>) {
        self.said.send(message.into()).await.expect("the server listens");
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

    /// The next order that is not a reminder of one before.
    async fn order(&mut self, attempt: u32) -> session::Dispatch {
        self.until(|message| match message {
            to_agent::Message::Dispatch(order) if order.key.as_ref().is_some_and(|key| key.attempt == attempt) => {
                Some(order)
            }
            _ => None,
        })
        .await
    }

    async fn start(&self, key: &RunKey) {
        self.say(session::Taken { key: Some(key.clone()), refused: String::new(), ..Default::default() }).await;
        self.say(session::Started { key: Some(key.clone()), at_ms: SystemClock.now().as_millisecond(), local: None })
            .await;
    }

    async fn end(&self, key: &RunKey, outcome: &str, code: i32) {
        let now = SystemClock.now().as_millisecond();
        self.say(session::Ended {
            key: Some(key.clone()),
            outcome: outcome.into(),
            reason: format!("exit code {code}"),
            started_at_ms: Some(now - 1),
            ended_at_ms: now,
            exit_code: Some(code),
            ..Default::default()
        })
        .await;
    }

    async fn until_stored(&mut self, key: &RunKey) {
        let is_it = |stored: &session::Stored| stored.keys.contains(key);
        self.until(|message| match message {
            to_agent::Message::Stored(stored) => is_it(&stored).then_some(()),
            _ => None,
        })
        .await;
    }
}

fn retry(on: &[&str], delay: Span, on_node: RetryWhere) -> Retry {
    let on = on.iter().map(|on| (*on).to_owned()).collect();
    Retry { attempts: 3, on, delay, backoff: Backoff::Fixed, max_delay: Span::from_secs(300), on_node }
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

fn state_is(state: RunState) -> impl Fn(&Run) -> bool {
    move |run| run.state == state
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_attempt_is_followed_on_another_node_and_its_late_result_does_not_end_the_run() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job(retry(&["lost"], Span::from_secs(3600), RetryWhere::Other)).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let first = one.order(1).await;
    assert!(first.exclusive);
    let first_key = first.key.unwrap();
    one.start(&first_key).await;
    cluster.stored(run, state_is(RunState::Running)).await;
    let mut two = Session::open(&server, 2).await;
    cluster.hold_dead(1).await;
    let second = two.order(2).await;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_result_beats_an_attempt_that_has_no_node_yet() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    // There is no other node, so the next attempt has to wait for one.
    let job = cluster.job(retry(&["lost"], Span::from_secs(1), RetryWhere::Other)).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let key = one.order(1).await.key.unwrap();
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
    until(|| a.cluster().shards.len() == 8 && b.cluster().shards.len() == 8).await;
    let job = cluster.job(retry(&["failed"], Span::from_secs(0), RetryWhere::Other)).await;
    let (mut one_a, mut one_b) = (Session::open(&a, 1).await, Session::open(&b, 1).await);
    let (owner, other) = match a.run_now(manual(job)).await {
        Ok(_) => (a.clone(), b.clone()),
        Err(ControlError::NotOwned(_)) => {
            b.run_now(manual(job)).await.unwrap();
            (b.clone(), a.clone())
        }
        Err(cause) => panic!("{cause}"),
    };
    let asked = if owner.cluster().server == a.cluster().server { &mut one_a } else { &mut one_b };
    let key = asked.order(1).await.key.unwrap();
    asked.start(&key).await;
    let run: RunId = key.run.parse().unwrap();
    cluster.stored(run, state_is(RunState::Running)).await;
    let mut two = Session::open(&owner, 2).await;
    let told = if other.cluster().server == a.cluster().server { &mut one_a } else { &mut one_b };
    told.end(&key, "failed", 1).await;
    told.until_stored(&key).await;
    let second = two.order(2).await.key.unwrap();
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
    let job = cluster.job(retry(&["failed"], Span::from_secs(2), RetryWhere::Same)).await;
    let run = a.run_now(manual(job)).await.unwrap().id;
    let first = one.order(1).await;
    one.end(first.key.as_ref().unwrap(), "failed", 1).await;
    let waiting = cluster.stored(run, state_is(RunState::Waiting)).await;
    a.stop().await;
    let b = cluster.server("b").await;
    let mut two = Session::open(&b, 2).await;
    let mut one = Session::open(&b, 1).await;
    let second = one.order(2).await;
    assert!(SystemClock.now() >= waiting.next_attempt_at.unwrap(), "before its time");
    assert!(second.fence > first.fence);
    one.end(second.key.as_ref().unwrap(), "failed", 1).await;
    let third = one.order(3).await;
    one.end(third.key.as_ref().unwrap(), "failed", 7).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.attempt, ended.exit_code), (RunState::Failed, 3, Some(7)), "three in all");
    assert_eq!(cluster.store.attempts(run).await.unwrap().len(), 2);
    let stray =
        two.told.try_recv().is_ok_and(|message| matches!(message.message, Some(to_agent::Message::Dispatch(_))));
    assert!(!stray, "retry.where is same");
    b.stop().await;
}

/// The end of the attempt is in the store and the plan is not in the coordinator: its owner was killed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_whose_end_only_the_store_has_is_followed_after_a_takeover() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut one = Session::open(&a, 1).await;
    let job = cluster.job(retry(&["failed"], Span::from_secs(0), RetryWhere::Any)).await;
    let run = a.run_now(manual(job)).await.unwrap().id;
    let key = one.order(1).await.key.unwrap();
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
    };
    let attempt = belfry_core::attempt::Attempt::ended(&running, &ended);
    cluster.store.record_attempts(&[attempt]).await.unwrap();
    let b = cluster.server("b").await;
    let mut one = Session::open(&b, 1).await;
    one.order(2).await;
    b.stop().await;
}

async fn until(fact: impl Fn() -> bool) {
    let waited = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it comes true within a minute");
}

/// It was claimed before the attempt that it waited for was started: whoever keeps the greatest fence must let it in all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waited_for_another_run_has_a_greater_fence_than_its_last_attempt() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut node = Session::open(&server, 1).await;
    let job = cluster.job_with(retry(&["failed"], Span::from_secs(1), RetryWhere::Any), Overlap::Queue).await;
    let first = server.run_now(manual(job)).await.unwrap().id;
    let order = node.order(1).await;
    let key = order.key.unwrap();
    node.start(&key).await;
    cluster.stored(first, state_is(RunState::Running)).await;
    let behind = server.run_now(manual(job)).await.unwrap();
    assert_eq!(behind.state, RunState::Claimed);

    node.end(&key, "failed", 1).await;
    let again = node.order(2).await;
    assert!(again.fence > order.fence, "{} then {}", order.fence, again.fence);
    let key = again.key.unwrap();
    node.start(&key).await;
    node.end(&key, "succeeded", 0).await;
    let last = node.order(1).await;
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
    let job = cluster.job(retry(&["lost"], Span::from_secs(0), RetryWhere::Other)).await;
    let run = a.run_now(manual(job)).await.unwrap().id;
    let key = one.order(1).await.key.unwrap();
    one.start(&key).await;
    let first = cluster.stored(run, state_is(RunState::Running)).await;
    let mut two = Session::open(&a, 2).await;
    cluster.hold_dead(1).await;
    let key = two.order(2).await.key.unwrap();
    two.start(&key).await;
    cluster.stored(run, |run| run.state == RunState::Running && run.attempt == 2).await;
    let late = Run { state: RunState::Succeeded, ended_at: Some(SystemClock.now()), exit_code: Some(0), ..first };
    cluster.store.record_runs(&[late]).await.unwrap();
    a.stop().await;

    let b = cluster.server("b").await;
    let two = Session::open(&b, 2).await;
    until_open(&b, run).await;
    two.end(&key, "failed", 9).await;
    let ended = cluster.stored(run, |run| run.state.is_ended() && run.attempt == 2).await;
    assert_eq!((ended.state, ended.exit_code), (RunState::Failed, Some(9)));
    let attempts = cluster.store.attempts(run).await.unwrap();
    assert_eq!(attempts[0].state, RunState::Succeeded, "it is kept with its attempt");
    b.stop().await;
}

async fn until_open(server: &Control, run: RunId) {
    belfry_testkit::until("the server has the run", async || {
        server.open_runs(|open| open.id == run && open.state == RunState::Dispatched).pop()
    })
    .await;
}
