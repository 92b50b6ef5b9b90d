//! `belfry webhook`: what receivers need to know.

use serde_json::json;

use super::Context;
use crate::cli::WebhookCommand;
use crate::exit::Exit;

pub async fn run(command: &WebhookCommand, context: &Context) -> anyhow::Result<Exit> {
    let WebhookCommand::Secret { rotate } = command;
    let client = context.client()?;
    let answer = match rotate {
        true => client.post(&["webhook-secret"], json!({})).await?,
        false => client.get(&["webhook-secret"], &Vec::new()).await?,
    };
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    context.print.line(answer["secret"].as_str().unwrap_or_default())?;
    if let Some(until) = answer["old_good_until"].as_str().and_then(|at| at.parse().ok()) {
        let until = context.print.moment(Some(until));
        context.print.say(&format!("deliveries are signed with the secret before it as well until {until}"));
    }
    Ok(Exit::Done)
}
