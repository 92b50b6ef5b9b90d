//! Route × caller: for every operation of the OpenAPI document, what each caller gets follows from its one row in the access table.

use axum::http::Method;
use belfry_api::access::{Access, TABLE, access_of};
use belfry_core::role::{EVERYWHERE, Role};
use serde_json::{Value, json};

use crate::harness::{Api, CALLERS, now};

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Served,
    NotSignedIn,
    Denied,
    /// The object does not exist for this caller.
    Hidden,
}

/// Names its object in the query.
const EXPLAIN: &str = "/api/v1/explain";
/// Names its object in the body; it is in a namespace of its own.
const WRAPPED: &str = "/api/v1/wrapped/output";

/// Written apart from the gate, for objects in the namespace `default`, or in that of wrapped commands.
fn expected(access: Access, grant: Option<(&str, Role)>, path: &str) -> Expected {
    let names_object = path.contains('{') || path == EXPLAIN || path == WRAPPED;
    let object = if path == WRAPPED { "dcron" } else { "default" };
    let Some((namespace, role)) = grant else {
        return if access == Access::Open { Expected::Served } else { Expected::NotSignedIn };
    };
    let everywhere = namespace == EVERYWHERE;
    let served = match access {
        Access::Open | Access::SignedIn => true,
        Access::Somewhere(needed) => role >= needed,
        Access::Everywhere(needed) => everywhere && role >= needed,
        Access::Namespace(needed) => (everywhere || namespace == object) && role >= needed,
    };
    match access {
        _ if served => Expected::Served,
        Access::Namespace(_) if names_object && namespace != object => Expected::Hidden,
        _ => Expected::Denied,
    }
}

fn operations() -> Vec<(Method, String)> {
    let document = belfry_api::openapi::document();
    let paths = document["paths"].as_object().expect("the document has paths");
    let methods = |item: &Value| {
        item.as_object().unwrap().keys().map(|word| word.to_uppercase().parse().unwrap()).collect::<Vec<Method>>()
    };
    paths.iter().flat_map(|(path, item)| methods(item).into_iter().map(move |method| (method, path.clone()))).collect()
}

/// What must be there for an allowed call to succeed; made anew before each call.
async fn fixture(api: &Api, n: usize) -> (String, String) {
    api.job("default", "job").await;
    let actor = belfry_store::Actor::new("test");
    api.store.put_script(("default", "job"), "true", None, now(), &actor).await.unwrap();
    let run = api.ended_run("default", "job", n as i64).await;
    if api.store.user("victim").await.unwrap().is_none() {
        let new = belfry_store::NewUser {
            name: "victim".into(),
            password_hash: "none".into(),
            grants: belfry_core::role::Grants::everywhere(Role::Viewer),
        };
        api.store.create_user(new, now(), &belfry_store::Actor::new("test")).await.unwrap();
    }
    let token = format!("token-{n}");
    let new = belfry_store::NewToken {
        id: token.clone(),
        owner: belfry_store::TokenOwner::Service(CALLERS[n % CALLERS.len()].0.to_owned()),
        label: "test".into(),
        secret: belfry_store::SecretHash::of(&token),
        grants: belfry_core::role::Grants::default(),
        expires_at: None,
    };
    api.store.create_token(new, now(), &belfry_store::Actor::new("test")).await.unwrap();
    (run.to_string(), token)
}

fn concrete(method: &Method, path: &str, run: &str, token: &str) -> String {
    let node = format!("node-{}", method.as_str().to_lowercase());
    let id = if path.contains("/nodes/") {
        &node
    } else if path.contains("/tokens/") {
        token
    } else {
        run
    };
    let name = if path.contains("/users/") { "victim" } else { "job" };
    let path = path.replace("{ns}", "default").replace("{name}", name).replace("{id}", id);
    let asset = belfry_api::console_files().find_map(|file| file.strip_prefix("assets/").map(str::to_owned));
    let path = path.replace("{file}", &asset.unwrap_or_else(|| "none.js".to_owned()));
    match (method.as_str(), path.as_str()) {
        ("DELETE", "/api/v1/runs") => format!("{path}?before=2001-01-01T00:00:00Z"),
        ("GET", EXPLAIN) => format!("{path}?job=default/job"),
        _ => path,
    }
}

fn body(api: &Api, method: &Method, path: &str, n: usize) -> Value {
    let job = |name: &str| json!({"name": name, "action": {"shell": {"command": "true"}}});
    match (method.as_str(), path) {
        ("POST", "/api/v1/login") => json!({"user": "admin", "password": api.password}),
        ("POST", "/api/v1/password") => json!({"current": "not the password", "new": "also not the password"}),
        ("POST", "/api/v1/jobs") => job(&format!("made-{n}")),
        ("PUT", "/api/v1/jobs/{ns}/{name}") => job("job"),
        ("PUT", "/api/v1/jobs/{ns}/{name}/state") => json!({"values": {"A": n.to_string()}}),
        ("PUT", "/api/v1/scripts/{ns}/{name}") => json!({"body": format!("echo {n}")}),
        ("PATCH", "/api/v1/jobs/{ns}/{name}") => json!({"description": format!("{n}")}),
        ("POST", "/api/v1/apply") => json!({"documents": [job("applied")]}),
        ("POST", "/api/v1/schedule/preview") => json!({"schedule": "@hourly"}),
        ("PATCH", "/api/v1/nodes/{id}") => json!({"weight": 2}),
        ("POST", "/api/v1/users") => {
            json!({"name": format!("user-{n}"), "password": "long enough for this", "grants": {"default": "viewer"}})
        }
        ("PATCH", "/api/v1/users/{name}") => json!({"disabled": true}),
        ("POST", "/api/v1/tokens") => json!({"label": "x"}),
        _ => Value::Null,
    }
}

async fn printed(api: &Api, n: usize) -> Value {
    let (_, mut said) = api.wrapped_run(&n.to_string()).await;
    said["chunks"] = json!([{"stream": "stdout", "at_ms": 0, "text": "hello"}]);
    said
}

/// Allowed, and refused for a reason that has nothing to do with roles.
const REFUSED_ANYWAY: [(&str, &str, u16); 2] = [
    // Needs a sign-in with a password; the callers here hold tokens.
    ("POST", "/api/v1/password", 409),
    // The job here is no service.
    ("POST", "/api/v1/jobs/{ns}/{name}/move", 422),
];

/// A file of a console that is not built.
fn is_missing(path: &str) -> bool {
    let is_there = |wanted: &str| belfry_api::console_files().any(|name| name.starts_with(wanted));
    (path == "/favicon.svg" && !is_there("favicon.svg")) || (path == "/assets/{file}" && !is_there("assets/"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_serves_whom_its_row_says_and_nobody_else() {
    let api = Api::start().await;
    let (mut wrong, mut n) = (Vec::new(), 0);
    for (method, path) in operations() {
        let Some(access) = access_of(&method, &path) else {
            wrong.push(format!("{method} {path} has no row in the access table"));
            continue;
        };
        for (caller, grant) in CALLERS {
            n += 1;
            let (run, token) = fixture(&api, n - 1).await;
            let body = if path == WRAPPED { printed(&api, n).await } else { body(&api, &method, &path, n) };
            let answer = api.call(caller, method.as_str(), &concrete(&method, &path, &run, &token), body).await;
            let expected = expected(access, grant, &path);
            let anyway = REFUSED_ANYWAY
                .iter()
                .find(|(m, p, _)| *m == method.as_str() && *p == path)
                .map(|(_, _, status)| *status)
                .or_else(|| is_missing(&path).then_some(404));
            // Removing a token asks whose it is: others' tokens do not exist for a caller.
            let own_only =
                path == "/api/v1/tokens/{id}" && caller != "admin" && CALLERS[(n - 1) % CALLERS.len()].0 != caller;
            let status = answer.status.as_u16();
            let fits = match expected {
                Expected::Served if own_only => status == 404,
                Expected::Served => anyway.map_or((200..300).contains(&status), |anyway| status == anyway),
                Expected::NotSignedIn => status == 401,
                Expected::Denied => status == 403,
                Expected::Hidden => status == 404,
            };
            if !fits {
                let said = String::from_utf8_lossy(&answer.body).chars().take(200).collect::<String>();
                wrong.push(format!(
                    "{method} {path} for {caller}: {expected:?} was expected, it answered {status} {said}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {n} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_row_of_the_table_is_a_route_and_the_other_way_round() {
    let routes = operations();
    for row in TABLE {
        assert!(routes.contains(&(row.method.clone(), row.path.to_owned())), "{} {} is no route", row.method, row.path);
    }
    assert_eq!(routes.len(), TABLE.len(), "a route without a row, or two rows for one route");
}

#[tokio::test]
async fn a_bad_or_expired_credential_is_no_credential() {
    let api = Api::start().await;
    for value in ["Bearer bft_wrong", "Bearer", "Basic YWRtaW46YWRtaW4=", "bft_x", ""] {
        let request = axum::http::Request::get("/api/v1/jobs")
            .header("authorization", value)
            .body(axum::body::Body::empty())
            .unwrap();
        let answer = api.send(request).await.expect(401);
        assert_eq!(answer.code(), "unauthorized", "{value}");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
    }
}

#[tokio::test]
async fn lists_hold_only_what_the_caller_may_see() {
    let api = Api::start().await;
    api.ended_run("default", "job", 0).await;
    api.ended_run("other", "job", 1).await;
    for (caller, namespaces) in
        [("viewer", vec!["default"]), ("other", vec!["other"]), ("admin", vec!["default", "other"])]
    {
        for list in ["/api/v1/jobs", "/api/v1/runs"] {
            let answer = api.call(caller, "GET", list, Value::Null).await.expect(200).json();
            let mut seen: Vec<_> = answer["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["namespace"].as_str().unwrap().to_owned())
                .collect();
            seen.sort();
            assert_eq!(seen, namespaces, "{caller} {list}");
        }
    }
    let hidden = api.call("viewer", "GET", "/api/v1/runs?namespace=other", Value::Null).await.expect(200).json();
    assert_eq!(hidden["items"], json!([]));
    let jobs = api.call("other", "GET", "/api/v1/overview", Value::Null).await.expect(200).json();
    assert_eq!(jobs["jobs"], 1);
}
