//! The `belfry` program: chooses between serving and asking, and turns what came of it into an exit code.

mod agent;
mod cli;
mod client;
mod commands;
mod documents;
mod exit;
mod print;
mod serve;
mod server;
mod up;
mod wrap;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::cli::{Cli, Command};
use crate::commands::Context;
use crate::exit::{Exit, is_closed_pipe};
use crate::print::{Printer, tell};

/// A herd of runs is a storm of small allocations on several threads, which glibc's allocator serves at twice the cost.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before any thread and before the arguments are read: the zygote forks for its whole life and must stay small.
    if std::env::args_os().nth(1).is_some_and(|word| word == "__zygote") {
        belfry_exec::zygote_main()
    }
    if let Some(args) = wrap::asked_for(std::env::args_os()) {
        return wrap::run(args);
    }
    let matches = Cli::command().get_matches();
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let done = match cli.command {
        Command::Up(args) => refuse_client_flags(&matches).and_then(|()| up::run(args)),
        Command::Server(args) => refuse_client_flags(&matches).and_then(|()| server::run(args)),
        Command::Agent(args) => refuse_client_flags(&matches).and_then(|()| agent::run(args)),
        command => {
            prefer_flags(&matches, &mut cli.server);
            ask(
                command,
                Context {
                    choice: cli.server,
                    print: Printer::new(cli.json, belfry_coord::Clock::now(&belfry_coord::SystemClock)),
                },
            )
        }
    };
    done.unwrap_or_else(|error| {
        if !is_closed_pipe(&error) {
            tell(&format!("belfry: {error:#}"));
        }
        Exit::of(&error).into()
    })
}

fn ask(command: Command, context: Context) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(commands::run(command, &context)).map(ExitCode::from)
}

/// Flags that choose a server mean nothing to one that is being started.
fn refuse_client_flags(matches: &ArgMatches) -> anyhow::Result<()> {
    for flag in ["url", "token", "json"] {
        if matches.value_source(flag) == Some(ValueSource::CommandLine) {
            let message = format!("--{flag} is for commands that ask a server; this one starts one");
            Cli::command().error(ErrorKind::ArgumentConflict, message).exit();
        }
    }
    Ok(())
}

/// A folder named on the command line beats an address in the environment.
fn prefer_flags(matches: &ArgMatches, choice: &mut cli::ServerChoice) {
    let from = |flag: &str| matches.value_source(flag);
    if from("data") == Some(ValueSource::CommandLine) && from("url") == Some(ValueSource::EnvVariable) {
        choice.url = None;
        if from("token") == Some(ValueSource::EnvVariable) {
            choice.token = None;
        }
    }
}
