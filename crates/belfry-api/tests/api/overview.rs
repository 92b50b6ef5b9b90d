//! The front page, what is to come, and the time line.

use std::time::Duration;

use belfry_core::Timestamp;
use belfry_core::run::{Run, RunState};
use serde_json::{Value, json};

use crate::harness::{Api, now};

fn ago(seconds: u64) -> Timestamp {
    now().saturating_sub(Duration::from_secs(seconds)).unwrap()
}

fn ended(state: RunState) -> impl FnOnce(&mut Run) {
    move |run| (run.state, run.exit_code) = (state, Some(3))
}

fn open(state: RunState) -> impl FnOnce(&mut Run) {
    move |run| {
        (run.state, run.ended_at, run.exit_code) = (state, None, None);
        run.started_at = run.started_at.filter(|_| state == RunState::Running);
    }
}

/// `kind namespace/job` of each entry that is of a job.
fn of_jobs(overview: &Value) -> Vec<String> {
    let entries = overview["attention"].as_array().unwrap().iter().filter(|entry| entry["job"].is_string());
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
    entries
        .map(|entry| format!("{} {}/{}", text(entry, "kind"), text(entry, "namespace"), text(entry, "job")))
        .collect()
}

async fn overview(api: &Api, caller: &str) -> Value {
    api.call(caller, "GET", "/api/v1/overview", Value::Null).await.expect(200).json()
}

#[tokio::test]
async fn the_overview_says_what_needs_attention_and_what_is_going() {
    let api = Api::start().await;
    for n in 0..3 {
        api.run_with("default", "fails", ago(500 - n), ended(RunState::Failed)).await;
    }
    api.run_with("default", "lost", ago(90_000), ended(RunState::Lost)).await;
    api.run_with("default", "lost", ago(400), ended(RunState::Lost)).await;
    api.run_with("default", "missed", ago(300), |run| {
        (run.state, run.reason) = (RunState::Skipped, Some("missed by 90 s: misfire.policy is skip".into()));
    })
    .await;
    api.run_with("default", "overlaps", ago(300), |run| {
        (run.state, run.reason) =
            (RunState::Skipped, Some("overlap is forbid, and the run before it had not ended".into()));
    })
    .await;
    api.run_with("default", "late", ago(200), open(RunState::Claimed)).await;
    api.run_with("default", "soon", ago(20), open(RunState::Claimed)).await;
    api.run_with("default", "long", ago(900), |_| ()).await;
    let long = api.run_with("default", "long", ago(800), open(RunState::Running)).await;
    api.run_with("other", "fails", ago(100), ended(RunState::Killed)).await;
    api.job("default", "paused").await;
    api.run_with("default", "paused", ago(100), ended(RunState::Failed)).await;
    api.admin("POST", "/api/v1/jobs/default/paused/pause", json!({})).await.expect(200);

    let seen = overview(&api, "viewer").await;
    let expected = [
        "lost default/lost",
        "failing default/fails",
        "failing default/lost",
        "missed default/missed",
        "late default/late",
        "overdue default/long",
    ];
    assert_eq!(of_jobs(&seen), expected, "{seen}");
    let kinds = |overview: &Value| {
        let of = |entry: &Value| entry["kind"].as_str().unwrap().to_owned();
        overview["attention"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    assert!(!kinds(&seen).contains(&"node_down".to_owned()), "only those who may see the whole cluster: {seen}");
    let failing = &seen["attention"][1];
    assert_eq!(
        (&failing["count"], &failing["message"]),
        (&json!(3), &json!("3 runs in a row did not succeed; the last: exit code 3"))
    );
    assert_eq!(seen["attention"][0]["count"], 1, "the other one is older than a day");
    assert_eq!((&seen["running"][0]["run"], &seen["running_total"]), (&json!(long), &json!(1)));
    assert_eq!(seen["running"][0]["usual"]["p50_ms"], 1000);
    assert_eq!(seen["attention_left_out"], 0);

    let all = overview(&api, "admin").await;
    assert_eq!(kinds(&all).iter().filter(|kind| *kind == "node_down").count(), 3, "{all}");
    assert!(of_jobs(&all).contains(&"failing other/fails".to_owned()));
    assert_eq!(of_jobs(&overview(&api, "other").await), ["failing other/fails"]);
}

#[tokio::test]
async fn a_service_that_does_not_run_needs_attention_and_its_end_is_no_failure() {
    let api = Api::start().await;
    let document = json!({"name": "web", "action": {"service": {"command": "sleep 9"}}});
    api.admin("POST", "/api/v1/jobs", document).await.expect(201);
    api.run_with("default", "web", ago(100), ended(RunState::Killed)).await;
    let seen = of_jobs(&overview(&api, "viewer").await);
    assert!(seen.iter().all(|entry| entry == "service_down default/web"), "{seen:?}");
    assert_eq!(
        api.admin("GET", "/api/v1/jobs?state=failing", Value::Null).await.expect(200).json()["items"],
        json!([])
    );
}

#[tokio::test]
async fn a_service_runs_however_much_has_been_running_for_longer() {
    let api = Api::start().await;
    let document = json!({"name": "web", "action": {"service": {"command": "sleep 9"}}});
    api.admin("POST", "/api/v1/jobs", document).await.expect(201);
    api.saved_an_hour_ago("web").await;
    let is_down = async || of_jobs(&overview(&api, "viewer").await).contains(&"service_down default/web".to_owned());
    assert!(is_down().await);
    for n in 0..500 {
        api.run_with("default", "batch", ago(900 - n), open(RunState::Running)).await;
    }
    api.run_with("default", "web", ago(100), open(RunState::Running)).await;
    assert!(!is_down().await);
}

#[tokio::test]
async fn the_overview_has_a_hundred_entries_and_counts_the_rest() {
    let api = Api::start().await;
    for n in 0..104 {
        api.run_with("default", &format!("job-{n:03}"), ago(600), ended(RunState::Failed)).await;
    }
    let seen = overview(&api, "viewer").await;
    assert_eq!((seen["attention"].as_array().unwrap().len(), &seen["attention_left_out"]), (100, &json!(4)));
}

#[tokio::test]
async fn namespaces_that_have_a_job_are_told_to_those_who_may_see_them() {
    let api = Api::start().await;
    for (namespace, name) in [("default", "one"), ("default", "two"), ("other", "one")] {
        api.job(namespace, name).await;
    }
    let seen = async |caller| api.call(caller, "GET", "/api/v1/namespaces", Value::Null).await.expect(200).json();
    let default = json!({"name": "default", "jobs": 2, "jobs_enabled": 2});
    let other = json!({"name": "other", "jobs": 1, "jobs_enabled": 1});
    assert_eq!(seen("admin").await["items"], json!([default, other]));
    assert_eq!(seen("viewer").await["items"], json!([default]));
}

#[tokio::test]
async fn a_forecast_counts_fires_of_what_may_be_seen_and_follows_edits() {
    let api = Api::start().await;
    let job = |namespace: &str, name: &str, schedule: &str| json!({"name": name, "namespace": namespace, "schedule": schedule, "timezone": "UTC", "action": {"shell": {"command": "true"}}});
    api.admin("POST", "/api/v1/jobs", job("default", "often", "*/10 * * * *")).await.expect(201);
    api.admin("POST", "/api/v1/jobs", job("default", "once", "0 4 * * *")).await.expect(201);
    api.admin("POST", "/api/v1/jobs", job("other", "once", "0 4 * * *")).await.expect(201);
    // An hour that takes over into the next.
    for second in 0..3 {
        api.run_with("default", "once", ago(5_000 - second), |run| {
            run.ended_at = run.started_at.map(|at| at.saturating_add(Duration::from_secs(150)).unwrap())
        })
        .await;
    }
    let asked = "/api/v1/forecast?from=2030-01-01T04:00:00Z&to=2030-01-01T05:00:00Z";
    let seen = api.call("viewer", "GET", asked, Value::Null).await.expect(200).json();
    let numbers = |answer: &Value, field: &str| -> Vec<u64> {
        answer[field].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    };
    let fires = numbers(&seen, "fires");
    assert_eq!((fires.len(), fires[0], fires[10], fires.iter().sum::<u64>()), (60, 2, 1, 7), "{seen}");
    assert_eq!(numbers(&seen, "concurrency")[..5], [2, 1, 1, 0, 0]);
    let busiest = &seen["busiest"][0];
    assert_eq!(
        (&busiest["at"], &busiest["jobs"][0]),
        (&json!("2030-01-01T04:00:00.000Z"), &json!({"namespace": "default", "name": "once"}))
    );
    assert_eq!((&seen["step_ms"], &seen["left_out"]), (&json!(60_000), &json!(0)));
    let all = api.admin("GET", asked, Value::Null).await.expect(200).json();
    assert_eq!(numbers(&all, "fires")[0], 3);
    api.admin("POST", "/api/v1/jobs/default/often/pause", json!({})).await.expect(200);
    api.admin("DELETE", "/api/v1/jobs/other/once", Value::Null).await.expect(204);
    let later = api.admin("GET", asked, Value::Null).await.expect(200).json();
    assert_eq!(numbers(&later, "fires").iter().sum::<u64>(), 1);
    for bad in [
        "from=2030-01-01T04:00:00Z&to=2030-01-03T04:01:00Z",
        "from=2030-01-02T00:00:00Z&to=2030-01-01T00:00:00Z",
        "to=x",
    ] {
        let refused = api.admin("GET", &format!("/api/v1/forecast?{bad}"), Value::Null).await.expect(400).json();
        assert_eq!(refused["error"]["field"], "to", "{refused}");
    }
}

#[tokio::test]
async fn a_time_line_has_lanes_with_bars_of_what_was_and_instants_of_what_is_to_come() {
    let api = Api::start().await;
    // Not soon: it would fire here.
    let hours = [1, 2, 5].map(|hours| now().saturating_add(Duration::from_secs(hours * 3_600)).unwrap());
    let schedule: Vec<String> = hours.iter().map(|at| format!("@at {at:.0}")).collect();
    let job =
        json!({"name": "often", "schedule": schedule, "timezone": "UTC", "action": {"shell": {"command": "true"}}});
    api.admin("POST", "/api/v1/jobs", job).await.expect(201);
    let on = |node: u128| {
        move |run: &mut Run| {
            (run.node, run.node_name) = (Some(belfry_core::NodeId::from_u128(node)), Some(format!("n{node}")));
        }
    };
    for minute in 1..=5 {
        api.run_with("default", "often", ago(minute * 60), on(1)).await;
    }
    let failed = api.run_with("default", "fails", ago(90), ended(RunState::Failed)).await;
    api.run_with("other", "hidden", ago(90), on(2)).await;
    let by_job = api.call("viewer", "GET", "/api/v1/timeline", Value::Null).await.expect(200).json();
    let labels = |answer: &Value| {
        let label = |lane: &Value| lane["label"].as_str().unwrap().to_owned();
        answer["lanes"].as_array().unwrap().iter().map(label).collect::<Vec<_>>()
    };
    assert_eq!(labels(&by_job), ["default/fails", "default/often"], "{by_job}");
    assert_eq!(by_job["lanes"][0]["runs"][0]["id"], json!(failed));
    let often = &by_job["lanes"][1];
    assert_eq!(
        (often["runs"].as_array().unwrap().len(), often["namespace"].as_str(), often["job"].as_str()),
        (5, Some("default"), Some("often"))
    );
    let expected = json!([format!("{:.0}", hours[0]), format!("{:.0}", hours[1])]);
    let shown = |at: &Value| at.as_str().unwrap().replace(".000Z", "Z");
    let fires: Vec<String> = often["fires"].as_array().unwrap().iter().map(shown).collect();
    assert_eq!(json!(fires), expected, "the third is later than the time line");
    let by_node = api.admin("GET", "/api/v1/timeline?by=node", Value::Null).await.expect(200).json();
    assert_eq!(labels(&by_node), ["n1", "n2"], "{by_node}");
    assert_eq!(by_node["lanes"][0]["fires"], json!([]));
    let refused = api.admin("GET", "/api/v1/timeline?by=shard", Value::Null).await.expect(400).json();
    assert_eq!(refused["error"]["field"], "by");
}
