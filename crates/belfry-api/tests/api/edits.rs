//! Editing jobs: revisions, two editors at once, patches, and many documents at once.

use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};

use crate::harness::{Answer, Api};

async fn edit(api: &Api, method: &str, if_match: &str, body: Value) -> Answer {
    let request = Request::builder()
        .method(method)
        .uri("/api/v1/jobs/default/job")
        .header(header::AUTHORIZATION, format!("Bearer {}", api.token("editor")))
        .header(header::IF_MATCH, if_match)
        .header(header::CONTENT_TYPE, "application/json");
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    api.send(request.body(body).unwrap()).await
}

#[tokio::test]
async fn of_two_editors_the_second_is_told_the_current_revision() {
    let api = Api::start().await;
    api.job("default", "job").await;
    let read = api.admin("GET", "/api/v1/jobs/default/job", Value::Null).await.expect(200);
    let etag = read.headers[header::ETAG].to_str().unwrap().to_owned();
    assert_eq!(etag, "\"1\"");
    let first = edit(&api, "PATCH", &etag, json!({"description": "mine"})).await.expect(200);
    assert_eq!((first.json()["revision"].as_u64(), &first.headers[header::ETAG]), (Some(2), &"\"2\"".parse().unwrap()));
    for (method, body) in
        [("PATCH", json!({"description": "late"})), ("PUT", first.json()["document"].clone()), ("DELETE", Value::Null)]
    {
        let second = edit(&api, method, &etag, body).await.expect(412);
        let error = second.json()["error"].clone();
        assert_eq!((error["code"].as_str(), error["revision"].as_u64()), (Some("stale_revision"), Some(2)), "{method}");
        assert_eq!(second.headers[header::ETAG], "\"2\"", "{method}");
    }
    assert_eq!(edit(&api, "PATCH", "yesterday", json!({})).await.expect(400).json()["error"]["field"], "If-Match");
    edit(&api, "PATCH", "*", json!({"description": "any"})).await.expect(200);
    edit(&api, "DELETE", "3", Value::Null).await.expect(204);
    api.admin("GET", "/api/v1/jobs/default/job", Value::Null).await.expect(404);
}

#[tokio::test]
async fn a_job_keeps_its_id_through_edits_and_each_has_its_revision() {
    let api = Api::start().await;
    let id = api.job("default", "job").await;
    let unchanged = api.admin("PATCH", "/api/v1/jobs/default/job", json!({})).await.expect(200).json();
    assert_eq!(unchanged["revision"], 1, "what changes nothing makes no revision");
    assert_eq!(unchanged["document"]["timezone"], "Europe/Berlin", "the cluster's zone is written in");
    api.admin("PATCH", "/api/v1/jobs/default/job", json!({"labels": {"team": "db"}, "jitter": "5s"})).await.expect(200);
    let patched = api
        .admin("PATCH", "/api/v1/jobs/default/job", json!({"name": "renamed", "jitter": null}))
        .await
        .expect(200)
        .json();
    assert_eq!((patched["id"].as_str(), patched["name"].as_str()), (Some(id.to_string().as_str()), Some("renamed")));
    assert_eq!(
        (patched["document"]["jitter"].clone(), patched["document"]["labels"].clone()),
        (Value::Null, json!({"team": "db"}))
    );
    let paused = api.admin("POST", "/api/v1/jobs/default/renamed/pause", Value::Null).await.expect(200).json();
    assert_eq!((paused["enabled"].as_bool(), paused["next_fire"].clone()), (Some(false), Value::Null));
    let resumed = api.admin("POST", "/api/v1/jobs/default/renamed/resume", Value::Null).await.expect(200).json();
    assert!(resumed["next_fire"].is_string());
    let revisions = api.admin("GET", "/api/v1/jobs/default/renamed/revisions", Value::Null).await.expect(200).json();
    let numbers: Vec<_> =
        revisions["items"].as_array().unwrap().iter().map(|item| item["revision"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [5, 4, 3, 2, 1]);
    let audit = api.admin("GET", "/api/v1/audit?action=job.update", Value::Null).await.expect(200).json();
    assert_eq!(audit["items"].as_array().unwrap().len(), 4);
    assert_eq!(audit["items"][0]["actor"], "admin");
}

#[tokio::test]
async fn apply_says_what_it_changes_and_changes_all_or_nothing() {
    let api = Api::start().await;
    for name in ["kept", "changed", "gone"] {
        api.job("default", name).await;
    }
    api.job("other", "untouched").await;
    let document = |name: &str, schedule: &str| json!({"name": name, "schedule": schedule, "action": {"shell": {"command": "echo hello"}}});
    let documents = json!([document("kept", "0 4 1 1 *"), document("changed", "0 5 1 1 *"), document("new", "@daily")]);
    let plan = json!({
        "dry_run": true,
        "created": [{"namespace": "default", "name": "new"}],
        "changed": [{"namespace": "default", "name": "changed", "fields": [{"field": "schedule", "from": "0 4 1 1 *", "to": "0 5 1 1 *"}]}],
        "unchanged": [{"namespace": "default", "name": "kept"}],
        "removed": [{"namespace": "default", "name": "gone"}],
    });
    let dry = api
        .call("editor", "POST", "/api/v1/apply", json!({"documents": documents, "dry_run": true, "prune": true}))
        .await
        .expect(200);
    assert_eq!(dry.json(), plan);
    assert!(api.store.job("default", "new").await.unwrap().is_none(), "a dry run changes nothing");

    let mut bad = documents.clone();
    bad[2]["schedule"] = json!("nonsense");
    api.call("editor", "POST", "/api/v1/apply", json!({"documents": bad, "prune": true})).await.expect(422);
    let foreign = json!([document("new", "@daily"), {"name": "x", "namespace": "other", "action": {"shell": {"command": "true"}}}]);
    api.call("editor", "POST", "/api/v1/apply", json!({"documents": foreign})).await.expect(403);
    assert!(api.store.job("default", "new").await.unwrap().is_none(), "one refusal refuses all");

    let done = api
        .call("editor", "POST", "/api/v1/apply", json!({"documents": documents, "prune": true}))
        .await
        .expect(200)
        .json();
    assert_eq!(
        (&done["created"], &done["removed"], done["dry_run"].as_bool()),
        (&plan["created"], &plan["removed"], Some(false))
    );
    assert!(api.store.job("default", "gone").await.unwrap().is_none());
    assert!(
        api.store.job("other", "untouched").await.unwrap().is_some(),
        "prune stays in the namespaces of the documents"
    );
    let again = api
        .call("editor", "POST", "/api/v1/apply", json!({"documents": documents, "prune": true}))
        .await
        .expect(200)
        .json();
    assert_eq!(again["unchanged"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_preview_shows_what_a_clock_change_does() {
    let api = Api::start().await;
    let request =
        json!({"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "from": "2026-03-28T12:00:00Z", "count": 2});
    let fires = api.call("viewer", "POST", "/api/v1/schedule/preview", request).await.expect(200).json();
    assert_eq!(fires["fires"][0]["at"], "2026-03-29T01:00:00.000Z");
    assert_eq!(fires["fires"][0]["local"], "2026-03-29T03:00:00+02:00");
    assert_eq!(fires["fires"][0]["note"]["kind"], "moved_from_gap");
    assert_eq!(fires["fires"][1]["note"], Value::Null);
}

/// Who may run it is who may where it is now.
#[tokio::test]
async fn a_run_of_a_job_that_went_to_another_namespace_is_run_again_only_by_those_of_that_one() {
    let api = Api::start().await;
    let run = api.ended_run("default", "job", 1).await;
    let moved = json!({"namespace": "other", "name": "job", "schedule": "0 4 1 1 *", "action": {"shell": {"command": "echo other"}}});
    api.admin("PUT", "/api/v1/jobs/default/job", moved).await.expect(200);
    let path = format!("/api/v1/runs/{run}/rerun");
    api.call("operator", "POST", &path, json!({"force": true})).await.expect(404);
    assert!(
        api.admin("GET", "/api/v1/runs?job=other/job", Value::Null).await.json()["items"].as_array().unwrap().len() < 2
    );
    let again = api.admin("POST", &path, json!({})).await.expect(201).json();
    assert_eq!(
        (again["namespace"].as_str(), again["rerun_of"].as_str()),
        (Some("other"), Some(run.to_string().as_str()))
    );
    // Both namespaces have a row of where it went.
    let audit = async |caller: &str| {
        let entries = api.call(caller, "GET", "/api/v1/audit?action=job.update", Value::Null).await.expect(200).json();
        entries["items"][0].clone()
    };
    assert_eq!(audit("other").await["detail"]["was"], "default/job");
    let everywhere = api.admin("GET", "/api/v1/audit?action=job.update", Value::Null).await.expect(200).json();
    let left = everywhere["items"].as_array().unwrap().iter().find(|entry| entry["namespace"] == "default").cloned();
    assert_eq!(left.unwrap()["detail"]["became"], "other/job");
}
