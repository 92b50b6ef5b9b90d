//! How `placement` is written, and how it is written back.

use belfry_core::JobDocument;
use belfry_core::job::{Placement, STICKY_DEFAULT};
use belfry_core::units::Span;
use serde_json::{Value, json};

fn read(placement: Value) -> Result<JobDocument, String> {
    let document = json!({"name": "a", "action": {"shell": {"command": "true"}}, "placement": placement});
    JobDocument::from_value(document).map_err(|refusal| refusal.to_string())
}

#[test]
fn a_rule_is_a_word_or_a_time_to_stay() {
    for (written, meant) in [
        (json!("weighted"), Placement::Weighted),
        (json!("least"), Placement::Least),
        (json!("random"), Placement::Random),
        (json!("hash"), Placement::Hash),
        (json!("sticky"), Placement::Sticky(STICKY_DEFAULT)),
        (json!({"sticky": "10m"}), Placement::Sticky(Span::from_secs(600))),
    ] {
        let document = read(written.clone()).unwrap();
        assert_eq!(document.placement, meant);
        document.validate("2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        let again = serde_json::to_value(&document).unwrap();
        let default = meant == Placement::Weighted;
        assert_eq!(again["placement"], if default { Value::Null } else { written }, "as short as it was written");
    }
}

#[test]
fn a_refusal_names_what_would_be_accepted() {
    for (written, wanted) in [
        (json!("stick"), "weighted, least, random, hash, sticky, or a time to stay such as {sticky: 10m}"),
        (json!(7), "placement: invalid type"),
        (json!({"stick": "10m"}), "placement.stick: unknown field"),
        (json!({}), "placement.sticky: missing field"),
        (json!({"sticky": "soon"}), "placement.sticky: \"soon\" is not a duration"),
        (json!({"sticky": "10m", "least": "1m"}), "placement.least: unknown field"),
    ] {
        let refusal = read(written.clone()).unwrap_err();
        assert!(refusal.contains(wanted), "{written}: {refusal}");
    }
    let never = read(json!({"sticky": "0s"})).unwrap().validate("2026-01-01T00:00:00Z".parse().unwrap()).unwrap_err();
    assert_eq!(never.field, "placement.sticky");
}
