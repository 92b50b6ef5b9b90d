//! From the flags of `belfry job add` to a job document. Pure: the present moment and the zone come in.

use belfry_core::Timestamp;
use belfry_core::schedule::time_zone;
use jiff::tz::TimeZone;
use serde_json::{Map, Value, json};

use crate::cli::{JobAdd, KeyValue, When};
use crate::exit::UsageError;

pub fn document_of(args: &JobAdd, now: Timestamp, local: &TimeZone) -> Result<Value, UsageError> {
    let mut document = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            document.insert(name.to_owned(), value);
        }
    };
    set("name", Some(args.name.name.clone().into()));
    set("namespace", Some(namespace(args)?.into()));
    set("description", args.description.clone().map(Value::from));
    set("labels", pairs(&args.labels));
    set("enabled", args.disabled.then_some(Value::from(false)));
    set("schedule", schedule(args, now, local)?);
    set("timezone", args.tz.clone().map(Value::from));
    set("action", Some(action(args)));
    let mut run_as = Map::new();
    run_as.extend(args.user.clone().map(|user| ("user".to_owned(), Value::from(user))));
    run_as.extend(args.dir.clone().map(|dir| ("directory".to_owned(), Value::from(dir))));
    run_as.extend(pairs(&args.env).map(|env| ("env".to_owned(), env)));
    set("as", (!run_as.is_empty()).then_some(Value::Object(run_as)));
    set("timeout", args.timeout.map(|after| json!({ "after": after })));
    set("overlap", args.overlap.clone().map(Value::from));
    set("run_on", args.run_on.clone().map(Value::from));
    set("select", (!args.hosts.is_empty()).then(|| json!({ "hosts": args.hosts })));
    Ok(Value::Object(document))
}

/// In front of the name or as a flag; if both, they must agree.
fn namespace(args: &JobAdd) -> Result<&str, UsageError> {
    match (&args.name.namespace, &args.namespace) {
        (Some(in_name), Some(flag)) if in_name != flag => {
            Err(UsageError(format!("{} and --namespace {flag} name two namespaces; give one", args.name)))
        }
        (_, Some(flag)) => Ok(flag),
        (_, None) => Ok(args.name.namespace()),
    }
}

fn schedule(args: &JobAdd, now: Timestamp, local: &TimeZone) -> Result<Option<Value>, UsageError> {
    if let Some(every) = args.every {
        return Ok(Some(format!("@every {every}").into()));
    }
    if let Some(at) = &args.at {
        if matches!(at, When::Ago(_)) {
            return Err(UsageError("--at: that is in the past; for a time from now write +10m".to_owned()));
        }
        let zone = match &args.tz {
            Some(name) => time_zone(name).map_err(|e| UsageError(format!("--tz: {e}")))?,
            None => local.clone(),
        };
        let at = at.at(now, &zone).map_err(|message| UsageError(format!("--at: {message}")))?;
        // A fire is a whole second; `+10m` from the middle of one means at least ten minutes.
        let second = at.as_second() + i64::from(at.subsec_nanosecond() > 0);
        let at = Timestamp::from_second(second).map_err(|e| UsageError(format!("--at: {e}")))?;
        return Ok(Some(format!("@at {at}").into()));
    }
    Ok(match args.cron.as_slice() {
        [] => None,
        [one] => Some(one.clone().into()),
        many => Some(many.to_vec().into()),
    })
}

/// One word is a line for the shell as it stands; several are quoted, so that the shell sees the very same words.
fn action(args: &JobAdd) -> Value {
    if args.exec {
        let kind = if args.service { "service" } else { "exec" };
        return json!({ kind: { "argv": args.command } });
    }
    let command = match args.command.as_slice() {
        [line] => line.clone(),
        words => words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
    };
    let kind = if args.service { "service" } else { "shell" };
    json!({ kind: { "command": command } })
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,+@%=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

fn pairs(pairs: &[KeyValue]) -> Option<Value> {
    let fields: Map<String, Value> =
        pairs.iter().map(|KeyValue(key, value)| (key.clone(), Value::from(value.clone()))).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command, JobCommand};
    use clap::Parser;

    fn document(line: &[&str]) -> Result<Value, String> {
        let words = ["belfry", "job", "add"].iter().chain(line);
        match Cli::try_parse_from(words).map_err(|e| e.to_string())?.command {
            Command::Job(JobCommand::Add(args)) => {
                let now = "2026-07-01T12:00:00.5Z".parse().unwrap();
                document_of(&args, now, &TimeZone::UTC).map_err(|e| e.to_string())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_line_makes_a_document_that_is_accepted() {
        let line = [
            "db/backup",
            "--cron",
            "0 4 * * *",
            "--cron",
            "@hourly",
            "--tz",
            "Asia/Shanghai",
            "--timeout",
            "30m",
            "--overlap",
            "queue",
            "-l",
            "team=db",
            "--dir",
            "/srv",
            "--env",
            "A=b=c",
            "--",
            "pg_dump shop | gzip",
        ];
        let value = document(&line).unwrap();
        let expected = json!({
            "name": "backup", "namespace": "db", "schedule": ["0 4 * * *", "@hourly"], "timezone": "Asia/Shanghai",
            "timeout": {"after": "30m"}, "overlap": "queue", "labels": {"team": "db"},
            "as": {"directory": "/srv", "env": {"A": "b=c"}}, "action": {"shell": {"command": "pg_dump shop | gzip"}},
        });
        assert_eq!(value, expected);
        belfry_core::JobDocument::from_value(value).unwrap();
    }

    #[test]
    fn words_reach_the_shell_as_they_were() {
        for (words, command) in [
            (&["echo", "hello world"][..], "echo 'hello world'"),
            (&["echo", "it's", "$HOME", ""], r"echo 'it'\''s' '$HOME' ''"),
            (&["a && b"], "a && b"),
            (&["curl", "-fsS", "http://10.0.0.7/?a=1"], "curl -fsS 'http://10.0.0.7/?a=1'"),
        ] {
            let mut line = vec!["a", "--"];
            line.extend(words);
            assert_eq!(document(&line).unwrap()["action"]["shell"]["command"], command);
        }
        assert_eq!(
            document(&["a", "--exec", "--", "echo", "a b"]).unwrap()["action"],
            json!({"exec": {"argv": ["echo", "a b"]}})
        );
    }

    #[test]
    fn a_moment_is_a_whole_second_in_the_zone_asked_for() {
        for (at, schedule) in [
            ("2027-01-01T00:00:00+08:00", "@at 2026-12-31T16:00:00Z"),
            ("2027-01-01T04:00", "@at 2026-12-31T20:00:00Z"),
            ("+10m", "@at 2026-07-01T12:10:01Z"),
        ] {
            assert_eq!(
                document(&["a", "--at", at, "--tz", "Asia/Shanghai", "--", "true"]).unwrap()["schedule"],
                schedule
            );
        }
        assert_eq!(document(&["a", "--every", "90s", "--", "true"]).unwrap()["schedule"], "@every 1m30s");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for line in [
            &["a", "--cron", "@daily", "--every", "5m", "--", "true"][..],
            &["x/a", "--namespace", "y", "--", "true"],
            &["a", "--at", "10m", "--", "true"],
            &["a", "--cron", "@daily"],
            &["a", "--timeout", "5", "--", "true"],
        ] {
            assert!(document(line).is_err(), "{line:?}");
        }
    }
}
