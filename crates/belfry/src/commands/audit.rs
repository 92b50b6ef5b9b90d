//! `belfry audit`: who changed what.

use serde_json::Value;

use super::{Context, read};
use crate::cli::{AuditCommand, AuditLs};
use crate::client::{AuditAnswer, Query};
use crate::exit::Exit;
use crate::print::Word;

pub async fn run(command: AuditCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        AuditCommand::Ls(args) => ls(&args, context).await,
    }
}

async fn ls(args: &AuditLs, context: &Context) -> anyhow::Result<Exit> {
    let mut query: Query = Vec::new();
    query.extend(args.actor.clone().map(|actor| ("actor", actor)));
    query.extend(args.action.clone().map(|action| ("action", action)));
    for (name, when) in [("from", &args.from), ("to", &args.to)] {
        if let Some(when) = when {
            query.push((name, context.instant(when)?.to_string()));
        }
    }
    let answer = context.client()?.list(&["audit"], &query, args.limit as usize).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let entries: Vec<AuditAnswer> = read(&answer["items"])?;
    if entries.is_empty() {
        context.print.say("no such changes");
    }
    let rows = entries.into_iter().map(|entry| {
        let by = entry.origin.map_or_else(|| entry.actor.clone(), |origin| format!("{} from {origin}", entry.actor));
        let detail = match &entry.detail {
            Value::Object(fields) if fields.is_empty() => String::new(),
            Value::Null => String::new(),
            detail => detail.to_string(),
        };
        vec![
            Word::from(context.print.moment(Some(entry.at))),
            by.into(),
            entry.action.into(),
            entry.subject.into(),
            detail.into(),
        ]
    });
    context.print.table(&["when", "by", "what", "on", "detail"], rows.collect())?;
    if !answer["next"].is_null() {
        context.print.say("there are more; raise --limit");
    }
    Ok(Exit::Done)
}
