//! What always runs.

use belfry_core::service::STOP_GRACE_DEFAULT;
use belfry_testkit::{Client, Layout, now, processes_with, until};
use serde_json::{Value, json};

use crate::start;

async fn service(client: &Client) -> Value {
    client.get("/services").await["items"][0].clone()
}

async fn until_running(client: &Client, besides: &str) -> Value {
    until("the service runs", async || {
        let service = service(client).await;
        (service["state"] == "running" && service["run"] != besides).then_some(service)
    })
    .await
}

pub async fn a_service_is_started_again_and_shown_and_stopped_when_it_is_paused(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    // It leaves somebody behind each time.
    let command = "setsid sleep 4321 & trap 'exit 3' TERM; while :; do sleep 0.05; done";
    let action = json!({"service": {"command": command, "restart_delay": "100ms"}});
    client.post("/jobs", json!({"name": "gateway", "action": action})).await;
    let first = until_running(client, "").await;
    assert_eq!(
        (&first["name"], &first["restarts_24h"], &first["last_exit"]),
        (&json!("gateway"), &json!(0), &Value::Null)
    );
    assert!(first["node_name"].is_string() && first["since"].is_string(), "{first}");
    let run = first["run"].as_str().expect("a run").to_owned();
    client.post(&format!("/runs/{run}/kill"), json!({})).await;
    let second = until_running(client, &run).await;
    assert_eq!((&second["restarts_24h"], &second["last_exit"]["state"]), (&json!(1), &json!("killed")));
    let ended = client.run(&run).await;
    assert_eq!((ended.state.as_str(), ended.exit_code), ("killed", Some(3)), "{}", ended.why());
    assert_eq!(processes_with(&format!("BELFRY_RUN_ID={run}")), Vec::<i32>::new(), "it leaves nothing behind");

    let refused = client.call(reqwest::Method::POST, "/jobs/default/gateway/run", Some(json!({}))).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let nowhere = client.call(reqwest::Method::POST, "/jobs/default/gateway/move", Some(json!({}))).await;
    assert_eq!((nowhere.status.as_u16(), &nowhere.body["error"]["code"]), (409, &json!("nowhere_to_move")));

    client.post("/jobs/default/gateway/pause", json!({})).await;
    until("it is stopped", async || (service(client).await["state"] == "paused").then_some(())).await;
    let last = second["run"].as_str().expect("a run").to_owned();
    assert_eq!(client.until_ended(&last).await.why(), "its job was paused");
    client.post("/jobs/default/gateway/resume", json!({})).await;
    until_running(client, &last).await;
    client.delete("/jobs/default/gateway").await;
    until("nothing of it is left", async || {
        client.all_runs().await.iter().all(belfry_testkit::Run::has_ended).then_some(())
    })
    .await;
}

pub async fn one_that_ignores_term_is_killed_after_the_grace_of_its_job(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let command = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let action = json!({"service": {"command": command, "stop_grace": "1s"}});
    client.post("/jobs", json!({"name": "deaf", "action": action})).await;
    let run = until_running(client, "").await["run"].as_str().expect("a run").to_owned();
    until("it ignores TERM", async || client.output_text(&run).await.contains("ready").then_some(())).await;
    let told = now();
    client.post("/jobs/default/deaf/pause", json!({})).await;
    let ended = client.until_ended(&run).await;
    assert_eq!((ended.state.as_str(), ended.signal), ("killed", Some(9)), "{}", ended.why());
    let took = ended.ended_at.expect("an end").duration_since(told).as_secs_f64();
    assert!(took >= 1.0, "it was given its grace, not {took} s");
    assert!(took < STOP_GRACE_DEFAULT.get().as_secs_f64(), "the job's own grace counts, and it had {took} s");
    assert_eq!(processes_with(&format!("BELFRY_RUN_ID={run}")), Vec::<i32>::new(), "it leaves nothing behind");
}

/// The agent drains what it prints, whatever becomes of it; nobody waits for it.
pub async fn one_that_floods_both_of_its_pipes_and_never_ends_delays_no_other(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client
        .add("flood", "trap '' TERM; yes & yes >&2 & nice -n 19 cat < /dev/zero | nice -n 19 tr '\\0' x", json!({}))
        .await;
    let flood = client.run_now("flood").await;
    client.until_state(&flood.id, "running").await;
    client.add("second", "true", json!({"schedule": "* * * * * *"})).await;
    let runs = until("six fires have ended", async || {
        let runs = client.runs("second").await;
        (runs.iter().filter(|run| run.has_ended()).count() >= 6).then_some(runs)
    })
    .await;
    let mut ended: Vec<_> = runs.iter().filter(|run| run.has_ended()).collect();
    ended.sort_by_key(|run| run.planned);
    for pair in ended.windows(2) {
        assert_eq!(pair[1].planned.as_second() - pair[0].planned.as_second(), 1, "a fire is missing: {pair:?}");
    }
    for run in ended {
        assert_eq!(run.state, "succeeded", "{run:?}");
        assert!(run.started_at.expect("a start") < run.planned + jiff::SignedDuration::from_secs(1), "{run:?}");
    }
    assert_eq!(client.run(&flood.id).await.state, "running");
}
