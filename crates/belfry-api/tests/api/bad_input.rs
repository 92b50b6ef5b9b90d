//! What is refused, with which status, code and field.

use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};

use crate::harness::Api;

fn job(extra: Value) -> Value {
    let mut document = json!({"name": "a", "action": {"shell": {"command": "true"}}});
    for (name, value) in extra.as_object().unwrap() {
        document[name] = value.clone();
    }
    document
}

/// Method, path, body; then status, code, field.
type Case = (&'static str, &'static str, Value, u16, &'static str, Option<&'static str>);

/// So many variables of nearly the size that one may have.
fn env_of(count: usize) -> Value {
    (0..count).map(|n| (format!("V{n}"), Value::from("x".repeat(30_000)))).collect::<serde_json::Map<_, _>>().into()
}

#[tokio::test]
async fn every_refusal_has_its_status_code_and_field() {
    let api = Api::start().await;
    api.job("default", "taken").await;
    let cases: Vec<Case> = vec![
        ("POST", "/api/v1/jobs", job(json!({"colour": 1})), 422, "invalid", Some("colour")),
        (
            "POST",
            "/api/v1/jobs",
            job(json!({"timeout": {"after": "1s", "colour": 1}})),
            422,
            "invalid",
            Some("timeout.colour"),
        ),
        ("POST", "/api/v1/jobs", job(json!({"jitter": 5})), 422, "invalid", Some("jitter")),
        ("GET", "/api/v1/jobs?q=a%00b", Value::Null, 400, "invalid", None),
        (
            "POST",
            "/api/v1/jobs/default/taken/run",
            json!({"idempotency_key": "a\0"}),
            422,
            "invalid",
            Some("idempotency_key"),
        ),
        ("POST", "/api/v1/jobs/default/taken/run", json!({"env": env_of(30)}), 422, "invalid", Some("env")),
        ("POST", "/api/v1/login", json!({"user": "a\0", "password": "x"}), 401, "wrong_password", None),
        ("POST", "/api/v1/jobs", job(json!({"schedule": "61 * * * *"})), 422, "invalid", Some("schedule[0]")),
        ("POST", "/api/v1/jobs", job(json!({"schedule": ["@daily", "nonsense"]})), 422, "invalid", Some("schedule[1]")),
        ("POST", "/api/v1/jobs", job(json!({"schedule": "0 0 30 2 *"})), 422, "invalid", Some("schedule[0]")),
        (
            "POST",
            "/api/v1/jobs",
            job(json!({"schedule": "0 4 * * *", "timezone": "Mars/Olympus"})),
            422,
            "invalid",
            Some("timezone"),
        ),
        ("POST", "/api/v1/jobs", job(json!({"name": "Not A Name"})), 422, "invalid", Some("name")),
        ("POST", "/api/v1/jobs", job(json!({"name": "taken"})), 409, "name_taken", Some("name")),
        ("POST", "/api/v1/jobs", job(json!({"notify": ["ops"]})), 422, "invalid", Some("notify")),
        (
            "POST",
            "/api/v1/jobs",
            job(json!({"webhook": {"url": "hooks.example"}})),
            422,
            "invalid",
            Some("webhook.url"),
        ),
        (
            "POST",
            "/api/v1/jobs",
            job(json!({"webhook": {"url": "https://u:p@x"}})),
            422,
            "invalid",
            Some("webhook.url"),
        ),
        (
            "POST",
            "/api/v1/jobs",
            job(json!({"webhook": {"url": "https://x", "on": ["failed", "running"]}})),
            422,
            "invalid",
            Some("webhook.on[1]"),
        ),
        ("POST", "/api/v1/jobs", json!({"name": "a"}), 422, "invalid", Some("action")),
        ("POST", "/api/v1/jobs", json!([1]), 422, "invalid", None),
        ("POST", "/api/v1/jobs?force=1", job(json!({})), 400, "unknown_parameter", Some("force")),
        ("GET", "/api/v1/jobs?colour=red", Value::Null, 400, "unknown_parameter", Some("colour")),
        ("GET", "/api/v1/jobs?limit=0", Value::Null, 400, "invalid", Some("limit")),
        ("GET", "/api/v1/jobs?limit=many", Value::Null, 400, "invalid", Some("limit")),
        ("GET", "/api/v1/jobs?limit=1&limit=2", Value::Null, 400, "invalid", Some("limit")),
        ("GET", "/api/v1/jobs?cursor=nonsense", Value::Null, 400, "invalid", Some("cursor")),
        ("GET", "/api/v1/jobs?state=sleepy", Value::Null, 400, "invalid", Some("state")),
        ("GET", "/api/v1/jobs?label=team", Value::Null, 400, "invalid", Some("label")),
        ("GET", "/api/v1/jobs/default/nothing", Value::Null, 404, "not_found", None),
        ("GET", "/api/v1/runs?from=yesterday", Value::Null, 400, "invalid", Some("from")),
        ("GET", "/api/v1/runs?state=sleepy", Value::Null, 400, "invalid", Some("state")),
        ("GET", "/api/v1/runs/short", Value::Null, 400, "invalid", Some("id")),
        ("GET", "/api/v1/runs/01ARZ3NDEKTSV4RRFFQ69G5FAV", Value::Null, 404, "not_found", None),
        ("DELETE", "/api/v1/runs", Value::Null, 400, "invalid", Some("before")),
        (
            "POST",
            "/api/v1/jobs/default/taken/run",
            json!({"env": {"BELFRY_X": "1"}}),
            422,
            "invalid",
            Some("env.BELFRY_X"),
        ),
        ("POST", "/api/v1/jobs/default/taken/run", json!({"colour": 1}), 422, "invalid", Some("colour")),
        ("POST", "/api/v1/jobs/default/taken/run", json!({"node": "nowhere"}), 404, "not_found", Some("node")),
        ("POST", "/api/v1/schedule/preview", json!({"schedule": "61 * * * *"}), 422, "invalid", Some("schedule[0]")),
        ("POST", "/api/v1/schedule/preview", json!({"schedule": "@daily", "count": 0}), 422, "invalid", Some("count")),
        (
            "POST",
            "/api/v1/apply",
            json!({"documents": [job(json!({})), job(json!({"jitter": 1}))]}),
            422,
            "invalid",
            Some("documents[1].jitter"),
        ),
        (
            "POST",
            "/api/v1/apply",
            json!({"documents": [job(json!({})), job(json!({}))]}),
            422,
            "invalid",
            Some("documents[1].name"),
        ),
        ("PATCH", "/api/v1/nodes/node-patch", json!({"weight": 1_000_000}), 422, "invalid", Some("weight")),
        ("PATCH", "/api/v1/nodes/node-patch", json!({"colour": 1}), 422, "invalid", Some("colour")),
        (
            "POST",
            "/api/v1/users",
            json!({"name": "x", "password": "short", "grants": {"*": "admin"}}),
            422,
            "invalid",
            Some("password"),
        ),
        (
            "POST",
            "/api/v1/users",
            json!({"name": "x", "password": "long enough for this", "grants": {"*": "king"}}),
            422,
            "invalid",
            Some("grants.*"),
        ),
        ("DELETE", "/api/v1/users/admin", Value::Null, 409, "last_admin", None),
        ("DELETE", "/api/v1/jobs", Value::Null, 405, "method_not_allowed", None),
        ("GET", "/api/v1/nothing", Value::Null, 404, "not_found", None),
        ("POST", "/api/v1/jobs/default/taken/backfill", json!({}), 404, "not_found", None),
        ("GET", "/api/v1/nowhere", Value::Null, 404, "not_found", None),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, status, code, field) in cases {
        let answer = api.admin(method, path, body.clone()).await;
        let error = &answer.json()["error"];
        let got = (answer.status.as_u16(), error["code"].as_str().unwrap_or_default(), error["field"].as_str());
        if got != (status, code, field) || error["message"].as_str().is_none_or(str::is_empty) {
            wrong.push(format!("{method} {path} {body}: {got:?} instead of {:?}: {error}", (status, code, field)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn raw(api: &Api, content_type: Option<&str>, body: impl Into<Body>) -> Request<Body> {
    let mut request =
        Request::post("/api/v1/jobs").header(header::AUTHORIZATION, format!("Bearer {}", api.token("admin")));
    if let Some(content_type) = content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    request.body(body.into()).unwrap()
}

#[tokio::test]
async fn a_body_of_the_wrong_kind_or_size_is_refused() {
    let api = Api::start().await;
    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded")] {
        let answer = api.send(raw(&api, kind, "{}")).await.expect(415);
        assert_eq!(
            (answer.code().as_str(), answer.json()["error"]["field"].as_str()),
            ("wrong_content_type", Some("Content-Type"))
        );
    }
    let broken = api.send(raw(&api, Some("application/json"), "{\"name\": \"a\",\n  oops}")).await.expect(400);
    assert_eq!(broken.code(), "bad_json");
    assert!(broken.json()["error"]["message"].as_str().unwrap().contains("line 2 column 3"), "{}", broken.json());
    let large = format!("{{\"description\": \"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(api.send(raw(&api, Some("application/json"), large.clone())).await.expect(413).code(), "too_large");
    let parts = futures_util::stream::iter(
        large.as_bytes().chunks(1000).map(|part| Ok::<_, std::io::Error>(part.to_vec())).collect::<Vec<_>>(),
    );
    let unannounced = raw(&api, Some("application/json; charset=utf-8"), Body::from_stream(parts));
    assert_eq!(api.send(unannounced).await.expect(413).code(), "too_large");
}

#[tokio::test]
async fn answers_carry_what_browsers_need_to_be_strict() {
    let api = Api::start().await;
    let page = api.call("none", "GET", "/", Value::Null).await.expect(200);
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    assert!(String::from_utf8(page.body).unwrap().contains("Belfry"));
    let list = api.admin("GET", "/api/v1/jobs", Value::Null).await.expect(200);
    assert_eq!(
        (&list.headers["x-content-type-options"], &list.headers["cache-control"]),
        (&"nosniff".parse().unwrap(), &"no-store".parse().unwrap())
    );
}

#[tokio::test]
async fn with_the_store_away_the_answer_says_so_and_recovers() {
    let api = Api::start().await;
    api.call("none", "GET", "/readyz", Value::Null).await.expect(200);
    api.unplug_store(true);
    let refused = api.admin("GET", "/api/v1/jobs", Value::Null).await.expect(503);
    assert_eq!(refused.code(), "store_away");
    assert!(refused.headers.contains_key(header::RETRY_AFTER));
    let ready = api.call("none", "GET", "/readyz", Value::Null).await.expect(503).json();
    assert!(ready["missing"].as_array().unwrap().contains(&json!("store")), "{ready}");
    api.call("none", "GET", "/healthz", Value::Null).await.expect(200);
    api.unplug_store(false);
    api.look_at_store().await;
    api.admin("GET", "/api/v1/jobs", Value::Null).await.expect(200);
}
