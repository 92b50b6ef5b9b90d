//! Signing in with a password: the cookie, what a foreign page cannot do with it, guessing, and tokens.

use axum::body::Body;
use axum::http::{Request, header};
use belfry_core::run::RunState;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::harness::{Answer, Api};

async fn login(api: &Api, user: &str, password: &str) -> Answer {
    api.call("none", "POST", "/api/v1/login", json!({"user": user, "password": password})).await
}

fn cookie_of(answer: &Answer) -> String {
    answer.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
}

async fn with_cookie(api: &Api, cookie: &str, method: &str, path: &str, more: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path).header(header::COOKIE, format!("a=b; {cookie}"));
    for (name, value) in more {
        request = request.header(*name, *value);
    }
    api.send(request.body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn a_session_is_a_strict_cookie_and_changes_must_come_from_our_page() {
    let api = Api::start().await;
    api.job("default", "job").await;
    let answer = login(&api, "admin", &api.password).await.expect(200);
    let whole = answer.headers[header::SET_COOKIE].to_str().unwrap();
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age=604800"] {
        assert!(whole.contains(part), "{whole}");
    }
    let cookie = cookie_of(&answer);
    let me = with_cookie(&api, &cookie, "GET", "/api/v1/whoami", &[]).await.expect(200).json();
    assert_eq!((me["name"].as_str(), &me["grants"]), (Some("admin"), &json!({"*": "admin"})));
    let pause = "/api/v1/jobs/default/job/pause";
    for (headers, status) in [
        (vec![], 403),
        (vec![("origin", "https://evil.example"), ("host", "belfry.example")], 403),
        (vec![("origin", "null"), ("host", "belfry.example")], 403),
        (vec![("origin", "https://belfry.example"), ("host", "belfry.example")], 200),
        (vec![("x-belfry", "1")], 200),
    ] {
        let answer = with_cookie(&api, &cookie, "POST", pause, &headers).await.expect(status);
        if status == 403 {
            assert_eq!(answer.code(), "cross_site", "{headers:?}");
        }
    }
    with_cookie(&api, &cookie, "POST", "/api/v1/logout", &[("x-belfry", "1")]).await.expect(204);
    with_cookie(&api, &cookie, "GET", "/api/v1/whoami", &[]).await.expect(401);
}

#[tokio::test]
async fn guessing_is_slowed_down_and_says_nothing_about_users() {
    let api = Api::start().await;
    // At once: however slow hashing is, nobody's wait is over before the last one came.
    let guesses = async |user: &str, last: &str| {
        let words: Vec<String> = (0..6).map(|n| format!("guess {n}")).chain([last.to_owned()]).collect();
        futures_util::future::join_all(words.iter().map(|word| login(&api, user, word))).await
    };
    let (admin, nobody) = (guesses("admin", &api.password).await, guesses("nobody", "guess 7").await);
    let told = |answers: &[Answer]| {
        let mut told: Vec<_> = answers.iter().map(|answer| (answer.status.as_u16(), answer.code())).collect();
        told.sort();
        told
    };
    assert_eq!(told(&admin), told(&nobody));
    let refused = admin.iter().filter(|answer| answer.status.as_u16() == 401).count();
    assert_eq!(refused, 5, "{:?}", told(&admin));
    let right = &admin[6];
    assert_eq!(right.status.as_u16(), 429, "even the right password has to wait");
    assert!(right.headers.contains_key(header::RETRY_AFTER));
}

#[tokio::test]
async fn a_token_lives_as_long_and_reaches_as_far_as_its_owner() {
    let api = Api::start().await;
    let user = json!({"name": "ada", "password": "correct horse battery", "grants": {"default": "editor"}});
    api.admin("POST", "/api/v1/users", user).await.expect(201);
    let cookie = cookie_of(&login(&api, "ada", "correct horse battery").await.expect(200));
    let make = |body: Value| {
        let request = Request::post("/api/v1/tokens").header(header::COOKIE, &cookie).header("x-belfry", "1");
        api.send(request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())).unwrap())
    };
    make(json!({"label": "too much", "grants": {"*": "viewer"}})).await.expect(403);
    make(json!({"label": "not mine", "service": "ci"})).await.expect(403);
    let made = make(json!({"label": "mine", "expires_in": "1h"})).await.expect(201).json();
    let secret = made["secret"].as_str().unwrap().to_owned();
    assert!(secret.starts_with("bft_"));
    let who = async |status: u16| {
        let request = Request::get("/api/v1/whoami").header(header::AUTHORIZATION, format!("Bearer {secret}"));
        api.send(request.body(Body::empty()).unwrap()).await.expect(status)
    };
    assert_eq!(who(200).await.json()["grants"], json!({"default": "editor"}));
    api.admin("PATCH", "/api/v1/users/ada", json!({"grants": {"default": "viewer"}})).await.expect(200);
    assert_eq!(
        who(200).await.json()["grants"],
        json!({"default": "viewer"}),
        "the owner was cut back, and so is the token"
    );
    api.admin("PATCH", "/api/v1/users/ada", json!({"disabled": true})).await.expect(200);
    who(401).await;
    let audit = api.admin("GET", "/api/v1/audit?limit=500", Value::Null).await.expect(200);
    let text = String::from_utf8(audit.body).unwrap();
    assert!(
        text.contains("token.create") && !text.contains(&secret) && !text.contains("correct horse"),
        "the trail names, and holds no secret"
    );
}

/// What was lost for an hour is not good for ever.
#[tokio::test]
async fn a_token_makes_none_that_outlives_it_and_removes_none_that_may_do_more() {
    let api = Api::start().await;
    let user =
        json!({"name": "ada", "password": "correct horse battery", "grants": {"*": "viewer", "default": "editor"}});
    api.admin("POST", "/api/v1/users", user).await.expect(201);
    let cookie = cookie_of(&login(&api, "ada", "correct horse battery").await.expect(200));
    let call = |who: (header::HeaderName, String), method: &str, path: &str, body: Value| {
        let request = Request::builder().method(method).uri(path).header(who.0, who.1).header("x-belfry", "1");
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
        api.send(request.header(header::CONTENT_TYPE, "application/json").body(body).unwrap())
    };
    let with_cookie = || (header::COOKIE, cookie.clone());
    let make = async |who: (header::HeaderName, String), body: Value, status: u16| {
        call(who, "POST", "/api/v1/tokens", body).await.expect(status).json()
    };
    let bearer = |made: &Value| (header::AUTHORIZATION, format!("Bearer {}", made["secret"].as_str().unwrap()));
    let wide = make(with_cookie(), json!({"label": "wide"}), 201).await;
    // Narrower than one's own, by one namespace.
    let short =
        make(with_cookie(), json!({"label": "short", "expires_in": "1h", "grants": {"*": "viewer"}}), 201).await;
    for longer in [json!({"label": "x"}), json!({"label": "x", "expires_in": "2h"})] {
        let refused = make(bearer(&short), longer, 403).await;
        assert_eq!(refused["error"]["field"], "expires_in");
    }
    let shorter = make(bearer(&short), json!({"label": "shorter", "expires_in": "10m"}), 201).await;
    let path = |made: &Value| format!("/api/v1/tokens/{}", made["id"].as_str().unwrap());
    call(bearer(&short), "DELETE", &path(&wide), Value::Null).await.expect(403);
    call(bearer(&short), "DELETE", &path(&shorter), Value::Null).await.expect(204);
    // As it is in force: its owner was cut back since it was made.
    api.admin("PATCH", "/api/v1/users/ada", json!({"grants": {"*": "viewer"}})).await.expect(200);
    call(bearer(&short), "DELETE", &path(&wide), Value::Null).await.expect(204);
    call(bearer(&short), "DELETE", &path(&short), Value::Null).await.expect(204);
}

#[tokio::test]
async fn a_stream_ends_when_its_caller_may_no_longer_see_what_it_tells() {
    let api = Api::start().await;
    let user = json!({"name": "ada", "password": "correct horse battery", "grants": {"default": "viewer"}});
    api.admin("POST", "/api/v1/users", user).await.expect(201);
    let cookie = cookie_of(&login(&api, "ada", "correct horse battery").await.expect(200));
    let going = api.run_with("default", "job", crate::harness::now(), |run| {
        (run.state, run.ended_at) = (RunState::Running, None);
    });
    let paths = ["/api/v1/events".to_owned(), format!("/api/v1/runs/{}/stream", going.await)];
    let mut streams = Vec::new();
    for path in paths {
        let request = Request::get(path).header(header::COOKIE, &cookie).body(Body::empty()).unwrap();
        let mut body = api.router().oneshot(request).await.unwrap().into_body();
        let first = body.frame().await.expect("a stream that goes on").unwrap();
        assert!(!first.into_data().unwrap().is_empty());
        streams.push(body);
    }
    api.admin("PATCH", "/api/v1/users/ada", json!({"disabled": true})).await.expect(200);
    for body in streams {
        let rest = tokio::time::timeout(std::time::Duration::from_secs(60), body.collect()).await;
        let rest = rest.expect("it goes on").unwrap().to_bytes();
        assert!(!String::from_utf8_lossy(&rest).contains("event: end"), "the run has not ended");
    }
}

#[tokio::test]
async fn a_user_changes_the_own_password_and_is_signed_out_everywhere() {
    let api = Api::start().await;
    let cookie = cookie_of(&login(&api, "admin", &api.password).await.expect(200));
    let change = |current: String| {
        let body = json!({"current": current, "new": "a much better password"});
        let request = Request::post("/api/v1/password").header(header::COOKIE, &cookie).header("x-belfry", "1");
        api.send(request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())).unwrap())
    };
    assert_eq!(change("wrong".into()).await.expect(422).json()["error"]["field"], "current");
    change(api.password.clone()).await.expect(204);
    with_cookie(&api, &cookie, "GET", "/api/v1/whoami", &[]).await.expect(401);
    login(&api, "admin", &api.password).await.expect(401);
    login(&api, "admin", "a much better password").await.expect(200);
}
