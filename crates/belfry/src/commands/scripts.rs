//! `belfry script`: stored scripts and their versions.

use std::io::Read;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Context, read};
use crate::cli::{JobName, ScriptCommand};
use crate::client::{Query, ScriptAnswer};
use crate::exit::Exit;
use crate::print::{Word, relative};

const SHOWN_MAX: usize = 10_000;
/// As much of a digest as tells two apart at a glance.
const DIGEST_CHARS_SHOWN: usize = 12;

pub async fn run(command: ScriptCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        ScriptCommand::Ls { namespace } => ls(namespace, context).await,
        ScriptCommand::Get { script, version } => get(&script, version, context).await,
        ScriptCommand::Put { script, file } => put(&script, &file, context).await,
        ScriptCommand::Versions { script } => versions(&script, context).await,
        ScriptCommand::Rm { script, yes } => rm(&script, yes, context).await,
    }
}

async fn ls(namespace: Option<String>, context: &Context) -> anyhow::Result<Exit> {
    let query: Query = namespace.map(|namespace| ("namespace", namespace)).into_iter().collect();
    let answer = context.client()?.list(&["scripts"], &query, SHOWN_MAX).await?;
    if answer["items"].as_array().is_some_and(Vec::is_empty) {
        context.print.say("no script is stored; `belfry script put NAME FILE` stores one");
    }
    show(&answer, context)
}

async fn versions(script: &JobName, context: &Context) -> anyhow::Result<Exit> {
    let path = ["scripts", script.namespace(), &script.name, "versions"];
    let answer = context.client()?.list(&path, &Vec::new(), SHOWN_MAX).await?;
    show(&answer, context)
}

fn show(answer: &Value, context: &Context) -> anyhow::Result<Exit> {
    if context.print.json {
        context.print.json(answer)?;
        return Ok(Exit::Done);
    }
    let scripts: Vec<ScriptAnswer> = read(&answer["items"])?;
    let row = |script: ScriptAnswer| -> Vec<Word> {
        vec![
            format!("{}/{}", script.namespace, script.name).into(),
            script.version.to_string().into(),
            script.sha256.chars().take(DIGEST_CHARS_SHOWN).collect::<String>().into(),
            relative(script.at, context.print.now).into(),
            script.author.into(),
        ]
    };
    context.print.table(&["script", "version", "sha256", "stored", "by"], scripts.into_iter().map(row).collect())?;
    Ok(Exit::Done)
}

async fn get(script: &JobName, version: Option<u64>, context: &Context) -> anyhow::Result<Exit> {
    let query: Query = version.map(|version| ("version", version.to_string())).into_iter().collect();
    let answer = context.client()?.get(&["scripts", script.namespace(), &script.name], &query).await?;
    if context.print.json {
        context.print.json(&answer)?;
    } else {
        context.print.data(answer["body"].as_str().unwrap_or_default().as_bytes())?;
    }
    Ok(Exit::Done)
}

async fn put(script: &JobName, file: &Path, context: &Context) -> anyhow::Result<Exit> {
    let body = if file.as_os_str() == "-" {
        let mut body = String::new();
        std::io::stdin().read_to_string(&mut body).context("read the script from stdin")?;
        body
    } else {
        std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?
    };
    let path = ["scripts", script.namespace(), &script.name];
    let answer = context.client()?.put(&path, json!({ "body": body })).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let stored: ScriptAnswer = read(&answer)?;
    context.print.line(&format!("{}/{} version {}", stored.namespace, stored.name, stored.version))?;
    context.print.say(&format!("sha256 {}", stored.sha256));
    Ok(Exit::Done)
}

async fn rm(script: &JobName, yes: bool, context: &Context) -> anyhow::Result<Exit> {
    if !context.sure(yes, &format!("Remove script {script} with all its versions?"))? {
        return Ok(Exit::Failed);
    }
    context.client()?.delete(&["scripts", script.namespace(), &script.name], &Vec::new()).await?;
    context.print.say(&format!("removed {script}"));
    Ok(Exit::Done)
}
