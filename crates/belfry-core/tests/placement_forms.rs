//! How `placement` and `needs` are written, and how they are written back.

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

#[test]
fn needs_are_amounts_that_a_node_can_have() {
    let check = |needs: Value| {
        let document = json!({"name": "a", "action": {"shell": {"command": "true"}}, "needs": needs});
        let document = JobDocument::from_value(document).map_err(|refusal| refusal.to_string())?;
        let verdict = document.validate("2026-01-01T00:00:00Z".parse().unwrap());
        verdict
            .map(|()| serde_json::to_value(&document).unwrap()["needs"].clone())
            .map_err(|refusal| refusal.to_string())
    };
    let all = json!({"memory": "512MiB", "cpus": 0.5, "disk": "1GiB"});
    assert_eq!(check(all.clone()), Ok(all));
    assert_eq!(check(json!({"cpus": 1.0})), Ok(json!({"cpus": 1.0})));
    for (needs, wanted) in [
        (json!({"memory": "0B"}), "needs.memory"),
        (json!({"disk": "0B"}), "needs.disk"),
        (json!({"cpus": 0}), "`0` is out of range; 0.01 to 4096 are accepted"),
        (json!({"cpus": -1}), "needs.cpus"),
        (json!({"memory": 5}), "needs.memory"),
        (json!({"gpus": 1}), "needs.gpus: unknown field"),
    ] {
        let refusal = check(needs.clone()).unwrap_err();
        assert!(refusal.contains(wanted), "{needs}: {refusal}");
    }
}
