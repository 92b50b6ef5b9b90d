//! The job document as JSON schema, by hand: the document's types live where no web library is known. A test holds both together.

use serde_json::{Value, json};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

pub const NAME: &str = "JobDocument";
pub const PATCH_NAME: &str = "JobPatch";

/// Stands for the document in the types of requests and answers; [`schema`] is put in its place.
pub struct JobDocumentSchema;

/// Stands for a merge patch of the document; [`patch_schema`] is put in its place.
pub struct JobPatchSchema;

macro_rules! stands_for {
    ($type:ty, $name:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                ObjectBuilder::new().build().into()
            }
        }
        impl ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }
        }
    };
}
stands_for!(JobDocumentSchema, NAME);
stands_for!(JobPatchSchema, PATCH_NAME);

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}
fn duration(description: &str) -> Value {
    json!({ "type": "string", "description": format!("{description}; a duration such as 500ms, 90s, 1h30m, 2d") })
}
fn size(description: &str) -> Value {
    json!({ "type": "string", "description": format!("{description}; a size such as 64KiB, 512MiB, 1GiB") })
}
fn count(description: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "description": description })
}
fn number(description: &str) -> Value {
    json!({ "type": "number", "description": description })
}
fn flag(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}
fn words(description: &str) -> Value {
    json!({ "type": "array", "items": { "type": "string" }, "description": description })
}
fn map(description: &str) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" }, "description": description })
}
fn one_of(values: &[&str], description: &str) -> Value {
    json!({ "type": "string", "enum": values, "default": values[0], "description": description })
}
fn instant(description: &str) -> Value {
    json!({ "type": "string", "format": "date-time", "description": description })
}
fn object(description: &str, required: &[&str], properties: Value) -> Value {
    let mut object = json!({ "type": "object", "additionalProperties": false, "description": description, "properties": properties });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

pub fn schema() -> Value {
    object(
        "A job. Only `name` and `action` are required; unknown fields are refused.",
        &["name", "action"],
        json!({
            "name": { "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]*$", "maxLength": 128 },
            "namespace": { "type": "string", "pattern": "^[a-z0-9][a-z0-9._-]*$", "maxLength": 128, "default": "default" },
            "description": text("For people"),
            "labels": map("For filters and selections"),
            "owners": words("Users or channels that are told"),
            "enabled": { "type": "boolean", "default": true, "description": "false: paused" },
            "schedule": {
                "description": "One expression or a list: 5, 6 (seconds first) or 7 (year last) fields, @hourly … @yearly, `@every 90s`, `@after 90s`, `@at TIME`; none: only by hand",
                "oneOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }],
            },
            "timezone": text("IANA name; the cluster's zone is written in when it is left out"),
            "dst": object("What happens when clocks change", &[], json!({
                "gap": one_of(&["after", "skip"], "A fixed time that the clock skips"),
                "overlap": one_of(&["first", "last", "both"], "A fixed time that comes twice"),
            })),
            "window": object("Fires only in it", &[], json!({ "from": instant("From this instant"), "until": instant("Before this instant") })),
            "jitter": duration("Each fire is moved by up to this, always by the same for the same fire"),
            "misfire": object("What becomes of fires that were missed", &[], json!({
                "policy": { "type": "string", "enum": ["skip", "latest", "all"], "default": "latest" },
                "within": duration("How late a fire may still start, 1h when left out"),
                "limit": count("`all`: at most so many, 10 when left out"),
            })),
            "run_on": one_of(&["one", "each", "home"], "Where it runs"),
            "select": object("Which nodes may run it", &[], json!({
                "hosts": words("Names or ids of nodes"),
                "labels": map("Labels that a node must have"),
                "exclude": words("Names or ids of nodes that may not"),
            })),
            "placement": {
                "description": "How a node is chosen among those that can take a run: in turn by weight, the least work for its weight, at random, always the same for a job, or `sticky`: that of the last run, for 14d after it or for the time that is given",
                "default": "weighted",
                "oneOf": [
                    { "type": "string", "enum": ["weighted", "least", "random", "hash", "sticky"] },
                    object("", &["sticky"], json!({ "sticky": duration("How long the job stays on the node of its last run") })),
                ],
            },
            "needs": object("What a node must have free", &[], json!({
                "memory": size("Free memory"), "cpus": number("Free processors"), "disk": size("Free disk"),
            })),
            "action": action(),
            "as": object("Who and where the process is", &[], json!({
                "user": text("Its user; else the agent's own, or its default user if that is root"),
                "group": text("One of its user's groups, or one that the machine's policy allows"),
                "directory": text("Its working directory, absolute"),
                "env": map("Its environment, beside PATH, HOME, USER, SHELL, LANG and BELFRY_*"),
                "umask": text("Octal, such as \"027\""),
            })),
            "limits": object("What a run may use; the run's `limits_held` says what held it", &[], json!({
                "memory": size("Memory of all its processes together"),
                "cpus": number("Processors of all its processes together"),
                "processes": count("Processes at once"),
                "open_files": count("Open files of each process"),
                "cpu_time": duration("Processor time of each process"),
                "file_size": size("Size of each file that it writes"),
            })),
            "signature": object("What `exec` executes must have this digest, or the run is skipped", &["file"], json!({
                "file": text("Its path, the first of argv"), "sha256": text("64 hexadecimal digits"), "md5": text("32 hexadecimal digits"),
            })),
            "timeout": object("How long a run may take", &["after"], json!({
                "after": duration("From its start"),
                "action": one_of(&["kill", "report"], "What happens then"),
                "grace": duration("TERM to KILL, 10s when left out"),
            })),
            "overlap": one_of(&["forbid", "queue", "allow", "replace"], "A fire while a run is going"),
            "when_cut_off": one_of(&["finish", "stop"], "A run whose node loses contact with the servers: it goes on, or is ended before it could start elsewhere; always ended when retry.on has lost"),
            "retry": object("What happens after a bad end", &["attempts"], json!({
                "attempts": count("Starts in all, the first included; up to 100"),
                "on": words("failed, timed_out, lost, exit:N; failed and timed_out when left out"),
                "delay": duration("Before the second start, 10s when left out; none after lost"),
                "backoff": { "type": "string", "enum": ["fixed", "exponential"], "default": "exponential" },
                "max_delay": duration("Of exponential backoff, 5m when left out"),
                "where": { "type": "string", "enum": ["same", "other", "any"], "default": "any" },
            })),
            "output": object("What is kept of what it prints", &[], json!({
                "keep": size("1MiB when left out; the middle of more is left out"),
                "fail_on": text("Words separated by `|`; one of them in the output of an exit-0 run makes it failed"),
            })),
            "retention": object("How long its records are kept", &[], json!({
                "age": duration("Of a record"), "runs": count("The newest so many"),
            })),
            "webhook": object("Who is told what becomes of its runs", &["url"], json!({
                "url": text("Called with POST; http:// or https://, without a user"),
                "on": words("Ends of runs; succeeded, failed, timed_out, killed and lost when left out"),
                "format": one_of(&["json", "form"], "Of the body; form has task_id, job_id, job_name, task_status and msg"),
            })),
            "notify": words("Channels that are told"),
            "expect": object("What must happen, else someone is told", &[], json!({
                "start_within": duration("After the planned instant"), "max_duration": duration("Of a run"),
            })),
        }),
    )
}

/// Nothing is required of a patch, and null removes a field.
pub fn patch_schema() -> Value {
    let mut patch = schema();
    if let Some(fields) = patch.as_object_mut() {
        fields.remove("required");
    }
    patch["description"] = json!("The fields of a job to change, as JSON merge patch: null removes a field.");
    for inner in patch["properties"].as_object_mut().into_iter().flat_map(|fields| fields.values_mut()) {
        *inner = json!({ "anyOf": [inner.take(), { "type": "null" }] });
    }
    patch
}

fn action() -> Value {
    let kinds = [
        ("shell", object("Run by /bin/bash -c", &["command"], json!({ "command": text("As typed") }))),
        ("exec", object("Run without a shell", &["argv"], json!({ "argv": words("Program and arguments") }))),
        (
            "script",
            object(
                "A stored or inline script, executed from memory",
                &[],
                json!({
                    "name": text("Of one that is stored in the job's namespace; its newest version is executed. Not with `run_on: each` or `home`"),
                    "body": text("Instead of a name: the text itself, up to 64 KiB"),
                    "interpreter": text("What runs it; else what its first line (`#!`) names, else /bin/bash"),
                }),
            ),
        ),
        (
            "http",
            object(
                "An HTTP call",
                &["url"],
                json!({
                    "method": { "type": "string", "default": "GET" },
                    "url": text("What is called"),
                    "headers": map("Sent along"),
                    "body": text("Sent along"),
                    "expect": object("What counts as good", &["status"], json!({ "status": { "type": "array", "items": { "type": "integer" } } })),
                    "async": flag("The answer only accepts the work; its end is told later"),
                }),
            ),
        ),
        (
            "grpc",
            object(
                "A gRPC call",
                &["endpoint", "method"],
                json!({
                    "endpoint": text("Where"), "method": text("package.Service/Method"), "message": {},
                }),
            ),
        ),
        (
            "handler",
            object("A handler of an application", &["name"], json!({ "name": text("As registered"), "payload": {} })),
        ),
        (
            "service",
            object(
                "A process that is kept running",
                &[],
                json!({
                    "command": text("For a shell"),
                    "argv": words("Without a shell"),
                    "stop_grace": duration("TERM to KILL"),
                    "restart_delay": duration("Before it is started again"),
                }),
            ),
        ),
    ];
    let one: Vec<Value> = kinds.into_iter().map(|(kind, inner)| object("", &[kind], json!({ kind: inner }))).collect();
    json!({ "description": "What a run does: exactly one kind. `shell`, `exec` and `script` are supported now.", "oneOf": one })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use belfry_core::JobDocument;

    use super::*;

    /// Every field of the document, none at its default, with this action.
    fn full(action: Value) -> Value {
        json!({
            "name": "a", "namespace": "b", "description": "c", "labels": {"a": "b"}, "owners": ["x"], "enabled": false,
            "schedule": ["0 4 * * *", "@daily"], "timezone": "UTC", "dst": {"gap": "skip", "overlap": "both"},
            "window": {"from": "2026-01-01T00:00:00Z", "until": "2027-01-01T00:00:00Z"}, "jitter": "1s",
            "misfire": {"policy": "all", "within": "2h", "limit": 3}, "run_on": "each",
            "select": {"hosts": ["a"], "labels": {"a": "b"}, "exclude": ["b"]}, "placement": {"sticky": "10m"},
            "needs": {"memory": "1MiB", "cpus": 0.5, "disk": "1GiB"}, "action": action,
            "as": {"user": "u", "group": "g", "directory": "/", "env": {"A": "b"}, "umask": "027"},
            "limits": {"memory": "1GiB", "cpus": 1.5, "processes": 1, "open_files": 2, "cpu_time": "1s", "file_size": "1B"},
            "signature": {"file": "/x", "sha256": "0", "md5": "1"}, "timeout": {"after": "1s", "action": "report", "grace": "1s"},
            "overlap": "queue", "when_cut_off": "stop",
            "retry": {"attempts": 2, "on": ["failed"], "delay": "1s", "backoff": "fixed", "max_delay": "1m", "where": "other"},
            "output": {"keep": "1MiB", "fail_on": "x"}, "retention": {"age": "1d", "runs": 5},
            "webhook": {"url": "https://x", "on": ["failed"], "format": "form"}, "notify": ["y"],
            "expect": {"start_within": "1s", "max_duration": "1h"},
        })
    }

    fn actions() -> Vec<Value> {
        vec![
            json!({"shell": {"command": "x"}}),
            json!({"exec": {"argv": ["x"]}}),
            json!({"script": {"name": "x", "body": "y", "interpreter": "z"}}),
            json!({"http": {"method": "POST", "url": "u", "headers": {"a": "b"}, "body": "x", "expect": {"status": [200]}, "async": true}}),
            json!({"grpc": {"endpoint": "e", "method": "m", "message": {"a": 1}}}),
            json!({"handler": {"name": "x", "payload": {"a": 1}}}),
            json!({"service": {"command": "x", "argv": ["y"], "stop_grace": "1s", "restart_delay": "1s"}}),
        ]
    }

    /// The paths of a value that are fields (not keys of a free map), as the schema sees them.
    fn fields(schema: &Value, value: &Value, path: &str, found: &mut BTreeSet<String>, unknown: &mut Vec<String>) {
        if let (Some(properties), Some(object)) = (schema["properties"].as_object(), value.as_object()) {
            for (name, inner) in object {
                let path = format!("{path}.{name}");
                match properties.get(name) {
                    Some(schema) => fields(schema, inner, &path, found, unknown),
                    None => unknown.push(path.clone()),
                }
                found.insert(path);
            }
        } else if let (Some(choices), Some(object)) = (schema["oneOf"].as_array(), value.as_object()) {
            let fits = |choice: &&Value| object.keys().all(|name| !choice["properties"][name].is_null());
            match choices.iter().find(fits) {
                Some(choice) => fields(choice, value, path, found, unknown),
                None => unknown.push(path.to_owned()),
            }
        }
    }

    fn described(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
        for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
            found.insert(format!("{path}.{name}"));
            described(inner, &format!("{path}.{name}"), found);
        }
        for choice in schema["oneOf"].as_array().into_iter().flatten() {
            described(choice, path, found);
        }
    }

    #[test]
    fn the_schema_has_every_field_of_the_document_and_no_other() {
        let schema = schema();
        let (mut written, mut unknown) = (BTreeSet::new(), Vec::new());
        for action in actions() {
            let document = JobDocument::from_value(full(action)).expect("the full document can be read");
            let value = serde_json::to_value(&document).unwrap();
            fields(&schema, &value, "", &mut written, &mut unknown);
        }
        assert_eq!(unknown, Vec::<String>::new(), "fields that the schema does not describe");
        let mut described_fields = BTreeSet::new();
        described(&schema, "", &mut described_fields);
        let missing: Vec<_> = described_fields.difference(&written).collect();
        assert!(
            missing.is_empty(),
            "the schema describes what no document has, or the full example lacks it: {missing:?}"
        );
    }

    #[test]
    fn the_full_example_names_every_field_that_serde_knows() {
        // An unknown field's refusal lists all fields of its parent.
        let refused = JobDocument::from_value(json!({"nope": 1})).unwrap_err().message;
        let known: Vec<&str> = refused.split('`').skip(3).step_by(2).collect();
        assert!(known.len() > 20, "{refused}");
        let example = full(json!({"shell": {"command": "x"}}));
        for name in known {
            assert!(!example[name].is_null(), "`{name}` is missing in the example");
        }
        for (part, inner) in example.as_object().unwrap() {
            let Some(fields) = inner.as_object().filter(|_| part != "labels") else { continue };
            let mut wrong = example.clone();
            wrong[part]["nope"] = json!(1);
            let refused = JobDocument::from_value(wrong).unwrap_err().message;
            for name in refused.split('`').skip(3).step_by(2).filter(|_| part != "action") {
                assert!(fields.contains_key(name), "`{part}.{name}` is missing in the example");
            }
        }
    }
}
