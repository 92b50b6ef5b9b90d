use std::time::Duration;

use belfry_agent::{Agent, AgentConfig};
use belfry_proto::session::{OutputChunk, from_agent};

use crate::server::{Server, config, key, shell, start, start_with, stdout};

const TTL: Duration = Duration::from_secs(10);

fn spool_bytes(folder: &std::path::Path) -> u64 {
    let segments = std::fs::read_dir(folder.join("agent/spool")).unwrap().flatten();
    segments.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn hello_says_who_the_node_is_and_what_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    assert_eq!(server.hello.node, agent.node().to_string());
    assert_eq!((server.hello.name.as_str(), server.hello.slots), ("node1", 100));
    assert_eq!((server.hello.labels["zone"].as_str(), server.hello.credential.as_str()), ("a", ""));
    assert!(server.hello.running.is_empty() && server.hello.finished.is_empty());
    server.stores = false;
    server.dispatch(shell(1, "true")).await;
    server.until_ended(1).await;
    server.dispatch(shell(2, "sleep 5")).await;
    server.until_started(2).await;
    let second = Server::connected(agent.connect_local()).await;
    assert_eq!((second.hello.running, second.hello.finished), (vec![key(2)], vec![key(1)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_sent_again_to_the_next_session_until_it_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    server.stores = false;
    server.dispatch(shell(1, "echo precious")).await;
    server.until_ended(1).await;
    drop(server);
    for _session in 0..2 {
        let mut server = Server::welcome(agent.connect_local(), TTL).await;
        server.stores = false;
        assert_eq!(server.hello.finished, [key(1)]);
        let (chunks, ended) = server.result(1).await;
        assert_eq!((ended.outcome.as_str(), stdout(&chunks).as_str()), ("succeeded", "precious\n"));
    }
    let mut server = Server::welcome(agent.connect_local(), TTL).await;
    server.until_ended(1).await;
    server.until_heard().await;
    drop(server);
    let server = Server::connected(agent.connect_local()).await;
    assert!(server.hello.finished.is_empty(), "{:?}", server.hello.finished);
}

#[tokio::test(flavor = "multi_thread")]
async fn results_go_to_the_session_of_the_order_while_it_lives_else_to_any() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut first) = start(folder.path()).await;
    let mut second = Server::welcome(agent.connect_local(), TTL).await;
    second.dispatch(shell(1, "echo one")).await;
    assert_eq!(second.until_ended(1).await.outcome, "succeeded");
    second.dispatch(shell(2, "echo early; sleep 1; echo late")).await;
    second.until(|message| matches!(message, from_agent::Message::Output(_)).then_some(())).await;
    drop(second);
    let (chunks, ended) = first.result(2).await;
    assert_eq!(ended.outcome, "succeeded");
    let mut kept: Vec<_> = chunks.into_iter().filter(|chunk| !chunk.live_only).collect();
    kept.dedup_by_key(|chunk| chunk.sequence);
    assert_eq!(stdout(&kept), "early\nlate\n", "the whole output, also what the other one had");
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_start_of_the_agent_delivers_what_the_last_one_could_not() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    let (node, incarnation) = (agent.node(), agent.incarnation());
    server.stores = false;
    server.dispatch(shell(1, "echo precious")).await;
    server.until_ended(1).await;
    drop((agent, server));
    let agent = restart(folder.path()).await;
    assert_eq!(agent.node(), node);
    assert!(agent.incarnation() > incarnation);
    let mut server = Server::welcome(agent.connect_local(), TTL).await;
    assert_eq!((server.hello.running.len(), &server.hello.finished), (0, &vec![key(1)]));
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), stdout(&chunks).as_str()), ("succeeded", "precious\n"));
}

/// The lock goes with the last task of the old one, a moment after it was dropped.
async fn restart(folder: &std::path::Path) -> Agent {
    loop {
        match Agent::start(config(folder)).await {
            Ok(agent) => return agent,
            Err(belfry_agent::AgentError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(other) => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_read_loses_no_output_and_delays_no_other_run() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut slow) = start(folder.path()).await;
    let mut quick = Server::welcome(agent.connect_local(), TTL).await;
    slow.dispatch(shell(9, "true")).await;
    slow.until_ended(9).await;
    let document = serde_json::json!({"name": "job", "action": {"shell": {"command": "seq 1 1500000"}}, "output": {"keep": "16MiB"}});
    slow.dispatch(crate::server::with_document(1, &document)).await;
    while spool_bytes(folder.path()) < 8 * 1024 * 1024 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    quick.dispatch(shell(2, "echo quick")).await;
    assert_eq!(stdout(&quick.result(2).await.0), "quick\n");
    let (chunks, ended) = slow.result(1).await;
    let mut kept: Vec<_> = chunks.into_iter().filter(|chunk| !chunk.live_only).collect();
    kept.sort_by_key(|chunk| chunk.sequence);
    kept.dedup_by_key(|chunk| chunk.sequence);
    assert_eq!(kept.len(), ended.chunks as usize);
    let expected: String = (1..=1_500_000).map(|number| format!("{number}\n")).collect();
    assert!(stdout(&kept) == expected, "every byte, in order");
}

/// What is kept goes through the disk, and a follower passes over what lies behind what it has seen.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_only_shown_does_not_overtake_what_is_kept_before_it() {
    const RUNS: u32 = 20;
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    // Both come out of the pipe at once: the first half of what is kept, and more than the other half.
    let action = serde_json::json!({"shell": {"command": "head -c 48000 /dev/zero"}});
    let document = serde_json::json!({"name": "job", "action": action, "output": {"keep": "32KiB"}});
    let mut shown = 0;
    for run in 1..=RUNS {
        server.dispatch(crate::server::with_document(run, &document)).await;
        let (chunks, _ended) = server.result(run).await;
        let mut seen_to = 0;
        // The tail is kept after it was shown.
        for chunk in chunks.iter().filter(|chunk| chunk.live_only || chunk.offset < 16 * 1024) {
            assert!(chunk.offset >= seen_to, "run {run}: {} comes after {seen_to}", chunk.offset);
            seen_to = chunk.offset + chunk.bytes.len() as u64;
            shown += u32::from(chunk.live_only);
        }
    }
    assert!(shown >= RUNS, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn when_nobody_stores_results_output_is_left_out_with_a_mark_then_work_is_refused_and_no_end_is_lost() {
    const PRINTED: u64 = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let small = AgentConfig { spool_max_bytes: 64 * 1024, ..config(folder.path()) };
    let (agent, mut server) = start_with(small).await;
    server.stores = false;
    let loud = format!("head -c {PRINTED} /dev/zero | tr '\\0' x");
    let mut cut = 0;
    let mut runs = 0;
    let refused = loop {
        runs += 1;
        server.dispatch(shell(runs, &loud)).await;
        let taken = server.until_taken(runs).await;
        if !taken.refused.is_empty() {
            break taken.refused;
        }
        let (chunks, ended) = server.result(runs).await;
        let kept: Vec<_> = chunks.iter().filter(|chunk| !chunk.live_only).collect();
        let (bytes, marked) = (kept.iter().map(|chunk| chunk.bytes.len() as u64).sum::<u64>(), sum_of_gaps(&kept));
        assert_eq!((ended.outcome.as_str(), ended.output_bytes), ("succeeded", PRINTED));
        assert_eq!((bytes + marked, marked), (PRINTED, ended.dropped_bytes), "all is kept or marked");
        assert_eq!(ended.chunks as usize, kept.len());
        assert!((0..).zip(&kept).all(|(n, chunk)| chunk.sequence == n), "without a hole in the numbers");
        cut += u32::from(marked > 0);
    };
    assert!(refused.contains("its spool is full") && refused.contains("--spool-max"), "{refused}");
    assert!(cut > 0 && cut < runs, "{cut} of {runs}");
    drop(server);

    // All of it comes again, also from the disk, and with that stored the node works by itself.
    drop(agent);
    let agent = Agent::start(AgentConfig { spool_max_bytes: 64 * 1024, ..config(folder.path()) }).await.unwrap();
    let mut server = Server::welcome(agent.connect_local(), TTL).await;
    assert!(server.hello.spool_full);
    assert_eq!(server.hello.finished.len() as u32, runs - 1);
    let mut ended = 0;
    while ended < runs - 1 {
        ended += u32::from(matches!(server.next().await, from_agent::Message::Ended(_)));
    }
    server.until_heard().await;
    server.dispatch(shell(runs + 1, &loud)).await;
    assert_eq!(server.until_taken(runs + 1).await.refused, "");
    assert_eq!(server.until_ended(runs + 1).await.dropped_bytes, 0);
}

fn sum_of_gaps(chunks: &[&OutputChunk]) -> u64 {
    chunks.iter().map(|chunk| chunk.dropped).sum()
}
