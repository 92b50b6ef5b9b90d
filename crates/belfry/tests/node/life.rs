//! How an agent ends: it waits for its runs, ends the rest, and loses no result.

use std::time::Duration;

use belfry_testkit::{Witness, processes_with, until, until_within};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::{BELFRY, Cluster, STOP_PATIENCE};

/// Goes on until this file is there.
fn until_there(file: &std::path::Path) -> String {
    format!("until [ -e {} ]; do sleep 0.05; done; echo it is there", file.display())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_agent_waits_for_its_runs_takes_no_other_and_delivers_their_results() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.join("a", &[]).await;
    let (client, witness) = (&cluster.client, Witness::new());
    let file = witness.file("go-on");
    client.add("long", &until_there(&file), json!({})).await;
    client.add("other", "true", json!({})).await;
    let run = client.run_now("long").await;
    client.until_state(&run.id, "running").await;
    agent.signal(Signal::SIGTERM);
    until("it says that it stops", async || agent.stderr().contains("1h to finish").then_some(())).await;
    let other = client.run_now("other").await;
    let why = until("the other one says why it waits", async || client.run(&other.id).await.reason).await;
    assert!(why.contains("refused") || why.contains("no node can take it"), "{why}");
    assert!(until_within(Duration::from_secs(1), async || agent.ended()).await.is_none(), "it does not wait");
    std::fs::write(&file, "").unwrap();
    let status = until("the agent has ended", async || agent.ended()).await;
    assert!(status.success(), "{status}: {}", agent.stderr());
    assert_eq!(client.until_ended(&run.id).await.state, "succeeded");
    assert_eq!(client.output_text(&run.id).await, "it is there\n");
    // Its next start gets what waited, if it was not refused for ever.
    let _again = cluster.again("a", &[]);
    assert_eq!(client.until_ended(&other.id).await.state, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_end_within_the_quit_time_is_ended_and_recorded() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.join("a", &["--quit-time", "1s"]).await;
    let client = &cluster.client;
    client.add("endless", "setsid sleep 998 & sleep 999", json!({})).await;
    let run = client.run_now("endless").await;
    client.until_state(&run.id, "running").await;
    let status = agent.stop(STOP_PATIENCE).await;
    assert!(status.success(), "{status}: {}", agent.stderr());
    assert!(processes_with(&format!("BELFRY_RUN_ID={}", run.id)).is_empty(), "nothing of it is left");
    let ended = client.until_ended(&run.id).await;
    assert_eq!(ended.state, "killed", "{ended:?}");
    assert!(ended.why().contains("the agent on a stops") && ended.why().contains("SIGTERM"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_agent_at_once_and_all_that_it_runs() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.join("a", &[]).await;
    let client = &cluster.client;
    client.add("endless", "setsid sleep 998 & sleep 999", json!({})).await;
    let run = client.run_now("endless").await;
    client.until_state(&run.id, "running").await;
    agent.signal(Signal::SIGTERM);
    until("it says that it stops", async || agent.stderr().contains("1h to finish").then_some(())).await;
    agent.signal(Signal::SIGINT);
    let status = until("the agent has ended", async || agent.ended()).await;
    assert_eq!(status.code(), Some(130), "{}", agent.stderr());
    let of_run = format!("BELFRY_RUN_ID={}", run.id);
    until("its runs go with it", async || processes_with(&of_run).is_empty().then_some(())).await;
    assert_eq!(client.until_ended(&run.id).await.state, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ends_while_no_server_is_there_and_the_agent_stops_is_delivered_at_its_next_start() {
    let mut cluster = Cluster::start().await;
    let mut agent = cluster.join("a", &[]).await;
    let witness = Witness::new();
    let file = witness.file("go-on");
    cluster.client.add("long", &until_there(&file), json!({})).await;
    let run = cluster.client.run_now("long").await;
    cluster.client.until_state(&run.id, "running").await;
    cluster.server.kill9();
    agent.signal(Signal::SIGTERM);
    until("it says that it stops", async || agent.stderr().contains("1h to finish").then_some(())).await;
    std::fs::write(&file, "").unwrap();
    let status = until("the agent has ended", async || agent.ended()).await;
    assert!(status.success(), "{status}: {}", agent.stderr());
    cluster.start_again().await;
    let _again = cluster.again("a", &[]);
    // The server may have held the node dead by then; the late result corrects it.
    until("its result is recorded", async || {
        let run = cluster.client.run(&run.id).await;
        assert!(run.state == "succeeded" || run.state == "lost" || !run.has_ended(), "{run:?}");
        (run.state == "succeeded").then_some(())
    })
    .await;
    assert_eq!(cluster.client.output_text(&run.id).await, "it is there\n");
}

#[test]
fn an_agent_that_is_stopped_gives_its_runs_an_hour() {
    let help = assert_cmd::Command::new(BELFRY).args(["agent", "--help"]).output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    let about = text.split("--quit-time").nth(1).expect("the flag is there");
    assert!(about.split("--").next().unwrap().contains("1h"), "{about}");
}
