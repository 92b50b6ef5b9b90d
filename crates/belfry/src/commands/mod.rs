//! What each command does: one file per noun. Client commands share a [`Context`]; the server is looked for when it is first needed.

mod apply;
mod audit;
mod config;
mod doctor;
mod explain;
mod job_document;
mod jobs;
mod logs;
mod next;
mod nodes;
mod password;
mod runs;
mod scripts;
mod services;
mod session;
mod state;
mod tokens;
mod users;
mod webhooks;

use anyhow::bail;
use belfry_core::Timestamp;
use belfry_core::role::EVERYWHERE;
use clap::CommandFactory;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::cli::{Cli, Command, KeyValue, RoleWord, ServerChoice, When};
use crate::client::{Client, Credential, Found, find_server};
use crate::exit::{Exit, UsageError};
use crate::print::{Printer, confirm};

pub struct Context {
    pub choice: ServerChoice,
    pub print: Printer,
}

impl Context {
    pub fn found(&self) -> anyhow::Result<Found> {
        Ok(find_server(&self.choice)?)
    }

    pub fn client(&self) -> anyhow::Result<Client> {
        let found = self.found()?;
        let credential = found.token.map_or(Credential::None, Credential::Token);
        Ok(Client::new(&found.url, found.ca.as_deref(), credential)?)
    }

    /// A moment of the command line, in the local zone, as the API reads it.
    pub fn instant(&self, when: &When) -> anyhow::Result<Timestamp> {
        when.at(self.print.now, &self.print.zone.tz).map_err(|message| UsageError(message).into())
    }

    /// Asks before something is lost. Without a terminal to ask on, `--yes` must have been said.
    pub fn sure(&self, yes: bool, question: &str) -> anyhow::Result<bool> {
        if yes {
            return Ok(true);
        }
        match confirm(question)? {
            Some(true) => Ok(true),
            Some(false) => {
                self.print.say("nothing was changed");
                Ok(false)
            }
            None => bail!(UsageError(format!("{question} There is no terminal to ask on; say --yes"))),
        }
    }
}

/// What an answer says, in the shape that a command shows.
pub fn read<T: DeserializeOwned>(value: &Value) -> anyhow::Result<T> {
    Ok(T::deserialize(value)?)
}

/// The role everywhere and the roles per namespace, as the API takes them; none when nothing was given.
pub fn grants(role: Option<RoleWord>, per_namespace: &[KeyValue]) -> anyhow::Result<Option<Value>> {
    let mut grants = Map::new();
    if let Some(role) = role {
        grants.insert(EVERYWHERE.to_owned(), serde_json::to_value(belfry_core::role::Role::from(role))?);
    }
    for KeyValue(namespace, role) in per_namespace {
        let word = <RoleWord as clap::ValueEnum>::from_str(role, true).map_err(|_| {
            UsageError(format!("--grant {namespace}={role}: a role is viewer, operator, editor or admin"))
        })?;
        grants.insert(namespace.clone(), serde_json::to_value(belfry_core::role::Role::from(word))?);
    }
    Ok((!grants.is_empty()).then_some(Value::Object(grants)))
}

/// Commands that talk to a server, or to nobody.
pub async fn run(command: Command, context: &Context) -> anyhow::Result<Exit> {
    match command {
        Command::Job(command) => jobs::run(command, context).await,
        Command::Run(command) => runs::run(command, context).await,
        Command::Script(command) => scripts::run(command, context).await,
        Command::State(command) => state::run(command, context).await,
        Command::Node(command) => nodes::run(command, context).await,
        Command::Service(command) => services::run(command, context).await,
        Command::Next(args) => next::run(&args, context),
        Command::Explain(args) => explain::run(&args, context).await,
        Command::Login(args) => session::login(&args, context).await,
        Command::Logout => session::logout(context).await,
        Command::Whoami => session::whoami(context).await,
        Command::User(command) => users::run(command, context).await,
        Command::Token(command) => tokens::run(command, context).await,
        Command::Audit(command) => audit::run(command, context).await,
        Command::Webhook(command) => webhooks::run(&command, context).await,
        Command::Config(command) => config::run(&command, context),
        Command::Wrap { .. } => anyhow::bail!("`wrap` asks no server: write it first, without flags before it"),
        Command::Doctor => doctor::run(context).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "belfry", &mut script);
            context.print.data(&script)?;
            Ok(Exit::Done)
        }
        Command::Up(_) | Command::Server(_) | Command::Agent(_) => {
            unreachable!("these serve; main starts them without a runtime")
        }
    }
}
