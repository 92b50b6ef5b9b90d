use std::time::Duration;

use belfry_core::Timestamp;
use belfry_proto::session::{Dispatch, from_agent};

use crate::orders::count_processes;
use crate::server::{Server, config, key, shell, stdout, with_document};

const TTL: Duration = Duration::from_millis(2000);

async fn start(folder: &std::path::Path) -> (belfry_agent::Agent, Server) {
    let agent = belfry_agent::Agent::start(config(folder)).await.unwrap();
    let server = Server::welcome(agent.connect_local(), TTL).await;
    (agent, server)
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_come_four_times_per_ttl() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let mut sequences = Vec::new();
    let began = tokio::time::Instant::now();
    while sequences.len() < 5 {
        sequences.push(server.heartbeat().await.sequence);
    }
    assert_eq!(sequences, [1, 2, 3, 4, 5]);
    assert!(began.elapsed() >= TTL * 9 / 10, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_started_after_contact_was_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.dispatch(shell(1, "true")).await;
    assert_eq!(server.until_ended(1).await.outcome, "succeeded");
    server.acknowledges = None;
    server.dispatch(Dispatch { start_in_ms: 2500, ..shell(2, "echo never") }).await;
    let (chunks, ended) = server.result(2).await;
    assert_eq!((ended.outcome.as_str(), chunks.len()), ("skipped", 0));
    assert_eq!(ended.reason, "lost contact with the servers before its start");
    server.acknowledges = Some(true);
    server.listen_for(Duration::from_millis(600)).await;
    server.dispatch(shell(3, "true")).await;
    assert_eq!(server.until_ended(3).await.outcome, "succeeded", "contact is back");
}

/// Servers that reach the coordinator again send what is due before the next heartbeat of each node is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_while_contact_was_lost_waits_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.dispatch(shell(4, "true")).await;
    assert_eq!(server.until_ended(4).await.outcome, "succeeded");
    server.acknowledges = None;
    // Its end says that contact is lost.
    server.dispatch(Dispatch { start_in_ms: 2500, ..shell(1, "echo never") }).await;
    assert_eq!(server.until_ended(1).await.reason, "lost contact with the servers before its start");
    server.dispatch(shell(2, "echo well")).await;
    server.dispatch(Dispatch { start_within_ms: 100, ..shell(3, "echo never") }).await;
    let ended = server.until_ended(3).await;
    assert_eq!((ended.reason.as_str(), ended.abandoned), ("lost contact with the servers before its start", true));
    server.acknowledges = Some(true);
    assert_eq!(stdout(&server.result(2).await.0), "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_before_the_first_acknowledgement_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let agent = belfry_agent::Agent::start(config(folder.path())).await.unwrap();
    let mut server = Server::connected(agent.connect_local()).await;
    server.acknowledges = None;
    server.send_welcome(TTL).await;
    server.dispatch(shell(1, "echo well")).await;
    server.dispatch(Dispatch { start_within_ms: 100, ..shell(2, "echo never") }).await;
    let ended = server.until_ended(2).await;
    assert_eq!(ended.reason, "lost contact with the servers before its start");
    server.acknowledges = Some(true);
    assert_eq!(stdout(&server.result(1).await.0), "well\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_held_dead_joins_again_as_a_new_incarnation_and_reports_late() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    let former = agent.incarnation();
    server.dispatch(shell(1, "sleep 2; echo late")).await;
    server.until_started(1).await;
    server.dispatch(Dispatch { start_in_ms: 60_000, ..shell(2, "echo never") }).await;
    server.until_taken(2).await;
    server.acknowledges = Some(false);
    let hello =
        server.until(|message| if let from_agent::Message::Hello(hello) = message { Some(hello) } else { None }).await;
    assert!(hello.incarnation > former.0);
    assert!(hello.running.is_empty(), "what runs is of the former one");
    server.acknowledges = Some(true);
    server.send_welcome(TTL).await;
    assert_eq!(server.until_ended(2).await.outcome, "skipped");
    server.dispatch(shell(3, "true")).await;
    assert!(server.until_taken(3).await.refused.contains("another incarnation"));
    server.hello = hello;
    server.dispatch(shell(4, "true")).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), stdout(&chunks).as_str()), ("succeeded", "late\n"));
    assert_eq!(agent.incarnation().0, server.hello.incarnation);
}

#[tokio::test(flavor = "multi_thread")]
async fn heartbeats_move_to_another_server_when_theirs_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut first) = start(folder.path()).await;
    let mut second = Server::welcome(agent.connect_local(), TTL).await;
    first.heartbeat().await;
    drop(first);
    let mut sequences = Vec::new();
    for _ in 0..4 {
        sequences.push(second.heartbeat().await.sequence);
    }
    assert_eq!(sequences[3], sequences[2] + 1, "each of them: {sequences:?}");
}

/// A run that does not heed TERM, and an hour of grace: it must be gone all the same before the servers may hold the node dead.
const STUBBORN: &str = "trap 'echo asked' TERM; echo up; for n in {1..80}; do sleep 0.1; done";

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_work_ends_before_its_node_may_be_held_dead() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let document = serde_json::json!({
        "name": "job", "action": {"shell": {"command": STUBBORN}}, "timeout": {"after": "1h", "grace": "1h"},
    });
    server.dispatch(Dispatch { exclusive: true, ..with_document(1, &document) }).await;
    server.dispatch(shell(2, "sleep 3; echo it may finish")).await;
    server.until_started(1).await;
    // Until here each heartbeat was acknowledged as it came; the last one of them was sent before this.
    let last_sent = Timestamp::now();
    server.acknowledges = None;
    let (chunks, ended) = server.result(1).await;
    let after = Timestamp::from_millisecond(ended.ended_at_ms).unwrap().duration_since(last_sent);
    assert!(after < TTL.try_into().unwrap(), "exclusive work went on for {after:#} after the last heartbeat");
    assert_eq!((ended.outcome.as_str(), ended.signal, ended.abandoned), ("killed", Some(9), true));
    assert!(ended.reason.contains("lost contact"), "{}", ended.reason);
    assert!(stdout(&chunks).contains("asked"), "it was asked first: {}", stdout(&chunks));
    assert_eq!(server.until_ended(2).await.outcome, "succeeded", "what is not exclusive goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn exclusive_work_has_ended_before_a_new_incarnation_says_hello() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    server.dispatch(Dispatch { exclusive: true, ..shell(1, STUBBORN) }).await;
    server.until_started(1).await;
    server.acknowledges = Some(false);
    let hello =
        server.until(|message| if let from_agent::Message::Hello(hello) = message { Some(hello) } else { None }).await;
    let left = count_processes("BELFRY_RUN_ID", &key(1).run, &agent.node().to_string());
    assert_eq!(left, 0, "exclusive work went on when the node joined again");
    assert_eq!(hello.finished, [key(1)]);
}

/// The tests above in a process of its own, whose agent lets exclusive work go on: they must fail, else they show nothing.
#[test]
fn exclusive_work_that_goes_on_is_noticed() {
    for test in ["ends_before_its_node_may_be_held_dead", "has_ended_before_a_new_incarnation_says_hello"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("trust::exclusive_work_{test}"), "--nocapture"])
            .env("BELFRY_PLANTED_BUG", "exclusive_work_goes_on")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let noticed = said.contains("exclusive work went on");
        assert!(!output.status.success() && noticed, "{test}: the planted bug was not noticed: {said}");
    }
}
