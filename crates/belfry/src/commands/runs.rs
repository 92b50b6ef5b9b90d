//! `belfry run`: what became of jobs.

use std::time::Duration;

use belfry_core::RunId;
use belfry_core::run::RunState;
use serde_json::json;

use super::{Context, jobs, logs, read};
use crate::cli::{JobName, RunCommand, RunLs, RunPrune, RunRef};
use crate::client::{AttemptAnswer, DeliveryAnswer, Query, RunAnswer};
use crate::exit::{Exit, NotFound};
use crate::print::{Word, short_duration, tone_of_state};

pub async fn run(command: RunCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        RunCommand::Ls(args) => ls(&args, context).await,
        RunCommand::Show { run } => show(&run, context).await,
        RunCommand::Logs { run, follow: true, attempt: _ } => {
            logs::follow(resolve(&run, context).await?, context).await
        }
        RunCommand::Logs { run, follow: false, attempt } => {
            logs::print(resolve(&run, context).await?, attempt, context).await
        }
        RunCommand::Kill { run } => kill(&run, context).await,
        RunCommand::Rerun { run, follow } => {
            let id = resolve(&run, context).await?.to_string();
            let answer = context.client()?.post(&["runs", &id, "rerun"], json!({})).await?;
            jobs::started(&answer, follow, context).await
        }
        RunCommand::Prune(args) => prune(&args, context).await,
    }
}

/// A job's name stands for its last run.
async fn resolve(run: &RunRef, context: &Context) -> anyhow::Result<RunId> {
    match run {
        RunRef::Id(id) => Ok(*id),
        RunRef::LastOf(job) => last_run(job, context).await,
    }
}

async fn last_run(job: &JobName, context: &Context) -> anyhow::Result<RunId> {
    let client = context.client()?;
    let answer = client.list(&["runs"], &vec![("job", job.to_string())], 1).await?;
    let runs: Vec<RunAnswer> = read(&answer["items"])?;
    if let Some(run) = runs.first() {
        return Ok(run.id);
    }
    // Says so when there is no such job; what is left is a job that has never run.
    client.get(&["jobs", job.namespace(), &job.name], &Vec::new()).await?;
    Err(NotFound(format!("{job} has not run yet; run it now: belfry job run -f {job}")).into())
}

pub async fn ls(args: &RunLs, context: &Context) -> anyhow::Result<Exit> {
    let mut query: Query = Vec::new();
    query.extend(args.job.as_ref().map(|job| ("job", job.to_string())));
    query.extend(args.node.clone().map(|node| ("node", node)));
    if !args.state.is_empty() {
        query.push(("state", args.state.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(",")));
    }
    for (name, when) in [("from", &args.from), ("to", &args.to)] {
        if let Some(when) = when {
            query.push((name, context.instant(when)?.to_string()));
        }
    }
    let answer = context.client()?.list(&["runs"], &query, args.limit as usize).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let runs: Vec<RunAnswer> = read(&answer["items"])?;
    if runs.is_empty() {
        context.print.say("no such runs");
    }
    let rows = runs.into_iter().map(|run| row(run, context)).collect();
    context.print.table(&["run", "job", "planned", "state", "took", "node", "reason"], rows)?;
    if !answer["next"].is_null() {
        context.print.say("there are more; raise --limit");
    }
    Ok(Exit::Done)
}

fn row(run: RunAnswer, context: &Context) -> Vec<Word> {
    let state = Word::toned(run.outcome(), tone_of_state(&run.state));
    vec![
        run.id.to_string().into(),
        format!("{}/{}", run.namespace, run.job_name).into(),
        context.print.moment(Some(run.planned)).into(),
        state,
        Word::or_dash(run.duration_ms.map(took)),
        Word::or_dash(run.node_name),
        run.reason.unwrap_or_default().into(),
    ]
}

fn took(ms: i64) -> String {
    let length = short_duration(Duration::from_millis(ms.unsigned_abs()));
    if ms < 0 { format!("-{length}") } else { length }
}

async fn show(run: &RunRef, context: &Context) -> anyhow::Result<Exit> {
    let id = resolve(run, context).await?.to_string();
    let answer = context.client()?.get(&["runs", &id], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let run: RunAnswer = read(&answer)?;
    let asked = match (&run.triggered_by, run.rerun_of, &run.instance) {
        (Some(by), Some(of), _) => format!("{} by {by}, of {of}", run.trigger),
        (Some(by), None, _) => format!("{} by {by}", run.trigger),
        (None, _, Some(instance)) => format!("{}, instance {instance}", run.trigger),
        (None, _, None) => run.trigger.clone(),
    };
    let late = if run.late { " (the result came late)" } else { "" };
    let dropped = match run.output_dropped_bytes {
        0 => String::new(),
        bytes => format!(", {bytes} of them left out"),
    };
    let mut facts = vec![
        ("run", Word::from(run.id.to_string())),
        ("job", format!("{}/{} revision {}", run.namespace, run.job_name, run.revision).into()),
        ("command", Word::or_dash(run.command.clone())),
        ("state", Word::toned(format!("{}{late}", run.outcome()), tone_of_state(&run.state))),
        ("why it ran", asked.into()),
        ("planned", context.print.moment(Some(run.planned)).into()),
        ("started", context.print.moment(run.started_at).into()),
        ("ended", context.print.moment(run.ended_at).into()),
        ("lag", Word::or_dash(run.lag_ms.map(took))),
        ("took", Word::or_dash(run.duration_ms.map(took))),
        ("attempt", run.attempt.to_string().into()),
        ("fence", Word::or_dash((run.fence > 0).then(|| run.fence.to_string()))),
        ("node", Word::or_dash(run.node_name.clone())),
        ("cpu", took(i64::try_from(run.cpu_ms)?).into()),
        ("memory", format!("{} KiB at most", run.max_rss_bytes / 1024).into()),
        ("output", format!("{} bytes{dropped}", run.output_bytes).into()),
    ];
    if run.overdue_at.is_some() {
        let since = context.print.moment(run.overdue_at);
        facts.push(("overdue", format!("longer than timeout.after since {since}; it was let go on").into()));
    }
    let notes: Vec<&str> = run.marks.iter().filter_map(|mark| note(mark)).collect();
    if !notes.is_empty() {
        facts.push(("note", notes.join("; ").into()));
    }
    if let Some(script) = run.script.clone() {
        facts.push(("script", script.into()));
    }
    if !run.limits_held.is_empty() {
        facts.push(("limits held", run.limits_held.join(", ").into()));
    }
    if run.left_behind > 0 {
        facts.push(("left behind", format!("{} background processes, ended", run.left_behind).into()));
    }
    if let Some(reason) = run.reason.clone() {
        facts.insert(4, ("reason", reason.into()));
    }
    if run.next_attempt_at.is_some() {
        facts.insert(4, ("next attempt", context.print.moment(run.next_attempt_at).into()));
    }
    let told = context.client()?.get(&["runs", &id, "deliveries"], &Vec::new()).await?;
    let told: Vec<DeliveryAnswer> = read(&told["items"])?;
    facts.extend(told.into_iter().map(|delivery| ("webhook", fate(&delivery, context))));
    context.print.facts(facts)?;
    if run.attempts.len() > 1 || run.next_attempt_at.is_some() {
        context.print.line("")?;
        let rows = run.attempts.into_iter().map(|attempt| attempt_row(attempt, context)).collect();
        context.print.table(&["attempt", "started", "state", "took", "node", "reason"], rows)?;
        context.print.say(&format!("what one of them printed: belfry run logs --attempt N {}", run.id));
    }
    Ok(Exit::Done)
}

/// What a mark means. None: nothing that a reader has to know.
fn note(mark: &str) -> Option<&'static str> {
    match mark {
        "local" => Some("its node fired it by itself"),
        "cut_off" => Some("without contact to the servers"),
        "may_have_run_twice" => Some("the job's home had moved: this fire may have run twice"),
        _ => None,
    }
}

/// What became of telling a webhook.
fn fate(delivery: &DeliveryAnswer, context: &Context) -> Word {
    let DeliveryAnswer { news, state, receiver, tries, last_error, next_try_at, delivered_at } = delivery;
    let why = last_error.as_deref().unwrap_or_default();
    let text = match (state.as_str(), tries) {
        ("delivered", _) => format!("{news}: delivered to {receiver} {}", context.print.moment(*delivered_at)),
        ("given_up", _) => format!("{news}: given up after {tries} tries; {receiver}: {why}"),
        (_, 0) => format!("{news}: to be delivered to {receiver}"),
        _ => format!("{news}: tried {tries} times, again {}; {receiver}: {why}", context.print.moment(*next_try_at)),
    };
    text.into()
}

fn attempt_row(attempt: AttemptAnswer, context: &Context) -> Vec<Word> {
    vec![
        attempt.attempt.to_string().into(),
        context.print.moment(attempt.started_at).into(),
        Word::toned(attempt.outcome(), tone_of_state(&attempt.state)),
        Word::or_dash(attempt.duration_ms.map(took)),
        Word::or_dash(attempt.node_name),
        attempt.reason.unwrap_or_default().into(),
    ]
}

async fn kill(run: &RunRef, context: &Context) -> anyhow::Result<Exit> {
    let id = resolve(run, context).await?.to_string();
    let answer = context.client()?.post(&["runs", &id, "kill"], json!({})).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    context.print.say(&match answer["outcome"].as_str() {
        Some("told") => format!("{id}: its node was told; see how it ends: belfry run logs -f {id}"),
        Some("cancelled") => format!("{id} does not run, and will not"),
        Some("already_ended") => format!("{id} has ended already"),
        other => format!("{id}: {}", other.unwrap_or("done")),
    });
    Ok(Exit::Done)
}

async fn prune(args: &RunPrune, context: &Context) -> anyhow::Result<Exit> {
    let before = context.instant(&args.before)?;
    let client = context.client()?;
    let of = args.namespace.as_ref().map_or_else(String::new, |namespace| format!(" of namespace {namespace}"));
    if !context
        .sure(args.yes, &format!("Remove all ended runs{of} from before {}?", context.print.moment(Some(before))))?
    {
        return Ok(Exit::Failed);
    }
    let mut query: Query = vec![("before", before.to_string())];
    query.extend(args.namespace.clone().map(|namespace| ("namespace", namespace)));
    let answer = client.delete(&["runs"], &query).await?;
    if context.print.json {
        context.print.json(&answer)?;
    } else {
        context.print.line(&format!("{} runs removed", answer["deleted"]))?;
    }
    Ok(Exit::Done)
}

/// 0 for a run that succeeded, 1 for every other end.
pub fn exit_of(run: &RunAnswer) -> Exit {
    if run.state == RunState::Succeeded.as_str() { Exit::Done } else { Exit::Failed }
}
