//! A server whose store goes away and comes back.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use belfry_control::{Control, ControlConfig, ControlError, ServerIdentity};
use belfry_coord::{Clock, Heartbeat, Life, Memory, SystemClock, keys};
use belfry_core::job::{Action, Service};
use belfry_core::run::RunState;
use belfry_core::units::Span;
use belfry_core::{JobId, NodeId, RunId, ShardId};
use belfry_proto::SERVER_NAME;
use belfry_proto::session::session_client::SessionClient;
use belfry_proto::session::{self, FromAgent, RunKey, to_agent};
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Sqlite, Statement, Step, Value, Written};
use belfry_store::{Actor, NodeChange, SecretHash, Store};
use belfry_testkit::until;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use crate::cluster::fired_alone;
use crate::support::{Cluster, ENDLESS_TTL, PATIENCE, Session, every_second, manual, shards, sqlite};

/// A database that answers when it is told to.
pub struct Moody {
    sqlite: Sqlite,
    is_away: AtomicBool,
    /// Says nothing, neither yes nor no.
    hangs: watch::Sender<bool>,
    /// A transaction with this word in it is refused for good.
    refuses: Mutex<Option<String>>,
}

impl Moody {
    async fn answers(&self) -> Result<(), SqlError> {
        let _ = self.hangs.subscribe().wait_for(|hangs| !hangs).await;
        if self.is_away.load(Ordering::SeqCst) { Err(SqlError::Away("it was told to be".into())) } else { Ok(()) }
    }

    pub fn be_away(&self, away: bool) {
        self.is_away.store(away, Ordering::SeqCst);
    }
}

#[async_trait]
impl Database for Moody {
    fn dialect(&self) -> Dialect {
        self.sqlite.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.answers().await?;
        self.sqlite.read(statement).await
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.answers().await?;
        let refused = self.refuses.lock().unwrap().clone().map(Value::Text);
        if refused.is_some_and(|word| steps.iter().any(|step| step.statement.args.contains(&word))) {
            return Err(SqlError::Broken("it was told to refuse this".into()));
        }
        self.sqlite.write(steps).await
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.answers().await?;
        self.sqlite.migrate(scope, migrations).await
    }
}

pub async fn cluster(config: ControlConfig) -> (Cluster, Arc<Moody>) {
    let cluster = Cluster::new().await;
    let database = Arc::new(Moody {
        sqlite: sqlite(&cluster.folder, "moody.db"),
        is_away: AtomicBool::new(false),
        hangs: watch::Sender::new(false),
        refuses: Mutex::default(),
    });
    let store = Store::open(database.clone()).await.unwrap();
    (Cluster { store, config, ..cluster }, database)
}

impl Session {
    /// Output in pieces of 60 bytes, and the end.
    async fn tell_all(&self, key: &RunKey, chunks: u32) {
        for sequence in 0..chunks {
            let (key, bytes) = (Some(key.clone()), vec![b'x'; 60].into());
            let offset = u64::from(sequence) * 60;
            self.say(session::OutputChunk { key, sequence, stream: 1, offset, bytes, ..Default::default() }).await;
        }
        let (key, outcome) = (Some(key.clone()), "succeeded".to_owned());
        self.say(session::Ended { key, outcome, started_at_ms: Some(1), ended_at_ms: 2, chunks, ..Default::default() })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_is_taken_only_with_all_of_the_output_before_it() {
    const CHUNKS: u32 = 5;
    let config = ControlConfig { unrecorded_output_bytes_max: 130, ..ControlConfig::default() };
    let (cluster, database) = cluster(config).await;
    let job = cluster.job(1).await;
    let control = cluster.server("a").await;
    let mut agent = Session::open(&control, 1).await;
    let run = control.run_now(manual(job)).await.unwrap();
    let key = agent.order().await.key.unwrap();
    agent.start(&key).await;

    database.be_away(true);
    agent.tell_all(&key, CHUNKS).await;
    until("as much waits as may", async || (control.cluster().unrecorded.output_bytes == 120).then_some(())).await;
    database.be_away(false);
    let mut asked = 0;
    loop {
        let acknowledged = agent
            .until(|message| match message {
                to_agent::Message::SendAgain(again) if again.keys.contains(&key) => Some(false),
                to_agent::Message::Stored(stored) if stored.keys.contains(&key) => Some(true),
                _ => None,
            })
            .await;
        if acknowledged {
            break;
        }
        asked += 1;
        agent.tell_all(&key, CHUNKS).await;
    }
    let kept = cluster.store.read_output(run.id, 1, 0, usize::MAX).await.unwrap();
    assert_eq!(kept.len() as u32, CHUNKS, "the end of a run was acknowledged without its output");
    assert!(asked > 0);
    assert_eq!(cluster.store.run(run.id).await.unwrap().unwrap().state, RunState::Succeeded);
    until("nothing waits", async || (control.cluster().unrecorded == Default::default()).then_some(())).await;
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_a_number_of_runs_that_wait_for_the_store_nothing_is_claimed_until_it_takes_them() {
    const RUNS_MAX: usize = 3;
    let config = ControlConfig { unrecorded_runs_max: RUNS_MAX, ..ControlConfig::default() };
    let (cluster, database) = cluster(config).await;
    let control = cluster.server("a").await;
    // No node: each run is claimed, and waits.
    let job = cluster.job_with(1, every_second).await;
    control.jobs_changed().await;
    database.be_away(true);
    until("too much waits", async || control.cluster().unrecorded.full.then_some(())).await;
    let open = control.cluster().open_runs;
    assert!(matches!(control.run_now(manual(job)).await, Err(ControlError::TooMuchUnrecorded)));
    let first: Vec<RunId> = control.open_runs(|_| true).into_iter().map(|run| run.id).collect();
    database.be_away(false);
    until("fires are claimed again", async || {
        let cluster = control.cluster();
        (!cluster.unrecorded.full && cluster.open_runs > open).then_some(())
    })
    .await;
    for run in first {
        assert!(cluster.store.run(run).await.unwrap().is_some(), "{run} was claimed and has no record");
    }
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_runs_are_open_than_the_coordinator_has_room_for() {
    const OPEN_MAX: u64 = 5;
    let room_bytes = OPEN_MAX * 1024 * 16 * 2;
    let cluster = Cluster { coordinator: Arc::new(Memory::with_room(room_bytes)), ..Cluster::new().await };
    let control = cluster.server("a").await;
    // No node: each run is claimed, and waits.
    let job = cluster.job_with(1, every_second).await;
    control.jobs_changed().await;
    let is_full = |control: &Control| control.cluster().shards.iter().any(|shard| shard.full);
    until("the shard is full", async || is_full(&control).then_some(())).await;
    assert_eq!(control.cluster().open_runs, OPEN_MAX);
    assert!(matches!(control.run_now(manual(job)).await, Err(ControlError::NoRoom)));
    let first = control.open_runs(|_| true);
    let newest = first.iter().map(|run| run.planned).max();

    for run in &first {
        control.kill_run(run.id, "test").await.unwrap();
    }
    until("what was due meanwhile is claimed", async || {
        let open = control.open_runs(|run| Some(run.planned) > newest);
        assert!(control.cluster().open_runs <= OPEN_MAX);
        (!open.is_empty()).then_some(())
    })
    .await;
    control.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_that_the_store_refuses_for_good_keeps_no_other_out_of_history() {
    let (cluster, database) = cluster(ControlConfig::default()).await;
    let (refused, taken) = (cluster.job(1).await, cluster.job(2).await);
    let control = cluster.server("a").await;
    let mut agent = Session::open(&control, 1).await;
    // By its name: the ids of jobs and nodes look alike here.
    *database.refuses.lock().unwrap() = Some("j1".to_owned());
    let mut runs = Vec::new();
    for job in [refused, taken] {
        runs.push(control.run_now(manual(job)).await.unwrap().id);
        let key = agent.order_of(|key| key.run == runs.last().unwrap().to_string()).await.key.unwrap();
        agent.start(&key).await;
        agent.end(&key, "succeeded", 0).await;
    }
    assert_eq!(cluster.stored(runs[1], |run| run.state.is_ended()).await.state, RunState::Succeeded);
    assert!(cluster.store.run(runs[0]).await.unwrap().is_none());
    assert!(matches!(control.cluster().store, belfry_control::Health::Ok), "{:?}", control.cluster().store);
    assert_eq!(control.cluster().unrecorded.runs, 1, "it is counted with what waits");
    *database.refuses.lock().unwrap() = None;
    // It was kept, and is offered again.
    assert_eq!(cluster.stored(runs[0], |run| run.state.is_ended()).await.state, RunState::Succeeded);
    control.stop().await;
}

/// A password that was changed, say: it is no record's fault, and all of them wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_takes_nothing_is_away_whatever_it_says() {
    let (cluster, database) = cluster(ControlConfig::default()).await;
    let jobs = [cluster.job(1).await, cluster.job(2).await];
    let control = cluster.server("a").await;
    let mut agent = Session::open(&control, 1).await;
    // A word that is in every record.
    *database.refuses.lock().unwrap() = Some("default".to_owned());
    let mut runs = Vec::new();
    for job in jobs {
        runs.push(control.run_now(manual(job)).await.unwrap().id);
        let key = agent.order_of(|key| key.run == runs.last().unwrap().to_string()).await.key.unwrap();
        agent.start(&key).await;
        agent.end(&key, "succeeded", 0).await;
    }
    until("it is said to be away", async || {
        matches!(control.cluster().store, belfry_control::Health::Away { .. }).then_some(())
    })
    .await;
    *database.refuses.lock().unwrap() = None;
    for run in runs {
        assert_eq!(cluster.stored(run, |run| run.state.is_ended()).await.state, RunState::Succeeded);
    }
    until("nothing waits", async || (control.cluster().unrecorded == Default::default()).then_some(())).await;
    control.stop().await;
}

/// Two nodes fall silent one after the other while the store neither takes nor refuses anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_held_dead_in_time_while_the_store_says_nothing() {
    const BEAT: Duration = Duration::from_millis(250);
    let config = ControlConfig { ttl: Duration::from_secs(2), ..ControlConfig::default() };
    let (cluster, database) = cluster(config).await;
    let control = cluster.server("a").await;
    let (_one, two) = (Session::open(&control, 1).await, Session::open(&control, 2).await);
    database.hangs.send_replace(true);
    let is_lost = async |node: u128| {
        let entry = cluster.coordinator.get(&keys::node(NodeId::from_u128(node))).await.unwrap()?;
        (Heartbeat::decode(&entry).ok()?.life == Life::Lost).then_some(())
    };
    let beats = async {
        for sequence in 1.. {
            two.say(session::Heartbeat { sequence }).await;
            tokio::time::sleep(BEAT).await;
        }
    };
    tokio::select! {
        () = until("the first node is held dead", async || is_lost(1).await) => {}
        () = beats => {}
    }
    assert_eq!(is_lost(2).await, None);
    until("the second node is held dead", async || is_lost(2).await).await;
    database.hangs.send_replace(false);
    control.stop().await;
}

/// A run that waits at its node for its jitter, and a service, of jobs that are younger than the snapshot; and a run whose job was removed
/// before it. Whether a job that the snapshot lacks is gone or new, the store alone can tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_recalled_or_killed_because_a_snapshot_lacks_its_job() {
    let (without, database) = cluster(ControlConfig { ttl: ENDLESS_TTL, ..ControlConfig::default() }).await;
    let snapshot = without.folder.path().join("snapshot.jsonl");
    let with = Cluster {
        config: ControlConfig { snapshot: Some(snapshot.clone()), ..without.config.clone() },
        ..without.clone()
    };
    // All in one shard: when one of them fires there, what is open of the others has been judged.
    let shard = JobId::from_u128(1).shard();
    let mut numbers = (1..).filter(|number| JobId::from_u128(*number).shard() == shard);
    let [removed, known, waiting, service] = std::array::from_fn(|_| numbers.next().unwrap());

    let removed = without.job(removed).await;
    let server = without.server("a").await;
    let mut session = roomy(&server).await;
    server.run_now(manual(removed)).await.unwrap();
    let removed_key = session.order().await.key.unwrap();
    drop(session);
    server.stop().await;
    without.store.remove_job(removed, None, SystemClock.now(), &Actor::new("test")).await.unwrap();

    let known = without.job_with(known, every_second).await.to_string();
    let server = with.server("b").await;
    until("there is a snapshot", async || snapshot.exists().then_some(())).await;
    server.stop().await;

    let server = without.server("c").await;
    let mut session = roomy(&server).await;
    let waiting = without
        .job_with(waiting, |document| {
            every_second(document);
            document.jitter = Some(Span::from_secs(300));
        })
        .await
        .to_string();
    let service = without
        .job_with(service, |document| {
            let (command, argv) = (Some("serve".to_owned()), vec![]);
            document.action = Action::Service(Service { command, argv, stop_grace: None, restart_delay: None });
        })
        .await
        .to_string();
    server.jobs_changed().await;
    let mut keys = Vec::new();
    while keys.len() < 2 {
        let order = session.order().await;
        if order.job_id == service {
            session.start(order.key.as_ref().unwrap()).await;
            without
                .stored(order.key.as_ref().unwrap().run.parse().unwrap(), |run| run.state == RunState::Running)
                .await;
        } else if order.job_id != waiting || order.start_in_ms < 60_000 {
            continue;
        }
        keys.push(order.key.unwrap());
    }
    drop(session);
    server.stop().await;

    database.be_away(true);
    let server = with.server("d").await;
    let mut session = roomy(&server).await;
    let is_stopped = |message: &to_agent::Message| match message {
        to_agent::Message::Recall(recall) => recall.key.clone().filter(|key| keys.contains(key) || *key == removed_key),
        to_agent::Message::Kill(kill) => kill.key.clone().filter(|key| keys.contains(key)),
        _ => None,
    };
    session
        .until(|message| {
            assert_eq!(is_stopped(&message), None, "the snapshot lacks its job");
            matches!(message, to_agent::Message::Dispatch(order) if order.job_id == known).then_some(())
        })
        .await;
    database.be_away(false);
    server.jobs_changed().await;
    let mut missing: Vec<RunKey> = keys.iter().cloned().chain([removed_key.clone()]).collect();
    while !missing.is_empty() {
        let heard = session
            .until(|message| {
                let stopped = is_stopped(&message);
                assert!(stopped.is_none() || stopped.as_ref() == Some(&removed_key), "its job is there");
                match message {
                    to_agent::Message::Dispatch(order) => order.key,
                    _ => stopped,
                }
            })
            .await;
        missing.retain(|key| *key != heard);
    }
    server.stop().await;
}

/// It takes what it is asked, and answers nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_taken_over_while_the_store_says_nothing_fires_from_the_snapshot() {
    let config = ControlConfig { ttl: Duration::from_secs(40), ..ControlConfig::default() };
    let (without, database) = cluster(config).await;
    let snapshot = without.folder.path().join("snapshot.jsonl");
    let config = ControlConfig { snapshot: Some(snapshot.clone()), ..without.config.clone() };
    let (stopping, staying) = (without.server("a").await, Cluster { config, ..without.clone() }.server("b").await);
    until("the shards are shared", async || (shards(&stopping) == 8 && shards(&staying) == 8).then_some(())).await;
    let theirs: Vec<ShardId> = stopping.cluster().shards.iter().map(|shard| shard.shard).collect();
    let number = (1..).find(|number| theirs.contains(&JobId::from_u128(*number).shard())).unwrap();
    let job = without.job_with(number, every_second).await;
    stopping.jobs_changed().await;
    until("the job is in the snapshot", async || {
        std::fs::read_to_string(&snapshot).is_ok_and(|text| text.contains(&job.to_string())).then_some(())
    })
    .await;
    // It has no node where it is: what the next owner takes over is open.
    until("a run waits", async || (!stopping.open_runs(|_| true).is_empty()).then_some(())).await;
    let mut session = roomy(&staying).await;
    database.hangs.send_replace(true);
    let stop = async { stopping.stop().await };
    let fired = async {
        until("all shards are the other's", async || (shards(&staying) == 16).then_some(())).await;
        let taken_ms = SystemClock.now().as_millisecond();
        while session.order().await.planned_ms < taken_ms {}
        database.hangs.send_replace(false);
    };
    tokio::join!(stop, fired);
    staying.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_drained_or_excluded_stays_so_when_it_comes_back_while_the_store_is_away() {
    let (cluster, database) = cluster(ControlConfig::default()).await;
    let server = cluster.server("a").await;
    let session = Session::open(&server, 1).await;
    let set = NodeChange {
        labels: Some([("zone".to_owned(), "b".to_owned())].into()),
        weight: Some(7),
        slots: Some(Some(3)),
        draining: Some(true),
        excluded: Some(true),
    };
    cluster.store.update_node(session.node, set, SystemClock.now(), &Actor::new("test")).await.unwrap();
    server.nodes_changed().await;
    let as_set = server.nodes().remove(0);
    assert!(as_set.draining && as_set.excluded && as_set.slots == 3);
    database.be_away(true);
    let mut again = Session::connect(&server, 1);
    again.hello(2).await;
    let now = server.nodes().remove(0);
    assert_eq!((now.draining, now.excluded), (true, true), "it gets work again");
    assert_eq!((now.weight, now.slots, now.labels), (as_set.weight, as_set.slots, as_set.labels));
    database.be_away(false);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_started_while_the_store_says_nothing_fires_from_its_snapshot() {
    let (without, database) = cluster(ControlConfig { ttl: ENDLESS_TTL, ..ControlConfig::default() }).await;
    let snapshot = without.folder.path().join("snapshot.jsonl");
    let config = ControlConfig { snapshot: Some(snapshot.clone()), ..without.config.clone() };
    let with = Cluster { config, ..without };
    with.job_with(1, every_second).await;
    let server = with.server("a").await;
    until("there is a snapshot", async || snapshot.exists().then_some(())).await;
    server.stop().await;
    database.hangs.send_replace(true);
    let fires = async {
        let server = with.server("b").await;
        roomy(&server).await.order().await;
        server
    };
    let server = tokio::time::timeout(PATIENCE, fires).await.expect("it waits for the store");
    database.hangs.send_replace(false);
    server.stop().await;
}

/// A session of a node with room for all that fires.
pub async fn roomy(server: &Control) -> Session {
    let mut session = Session::connect(server, 1);
    let hello = session::Hello { slots: 10_000, ..session.greeting(1) };
    session.greet(hello).await;
    session
}

/// As many as a message of 4 MiB has no room for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_comes_back_over_the_network_however_many_results_it_has_kept() {
    const RESULTS: u128 = 150_000;
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let certified = rcgen::generate_simple_self_signed([SERVER_NAME.to_owned()]).unwrap();
    let chain = certified.cert.pem();
    server.serve_agents(listener, ServerIdentity { chain: chain.clone(), key: certified.signing_key.serialize_pem() });
    let (node, now) = (NodeId::from_u128(1), SystemClock.now());
    let (token, credential) = (SecretHash::of("token"), SecretHash::of("credential"));
    let expires = now + Duration::from_secs(60);
    cluster.store.create_join_token(token.clone(), expires, now, &Actor::new("test")).await.unwrap();
    cluster.store.join_node(token, node, "n1", credential, now).await.unwrap();

    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(chain)).domain_name(SERVER_NAME);
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap();
    let mut client = SessionClient::new(endpoint.connect().await.unwrap());
    let finished = (1..=RESULTS).map(|run| RunKey { run: RunId::from_u128(run).to_string(), attempt: 1 }).collect();
    let hello = session::Hello {
        node: node.to_string(),
        name: "n1".to_owned(),
        incarnation: 1,
        credential: "credential".to_owned(),
        finished,
        ..Default::default()
    };
    let said = tokio_stream::once(FromAgent::from(hello)).chain(tokio_stream::pending());
    let mut told = client.open(said).await.expect("it is let in").into_inner();
    let first = told.message().await.unwrap().unwrap().message;
    assert!(matches!(first, Some(to_agent::Message::Welcome(_))), "{first:?}");
    server.stop().await;
}

/// They are on the disk of their node, whose own business they are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nodes_fired_by_themselves_leaves_room_for_orders_and_is_asked_for_when_the_store_is_back() {
    const RUNS_MAX: usize = 100;
    let config = ControlConfig { unrecorded_runs_max: RUNS_MAX, ttl: ENDLESS_TTL, ..ControlConfig::default() };
    let (cluster, database) = cluster(config).await;
    let job = cluster.job(1).await;
    let control = cluster.server("a").await;
    let mut agent = Session::open(&control, 1).await;
    database.be_away(true);
    let first = SystemClock.now().round(jiff::Unit::Second).unwrap() - Duration::from_secs(2_000);
    let ends: Vec<session::Ended> = (0..1_000)
        .map(|second| fired_alone(JobId::from_u128(3), agent.node, first + Duration::from_secs(second), 0))
        .collect();
    for ended in &ends {
        let (key, local) = (ended.key.clone(), ended.local.clone());
        agent.say(session::Started { key, local, at_ms: ended.started_at_ms.unwrap(), ..Default::default() }).await;
        agent.say(ended.clone()).await;
    }
    // Answered after all that was said before it.
    agent.say(session::Heartbeat { sequence: 1 }).await;
    agent.until(|message| matches!(message, to_agent::Message::Heartbeat(_)).then_some(())).await;
    let unrecorded = control.cluster().unrecorded.runs as usize;
    assert!((1..=RUNS_MAX / 2).contains(&unrecorded), "{unrecorded} runs wait for the store");
    let run = control.run_now(manual(job)).await.expect("there is room for what is ordered");
    let key = agent.order_of(|key| key.run == run.id.to_string()).await.key.unwrap();

    database.be_away(false);
    agent.start(&key).await;
    agent.end(&key, "succeeded", 0).await;
    let mut open: BTreeSet<String> = ends.iter().map(|ended| ended.key.clone().unwrap().run).collect();
    let mut asked = 0;
    while !open.is_empty() {
        let (keys, again) = agent
            .until(|message| match message {
                to_agent::Message::SendAgain(again) => Some((again.keys, true)),
                to_agent::Message::Stored(stored) => Some((stored.keys, false)),
                _ => None,
            })
            .await;
        for key in keys {
            if again {
                asked += 1;
                agent.say(ends.iter().find(|ended| ended.key.as_ref() == Some(&key)).unwrap().clone()).await;
            } else {
                open.remove(&key.run);
            }
        }
    }
    assert!(asked >= ends.len() - RUNS_MAX / 2);
    for ended in &ends {
        let kept = cluster.store.run(ended.key.as_ref().unwrap().run.parse().unwrap()).await.unwrap();
        assert_eq!(kept.map(|run| run.state), Some(RunState::Succeeded));
    }
    assert_eq!(cluster.stored(run.id, |run| run.state.is_ended()).await.state, RunState::Succeeded);
    until("nothing waits", async || (control.cluster().unrecorded == Default::default()).then_some(())).await;
    control.stop().await;
}
