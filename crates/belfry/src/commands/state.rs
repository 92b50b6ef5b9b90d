//! `belfry state`: what jobs keep from run to run, shown and set.

use std::collections::BTreeMap;

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{Context, read};
use crate::cli::{JobName, KeyValue, StateCommand};
use crate::client::{Client, ClientError, StateAnswer};
use crate::exit::{Exit, NotFound};

/// A run that saves at the same time makes the change start over.
const TRIES_MAX: usize = 10;

pub async fn run(command: StateCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        StateCommand::Get { job, key } => get(&job, key.as_deref(), context).await,
        StateCommand::Set { job, values } => set(&job, &values, context).await,
    }
}

async fn get(job: &JobName, key: Option<&str>, context: &Context) -> anyhow::Result<Exit> {
    let answer = context.client()?.get(&path(job), &Vec::new()).await?;
    let StateAnswer { values, .. } = read(&answer)?;
    if let Some(key) = key {
        let value = values.get(key).ok_or_else(|| NotFound(format!("{job} keeps nothing as `{key}`")))?;
        if context.print.json {
            context.print.json(&Value::from(value.as_str()))?
        } else {
            context.print.line(value)?
        }
        return Ok(Exit::Done);
    }
    show(&answer, &values, context)?;
    if values.is_empty() {
        context.print.say("it keeps nothing");
    }
    Ok(Exit::Done)
}

async fn set(job: &JobName, changes: &[KeyValue], context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let mut tried = 1;
    let answer = loop {
        match set_once(&client, job, changes).await {
            Err(ClientError::Refused { status: StatusCode::PRECONDITION_FAILED, .. }) if tried < TRIES_MAX => {
                tried += 1
            }
            answer => break answer?,
        }
    };
    let StateAnswer { values, .. } = read(&answer)?;
    show(&answer, &values, context)?;
    Ok(Exit::Done)
}

async fn set_once(client: &Client, job: &JobName, changes: &[KeyValue]) -> Result<Value, ClientError> {
    let known = client.get(&path(job), &Vec::new()).await?;
    let version = known["version"].as_u64().unwrap_or(0);
    let mut values = known["values"].as_object().cloned().unwrap_or_default();
    for KeyValue(key, value) in changes {
        if value.is_empty() {
            values.remove(key);
        } else {
            values.insert(key.clone(), Value::from(value.as_str()));
        }
    }
    client.put_at(&path(job), version, json!({ "values": values })).await
}

fn path(job: &JobName) -> [&str; 4] {
    ["jobs", job.namespace(), &job.name, "state"]
}

fn show(answer: &Value, values: &BTreeMap<String, String>, context: &Context) -> anyhow::Result<()> {
    if context.print.json {
        return context.print.json(answer);
    }
    values.iter().try_for_each(|(key, value)| context.print.line(&format!("{key}={value}")))
}
