//! Runs of more than one attempt.

use std::time::Duration;

use belfry_testkit::{Client, Layout, Run, Witness, now, until};
use jiff::ToSpan;
use serde_json::{Value, json};

use crate::start;

/// Fails until its third attempt, with an exit code that says that trying again may help.
const THIRD_TIME_LUCKY: &str = "echo attempt $BELFRY_ATTEMPT fence $BELFRY_FENCE; [ $BELFRY_ATTEMPT = 3 ] || exit 75";

async fn attempts(client: &Client, run: &Run) -> Vec<Value> {
    client.get(&format!("/runs/{}", run.id)).await["attempts"].as_array().expect("attempts").clone()
}

async fn output_of(client: &Client, run: &Run, attempt: u32) -> String {
    let path = format!("/runs/{}/output?attempt={attempt}", run.id);
    client.request(reqwest::Method::GET, &path).send().await.expect("an answer").text().await.expect("a body")
}

fn fixed(attempts: u32, on: &[&str], delay: &str) -> Value {
    json!({"retry": {"attempts": attempts, "on": on, "delay": delay, "backoff": "fixed"}})
}

pub async fn each_attempt_has_its_output_its_number_and_a_growing_fence(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("lucky", THIRD_TIME_LUCKY, fixed(5, &["exit:75"], "100ms")).await;
    let run = client.run_to_end("lucky").await;
    assert_eq!((run.state.as_str(), run.attempt), ("succeeded", 3), "{run:?}");
    let attempts = attempts(client, &run).await;
    let told: Vec<_> =
        attempts.iter().map(|it| (it["attempt"].as_u64(), it["state"].as_str(), &it["exit_code"])).collect();
    let (bad, good) = (json!(75), json!(0));
    assert_eq!(
        told,
        [(Some(1), Some("failed"), &bad), (Some(2), Some("failed"), &bad), (Some(3), Some("succeeded"), &good)]
    );
    for (number, attempt) in (1..).zip(&attempts) {
        let fence = attempt["fence"].as_u64().expect("a fence");
        assert_eq!(output_of(client, &run, number).await, format!("attempt {number} fence {fence}\n"));
        assert!(attempt["started_at"].is_string() && attempt["ended_at"].is_string(), "{attempt}");
        assert!(attempt["node_name"].is_string(), "{attempt}");
    }
    assert!(attempts.windows(2).all(|pair| pair[0]["fence"].as_u64() < pair[1]["fence"].as_u64()), "{attempts:?}");
    assert!(attempts.windows(2).all(|pair| pair[0]["ended_at"].as_str() < pair[1]["started_at"].as_str()));
    assert_eq!(client.output_text(&run.id).await, output_of(client, &run, 3).await, "the last one when none is named");
}

pub async fn only_the_listed_ends_are_tried_again(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("other-code", "exit 3", fixed(5, &["exit:75", "timed_out"], "100ms")).await;
    let run = client.run_to_end("other-code").await;
    assert_eq!((run.state.as_str(), run.attempt), ("failed", 1));
    client.add("fails", "exit 3", fixed(2, &["failed"], "100ms")).await;
    let run = client.run_to_end("fails").await;
    assert_eq!((run.state.as_str(), run.attempt, run.why()), ("failed", 2, "exit code 3"));
    let mut slow = fixed(2, &["timed_out"], "100ms");
    slow["timeout"] = json!({"after": "200ms", "grace": "1s"});
    client.add("slow", "sleep 30", slow).await;
    let run = client.run_to_end("slow").await;
    assert_eq!((run.state.as_str(), run.attempt), ("timed_out", 2));
    assert_eq!(attempts(client, &run).await[0]["state"], "timed_out");
}

pub async fn a_run_that_waits_is_seen_has_its_turn_and_can_be_killed(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("patient", "echo once; exit 1", fixed(3, &["failed"], "1h")).await;
    let run = client.run_now("patient").await;
    let waiting = client.until_state(&run.id, "waiting").await;
    let next: jiff::Timestamp = client.get(&format!("/runs/{}", run.id)).await["next_attempt_at"]
        .as_str()
        .expect("the time of the next attempt")
        .parse()
        .unwrap();
    let left = next.duration_since(now());
    assert!(left.as_secs() > 3500 && left.as_secs() <= 3600, "{left:#}");
    assert_eq!((waiting.attempt, waiting.why()), (1, "exit code 1"));
    assert_eq!(client.output_text(&run.id).await, "once\n");
    let other = client.run_now("patient").await;
    let other = client.until_state(&other.id, "skipped").await;
    assert!(other.why().contains("had not ended"), "{}", other.why());
    let answer = client.post(&format!("/runs/{}/kill", run.id), json!({})).await;
    assert_eq!(answer["outcome"], "cancelled");
    let killed = client.until_state(&run.id, "cancelled").await;
    assert!(killed.why().contains("while it waited for attempt 2"), "{}", killed.why());
    let attempts = attempts(client, &run).await;
    assert_eq!((attempts.len(), &attempts[0]["state"], &attempts[0]["exit_code"]), (1, &json!("failed"), &json!(1)));
    assert_eq!(client.run_now("patient").await.state, "claimed", "its turn is over");
}

pub async fn a_change_of_the_job_is_judged_when_the_next_attempt_is_due(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    // Mended and paused while it waits: the next attempt is of the mended job, and a pause stops no run that has begun.
    client.add("mended", "exit 1", fixed(3, &["failed"], "2s")).await;
    let run = client.run_now("mended").await;
    client.until_state(&run.id, "waiting").await;
    client
        .patch("/jobs/default/mended", json!({"action": {"shell": {"command": "echo well"}}, "enabled": false}))
        .await;
    let ended = client.until_state(&run.id, "succeeded").await;
    assert_eq!((ended.attempt, ended.revision), (2, 2));
    let attempts = attempts(client, &run).await;
    assert_eq!((attempts[0]["revision"].as_u64(), attempts[1]["revision"].as_u64()), (Some(1), Some(2)));

    client.add("no-more", "exit 1", fixed(3, &["failed"], "1h")).await;
    let run = client.run_now("no-more").await;
    client.until_state(&run.id, "waiting").await;
    client.patch("/jobs/default/no-more", json!({"retry": {"attempts": 1}})).await;
    let ended = client.until_state(&run.id, "failed").await;
    assert!(ended.why().contains("exit code 1") && ended.why().contains("retry was changed"), "{}", ended.why());

    client.add("gone", "exit 1", fixed(3, &["failed"], "1h")).await;
    let run = client.run_now("gone").await;
    client.until_state(&run.id, "waiting").await;
    client.delete("/jobs/default/gone").await;
    let ended = client.until_state(&run.id, "cancelled").await;
    assert!(ended.why().contains("removed while it waited for attempt 2"), "{}", ended.why());
}

pub async fn a_later_run_replaces_one_that_waits(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let mut document = fixed(3, &["failed"], "1h");
    document["overlap"] = json!("replace");
    client.add("newest", "exit 1", document).await;
    let first = client.run_now("newest").await;
    client.until_state(&first.id, "waiting").await;
    let second = client.run_now("newest").await;
    let ended = client.until_state(&first.id, "cancelled").await;
    assert!(ended.why().contains("a later run replaced it"), "{}", ended.why());
    client.until_state(&second.id, "waiting").await;
}

pub async fn a_next_attempt_that_finds_no_node_ends_the_run_as_the_last_one_ended(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let document = json!({
        "retry": {"attempts": 2, "on": ["failed"], "delay": "100ms", "backoff": "fixed", "where": "other"},
        "misfire": {"within": "1s"},
    });
    client.add("lonely", "exit 4", document).await;
    let run = client.run_to_end("lonely").await;
    assert_eq!((run.state.as_str(), run.attempt), ("failed", 1));
    for part in ["exit code 4", "attempt 2 could not be made", "retry.where is other"] {
        assert!(run.why().contains(part), "{}", run.why());
    }
}

/// All processes are killed while a retry waits: the count and the time are what they were.
pub async fn a_retry_that_waits_survives_the_end_of_all_processes(layout: Layout) {
    let mut belfry = start(layout).await;
    let witness = Witness::new();
    let work = witness.command("patient", "[ $BELFRY_ATTEMPT = 2 ] || exit 1");
    belfry.client().add("patient", &work, fixed(3, &["failed"], "8s")).await;
    let run = belfry.client().run_now("patient").await;
    belfry.client().until_state(&run.id, "waiting").await;
    let shown = belfry.client().get(&format!("/runs/{}", run.id)).await;
    let due: jiff::Timestamp = shown["next_attempt_at"].as_str().expect("its time").parse().unwrap();
    belfry.kill9();
    belfry.restart().await;
    let back = now();
    let ended = belfry.client().until_state(&run.id, "succeeded").await;
    assert_eq!(ended.attempt, 2);
    let starts = witness.starts("patient");
    assert_eq!(starts.len(), 2, "{starts:?}");
    assert!(starts[1].at >= due, "it started {:#} before its time", due.duration_since(starts[1].at));
    let bound = due.max(back) + 1.second();
    assert!(starts[1].at <= bound, "it started {:#} too late", starts[1].at.duration_since(bound));
    assert!(starts[0].fence < starts[1].fence);
}

/// At least once: what a process that is killed had running is started again by its successor.
pub async fn what_was_cut_short_starts_again_when_lost_is_listed(layout: Layout) {
    let mut belfry = start(layout).await;
    let witness = Witness::new();
    let work = witness.command("again", "[ $BELFRY_ATTEMPT = 2 ] || sleep 300");
    belfry.client().add("again", &work, fixed(2, &["lost"], "1h")).await;
    let run = belfry.client().run_now("again").await;
    until("it runs", async || (!witness.starts("again").is_empty()).then_some(())).await;
    belfry.client().until_state(&run.id, "running").await;
    belfry.kill9();
    belfry.restart().await;
    let ended = belfry.client().until_state(&run.id, "succeeded").await;
    assert_eq!(ended.attempt, 2);
    let attempts = attempts(belfry.client(), &run).await;
    assert_eq!(attempts[0]["state"], "lost");
}

/// A stopped agent gives its work back; there is no delay after it, whatever the rule says.
pub async fn what_a_stopping_agent_ends_starts_again_when_lost_is_listed() {
    let mut belfry = crate::setup(Layout::TwoProcesses).env("BELFRY_QUIT_TIME", "1s").start().await;
    let witness = Witness::new();
    let work = witness.command("again", "[ $BELFRY_ATTEMPT = 2 ] || sleep 300");
    belfry.client().add("again", &work, fixed(2, &["lost"], "1h")).await;
    let run = belfry.client().run_now("again").await;
    belfry.client().until_state(&run.id, "running").await;
    let status = belfry.agent.take().expect("it runs").stop(Duration::from_secs(40)).await;
    assert!(status.success(), "{status}");
    belfry.restart().await;
    let ended = belfry.client().until_state(&run.id, "succeeded").await;
    assert_eq!(ended.attempt, 2);
    let first = &attempts(belfry.client(), &run).await[0];
    assert_eq!((&first["state"], &first["abandoned"]), (&json!("killed"), &json!(true)), "{first}");
}
