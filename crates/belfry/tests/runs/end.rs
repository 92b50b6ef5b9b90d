//! Ends that are not the job's own: timeout, kill, and the stop of Belfry itself. No process may survive them.

use belfry_testkit::{Client, Layout, Run, Witness, processes_with, until};
use serde_json::json;

use crate::{setup, start};

/// A child of its own session, one that was forked twice, and one in the background; then it says that they are there.
const FAMILY: &str = "setsid sleep 300 & (setsid sleep 301 & ) ; sleep 302 & sleep 0.2; echo ready; wait; sleep 303";

async fn until_it_says_ready(client: &Client, run: &Run) {
    until("the run says that it is ready", async || {
        (client.output_text(&run.id).await.contains("ready")).then_some(())
    })
    .await;
}

fn family_of(run: &Run) -> Vec<i32> {
    processes_with(&format!("BELFRY_RUN_ID={}", run.id))
}

async fn until_family_is_gone(run: &Run) {
    until("no process of the run is left", async || family_of(run).is_empty().then_some(())).await;
}

pub async fn a_timeout_ends_the_whole_tree(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("slow", FAMILY, json!({"timeout": {"after": "1s", "grace": "1s"}})).await;
    let run = client.run_to_end("slow").await;
    assert_eq!(run.state, "timed_out", "{}", run.why());
    until_family_is_gone(&run).await;
}

pub async fn a_killed_run_leaves_no_process(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("family", FAMILY, json!({"timeout": {"after": "1h", "grace": "1s"}})).await;
    let run = client.run_now("family").await;
    until_it_says_ready(client, &run).await;
    assert!(family_of(&run).len() >= 4, "{:?}", family_of(&run));
    let answer = client.post(&format!("/runs/{}/kill", run.id), json!({})).await;
    assert_eq!(answer["outcome"], "told");
    let ended = client.until_ended(&run.id).await;
    assert_eq!(ended.state, "killed");
    assert!(ended.why().contains("cli"), "it says by whom: {}", ended.why());
    until_family_is_gone(&run).await;
    let again = client.post(&format!("/runs/{}/kill", run.id), json!({})).await;
    assert_eq!(again["outcome"], "already_ended");
}

pub async fn killing_a_job_ends_all_of_its_runs(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("many", FAMILY, json!({"overlap": "allow", "timeout": {"after": "1h", "grace": "1s"}})).await;
    client.add("other", "echo ready; sleep 300", json!({})).await;
    let runs = [client.run_now("many").await, client.run_now("many").await];
    let other = client.run_now("other").await;
    for run in runs.iter().chain([&other]) {
        until_it_says_ready(client, run).await;
    }
    let killed = client.post("/jobs/default/many/kill", json!({})).await;
    assert_eq!(killed["runs"].as_array().map(Vec::len), Some(2), "{killed}");
    for run in &runs {
        assert_eq!(client.until_ended(&run.id).await.state, "killed");
        until_family_is_gone(run).await;
    }
    assert_eq!(client.run(&other.id).await.state, "running");
}

pub async fn a_run_that_ignores_term_is_killed_after_the_grace(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client
        .add(
            "deaf",
            "trap '' TERM; echo ready; while :; do sleep 0.1; done",
            json!({"timeout": {"after": "1h", "grace": "1s"}}),
        )
        .await;
    let run = client.run_now("deaf").await;
    until_it_says_ready(client, &run).await;
    client.post(&format!("/runs/{}/kill", run.id), json!({})).await;
    let ended = client.until_ended(&run.id).await;
    assert_eq!((ended.state.as_str(), ended.signal), ("killed", Some(9)));
    until_family_is_gone(&run).await;
}

pub async fn sigterm_lets_running_work_finish(layout: Layout) {
    let mut belfry = start(layout).await;
    let witness = Witness::new();
    belfry.client().add("work", &witness.command("work", "echo ready; sleep 2"), json!({})).await;
    let run = belfry.client().run_now("work").await;
    until_it_says_ready(belfry.client(), &run).await;
    belfry.stop().await;
    assert_eq!(witness.lines("work").len(), 2, "it came to its end");
    assert_eq!(belfry.processes(), Vec::<i32>::new());
    belfry.restart().await;
    belfry.client().until_state(&run.id, "succeeded").await;
}

pub async fn sigterm_ends_what_does_not_finish_in_time(layout: Layout) {
    let mut belfry = setup(layout).env("BELFRY_QUIT_TIME", "1s").start().await;
    belfry.client().add("endless", FAMILY, json!({"timeout": {"after": "1h", "grace": "1s"}})).await;
    let run = belfry.client().run_now("endless").await;
    until_it_says_ready(belfry.client(), &run).await;
    belfry.stop().await;
    until_family_is_gone(&run).await;
    belfry.restart().await;
    let ended = belfry.client().until_state(&run.id, "killed").await;
    assert!(ended.why().contains("SIGTERM"), "{}", ended.why());
}
