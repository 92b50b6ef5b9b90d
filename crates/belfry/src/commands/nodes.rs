//! `belfry node`: the machines that execute.

use belfry_core::units::{Size, Span};
use serde_json::{Map, Value, json};

use super::{Context, read};
use crate::cli::{KeyValue, NodeCommand, NodeSet};
use crate::client::{Client, HostAnswer, NodeAnswer};
use crate::exit::{Exit, NotFound};
use crate::print::{Tone, Word, relative};

pub async fn run(command: NodeCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        NodeCommand::Ls => ls(context).await,
        NodeCommand::Show { node } => show(&node, context).await,
        NodeCommand::Set(args) => set(&args, context).await,
        NodeCommand::Drain { node } => change(&node, json!({ "draining": true }), "gets no new runs", context).await,
        NodeCommand::Undrain { node } => change(&node, json!({ "draining": false }), "gets runs again", context).await,
        NodeCommand::Exclude { node } => change(&node, json!({ "excluded": true }), "is excluded", context).await,
        NodeCommand::Include { node } => change(&node, json!({ "excluded": false }), "is included", context).await,
        NodeCommand::JoinToken { good_for } => join_token(good_for, context).await,
        NodeCommand::Rm { node, force, yes } => rm(&node, force, yes, context).await,
    }
}

async fn ls(context: &Context) -> anyhow::Result<Exit> {
    let answer = context.client()?.get(&["nodes"], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let nodes: Vec<NodeAnswer> = read(&answer["items"])?;
    if nodes.is_empty() {
        context.print.say("no node has joined yet; `belfry node join-token` prints how one does");
    }
    let rows = nodes.into_iter().map(|node| row(node, context)).collect();
    let header = [
        "node", "state", "runs", "homes", "weight", "cpu", "memory", "disk", "labels", "clock", "seen", "runs as",
        "version",
    ];
    context.print.table(&header, rows)?;
    Ok(Exit::Done)
}

fn row(node: NodeAnswer, context: &Context) -> Vec<Word> {
    let (labels, host) = (labels(&node), node.host.as_ref());
    let clock = node.clock_offset_ms.map(|ms| format!("{ms:+}ms"));
    let seen = node.last_heartbeat.map(|at| relative(at, context.print.now));
    vec![
        node.name.clone().into(),
        state(&node),
        format!("{}/{}", node.load, node.slots).into(),
        node.homes.to_string().into(),
        node.weight.to_string().into(),
        Word::or_dash(host.and_then(|host| host.cpu_use).map(percent)),
        Word::or_dash(host.map(|host| format!("{} free", about(host.memory_available)))),
        Word::or_dash(host.map(|host| format!("{} free", about(host.disk_free)))),
        labels.into(),
        Word::or_dash(clock),
        Word::or_dash(seen),
        node.runs_as.into(),
        node.version.into(),
    ]
}

fn state(node: &NodeAnswer) -> Word {
    match (node.connected, node.excluded, node.draining) {
        (false, _, _) => Word::toned("away", Tone::Bad),
        (true, true, _) => Word::toned("excluded", Tone::Warn),
        (true, false, true) => Word::toned("draining", Tone::Warn),
        (true, false, false) if node.spool_full => Word::toned("spool full", Tone::Bad),
        (true, false, false) if node.disk_low => Word::toned("disk low", Tone::Bad),
        (true, false, false) if node.clock_off => Word::toned("clock off", Tone::Bad),
        (true, false, false) => Word::toned("ready", Tone::Good),
    }
}

async fn show(wanted: &str, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let id = find(&client, wanted).await?.id;
    let answer = client.get(&["nodes", &id], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let node: NodeAnswer = read(&answer)?;
    let mut facts = vec![
        ("node", Word::from(format!("{} ({})", node.name, node.id))),
        ("state", state(&node)),
        ("version", node.version.clone().into()),
        ("labels", labels(&node).into()),
        ("weight", node.weight.to_string().into()),
        ("runs", format!("{} of {} slots", node.load, node.slots).into()),
        ("homes", node.homes.to_string().into()),
        ("jobs run as", node.runs_as.clone().into()),
        ("clock", Word::or_dash(node.clock_offset_ms.map(|ms| format!("{ms:+}ms against the server")))),
        ("seen", context.print.moment(node.last_heartbeat).into()),
    ];
    if let Some(host) = &node.host {
        facts.extend(of_machine(host, node.disk_low, context));
    }
    if let Some(free) = &node.free_for_needs {
        let (memory, disk) = (about(free.memory), about(free.disk));
        facts.push(("free for needs", format!("{memory} memory, {} cpus, {disk} disk", free.cpus).into()));
    }
    for job in &node.disabled_jobs {
        let name = if job.name.is_empty() { &job.id } else { &job.name };
        facts.push(("disabled", format!("{name}, on this host by its local API").into()));
    }
    context.print.facts(facts)?;
    Ok(Exit::Done)
}

fn of_machine(host: &HostAnswer, disk_low: bool, context: &Context) -> Vec<(&'static str, Word)> {
    let used = host.cpu_use.map(|part| format!(", {} in use", percent(part))).unwrap_or_default();
    let load = host.load.map(|load| load.to_string()).join(" ");
    let floor = match (host.disk_floor, disk_low) {
        (0, _) => String::new(),
        (bytes, false) => format!(", no work below {}", about(bytes)),
        (bytes, true) => format!(", no work until it is well above {}", about(bytes)),
    };
    let free = |free: u64, total: u64| format!("{} free of {}", about(free), about(total));
    vec![
        ("measured", relative(host.measured_at, context.print.now).into()),
        ("cpus", format!("{}{used}, load {load}", host.cpus).into()),
        ("memory", free(host.memory_available, host.memory_total).into()),
        ("disk", format!("{}{floor}", free(host.disk_free, host.disk_total)).into()),
        ("booted", context.print.moment(Some(host.booted_at)).into()),
        ("system", format!("{}, Linux {}", host.os, host.kernel).into()),
    ]
}

fn labels(node: &NodeAnswer) -> String {
    node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

fn about(bytes: u64) -> String {
    Size::from_bytes(bytes).about()
}

/// By name or id.
async fn find(client: &Client, wanted: &str) -> anyhow::Result<NodeAnswer> {
    if matches!(wanted, "" | "." | "..") {
        return Err(NotFound(format!("there is no node `{wanted}`; see `belfry node ls`")).into());
    }
    read(&client.get(&["nodes", wanted], &Vec::new()).await?)
}

async fn set(args: &NodeSet, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let node = find(&client, &args.node).await?;
    let mut patch = Map::new();
    patch.extend(args.weight.map(|weight| ("weight".to_owned(), Value::from(weight))));
    patch.extend(args.slots.map(|slots| ("slots".to_owned(), Value::from(slots))));
    if !args.labels.is_empty() || !args.unlabel.is_empty() {
        let mut labels = node.labels;
        labels.extend(args.labels.iter().map(|KeyValue(key, value)| (key.clone(), value.clone())));
        labels.retain(|key, _| !args.unlabel.contains(key));
        patch.insert("labels".to_owned(), serde_json::to_value(labels)?);
    }
    let answer = client.patch(&["nodes", &node.id], Value::Object(patch)).await?;
    told(&answer, &format!("{} is changed", node.name), context)
}

async fn change(wanted: &str, patch: Value, outcome: &str, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let node = find(&client, wanted).await?;
    let answer = client.patch(&["nodes", &node.id], patch).await?;
    told(&answer, &format!("{} {outcome}", node.name), context)
}

async fn join_token(good_for: Option<Span>, context: &Context) -> anyhow::Result<Exit> {
    let body = good_for.map_or_else(|| json!({}), |span| json!({ "expires_in_seconds": span.get().as_secs() }));
    let answer = context.client()?.post(&["nodes", "join-tokens"], body).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let token = answer["token"].as_str().unwrap_or_default();
    context.print.say(&format!(
        "run this on the new machine, before {}; it is good for one:",
        answer["expires_at"].as_str().unwrap_or_default()
    ));
    context.print.line(&format!("belfry agent --join '{token}'"))?;
    Ok(Exit::Done)
}

async fn rm(wanted: &str, force: bool, yes: bool, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let node = find(&client, wanted).await?;
    if !context.sure(yes, &format!("Remove node {}?", node.name))? {
        return Ok(Exit::Failed);
    }
    let answer = client.delete(&["nodes", &node.id], &vec![("force", force.to_string())]).await?;
    told(&answer, &format!("{} is removed", node.name), context)
}

fn told(answer: &Value, outcome: &str, context: &Context) -> anyhow::Result<Exit> {
    if context.print.json && !answer.is_null() {
        context.print.json(answer)?;
    }
    context.print.say(outcome);
    Ok(Exit::Done)
}
