//! `belfry config show`: what this command line would use, and where that comes from. No secret is shown.

use serde_json::json;

use super::Context;
use crate::cli::ConfigCommand;
use crate::client::{default_data_dir, saved_logins_path};
use crate::exit::Exit;
use crate::print::Word;

pub fn run(command: &ConfigCommand, context: &Context) -> anyhow::Result<Exit> {
    match command {
        ConfigCommand::Show => show(context),
    }
}

fn show(context: &Context) -> anyhow::Result<Exit> {
    let found = context.found();
    let data = context.choice.data.clone().or_else(default_data_dir).map(|path| path.display().to_string());
    let logins = saved_logins_path().map(|path| path.display().to_string());
    let (url, source, token) = match &found {
        Ok(found) => (Some(found.url.clone()), found.source.to_string(), found.token.is_some()),
        Err(why) => (None, why.to_string(), false),
    };
    let zone = &context.print.zone.name;
    let version = env!("CARGO_PKG_VERSION");
    if context.print.json {
        context.print.json(&json!({
            "url": url, "found_by": source, "token": token, "data": data, "logins": logins, "timezone": zone, "version": version,
        }))?;
    } else {
        context.print.facts(vec![
            ("server", Word::or_dash(url)),
            ("found by", source.into()),
            ("token", if token { "yes" } else { "no" }.into()),
            ("data folder", Word::or_dash(data)),
            ("saved logins", Word::or_dash(logins)),
            ("zone here", zone.as_str().into()),
            ("version", version.into()),
        ])?;
    }
    Ok(Exit::Done)
}
