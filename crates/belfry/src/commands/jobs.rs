//! `belfry job`: jobs listed, shown, saved, run and stopped.

use serde_json::{Map, Value, json};

use super::job_document::document_of;
use super::{Context, apply, logs, read, runs};
use crate::cli::{Format, JobAdd, JobCommand, JobExport, JobHistory, JobLs, JobName, JobRun, KeyValue, RunLs};
use crate::client::{JobAnswer, Query, RevisionAnswer, RunAnswer};
use crate::documents::{write_document, write_documents};
use crate::exit::Exit;
use crate::print::{Tone, Word, relative, tone_of_state};

/// More jobs than anybody exports to one file.
const EXPORT_JOBS_MAX: usize = 1_000_000;

pub async fn run(command: JobCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        JobCommand::Add(args) => add(&args, context).await,
        JobCommand::Ls(args) => ls(&args, context).await,
        JobCommand::Get { name, output } => get(&name, output, context).await,
        JobCommand::Apply(args) => apply::apply(&args, context).await,
        JobCommand::Diff(args) => apply::diff(&args, context).await,
        JobCommand::Export(args) => export(&args, context).await,
        JobCommand::Rm { names, yes } => rm(&names, yes, context).await,
        JobCommand::Run(args) => run_now(&args, context).await,
        JobCommand::Pause { names } => each(&names, "pause", context).await,
        JobCommand::Resume { names } => each(&names, "resume", context).await,
        JobCommand::Kill { names } => each(&names, "kill", context).await,
        JobCommand::History(args) => history(args, context).await,
    }
}

async fn add(args: &JobAdd, context: &Context) -> anyhow::Result<Exit> {
    let document = document_of(args, context.print.now, &context.print.zone.tz)?;
    let answer = context.client()?.post(&["jobs"], document).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let job: JobAnswer = read(&answer)?;
    context.print.line(&format!("{}/{}", job.namespace, job.name))?;
    let fires = match job.next_fire {
        Some(at) => format!("it fires next {}", context.print.moment(Some(at))),
        None if job.enabled && !args.cron.is_empty() => {
            format!("it follows no clock; it fires as `{}` says", args.cron.join("`, `"))
        }
        None if job.enabled && args.service => "it runs from now on; `belfry service ls` shows where".to_owned(),
        None if job.enabled => format!("it is run by hand: belfry job run -f {}", short_name(&job)),
        None => format!("it does not fire until: belfry job resume {}", short_name(&job)),
    };
    context.print.say(&format!("saved; {fires}"));
    Ok(Exit::Done)
}

/// As it is typed: without the default namespace.
fn short_name(job: &JobAnswer) -> String {
    match job.namespace.as_str() {
        belfry_core::job::DEFAULT_NAMESPACE => job.name.clone(),
        namespace => format!("{namespace}/{}", job.name),
    }
}

async fn ls(args: &JobLs, context: &Context) -> anyhow::Result<Exit> {
    let mut query: Query = Vec::new();
    query.extend(args.query.clone().map(|text| ("q", text)));
    query.extend(args.namespace.clone().map(|namespace| ("namespace", namespace)));
    query.extend(args.state.clone().map(|state| ("state", state)));
    if !args.labels.is_empty() {
        query.push(("label", args.labels.iter().map(KeyValue::to_string).collect::<Vec<_>>().join(",")));
    }
    let answer = context.client()?.list(&["jobs"], &query, args.limit as usize).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let jobs: Vec<JobAnswer> = read(&answer["items"])?;
    if jobs.is_empty() {
        let hint = if query.is_empty() {
            "no jobs yet; add one: belfry job add hello --every 1m -- echo hello"
        } else {
            "no such jobs"
        };
        context.print.say(hint);
    }
    let rows = jobs.into_iter().map(|job| row(job, context)).collect();
    context.print.table(&["job", "state", "schedule", "next", "last run", "command"], rows)?;
    if !answer["next"].is_null() {
        context.print.say("there are more; raise --limit");
    }
    Ok(Exit::Done)
}

fn row(job: JobAnswer, context: &Context) -> Vec<Word> {
    let state = if job.enabled { Word::from("enabled") } else { Word::toned("paused", Tone::Warn) };
    let last = job.recent.first().map(|run| {
        let text = format!("{} {}", run.state, relative(run.id.time(), context.print.now));
        Word::toned(text, tone_of_state(&run.state))
    });
    let schedule = match &job.document["schedule"] {
        Value::String(one) => Some(one.clone()),
        Value::Array(many) => Some(many.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")),
        _ if job.document["action"].get("service").is_some() => Some("always".to_owned()),
        _ => None,
    };
    vec![
        short_name(&job).into(),
        state,
        Word::or_dash(schedule),
        Word::or_dash(job.next_fire.map(|at| relative(at, context.print.now))),
        last.unwrap_or_else(|| Word::or_dash(None::<String>)),
        job.command.into(),
    ]
}

async fn get(name: &JobName, output: Format, context: &Context) -> anyhow::Result<Exit> {
    let answer = context.client()?.get(&["jobs", name.namespace(), &name.name], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    context.print.data(write_document(&answer["document"], output)?.as_bytes())?;
    let job: JobAnswer = read(&answer)?;
    let next = context.print.moment(job.next_fire);
    context.print.say(&format!(
        "# revision {}, changed {}, next fire {next}",
        job.revision,
        context.print.moment(Some(job.updated_at))
    ));
    if answer["timeout"]["from"] == "cluster" {
        let text = |name: &str| answer["timeout"][name].as_str().unwrap_or_default().to_owned();
        context.print.say(&format!("# timeout of the cluster: {}, {}", text("after"), text("action")));
    }
    Ok(Exit::Done)
}

async fn export(args: &JobExport, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let mut documents = Vec::new();
    if args.names.is_empty() {
        let query: Query = args.namespace.clone().map(|namespace| ("namespace", namespace)).into_iter().collect();
        let mut answer = client.list(&["jobs"], &query, EXPORT_JOBS_MAX).await?;
        let jobs = answer["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
        documents.extend(jobs.into_iter().map(|mut job| job["document"].take()));
    }
    for name in &args.names {
        let mut job = client.get(&["jobs", name.namespace(), &name.name], &Vec::new()).await?;
        documents.push(job["document"].take());
    }
    let format = if context.print.json { Format::Json } else { args.output };
    context.print.data(write_documents(&documents, format)?.as_bytes())?;
    Ok(Exit::Done)
}

async fn rm(names: &[JobName], yes: bool, context: &Context) -> anyhow::Result<Exit> {
    let all = names.iter().map(JobName::to_string).collect::<Vec<_>>().join(", ");
    let client = context.client()?;
    if !context.sure(yes, &format!("Remove {all}?"))? {
        return Ok(Exit::Failed);
    }
    for name in names {
        client.delete(&["jobs", name.namespace(), &name.name], &Vec::new()).await?;
        context.print.say(&format!("{name} is removed; its history stays"));
    }
    if context.print.json {
        context.print.json(&json!({ "removed": names.iter().map(JobName::to_string).collect::<Vec<_>>() }))?;
    }
    Ok(Exit::Done)
}

async fn run_now(args: &JobRun, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let mut body = Map::new();
    body.extend(args.key.clone().map(|key| ("idempotency_key".to_owned(), Value::from(key))));
    body.extend(args.node.clone().map(|node| ("node".to_owned(), Value::from(node))));
    if args.force {
        body.insert("force".to_owned(), Value::from(true));
    }
    if !args.env.is_empty() {
        let env: Map<String, Value> =
            args.env.iter().map(|KeyValue(key, value)| (key.clone(), Value::from(value.clone()))).collect();
        body.insert("env".to_owned(), Value::Object(env));
    }
    let answer = client.post(&["jobs", args.name.namespace(), &args.name.name, "run"], Value::Object(body)).await?;
    started(&answer, args.follow, context).await
}

/// A run that was just asked for: its id, or its output until it ends.
pub async fn started(answer: &Value, follow: bool, context: &Context) -> anyhow::Result<Exit> {
    let run: RunAnswer = read(answer)?;
    if follow {
        context.print.say(&format!("run {}", run.id));
        return logs::follow(run.id, context).await;
    }
    if context.print.json {
        context.print.json(answer)?;
    } else {
        context.print.line(&run.id.to_string())?;
        context.print.say(&format!("{}; follow it with: belfry run logs -f {}", run.state, run.id));
    }
    Ok(Exit::Done)
}

/// The same verb on each of several jobs; `--json` answers a list when there are several.
async fn each(names: &[JobName], verb: &str, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let mut answers = Vec::new();
    for name in names {
        let answer = client.post(&["jobs", name.namespace(), &name.name, verb], json!({})).await?;
        context.print.say(&match verb {
            "pause" => format!("{name} is paused"),
            "resume" => format!("{name} fires again"),
            _ => format!("{name}: {} runs were told to end", answer["runs"].as_array().map_or(0, Vec::len)),
        });
        answers.push(answer);
    }
    if context.print.json {
        let answer = if answers.len() == 1 { answers.remove(0) } else { Value::Array(answers) };
        context.print.json(&answer)?;
    }
    Ok(Exit::Done)
}

async fn history(args: JobHistory, context: &Context) -> anyhow::Result<Exit> {
    if !args.revisions {
        let runs =
            RunLs { job: Some(args.name), state: Vec::new(), node: None, from: None, to: None, limit: args.limit };
        return runs::ls(&runs, context).await;
    }
    let path = ["jobs", args.name.namespace(), &args.name.name, "revisions"];
    let answer = context.client()?.list(&path, &Vec::new(), args.limit as usize).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let revisions: Vec<RevisionAnswer> = read(&answer["items"])?;
    let rows = revisions
        .into_iter()
        .map(|edit| {
            vec![edit.revision.to_string().into(), context.print.moment(Some(edit.at)).into(), edit.author.into()]
        })
        .collect();
    context.print.table(&["revision", "when", "by"], rows)?;
    Ok(Exit::Done)
}
