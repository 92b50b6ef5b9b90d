//! Where runs go and what they wait for.

use std::collections::BTreeMap;

use belfry_control::Control;
use belfry_coord::{Clock, SystemClock};
use belfry_core::job::{JobDocument, Overlap, Placement};
use belfry_core::place::By;
use belfry_core::run::{Run, RunState};
use belfry_core::units::Span;
use belfry_core::{JobId, NodeId};
use belfry_proto::session::{self, RunKey};
use belfry_store::{Actor, NodeChange};

use crate::support::{Cluster, ENDLESS_TTL, Session, manual, shards, until};

const NODES: u128 = 5;
const JOBS: u128 = 8;

async fn agents(control: &Control) -> Vec<Session> {
    let mut agents = Vec::new();
    for number in 1..=NODES {
        agents.push(Session::open(control, number).await);
    }
    agents
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

/// An order that was sent twice is refused twice, and the second refusal comes when the run has been given to another node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_has_no_say_in_what_another_one_has() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job(3).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let key = one.order().await.key.unwrap();
    let mut two = Session::open(&server, 2).await;
    one.refuse(&key).await;
    two.order().await;
    until(|| server.open_run(run).is_some_and(|run| run.state == RunState::Dispatched)).await;

    one.refuse(&key).await;
    one.say(printed(&key, b"forged")).await;
    one.end(&key, "succeeded", 0).await;
    one.start(&key).await;
    // Answered by the shard, and so after it has heard the rest.
    one.save(&key, session::SaveState { sequence: 1, ..Default::default() }).await;
    let going = server.open_run(run).expect("it is open");
    assert_eq!((going.state, going.node), (RunState::Dispatched, Some(two.node)));
    two.start(&key).await;
    two.say(printed(&key, b"true")).await;
    two.end(&key, "failed", 7).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.exit_code, ended.node), (RunState::Failed, Some(7), Some(two.node)));
    let kept = cluster.store.read_output(run, 1, 0, usize::MAX).await.unwrap();
    assert_eq!(kept.iter().map(|chunk| &chunk.bytes[..]).collect::<Vec<_>>(), [b"true"]);
    server.stop().await;
}

/// The first that an attempt printed.
fn printed(key: &RunKey, text: &'static [u8]) -> session::OutputChunk {
    session::OutputChunk { key: Some(key.clone()), stream: 1, bytes: text.into(), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sticky_job_keeps_its_node_when_its_shard_is_taken_over() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let first = cluster.server("a").await;
    let mut at_first = agents(&first).await;
    let mut nodes = BTreeMap::new();
    for number in 1..=JOBS {
        let sticky = |document: &mut JobDocument| {
            document.placement = Placement::Sticky(Span::from_secs(3600));
            document.overlap = Overlap::Allow;
        };
        let job = cluster.job_with(number, sticky).await;
        let run = placed(&first, job).await;
        assert_eq!(by(&run), By::Anew);
        let node = run.node.expect("placed");
        let again = placed(&first, job).await;
        assert_eq!((again.node, by(&again)), (Some(node), By::LastNode));
        // Of half of them the store knows the last run; of the others only the open keys do.
        if number % 2 == 0 {
            for run in [run.id, again.id] {
                let agent = at_first.iter_mut().find(|agent| agent.node == node).expect("its agent");
                let key = agent.order_of(|key| key.run == run.to_string()).await.key.unwrap();
                agent.end(&key, "succeeded", 0).await;
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
    until(|| shards(&second) == 16).await;
    for (job, node) in nodes {
        let run = placed(&second, job).await;
        assert_eq!((run.node, by(&run)), (Some(node), By::LastNode), "job {job}");
    }
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_no_node_takes_waits_says_why_and_is_skipped_in_the_end() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let _agents = agents(&server).await;
    let two = NodeId::from_u128(2);
    let set = async |change: NodeChange| {
        cluster.store.update_node(two, change, SystemClock.now(), &Actor::new("test")).await.unwrap();
        server.nodes_changed().await;
    };
    set(NodeChange { draining: Some(true), ..NodeChange::default() }).await;
    let job = cluster
        .job_with(1, |document| {
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
    cluster.stored(run, |run| run.reason == Some(why("excluded"))).await;
    // Less patience from now on: its instant is long ago.
    cluster.change_job(job, |document| document.misfire.within = Span::from_secs(0)).await;
    server.jobs_changed().await;
    until(|| server.open_run(run).is_none()).await;
    let ended = cluster.store.run(run).await.unwrap().unwrap();
    assert_eq!(ended.state, RunState::Skipped);
    assert_eq!(ended.reason, Some(format!("{}; it waited for 0s after its instant (misfire.within)", why("excluded"))));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_knows_what_a_node_has_from_all_of_them() {
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    let (at_a, at_b) = (Session::open(&a, 1).await, Session::open(&b, 1).await);
    let load = |control: &Control| control.nodes()[0].load;
    for agent in [&at_a, &at_b] {
        agent.say(session::Load { live: 7, ..Default::default() }).await;
    }
    until(|| load(&a) == 7 && load(&b) == 7).await;
    at_b.say(session::Load { live: 0, ..Default::default() }).await;
    until(|| load(&b) == 0).await;
    a.stop().await;
    b.stop().await;
}
