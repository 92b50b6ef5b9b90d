//! `belfry service`: what always runs. A service is saved, paused, resumed and removed as any job is.

use serde_json::json;

use super::{Context, read};
use crate::cli::{JobName, ServiceCommand};
use crate::client::ServiceAnswer;
use crate::exit::Exit;
use crate::print::{Tone, Word, relative};

pub async fn run(command: ServiceCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        ServiceCommand::Ls => ls(context).await,
        ServiceCommand::Move { name, to } => move_service(&name, to.as_deref(), context).await,
    }
}

async fn ls(context: &Context) -> anyhow::Result<Exit> {
    let answer = context.client()?.get(&["services"], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let services: Vec<ServiceAnswer> = read(&answer["items"])?;
    if services.is_empty() {
        context.print.say("there is no service yet; `belfry job add NAME --service -- COMMAND` makes one");
    }
    let rows = services.into_iter().map(|service| row(service, context)).collect();
    context.print.table(&["service", "state", "node", "since", "restarts 24h", "last exit", "note"], rows)?;
    Ok(Exit::Done)
}

fn row(service: ServiceAnswer, context: &Context) -> Vec<Word> {
    let tone = match service.state.as_str() {
        "running" => Tone::Good,
        "paused" => Tone::Plain,
        _ => Tone::Warn,
    };
    let last_exit = service.last_exit.map(|exit| {
        let how =
            exit.exit_code.map(|code| format!("exit {code}")).or(exit.signal.map(|signal| format!("signal {signal}")));
        let when = exit.at.map(|at| format!(" {}", relative(at, context.print.now))).unwrap_or_default();
        format!("{}{when}", how.unwrap_or(exit.state))
    });
    vec![
        format!("{}/{}", service.namespace, service.name).into(),
        Word::toned(service.state, tone),
        Word::or_dash(service.node_name),
        Word::or_dash(service.since.map(|at| relative(at, context.print.now))),
        service.restarts_24h.to_string().into(),
        Word::or_dash(last_exit),
        Word::or_dash(service.reason),
    ]
}

async fn move_service(name: &JobName, to: Option<&str>, context: &Context) -> anyhow::Result<Exit> {
    let body = to.map_or(json!({}), |node| json!({ "node": node }));
    let answer = context.client()?.post(&["jobs", name.namespace(), &name.name, "move"], body).await?;
    if context.print.json {
        context.print.json(&answer)?;
    }
    context.print.say(&format!("{name} is told to end; it starts elsewhere when it has (`belfry service ls`)"));
    Ok(Exit::Done)
}
