//! JSON merge patch (RFC 7396), and the field-by-field difference of two documents. Both know nothing of jobs.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Objects are merged, null removes, everything else replaces.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Default::default());
    }
    let Value::Object(held) = target else { return };
    for (name, value) in fields {
        if value.is_null() {
            held.remove(name);
        } else {
            merge(held.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// One field that differs; absent sides are null.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct FieldChange {
    /// Dotted path into the document.
    pub field: String,
    pub from: Value,
    pub to: Value,
}

pub fn difference(from: &Value, to: &Value) -> Vec<FieldChange> {
    let mut changes = Vec::new();
    compare("", from, to, &mut changes);
    changes
}

fn compare(path: &str, from: &Value, to: &Value, changes: &mut Vec<FieldChange>) {
    if from == to {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (from, to) else {
        changes.push(FieldChange { field: path.to_owned(), from: from.clone(), to: to.clone() });
        return;
    };
    let added = new.keys().filter(|name| !old.contains_key(*name));
    for name in old.keys().chain(added) {
        let inner = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        compare(&inner, old.get(name).unwrap_or(&Value::Null), new.get(name).unwrap_or(&Value::Null), changes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_patch_merges_objects_and_null_removes() {
        for (target, patch, expected) in [
            (
                json!({"a": 1, "b": {"c": 2, "d": 3}}),
                json!({"b": {"c": null, "e": 4}}),
                json!({"a": 1, "b": {"d": 3, "e": 4}}),
            ),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (json!({"a": "x"}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
        ] {
            let mut value = target.clone();
            merge(&mut value, &patch);
            assert_eq!(value, expected, "{target} + {patch}");
        }
    }

    #[test]
    fn a_difference_names_each_field_with_both_sides() {
        let changes = difference(&json!({"a": 1, "b": {"c": 2}, "z": 0}), &json!({"a": 1, "b": {"c": 3, "d": 4}}));
        let change = |field: &str, from, to| FieldChange { field: field.to_owned(), from, to };
        let expected = vec![
            change("b.c", json!(2), json!(3)),
            change("b.d", Value::Null, json!(4)),
            change("z", json!(0), Value::Null),
        ];
        assert_eq!(changes, expected);
    }
}
