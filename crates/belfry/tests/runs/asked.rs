//! What people ask for: by hand, again, elsewhere, and to be forgotten.

use belfry_testkit::{Layout, Run, Witness, now, until};
use serde_json::json;

use crate::start;

pub async fn the_same_key_is_the_same_run(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    client.add("keyed", &witness.command("keyed", "sleep 0.3"), json!({"overlap": "allow"})).await;
    let request = json!({"idempotency_key": "order-4711"});
    let first = client.run_with("keyed", request.clone()).await;
    let while_it_runs = client.run_with("keyed", request.clone()).await;
    client.until_state(&first.id, "succeeded").await;
    let afterwards = client.run_with("keyed", request).await;
    assert_eq!((&while_it_runs.id, &afterwards.id), (&first.id, &first.id));
    let other = client.run_with("keyed", json!({"idempotency_key": "order-4712"})).await;
    client.until_state(&other.id, "succeeded").await;
    assert_eq!(witness.starts("keyed").len(), 2);
}

pub async fn a_rerun_names_the_run_it_repeats(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("again", "echo once more", json!({})).await;
    let first = client.run_to_end("again").await;
    let rerun: Run =
        serde_json::from_value(client.post(&format!("/runs/{}/rerun", first.id), json!({})).await).expect("a run");
    let rerun = client.until_state(&rerun.id, "succeeded").await;
    assert_eq!((rerun.trigger.as_str(), rerun.rerun_of.as_ref()), ("rerun", Some(&first.id)));
    assert!(rerun.fence > first.fence);
}

pub async fn a_manual_run_may_bring_its_own_environment(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("env", "echo $COLOUR $SHAPE", json!({"as": {"env": {"COLOUR": "blue", "SHAPE": "round"}}})).await;
    let run = client.run_with("env", json!({"env": {"COLOUR": "red"}})).await;
    client.until_state(&run.id, "succeeded").await;
    assert_eq!(client.output_text(&run.id).await, "red round\n");
}

pub async fn a_draining_node_gets_no_runs_until_it_is_back(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let node = client.nodes().await[0]["id"].as_str().expect("an id").to_owned();
    client.add("patient", "true", json!({})).await;
    client.patch(&format!("/nodes/{node}"), json!({"draining": true})).await;
    let run = client.run_now("patient").await;
    let waiting =
        until("it says why it waits", async || Some(client.run(&run.id).await).filter(|run| run.reason.is_some()))
            .await;
    assert!(!waiting.has_ended() && waiting.why().contains("drain"), "{waiting:?}");
    client.patch(&format!("/nodes/{node}"), json!({"draining": false})).await;
    let ended = client.until_state(&run.id, "succeeded").await;
    assert_eq!(ended.reason, None, "what it waited for is over");
}

pub async fn old_runs_are_forgotten_when_asked(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("old", "echo something", json!({})).await;
    let first = client.run_to_end("old").await;
    let border = now();
    let second = client.run_to_end("old").await;
    let answer = client.delete(&format!("/runs?before={border}")).await;
    assert_eq!(answer["deleted"], 1);
    let left: Vec<String> = client.runs("old").await.into_iter().map(|run| run.id).collect();
    assert_eq!(left, [second.id]);
    let gone = client.call(reqwest::Method::GET, &format!("/runs/{}/output", first.id), None).await;
    assert_eq!(gone.status, 404);
}

pub async fn a_paused_job_can_be_run_by_hand(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("paused", "true", json!({"schedule": "* * * * * *", "enabled": false})).await;
    assert_eq!(client.run_to_end("paused").await.state, "succeeded");
    assert_eq!(client.runs("paused").await.len(), 1);
}
