//! What is answered while the store is away: all of it soon, and from memory what is there.

use std::time::Duration;

use belfry_api::access::TABLE;
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::harness::Api;

/// A request waits for the store once: 3 s to read and 1 s to see whether it answers anything, or 5 s to write. The rest is for a busy machine.
const SOON: Duration = Duration::from_secs(15);

async fn open_run(api: &Api) -> String {
    api.job("default", "job").await;
    let run = api.admin("POST", "/api/v1/jobs/default/job/run", json!({})).await.expect(201).json();
    run["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_soon_while_the_store_says_nothing_and_what_is_missing() {
    let api = Api::start().await;
    let run = open_run(&api).await;
    api.look_at_store().await;
    api.silence_store();
    let calls = TABLE.iter().filter(|row| row.path != "/api/v1/runs/{id}/kill").map(|row| {
        let (api, run) = (&api, &run);
        async move {
            let id = if row.path.contains("/runs/") { run } else { "node-get" };
            let path = row
                .path
                .replace("{ns}", "default")
                .replace("{name}", "job")
                .replace("{id}", id)
                .replace("{file}", "x.js");
            let body = if row.method == "GET" || row.method == "DELETE" { Value::Null } else { json!({}) };
            let answer = tokio::time::timeout(SOON, api.admin(row.method.as_str(), &path, body)).await;
            let answer = answer.unwrap_or_else(|_| panic!("{} {path} does not answer", row.method));
            let status = answer.status.as_u16();
            let known_codes = ["store_away", "outcome_unknown"];
            let is_said = status != 503 || row.path == "/readyz" || known_codes.contains(&answer.code().as_str());
            assert!(status < 500 || (status == 503 && is_said), "{} {path}: {status}", row.method);
            (row.method.as_str(), row.path, status)
        }
    });
    let statuses = join_all(calls).await;
    let status_of = |method: &str, path: &str| {
        statuses.iter().find(|(m, p, _)| (*m, *p) == (method, path)).map(|(_, _, status)| *status)
    };
    for path in ["/healthz", "/metrics", "/api/v1/cluster", "/api/v1/nodes", "/api/v1/runs", "/api/v1/runs/{id}"] {
        assert_eq!(status_of("GET", path), Some(200), "{path}");
    }
    // Nobody waits for it again, however often they ask.
    let asked = api.asked_store();
    for row in TABLE.iter().filter(|row| row.method == "GET" && !row.path.contains('{')) {
        api.admin("GET", row.path, Value::Null).await;
    }
    assert_eq!(api.asked_store(), asked);
    for path in ["/readyz", "/api/v1/jobs", "/api/v1/overview", "/api/v1/forecast", "/api/v1/timeline", "/api/v1/users"]
    {
        assert_eq!(status_of("GET", path), Some(503), "{path}");
    }
}

#[tokio::test]
async fn open_runs_are_listed_and_killed_without_the_store_by_those_who_may() {
    let api = Api::start().await;
    let run = open_run(&api).await;
    api.look_at_store().await;
    api.unplug_store(true);
    let list = api.admin("GET", "/api/v1/runs", Value::Null).await.expect(200).json();
    assert_eq!((&list["items"][0]["id"], &list["missing"]), (&json!(run), &json!("store")), "{list}");
    let kill = format!("/api/v1/runs/{run}/kill");
    api.call("viewer", "POST", &kill, json!({})).await.expect(403);
    api.call("other", "POST", &kill, json!({})).await.expect(404);
    assert_eq!(api.call("operator", "POST", &kill, json!({})).await.expect(200).json()["outcome"], "cancelled");
}

#[tokio::test]
async fn who_was_not_known_before_is_not_let_in_while_the_store_is_away() {
    let api = Api::start().await;
    api.unplug_store(true);
    let refused = api.admin("GET", "/api/v1/nodes", Value::Null).await.expect(503);
    assert_eq!(refused.code(), "store_away", "nobody has looked who may come in");
    api.call("none", "GET", "/api/v1/nodes", Value::Null).await.expect(401);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_slow_question_is_refused_to_its_caller_and_nobody_else() {
    let api = Api::start().await;
    api.job("default", "job").await;
    api.slow_store("FROM audit");
    let jobs = async || api.admin("GET", "/api/v1/jobs", Value::Null).await.expect(200);
    let meanwhile = async {
        // Most of all when the slow one is given up.
        let mut slow = std::pin::pin!(api.admin("GET", "/api/v1/audit", Value::Null));
        loop {
            tokio::select! {
                answer = &mut slow => return answer,
                _ = jobs() => tokio::task::yield_now().await,
            }
        }
    };
    let slow = tokio::time::timeout(SOON, meanwhile).await.expect("it is given up").expect(503);
    assert_eq!(slow.code(), "too_slow");
    jobs().await;
    api.admin("GET", "/readyz", Value::Null).await.expect(200);
}
