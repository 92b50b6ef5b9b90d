//! How jobs have been doing, as lists and their pages show it.

use belfry_core::run::{Run, RunState};
use serde_json::{Value, json};

use crate::harness::{Api, now};

fn ended(state: RunState, node: &str) -> impl FnOnce(&mut Run) {
    let node = node.to_owned();
    move |run| (run.state, run.node_name, run.exit_code) = (state, Some(node), Some(3))
}

fn open(run: &mut Run) {
    (run.state, run.ended_at, run.exit_code) = (RunState::Running, None, None);
}

async fn names(api: &Api, query: &str) -> Vec<String> {
    let page = api.admin("GET", &format!("/api/v1/jobs?{query}"), Value::Null).await.expect(200).json();
    page["items"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_job_comes_with_its_last_run_its_failures_and_what_is_usual() {
    let api = Api::start().await;
    let began = now();
    let at = |second| began.saturating_add(std::time::Duration::from_secs(second)).unwrap();
    api.job("default", "new").await;
    api.run_with("default", "job", at(1), |_| ()).await;
    api.run_with("default", "job", at(2), ended(RunState::Lost, "n1")).await;
    let last = api.run_with("default", "job", at(3), ended(RunState::Failed, "n1")).await;
    let going = api.run_with("default", "job", at(4), open).await;
    let job = api.admin("GET", "/api/v1/jobs/default/job", Value::Null).await.expect(200).json();
    let number = |field: &str| job[field].as_u64();
    assert_eq!((number("runs"), number("failed_in_a_row")), (Some(3), Some(2)), "{job}");
    assert_eq!(job["running"], json!([going]));
    assert_eq!(job["usual"], json!({"p50_ms": 1000, "p95_ms": 1000, "runs": 1}));
    let shown = &job["last_run"];
    assert_eq!((&shown["id"], &shown["state"], &shown["node_name"]), (&json!(last), &json!("failed"), &json!("n1")));
    assert_eq!((&shown["duration_ms"], &shown["exit_code"]), (&json!(1000), &json!(3)));
    assert_eq!(job["recent"][0]["id"], json!(going));
    assert_eq!((&job["recent"][0]["duration_ms"], &job["recent"][1]["duration_ms"]), (&Value::Null, &json!(1000)));
    assert_eq!(job["recent"][3]["planned"], json!(format!("{:.3}", at(1))));
    let new = api.admin("GET", "/api/v1/jobs/default/new", Value::Null).await.expect(200).json();
    assert_eq!((&new["last_run"], &new["usual"], &new["runs"]), (&Value::Null, &Value::Null, &json!(0)));
}

#[tokio::test]
async fn jobs_are_found_by_how_they_do_and_where_they_ran() {
    let api = Api::start().await;
    api.run_with("default", "fails", now(), ended(RunState::TimedOut, "n1")).await;
    api.run_with("default", "goes", now(), open).await;
    api.run_with("default", "well", now(), ended(RunState::Succeeded, "n1")).await;
    api.job("default", "paused").await;
    api.admin("POST", "/api/v1/jobs/default/paused/pause", json!({})).await.expect(200);
    let home = json!({"name": "home", "run_on": "home", "action": {"shell": {"command": "true"}}});
    api.admin("POST", "/api/v1/jobs", home).await.expect(201);
    assert_eq!(names(&api, "state=failing").await, ["fails"]);
    assert_eq!(names(&api, "state=running").await, ["goes"]);
    assert_eq!(names(&api, "state=paused").await, ["paused"]);
    assert_eq!(names(&api, "node=n1").await, ["fails", "well"], "nobody is the home of the other");
    assert_eq!(names(&api, "node=n1&limit=1").await, ["fails"]);
    assert_eq!(names(&api, "node=n1&state=failing").await, ["fails"]);
    assert_eq!(names(&api, "node=nowhere").await, [""; 0]);
    let page = api.admin("GET", "/api/v1/jobs?node=n1&limit=1", Value::Null).await.expect(200).json();
    let rest = names(&api, &format!("node=n1&limit=1&cursor={}", page["next"].as_str().unwrap())).await;
    assert_eq!(rest, ["well"]);
    for (query, field) in [("state=broken", "state"), ("recent=61", "recent"), ("recent=-1", "recent")] {
        let refused = api.admin("GET", &format!("/api/v1/jobs?{query}"), Value::Null).await.expect(400).json();
        assert_eq!(refused["error"]["field"], field, "{refused}");
    }
}

#[tokio::test]
async fn as_many_of_the_newest_runs_come_along_as_are_asked_for() {
    let api = Api::start().await;
    let began = now();
    for second in 0..70 {
        let planned = began.saturating_add(std::time::Duration::from_secs(second)).unwrap();
        api.run_with("default", "job", planned, |_| ()).await;
    }
    for (query, expected) in [("", 10), ("?recent=0", 0), ("?recent=60", 60)] {
        let list = api.admin("GET", &format!("/api/v1/jobs{query}"), Value::Null).await.expect(200).json();
        assert_eq!(list["items"][0]["recent"].as_array().unwrap().len(), expected);
        let job = api.admin("GET", &format!("/api/v1/jobs/default/job{query}"), Value::Null).await.expect(200).json();
        assert_eq!(job["recent"].as_array().unwrap().len(), expected);
    }
}
