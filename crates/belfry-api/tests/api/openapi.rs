//! The API document is generated; the copy in the repository shows each change of the API in review.

use std::path::Path;

use crate::harness::Api;

#[test]
fn the_copy_in_docs_is_current() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let made = serde_json::to_string_pretty(belfry_api::openapi::document()).unwrap() + "\n";
    if std::env::var_os("UPDATE_OPENAPI").is_some() {
        std::fs::write(&file, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = kept.lines().zip(made.lines()).position(|(kept, made)| kept != made);
    // As values: the order of fields depends on how serde_json is built elsewhere in the workspace.
    let same =
        serde_json::from_str::<serde_json::Value>(&kept).is_ok_and(|kept| kept == *belfry_api::openapi::document());
    assert!(
        same,
        "docs/openapi.json differs from the code (first in line {:?}); if the change is meant, run: UPDATE_OPENAPI=1 cargo test -p belfry-api --test api the_copy_in_docs",
        differs.map(|line| line + 1)
    );
}

#[tokio::test]
async fn it_is_served_as_openapi_3_1_without_loose_ends() {
    let api = Api::start().await;
    let document = api.call("viewer", "GET", "/api/openapi.json", serde_json::Value::Null).await.expect(200).json();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let text = document.to_string();
    for (at, _) in text.match_indices("#/components/schemas/") {
        let name = text[at..].split('"').next().unwrap().rsplit('/').next().unwrap();
        assert!(document["components"]["schemas"][name].is_object(), "{name} is used but not described");
    }
}
