//! `belfry explain`: what was decided about a job at an instant, in the server's words.

use serde::Deserialize;

use super::{Context, read};
use crate::cli::{ExplainArgs, RunRef};
use crate::client::Query;
use crate::exit::Exit;

#[derive(Deserialize)]
struct ExplanationAnswer {
    sentences: Vec<String>,
}

pub async fn run(args: &ExplainArgs, context: &Context) -> anyhow::Result<Exit> {
    let mut query: Query = match &args.subject {
        RunRef::Id(run) => vec![("run", run.to_string())],
        RunRef::LastOf(job) => vec![("job", job.to_string())],
    };
    if let Some(at) = &args.at {
        query.push(("at", context.instant(at)?.to_string()));
    }
    let answer = context.client()?.get(&["explain"], &query).await?;
    if context.print.json {
        context.print.json(&answer)?;
        return Ok(Exit::Done);
    }
    let explanation: ExplanationAnswer = read(&answer)?;
    for sentence in explanation.sentences {
        context.print.line(&sentence)?;
    }
    Ok(Exit::Done)
}
