//! What was decided about a job at an instant, for each kind of instant. No agent is connected here.

use std::sync::Arc;
use std::time::Duration;

use belfry_core::id::Slot;
use belfry_core::place::{By, Decision, Unfit, WhyNot};
use belfry_core::run::{OutputFacts, Run, RunState, Trigger, Usage};
use belfry_core::{Fence, Incarnation, JobDocument, JobId, NodeId, RunId, Timestamp};
use belfry_store::Actor;
use serde_json::{Value, json};

use crate::harness::{Api, now};

const CREATED: &str = "2025-12-01T00:00:00Z";
/// New year at four in Berlin.
const FIRE: &str = "2026-01-01T03:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn document(more: Value) -> JobDocument {
    let mut document = json!({
        "name": "yearly", "schedule": ["0 4 1 1 *", "0 4 1 7 *"], "timezone": "Europe/Berlin",
        "action": {"shell": {"command": "true"}},
    });
    document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    JobDocument::from_value(document).unwrap()
}

/// A job that was created long ago.
async fn job(api: &Api, more: Value) -> JobId {
    let id = JobId::new(at(CREATED), 1);
    api.store.create_job(document(more), id, at(CREATED), &Actor::new("ann")).await.unwrap();
    id
}

async fn edit(api: &Api, id: JobId, revision: u64, more: Value, when: &str) {
    api.store.update_job(id, revision, document(more), at(when), &Actor::new("bob")).await.unwrap();
}

async fn explain(api: &Api, when: &str) -> (Value, String) {
    let answer = api.admin("GET", &format!("/api/v1/explain?job=yearly&at={when}"), Value::Null).await;
    let answer = answer.expect(200).json();
    let said: Vec<&str> = answer["sentences"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let said = said.join("\n");
    (answer, said)
}

fn run(job: JobId, planned: Timestamp) -> Run {
    let after = |ms: i64| planned.checked_add(jiff::SignedDuration::from_millis(ms)).unwrap();
    Run {
        id: RunId::of(job, planned, Slot::Only),
        job,
        namespace: "default".into(),
        job_name: "yearly".into(),
        revision: 1,
        planned,
        trigger: Trigger::Schedule,
        state: RunState::Succeeded,
        reason: None,
        attempt: 1,
        next_attempt_at: None,
        node: Some(NodeId::from_u128(1)),
        node_name: Some("node-get".into()),
        incarnation: Some(Incarnation(1)),
        fence: Fence(1),
        claimed_at: after(-600),
        dispatched_at: Some(after(-590)),
        started_at: Some(after(12)),
        ended_at: Some(after(2012)),
        exit_code: Some(0),
        signal: None,
        late: false,
        marks: Default::default(),
        usage: Usage::default(),
        output: OutputFacts::default(),
        script: None,
        overdue_at: None,
        placement: Some(Arc::new(Decision {
            by: By::Weighted,
            fit: 6,
            others: vec!["a".into(), "b".into(), "c".into()],
            unfit: vec![Unfit { why: WhyNot::Draining, count: 4, some: vec!["d".into()], has: Vec::new() }],
            missing: vec![],
        })),
    }
}

#[tokio::test]
async fn a_fire_that_ran_is_told_with_its_expression_its_steps_and_its_place() {
    let api = Api::start().await;
    let id = job(&api, json!({})).await;
    api.store.record_runs(&[run(id, at(FIRE))]).await.unwrap();
    let (answer, said) = explain(&api, FIRE).await;
    assert_eq!(answer["verdict"], "due");
    assert_eq!(answer["fire"]["expressions"], json!(["0 4 1 1 *"]));
    assert_eq!(answer["fire"]["local"], "2026-01-01T04:00:00+01:00");
    assert_eq!((&answer["definition"]["revision"], &answer["definition"]["author"]), (&json!(1), &json!("ann")));
    let explained = &answer["runs"][0];
    for (step, ms) in [("claimed", -600), ("dispatched", 10), ("started", 602), ("ended", 2000)] {
        assert_eq!(explained[format!("{step}_after_ms")], ms, "{step}");
    }
    assert_eq!(explained["placement"]["unfit"][0]["why"], "draining");
    assert!(answer["outlook"].is_null());
    for part in [
        "is a fire of `0 4 1 1 *`.",
        "is succeeded.",
        "Claimed 600ms before its instant, dispatched 10ms later, started 12ms after its instant, ended 2s after its start.",
        "It went to node-get: weighted round robin: it was its turn; a, b, c and 2 more could take it too.",
        "Not d and 3 more: draining.",
    ] {
        assert!(said.contains(part), "{part}\nis not in\n{said}");
    }
    // Without an instant, of the last run.
    let last = api.admin("GET", "/api/v1/explain?job=default/yearly", Value::Null).await.expect(200).json();
    assert_eq!(last["at"], "2026-01-01T03:00:00.000Z");
}

#[tokio::test]
async fn an_instant_that_is_not_a_fire_names_its_neighbours() {
    let api = Api::start().await;
    job(&api, json!({})).await;
    let (answer, said) = explain(&api, "2026-03-01T03:00:00Z").await;
    assert_eq!(answer["verdict"], "not_a_fire");
    assert_eq!(answer["fire"]["previous"], "2026-01-01T03:00:00.000Z");
    assert_eq!(answer["fire"]["next"], "2026-07-01T02:00:00.000Z");
    assert!(
        said.contains("is not a fire of `0 4 1 1 *` and `0 4 1 7 *`: the one before is 2026-01-01T03:00:00.000Z"),
        "{said}"
    );
}

#[tokio::test]
async fn what_became_of_the_definition_is_told() {
    let api = Api::start().await;
    let id = job(&api, json!({})).await;
    edit(&api, id, 1, json!({"enabled": false}), "2025-12-20T00:00:00Z").await;
    edit(&api, id, 2, json!({"enabled": true}), "2026-02-01T00:00:00Z").await;
    edit(&api, id, 3, json!({"description": "no new schedule"}), "2026-02-02T00:00:00Z").await;
    let (answer, said) = explain(&api, FIRE).await;
    assert_eq!((&answer["verdict"], &answer["definition"]["revision"]), (&json!("paused"), &json!(2)));
    assert!(said.contains("saved by bob at 2025-12-20T00:00:00.000Z; revision 3 replaced it at 2026-02-01"), "{said}");
    assert!(said.contains("but the job was paused"), "{said}");
    // Before it was there, and after it is gone.
    let (answer, said) = explain(&api, "2025-01-01T03:00:00Z").await;
    assert_eq!(answer["verdict"], "no_job");
    assert!(said.contains("it was created at 2025-12-01T00:00:00.000Z"), "{said}");
    api.store.remove_job(id, None, at("2026-06-01T00:00:00Z"), &Actor::new("bob")).await.unwrap();
    let (answer, said) = explain(&api, "2026-07-01T02:00:00Z").await;
    assert_eq!(answer["verdict"], "no_job");
    assert!(said.contains("it was removed at 2026-06-01T00:00:00.000Z"), "{said}");
    assert_eq!(explain(&api, FIRE).await.0["verdict"], "paused", "its history can still be asked for");
    // Another one of its name, whose schedule counts from its creation.
    let new =
        api.admin("POST", "/api/v1/jobs", serde_json::to_value(document(json!({}))).unwrap()).await.expect(201).json();
    assert_eq!(explain(&api, FIRE).await.0["definition"]["revision"], 2);
    let created: Timestamp = new["created_at"].as_str().unwrap().parse().unwrap();
    assert!(created > at(FIRE));
}

#[tokio::test]
async fn a_changed_schedule_owes_nothing_from_before() {
    let api = Api::start().await;
    let id = job(&api, json!({"schedule": "0 5 * * *"})).await;
    edit(&api, id, 1, json!({"schedule": "0 5 * * *", "description": "the same schedule"}), "2025-12-10T00:00:00Z")
        .await;
    edit(&api, id, 2, json!({"schedule": "0 4 1 1 *"}), "2026-01-01T03:00:00Z").await;
    let (answer, said) = explain(&api, FIRE).await;
    assert_eq!((&answer["verdict"], &answer["definition"]["revision"]), (&json!("not_counted_yet"), &json!(3)));
    assert!(said.contains("counts only from 2026-01-01T03:00:00.000Z"), "{said}");
    assert_eq!(explain(&api, "2025-12-15T04:00:00Z").await.0["definition"]["counts_from"], "2025-12-01T00:00:00.000Z");
}

#[tokio::test]
async fn a_fire_without_a_record_and_one_to_come_are_told_by_the_owner() {
    let api = Api::start().await;
    let id = job(&api, json!({"misfire": {"within": "10m"}, "select": {"hosts": ["node-get", "nowhere"]}})).await;
    let (answer, said) = explain(&api, FIRE).await;
    assert_eq!((&answer["verdict"], &answer["runs"]), (&json!("due"), &json!([])));
    assert!(said.contains("its record is gone"), "{said}");

    let next = api.store.job_by_id(id).await.unwrap().unwrap().schedule().unwrap().next_after(now()).unwrap();
    let (answer, said) = explain(&api, &next.to_string()).await;
    assert_eq!(answer["verdict"], "due");
    let outlook = &answer["outlook"];
    assert_eq!((&outlook["node"], &outlook["certain"]), (&Value::Null, &json!(false)));
    assert_eq!(outlook["placement"]["missing"], json!(["nowhere"]));
    for part in [
        "It is still to come",
        "no node can take it (node-delete, node-get, node-patch: not connected; nowhere: in select.hosts, and no node of that name has joined)",
        "it would wait for 10m after its instant (misfire.within) and then be skipped",
    ] {
        assert!(said.contains(part), "{part}\nis not in\n{said}");
    }
}

#[tokio::test]
async fn a_run_that_waits_says_what_for() {
    let api = Api::start().await;
    job(&api, json!({})).await;
    let run = api.admin("POST", "/api/v1/jobs/default/yearly/run", json!({})).await.expect(201).json();
    let waited = async {
        loop {
            let (answer, said) = explain(&api, run["planned"].as_str().unwrap()).await;
            if !answer["runs"][0]["reason"].is_null() {
                return said;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let said = tokio::time::timeout(Duration::from_secs(30), waited).await.expect("it says why it waits");
    assert!(said.contains("started by hand by admin is waiting: no node can take it ("), "{said}");
    assert!(said.contains("When it was last tried, no node can take it ("), "{said}");
}

#[tokio::test]
async fn who_may_not_see_the_job_is_told_that_there_is_none() {
    let api = Api::start().await;
    job(&api, json!({})).await;
    api.call("other", "GET", "/api/v1/explain?job=yearly", Value::Null).await.expect(404);
    api.admin("GET", "/api/v1/explain?job=nobody", Value::Null).await.expect(404);
    let bad = api.admin("GET", "/api/v1/explain?job=yearly&at=soon", Value::Null).await.expect(400);
    assert_eq!(bad.json()["error"]["field"], "at");
    let missing = api.admin("GET", "/api/v1/explain", Value::Null).await.expect(400);
    assert_eq!(missing.json()["error"]["field"], "job");
}

async fn explain_run(api: &Api, caller: &str, run: &str) -> (Value, String) {
    let answer = api.call(caller, "GET", &format!("/api/v1/explain?run={run}"), Value::Null).await.expect(200).json();
    let said = answer["sentences"].to_string();
    (answer, said)
}

#[tokio::test]
async fn a_run_is_explained_whatever_its_job_is_called_now() {
    let api = Api::start().await;
    let id = job(&api, json!({})).await;
    let run = run(id, at(FIRE));
    api.store.record_runs(std::slice::from_ref(&run)).await.unwrap();
    edit(&api, id, 1, json!({"name": "renamed"}), "2026-02-01T00:00:00Z").await;
    // Another one has its name now.
    api.job("default", "yearly").await;
    let (answer, said) = explain_run(&api, "viewer", &run.id.to_string()).await;
    assert_eq!((&answer["verdict"], &answer["job"]), (&json!("due"), &json!("default/yearly")), "{said}");
    assert_eq!((&answer["at"], &answer["definition"]["revision"]), (&json!("2026-01-01T03:00:00.000Z"), &json!(1)));
    assert_eq!(answer["runs"][0]["id"], json!(run.id));
    assert!(said.contains("is a fire of `0 4 1 1 *`") && said.contains("It went to node-get"), "{said}");

    let (wrapped, _) = api.wrapped_run("0230").await;
    let (answer, said) = explain_run(&api, "wrapper", &wrapped.id.to_string()).await;
    assert_eq!((&answer["verdict"], &answer["runs"][0]["id"]), (&json!("wrapped"), &json!(wrapped.id)), "{said}");
    assert!(said.contains("dcron/backup is no job of Belfry's") && said.contains("db1"), "{said}");
    assert!(!said.contains("took it over"), "{said}");
}

#[tokio::test]
async fn a_job_or_a_run_is_explained_and_not_both() {
    let api = Api::start().await;
    let id = api.ended_run("default", "job", 0).await;
    for (query, field) in [
        (format!("run={id}&job=job"), "run"),
        (format!("run={id}&at={FIRE}"), "at"),
        ("run=x".to_owned(), "run"),
        (format!("at={FIRE}"), "job"),
    ] {
        let refused = api.admin("GET", &format!("/api/v1/explain?{query}"), Value::Null).await.expect(400).json();
        assert_eq!(refused["error"]["field"], field, "{query}");
    }
    api.admin("GET", "/api/v1/explain?run=01M7HBXAW83TWS4MM24NYV3GDN", Value::Null).await.expect(404);
    api.call("other", "GET", &format!("/api/v1/explain?run={id}"), Value::Null).await.expect(404);
}

#[tokio::test]
async fn runs_of_a_job_that_moved_stay_with_those_who_see_the_namespace_that_they_were_in() {
    let api = Api::start().await;
    let id = job(&api, json!({})).await;
    let old = run(id, at(FIRE));
    api.store.record_runs(std::slice::from_ref(&old)).await.unwrap();
    let open = api.admin("POST", "/api/v1/jobs/default/yearly/run", json!({})).await.expect(201).json();
    edit(&api, id, 1, json!({"namespace": "other"}), &now().to_string()).await;
    for planned in [FIRE, open["planned"].as_str().unwrap()] {
        let path = format!("/api/v1/explain?job=other/yearly&at={planned}");
        let seen = async |caller: &str| api.call(caller, "GET", &path, Value::Null).await.expect(200).json();
        assert_eq!(seen("admin").await["runs"].as_array().unwrap().len(), 1, "{planned}");
        assert_eq!(seen("other").await["runs"], json!([]), "{planned}");
    }
    let last = api.call("other", "GET", "/api/v1/explain?job=other/yearly", Value::Null).await.expect(200).json();
    assert!(at(last["at"].as_str().unwrap()) > now(), "of runs that it cannot see the time is not told: {last}");

    let old = old.id.to_string();
    let (answer, said) = explain_run(&api, "viewer", &old).await;
    assert_eq!((&answer["verdict"], &answer["runs"][0]["id"]), (&json!("due"), &json!(old)), "{said}");
    api.call("other", "GET", &format!("/api/v1/explain?run={old}"), Value::Null).await.expect(404);
}
