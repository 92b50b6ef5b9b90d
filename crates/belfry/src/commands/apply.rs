//! `job apply` and `job diff`: files to a plan, the plan to the reader, and then all of it or nothing.

use serde_json::{Value, json};

use super::{Context, read};
use crate::cli::{JobApply, JobDiff};
use crate::client::{ClientError, Plan};
use crate::documents::{self, Loaded};
use crate::exit::Exit;

pub async fn apply(args: &JobApply, context: &Context) -> anyhow::Result<Exit> {
    let loaded = documents::load(&args.files, context.print.now)?;
    let answer = request(&loaded, true, args.prune, context).await?;
    let plan: Plan = read(&answer)?;
    if args.dry_run {
        show(&plan, &answer, context)?;
        return Ok(Exit::Done);
    }
    if plan.is_empty() {
        show(&plan, &answer, context)?;
        return Ok(Exit::Done);
    }
    if !context.print.json {
        for line in lines(&plan) {
            context.print.say(&line);
        }
    }
    // Without a terminal nobody can be asked; only what cannot be had back needs a word then.
    let asks = !args.yes && (!plan.removed.is_empty() || on_terminal());
    if asks && !context.sure(false, &format!("Apply {}?", summary(&plan)))? {
        return Ok(Exit::Failed);
    }
    let answer = request(&loaded, false, args.prune, context).await?;
    if context.print.json {
        context.print.json(&answer)?;
    } else {
        context.print.line(&format!("applied: {}", summary(&read(&answer)?)))?;
    }
    Ok(Exit::Done)
}

/// As diff(1): 1 when there is a difference.
pub async fn diff(args: &JobDiff, context: &Context) -> anyhow::Result<Exit> {
    let loaded = documents::load(&args.files, context.print.now)?;
    let answer = request(&loaded, true, args.prune, context).await?;
    let plan: Plan = read(&answer)?;
    show(&plan, &answer, context)?;
    Ok(if plan.is_empty() { Exit::Done } else { Exit::Failed })
}

fn on_terminal() -> bool {
    use std::io::IsTerminal;
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

async fn request(loaded: &[Loaded], dry_run: bool, prune: bool, context: &Context) -> anyhow::Result<Value> {
    let documents: Vec<&Value> = loaded.iter().map(|job| &job.value).collect();
    let body = json!({ "documents": documents, "dry_run": dry_run, "prune": prune });
    context.client()?.post(&["apply"], body).await.map_err(|error| with_place(error, loaded).into())
}

/// The server counts documents in the request; the reader knows files.
fn with_place(error: ClientError, loaded: &[Loaded]) -> ClientError {
    let ClientError::Refused { status, field: Some(field), message } = error else { return error };
    let place = field.strip_prefix("documents[").and_then(|rest| {
        let (index, inner) = rest.split_once(']')?;
        let place = &loaded.get(index.parse::<usize>().ok()?)?.place;
        Some(format!("{place}{}", inner.replacen('.', ": ", 1)))
    });
    ClientError::Refused { status, field: Some(place.unwrap_or(field)), message }
}

fn show(plan: &Plan, answer: &Value, context: &Context) -> anyhow::Result<()> {
    if context.print.json {
        return context.print.json(answer);
    }
    for line in lines(plan) {
        context.print.line(&line)?;
    }
    context.print.say(&summary(plan));
    Ok(())
}

fn lines(plan: &Plan) -> Vec<String> {
    let mut lines: Vec<String> = plan.created.iter().map(|job| format!("+ {job}  created")).collect();
    for job in &plan.changed {
        lines.push(format!("~ {}/{}  changed", job.namespace, job.name));
        for field in &job.fields {
            lines.push(match (&field.from, &field.to) {
                (Value::Null, to) => format!("    {}: + {to}", field.field),
                (from, Value::Null) => format!("    {}: - {from}", field.field),
                (from, to) => format!("    {}: {from} -> {to}", field.field),
            });
        }
    }
    lines.extend(plan.removed.iter().map(|job| format!("- {job}  removed")));
    lines
}

fn summary(plan: &Plan) -> String {
    let counts = [(plan.created.len(), "created"), (plan.changed.len(), "changed"), (plan.removed.len(), "removed")];
    let mut parts: Vec<String> =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!("{count} {word}")).collect();
    parts.push(format!("{} unchanged", plan.unchanged.len()));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::Place;
    use std::path::PathBuf;

    fn plan() -> Plan {
        read(&json!({
            "dry_run": true,
            "created": [{"namespace": "default", "name": "a"}],
            "changed": [{"namespace": "db", "name": "b", "fields": [
                {"field": "schedule", "from": "0 4 * * *", "to": "0 5 * * *"},
                {"field": "labels.team", "from": null, "to": "db"},
                {"field": "jitter", "from": "30s", "to": null},
            ]}],
            "unchanged": [{"namespace": "default", "name": "c"}],
            "removed": [{"namespace": "default", "name": "d"}],
        }))
        .unwrap()
    }

    #[test]
    fn a_plan_tells_each_field() {
        let expected = [
            "+ default/a  created",
            "~ db/b  changed",
            "    schedule: \"0 4 * * *\" -> \"0 5 * * *\"",
            "    labels.team: + \"db\"",
            "    jitter: - \"30s\"",
            "- default/d  removed",
        ];
        assert_eq!(lines(&plan()), expected);
        assert_eq!(summary(&plan()), "1 created, 1 changed, 1 removed, 1 unchanged");
    }

    #[test]
    fn a_refusal_by_the_server_names_the_file() {
        let place = Place { path: PathBuf::from("jobs.yaml"), document: 2 };
        let loaded = vec![Loaded { place, value: Value::Null }];
        let refused = |field: &str| ClientError::Refused {
            status: reqwest::StatusCode::UNPROCESSABLE_ENTITY,
            field: Some(field.into()),
            message: "no".into(),
        };
        assert_eq!(
            with_place(refused("documents[0].retry.delay"), &loaded).to_string(),
            "jobs.yaml: document 2: retry.delay: no"
        );
        assert_eq!(with_place(refused("documents[7]"), &loaded).to_string(), "documents[7]: no");
    }
}
