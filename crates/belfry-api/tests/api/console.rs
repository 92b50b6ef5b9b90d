//! The console's files as browsers get them. Where it is not built there is a page that says so, and these tests say little.

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;

use crate::harness::{Answer, Api};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

async fn get(api: &Api, path: &str, encoding: &str) -> Answer {
    api.send(Request::get(path).header("accept-encoding", encoding).body(Body::empty()).unwrap()).await
}

fn text(answer: &Answer) -> String {
    String::from_utf8(answer.body.clone()).unwrap()
}

/// What `cargo xtask test` sets after it has built the console: an empty folder would else be shipped without a word.
#[test]
fn the_console_is_in_the_program_where_it_is_expected() {
    if std::env::var_os("BELFRY_CONSOLE_EXPECTED").is_some_and(|value| value == "1") {
        let files: Vec<String> = belfry_api::console_files().collect();
        assert!(files.iter().any(|name| name == "index.html"), "it was not built in: {files:?}");
        assert!(files.iter().any(|name| name.starts_with("assets/") && name.ends_with(".js")), "{files:?}");
    }
}

#[tokio::test]
async fn the_page_may_load_what_comes_from_here_and_nothing_else() {
    let api = Api::start().await;
    let page = get(&api, "/", "identity").await.expect(200);
    assert_eq!(page.headers["content-security-policy"], POLICY);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers["cache-control"], "no-cache");
    assert_eq!(page.headers["x-content-type-options"], "nosniff");
    let html = text(&page);
    for (at, _) in html.match_indices("<script") {
        let tag = &html[at..at + html[at..].find("</script>").expect("it is closed")];
        let (attributes, inline) = tag.split_once('>').unwrap();
        assert!(attributes.contains("src=") && inline.trim().is_empty(), "an inline script: {tag}");
    }
    for inline in ["<style", " style=", "javascript:", " onload=", " onclick=", "http://", "https://"] {
        assert!(!html.contains(inline), "`{inline}` in {html}");
    }
    if !belfry_api::console_files().any(|name| name == "index.html") {
        assert!(html.contains("cargo xtask console"), "{html}");
    }
}

#[tokio::test]
async fn assets_are_kept_for_ever_and_packed_for_those_who_take_that() {
    let api = Api::start().await;
    for name in belfry_api::console_files().filter(|name| name.starts_with("assets/")) {
        let plain = get(&api, &format!("/{name}"), "identity").await.expect(200);
        assert_eq!(plain.headers["cache-control"], "public, max-age=31536000, immutable", "{name}");
        assert_eq!(plain.headers["content-security-policy"], POLICY);
        assert!(plain.headers.get("content-encoding").is_none() && plain.headers["vary"] == "Accept-Encoding");
        let packed = get(&api, &format!("/{name}"), "gzip, br").await.expect(200);
        if packed.headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip") {
            assert!(packed.body.starts_with(&[0x1f, 0x8b]) && packed.body.len() < plain.body.len(), "{name}");
            assert_eq!(packed.headers["content-type"], plain.headers["content-type"]);
        }
    }
}

#[tokio::test]
async fn no_name_leads_to_another_file() {
    let api = Api::start().await;
    for path in [
        "/assets/nothing-12345678.js",
        "/assets/",
        "/assets/..%2findex.html",
        "/assets/%2e%2e%2f%2e%2e%2fCargo.toml",
        "/assets/../../Cargo.toml",
        "/assets/..%5c..%5cCargo.toml",
        "/assets/%2fetc%2fpasswd",
        "/assets/x.js.gz",
        "/index.html",
    ] {
        let answer = api.call("none", "GET", path, Value::Null).await.expect(404);
        assert_eq!(answer.code(), "not_found", "{path}");
    }
}
