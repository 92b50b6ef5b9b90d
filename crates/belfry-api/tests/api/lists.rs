//! Paging: every item once, in order, whatever the size of a page.

use belfry_core::NodeId;
use belfry_core::run::Run;
use serde_json::Value;

use crate::harness::Api;

async fn walk(api: &Api, path: &str, limit: usize, key: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let mark = if path.contains('?') { '&' } else { '?' };
        let page =
            api.admin("GET", &format!("{path}{mark}limit={limit}{cursor}"), Value::Null).await.expect(200).json();
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= limit);
        seen.extend(items.iter().map(|item| item[key].to_string()));
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return seen,
        }
    }
}

#[tokio::test]
async fn pages_of_any_size_visit_everything_once_and_in_order() {
    let api = Api::start().await;
    for n in 0..23 {
        api.job(if n % 2 == 0 { "default" } else { "other" }, &format!("job-{n:02}")).await;
    }
    for second in 0..23 {
        api.ended_run("default", "job-00", second).await;
    }
    for (path, key, expected) in [
        ("/api/v1/jobs", "name", 23),
        ("/api/v1/runs", "id", 23),
        ("/api/v1/runs?job=default/job-00&state=succeeded,failed", "id", 23),
        ("/api/v1/audit", "seq", 30),
        ("/api/v1/jobs/default/job-00/fires?from=2030-01-01T00:00:00Z&to=2043-01-02T00:00:00Z", "at", 14),
    ] {
        let whole = walk(&api, path, 500, key).await;
        assert_eq!(whole.len(), expected, "{path}");
        for limit in [1, 7, 23] {
            assert_eq!(walk(&api, path, limit, key).await, whole, "{path} by {limit}");
        }
    }
    let default = api.admin("GET", "/api/v1/jobs?namespace=other&q=JOB-1", Value::Null).await.expect(200).json();
    assert_eq!(default["items"].as_array().unwrap().len(), 5, "{default}");
}

#[tokio::test]
async fn a_run_is_flat_with_times_in_milliseconds() {
    let api = Api::start().await;
    let id = api.ended_run("default", "job", 0).await;
    let run = api.admin("GET", &format!("/api/v1/runs/{id}"), Value::Null).await.expect(200).json();
    assert_eq!(run["planned"], "2026-09-21T14:13:20.000Z");
    assert_eq!((run["lag_ms"].as_i64(), run["duration_ms"].as_i64()), (Some(12), Some(1000)));
    assert_eq!(
        (run["command"].as_str(), run["state"].as_str(), run["job_name"].as_str()),
        (Some("echo hello"), Some("succeeded"), Some("job"))
    );
    let job = api.admin("GET", "/api/v1/jobs/default/job", Value::Null).await.expect(200).json();
    assert_eq!(job["recent"][0]["state"], "succeeded");
    let deleted = api.admin("DELETE", "/api/v1/runs?before=2030-01-01T00:00:00Z", Value::Null).await.expect(200).json();
    assert_eq!(deleted["deleted"], 1);
    api.admin("GET", &format!("/api/v1/runs/{id}"), Value::Null).await.expect(404);
}

#[tokio::test]
async fn the_runs_of_a_node_are_there_when_the_node_is_not() {
    let api = Api::start().await;
    let node = NodeId::from_u128(4711);
    let ran_there = |run: &mut Run| run.node = Some(node);
    let id = api.run_with("default", "job", crate::harness::now(), ran_there).await.to_string();
    api.admin("GET", &format!("/api/v1/nodes/{node}"), Value::Null).await.expect(404);
    let found = api.admin("GET", &format!("/api/v1/runs?node={node}"), Value::Null).await.expect(200).json();
    assert_eq!(found["items"][0]["id"], id);
    api.admin("GET", "/api/v1/runs?node=no-such-node", Value::Null).await.expect(404);
}

#[tokio::test]
async fn the_commands_of_a_page_of_runs_are_read_at_once() {
    let api = Api::start().await;
    for n in 0..30 {
        api.ended_run("default", &format!("job-{n}"), n).await;
    }
    let before = api.reads_of("job_revisions");
    let runs = api.admin("GET", "/api/v1/runs?limit=30", Value::Null).await.expect(200).json();
    assert_eq!(api.reads_of("job_revisions") - before, 1);
    let runs = runs["items"].as_array().unwrap();
    assert_eq!(runs.len(), 30);
    assert!(runs.iter().all(|run| run["command"] == "echo hello"), "{runs:?}");
}
