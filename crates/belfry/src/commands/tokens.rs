//! `belfry token`: credentials for programs.

use serde_json::{Map, Value};

use super::{Context, grants, read};
use crate::cli::TokenCommand;
use crate::client::{TokenAnswer, grants_in_words};
use crate::exit::Exit;
use crate::print::Word;

pub async fn run(command: TokenCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        TokenCommand::Ls => ls(context).await,
        TokenCommand::Create { name, role, grant, expires, service } => {
            let mut body = Map::from_iter([("label".to_owned(), Value::from(name))]);
            body.extend(grants(role, &grant)?.map(|grants| ("grants".to_owned(), grants)));
            body.extend(expires.map(|span| ("expires_in".to_owned(), Value::from(span.to_string()))));
            body.extend(service.map(|service| ("service".to_owned(), Value::from(service))));
            let answer = context.client()?.post(&["tokens"], Value::Object(body)).await?;
            if context.print.json {
                context.print.json(&answer)?;
            } else {
                context.print.line(answer["secret"].as_str().unwrap_or_default())?;
                context.print.say("keep it safe: it is not shown again");
            }
            Ok(Exit::Done)
        }
        TokenCommand::Rm { id } => {
            context.client()?.delete(&["tokens", &id], &Vec::new()).await?;
            context.print.say(&format!("token {id} is removed"));
            Ok(Exit::Done)
        }
    }
}

async fn ls(context: &Context) -> anyhow::Result<Exit> {
    let answer = context.client()?.get(&["tokens"], &Vec::new()).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let tokens: Vec<TokenAnswer> = read(&answer["items"])?;
    if tokens.is_empty() {
        context.print.say("no tokens; make one: belfry token create NAME");
    }
    let rows = tokens.into_iter().map(|token| {
        let expires = token.expires_at.map(|at| context.print.moment(Some(at)));
        vec![
            Word::from(token.id),
            token.owner.into(),
            token.label.into(),
            grants_in_words(&token.grants).into(),
            expires.unwrap_or_else(|| "never".to_owned()).into(),
            context.print.moment(token.last_used_at).into(),
        ]
    });
    context.print.table(&["id", "of", "for", "may", "expires", "last used"], rows.collect())?;
    Ok(Exit::Done)
}
