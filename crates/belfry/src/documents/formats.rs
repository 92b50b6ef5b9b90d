//! The three ways to write documents, all read to and written from the same JSON values.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::cli::Format;

/// Key under which one TOML file holds several documents.
const TOML_MANY: &str = "job";

/// The documents in a text, or the place (from 0) and the reason of the first that cannot be read.
pub(super) fn parse(text: &str, format: Format) -> Result<Vec<Value>, (usize, String)> {
    match format {
        Format::Yaml => parse_yaml(text),
        Format::Json => {
            let value = serde_json::from_str(text).map_err(|e| (0, e.to_string()))?;
            Ok(one_or_many(value))
        }
        Format::Toml => {
            let table: toml::Table = toml::from_str(text).map_err(|e| (0, e.to_string().trim().replace('\n', "; ")))?;
            let Value::Object(mut fields) = json_of(toml::Value::Table(table)) else { return Ok(Vec::new()) };
            Ok(match fields.get(TOML_MANY) {
                // Beside `[[job]]` stands nothing else; what does is refused as a field that no document has.
                Some(Value::Array(_)) if fields.len() == 1 => {
                    fields.remove(TOML_MANY).map(one_or_many).unwrap_or_default()
                }
                _ if fields.is_empty() => Vec::new(),
                _ => vec![Value::Object(fields)],
            })
        }
    }
}

fn parse_yaml(text: &str) -> Result<Vec<Value>, (usize, String)> {
    let mut values = Vec::new();
    for document in yaml_serde::Deserializer::from_str(text) {
        let value = Value::deserialize(document).map_err(|e| (values.len(), e.to_string()))?;
        // Nothing between two `---`, or only comments.
        if !value.is_null() {
            values.extend(one_or_many(value));
        }
    }
    Ok(values)
}

fn one_or_many(value: Value) -> Vec<Value> {
    match value {
        Value::Array(many) => many,
        one => vec![one],
    }
}

/// TOML has moments of its own; documents have them as text.
fn json_of(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::from(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Float(number) => Value::from(number),
        toml::Value::Boolean(truth) => Value::from(truth),
        toml::Value::Datetime(moment) => Value::from(moment.to_string()),
        toml::Value::Array(items) => items.into_iter().map(json_of).collect(),
        toml::Value::Table(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, json_of(value))).collect())
        }
    }
}

/// The order in which people write a document; what is not named here follows.
const FIELD_ORDER: [&str; 12] = [
    "name",
    "namespace",
    "description",
    "labels",
    "owners",
    "enabled",
    "schedule",
    "timezone",
    "dst",
    "window",
    "action",
    "as",
];

/// A document with its fields in [`FIELD_ORDER`].
struct InOrder<'a>(&'a Value);

impl Serialize for InOrder<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let Value::Object(fields) = self.0 else { return self.0.serialize(s) };
        let first = FIELD_ORDER.iter().filter_map(|name| fields.get_key_value(*name));
        let rest = fields.iter().filter(|(name, _)| !FIELD_ORDER.contains(&name.as_str()));
        s.collect_map(first.chain(rest))
    }
}

pub fn write_document(document: &Value, format: Format) -> anyhow::Result<String> {
    Ok(match format {
        Format::Yaml => yaml_serde::to_string(&InOrder(document))?,
        Format::Json => serde_json::to_string_pretty(&InOrder(document))? + "\n",
        Format::Toml => toml::to_string_pretty(&InOrder(document))?,
    })
}

/// Several documents in one file that [`parse`] reads back.
pub fn write_documents(documents: &[Value], format: Format) -> anyhow::Result<String> {
    let ordered: Vec<InOrder<'_>> = documents.iter().map(InOrder).collect();
    Ok(match (format, documents) {
        (Format::Json, _) => serde_json::to_string_pretty(&ordered)? + "\n",
        (Format::Toml, [one]) => write_document(one, Format::Toml)?,
        (Format::Toml, _) => toml::to_string_pretty(&BTreeMap::from([(TOML_MANY, ordered)]))?,
        (Format::Yaml, _) => {
            let texts = ordered.iter().map(yaml_serde::to_string).collect::<Result<Vec<_>, _>>()?;
            texts.join("---\n")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_reads_back_the_same() {
        let jobs = [
            json!({"name": "a", "schedule": ["0 4 * * *", "@every 90s"], "action": {"shell": {"command": "echo \"x: y\" | cat\nexit 1\n"}}}),
            json!({"name": "b", "as": {"umask": "027", "env": {"A": "yes", "B": "1e3"}}, "retry": {"attempts": 3, "on": ["failed"]}, "action": {"exec": {"argv": ["true", "-1"]}}}),
        ];
        for format in [Format::Yaml, Format::Json, Format::Toml] {
            let text = write_documents(&jobs, format).unwrap();
            assert_eq!(parse(&text, format).unwrap(), jobs, "{text}");
            let text = write_document(&jobs[0], format).unwrap();
            assert_eq!(parse(&text, format).unwrap(), jobs[..1], "{text}");
        }
    }

    #[test]
    fn a_document_begins_with_its_name() {
        let job = json!({"action": {"exec": {"argv": ["true"]}}, "name": "a", "schedule": "@daily", "overlap": "queue", "labels": {"x": "y"}});
        let yaml = write_document(&job, Format::Yaml).unwrap();
        assert_eq!(
            yaml,
            "name: a\nlabels:\n  x: y\nschedule: '@daily'\naction:\n  exec:\n    argv:\n    - 'true'\noverlap: queue\n"
        );
    }

    #[test]
    fn a_moment_of_toml_is_text() {
        let values = parse("name = 'a'\nwindow.from = 2026-12-01T00:00:00Z\n", Format::Toml).unwrap();
        assert_eq!(values[0]["window"]["from"], "2026-12-01T00:00:00Z");
    }
}
