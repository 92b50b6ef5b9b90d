//! Where runs go and what they wait for, on servers whose agents say exactly what the test lets them say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belfry_control::{Addresses, Control, ControlConfig, ManualRun};
use belfry_coord::{Clock, Coordinator, Memory, SystemClock};
use belfry_core::job::{Action, Exec, JobDocument, Overlap, Placement};
use belfry_core::place::By;
use belfry_core::run::{Run, RunState};
use belfry_core::units::Span;
use belfry_core::{JobId, NodeId, RunId, ServerId};
use belfry_proto::session::{self, FromAgent, ToAgent, to_agent};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, NodeChange, Store};
use tokio::sync::mpsc;

/// Longer than any test: the agents here have no heartbeat.
const TTL: Duration = Duration::from_secs(300);
const NODES: u128 = 5;
const JOBS: u128 = 8;

struct Cluster {
    _folder: tempfile::TempDir,
    store: Store,
    coordinator: Arc<dyn Coordinator>,
}

impl Cluster {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let database = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
        let store = Store::open(Arc::new(database)).await.unwrap();
        Self { _folder: folder, store, coordinator: Arc::new(Memory::default()) }
    }

    async fn server(&self, name: &str) -> Control {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let id = ServerId::new(clock.now(), u128::from(name.as_bytes()[0]));
        let addresses = Addresses { api: format!("http://{name}:1"), agents: String::new() };
        let config = ControlConfig { ttl: TTL, addresses, ..ControlConfig::default() };
        Control::start(config, id, self.coordinator.clone(), self.store.clone(), clock).await.expect("a server")
    }

    async fn job(&self, number: u128, change: impl FnOnce(&mut JobDocument)) -> JobId {
        let mut document = JobDocument::new(format!("j{number}"), Action::Exec(Exec { argv: vec!["true".into()] }));
        change(&mut document);
        let id = JobId::from_u128(number);
        self.store.create_job(document, id, SystemClock.now(), &Actor::new("test")).await.unwrap();
        id
    }
}

struct Agent {
    node: NodeId,
    said: mpsc::Sender<FromAgent>,
    told: mpsc::Receiver<ToAgent>,
}

impl Agent {
    async fn connect(control: &Control, number: u128) -> Self {
        let (orders, told) = mpsc::channel(1000);
        let (said, reports) = mpsc::channel(1000);
        control.connect_local(orders, reports);
        let node = NodeId::from_u128(number);
        let name = format!("n{number}");
        let hello = session::Hello { node: node.to_string(), name, incarnation: 1, slots: 10, ..Default::default() };
        said.send(hello.into()).await.expect("the server listens");
        until(|| control.node_is_connected(node)).await;
        Self { node, said, told }
    }

    async fn ends(&mut self, run: RunId) {
        let waited = async {
            loop {
                let message = self.told.recv().await.expect("the session lives").message;
                if let Some(to_agent::Message::Dispatch(order)) = message
                    && let Some(key) = order.key.filter(|key| key.run == run.to_string())
                {
                    return key;
                }
            }
        };
        let key = tokio::time::timeout(Duration::from_secs(30), waited).await.expect("it gets the order");
        let now = SystemClock.now().as_millisecond();
        let ended =
            session::Ended { key: Some(key), outcome: "succeeded".into(), ended_at_ms: now, ..Default::default() };
        self.said.send(ended.into()).await.expect("the server listens");
    }
}

async fn agents(control: &Control) -> Vec<Agent> {
    let mut agents = Vec::new();
    for number in 1..=NODES {
        agents.push(Agent::connect(control, number).await);
    }
    agents
}

async fn until(fact: impl Fn() -> bool) {
    let waited = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.expect("it comes true within a minute");
}

fn manual(job: JobId) -> ManualRun {
    ManualRun {
        job,
        by: "test".into(),
        idempotency_key: None,
        env: BTreeMap::new(),
        node: None,
        force: false,
        rerun_of: None,
    }
}

/// A run of the job now, once it has its node.
async fn placed(control: &Control, job: JobId) -> Run {
    let run = control.run_now(manual(job)).await.expect("a run").id;
    until(|| control.open_run(run).is_some_and(|run| run.node.is_some())).await;
    control.open_run(run).expect("it is open")
}

fn by(run: &Run) -> By {
    run.placement.as_ref().expect("a decision is kept").by
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sticky_job_keeps_its_node_when_its_shard_is_taken_over() {
    let cluster = Cluster::new().await;
    let first = cluster.server("a").await;
    let mut at_first = agents(&first).await;
    let mut nodes = BTreeMap::new();
    for number in 1..=JOBS {
        let sticky = |document: &mut JobDocument| {
            document.placement = Placement::Sticky(Span::from_secs(3600));
            document.overlap = Overlap::Allow;
        };
        let job = cluster.job(number, sticky).await;
        let run = placed(&first, job).await;
        assert_eq!(by(&run), By::Anew);
        let node = run.node.expect("placed");
        let again = placed(&first, job).await;
        assert_eq!((again.node, by(&again)), (Some(node), By::LastNode));
        // Of half of them the store knows the last run; of the others only the open keys do.
        if number % 2 == 0 {
            for run in [run.id, again.id] {
                let agent = at_first.iter_mut().find(|agent| agent.node == node).expect("its agent");
                agent.ends(run).await;
                until(|| first.open_run(run).is_none()).await;
            }
        }
        nodes.insert(job, node);
    }
    let different: std::collections::BTreeSet<_> = nodes.values().collect();
    assert!(different.len() > 1, "else it shows nothing: {nodes:?}");
    first.stop().await;

    let second = cluster.server("b").await;
    let _at_second = agents(&second).await;
    until(|| second.cluster().shards.len() == 16).await;
    for (job, node) in nodes {
        let run = placed(&second, job).await;
        assert_eq!((run.node, by(&run)), (Some(node), By::LastNode), "job {job}");
    }
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_no_node_takes_waits_says_why_and_is_skipped_in_the_end() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let _agents = agents(&server).await;
    let two = NodeId::from_u128(2);
    let set = async |change: NodeChange| {
        cluster.store.update_node(two, change, SystemClock.now(), &Actor::new("test")).await.unwrap();
        server.nodes_changed().await;
    };
    set(NodeChange { draining: Some(true), ..NodeChange::default() }).await;
    let job = cluster
        .job(1, |document| {
            document.select.hosts = vec!["n2".into(), "n9".into()];
            document.misfire.within = Span::from_secs(20);
        })
        .await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let why = |two: &str| {
        format!(
            "no node can take it (n1, n3, n4 and 1 more: not in the job's select.hosts; n2: {two}; \
             n9: in select.hosts, and no node of that name has joined)"
        )
    };
    until(|| server.open_run(run).is_some_and(|run| run.reason == Some(why("draining")))).await;
    let waiting = server.open_run(run).unwrap();
    assert_eq!((waiting.state, waiting.placement.unwrap().fit), (RunState::Claimed, 0));
    // Another reason takes the place of the first, in the store too.
    set(NodeChange { excluded: Some(true), ..NodeChange::default() }).await;
    let stored = async || cluster.store.run(run).await.unwrap().and_then(|run| run.reason);
    while stored().await != Some(why("excluded")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Less patience from now on: its instant is long ago.
    let mut impatient = cluster.store.job_by_id(job).await.unwrap().unwrap();
    impatient.document.misfire.within = Span::from_secs(0);
    cluster.store.update_job(job, 1, impatient.document, SystemClock.now(), &Actor::new("test")).await.unwrap();
    server.jobs_changed().await;
    until(|| server.open_run(run).is_none()).await;
    let ended = cluster.store.run(run).await.unwrap().unwrap();
    assert_eq!(ended.state, RunState::Skipped);
    assert_eq!(ended.reason, Some(format!("{}; it waited for 0s after its instant (misfire.within)", why("excluded"))));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_knows_what_a_node_has_from_all_of_them() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    let (at_a, at_b) = (Agent::connect(&a, 1).await, Agent::connect(&b, 1).await);
    let load = |control: &Control| control.nodes()[0].load;
    for agent in [&at_a, &at_b] {
        agent.said.send(session::Load { live: 7, spool_full: false }.into()).await.unwrap();
    }
    until(|| load(&a) == 7 && load(&b) == 7).await;
    at_b.said.send(session::Load { live: 0, spool_full: false }.into()).await.unwrap();
    until(|| load(&b) == 0).await;
    a.stop().await;
    b.stop().await;
}
