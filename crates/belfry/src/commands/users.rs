//! `belfry user`: who may log in, and what they may do.

use serde_json::{Map, Value, json};

use super::{Context, grants, password, read};
use crate::cli::UserCommand;
use crate::client::{UserAnswer, grants_in_words};
use crate::exit::Exit;
use crate::print::{Tone, Word};

pub async fn run(command: UserCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        UserCommand::Ls => ls(context).await,
        UserCommand::Add { name, role, grant, password_stdin } => {
            let grants = grants(role, &grant)?;
            let client = context.client()?;
            let password = password::ask_new(password_stdin)?;
            let answer =
                client.post(&["users"], json!({ "name": name, "password": password, "grants": grants })).await?;
            told(&answer, &format!("user {name} is created"), context)
        }
        UserCommand::Set { name, role, grant, disable, enable } => {
            let mut patch = Map::new();
            patch.extend(grants(role, &grant)?.map(|grants| ("grants".to_owned(), grants)));
            if disable || enable {
                patch.insert("disabled".to_owned(), Value::from(disable));
            }
            let answer = context.client()?.patch(&["users", &name], Value::Object(patch)).await?;
            told(&answer, &format!("user {name} is changed"), context)
        }
        UserCommand::Rm { name, yes } => {
            let client = context.client()?;
            if !context.sure(yes, &format!("Remove user {name} with all tokens?"))? {
                return Ok(Exit::Failed);
            }
            let answer = client.delete(&["users", &name], &Vec::new()).await?;
            told(&answer, &format!("user {name} is removed"), context)
        }
        UserCommand::Passwd { name: Some(name), password_stdin } => {
            let client = context.client()?;
            let password = password::ask_new(password_stdin)?;
            let answer = client.patch(&["users", &name], json!({ "password": password })).await?;
            told(&answer, &format!("the password of {name} is changed; all sessions of {name} have ended"), context)
        }
        UserCommand::Passwd { name: None, password_stdin } => own_password(password_stdin, context).await,
    }
}

async fn ls(context: &Context) -> anyhow::Result<Exit> {
    let answer = context.client()?.get(&["users"], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let users: Vec<UserAnswer> = read(&answer["items"])?;
    let rows = users.into_iter().map(|user| {
        let state = if user.disabled { Word::toned("disabled", Tone::Warn) } else { Word::from("enabled") };
        vec![
            user.name.into(),
            state,
            grants_in_words(&user.grants).into(),
            context.print.moment(Some(user.created_at)).into(),
        ]
    });
    context.print.table(&["user", "state", "may", "created"], rows.collect())?;
    Ok(Exit::Done)
}

/// Only the current password may change one's own; a token may not.
async fn own_password(from_stdin: bool, context: &Context) -> anyhow::Result<Exit> {
    let client = context.client()?;
    let me = client.get(&["whoami"], &Vec::new()).await?;
    let name = me["name"].as_str().unwrap_or_default();
    let current = password::ask(&format!("Current password of {name}"), from_stdin)?;
    let new = password::ask_new(from_stdin)?;
    let session = client.with(client.session(name, &current).await?);
    let answer = session.post(&["password"], json!({ "current": current, "new": new })).await?;
    told(&answer, &format!("the password of {name} is changed; all sessions of {name} have ended"), context)
}

fn told(answer: &Value, outcome: &str, context: &Context) -> anyhow::Result<Exit> {
    if context.print.json && !answer.is_null() {
        context.print.json(answer)?;
    }
    context.print.say(outcome);
    Ok(Exit::Done)
}
