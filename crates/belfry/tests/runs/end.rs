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
    // The process that starts others ends when it sees that its agent has ended.
    until("nothing of it is left", async || belfry.processes().is_empty().then_some(())).await;
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

pub async fn a_run_that_takes_too_long_goes_on_and_says_so(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let gate = belfry.folder().join("gate");
    let command = format!("until test -e {}; do sleep 0.1; done", gate.display());
    client.add("slow", &command, json!({"timeout": {"after": "1s", "action": "report"}})).await;
    let run = client.run_now("slow").await;
    let overdue = until("the run says that it is overdue", async || {
        let run = client.get(&format!("/runs/{}", run.id)).await;
        assert!(run["ended_at"].is_null(), "it was ended: {run}");
        run["overdue_at"].as_str().map(str::to_owned)
    })
    .await;
    assert_eq!(client.run(&run.id).await.state, "running");
    std::fs::write(&gate, "").unwrap();
    let ended = client.until_state(&run.id, "succeeded").await;
    let took = overdue.parse::<belfry_core::Timestamp>().unwrap().duration_since(ended.started_at.unwrap());
    assert!(took.as_millis() >= 1000, "it was told after {took:?}");
    let record = client.get(&format!("/runs/{}", run.id)).await;
    assert_eq!((&record["overdue_at"], &record["attempts"][0]["overdue_at"]), (&json!(overdue), &json!(overdue)));
}

pub async fn the_clusters_timeout_holds_for_jobs_without_their_own(layout: Layout) {
    let belfry = setup(layout).env("BELFRY_DEFAULT_TIMEOUT", "1s").start().await;
    let client = belfry.client();
    let job = client.add("slow", "sleep 300", json!({})).await;
    let default = json!({"after": "1s", "action": "kill", "grace": "10s", "from": "cluster"});
    assert_eq!((&job["timeout"], &job["document"]["timeout"]), (&default, &json!(null)));
    let job = client.add("own", "sleep 2", json!({"timeout": {"after": "1h"}})).await;
    assert_eq!((&job["timeout"]["after"], &job["timeout"]["from"]), (&json!("1h"), &json!("job")));
    let local = json!({"run_on": "each", "schedule": "@every 1s", "overlap": "forbid"});
    client.add("local", "sleep 300", local).await;
    assert_eq!(client.run_to_end("slow").await.state, "timed_out");
    assert_eq!(client.run_to_end("own").await.state, "succeeded");
    until("a run that the node fired by itself is ended", async || {
        client.runs("local").await.into_iter().find(|run| run.state == "timed_out")
    })
    .await;
}

pub async fn what_runs_print_is_in_files_of_their_node_too(layout: Layout) {
    let folder = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    let belfry = setup(layout).env("BELFRY_RUN_LOGS", &logs.display().to_string()).start().await;
    let client = belfry.client();
    client.add("talks", "echo one; echo two >&2; exit 1", json!({"retry": {"attempts": 2, "delay": "1ms"}})).await;
    let run = client.run_to_end("talks").await;
    for attempt in [1, 2] {
        let name = format!("default.talks.{}.{attempt}.log", run.id);
        let text = until("the file is written", async || {
            let days = std::fs::read_dir(&logs).ok()?;
            let texts = days.filter_map(|day| std::fs::read_to_string(day.ok()?.path().join(&name)).ok());
            texts.into_iter().find(|text| text.len() >= 8)
        })
        .await;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["one", "two"]);
    }
}
