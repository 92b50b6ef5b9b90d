//! The command line as types: nouns, verbs and flags. It parses and explains; what is done is in `commands`.

mod accounts;
mod jobs;
mod nodes;
mod runs;
mod schedule;
mod scripts;
mod services;
mod serving;
mod state;
mod values;

pub use accounts::{AuditCommand, AuditLs, LoginArgs, RoleWord, TokenCommand, UserCommand};
pub use jobs::{JobAdd, JobApply, JobCommand, JobDiff, JobExport, JobHistory, JobLs, JobRun};
pub use nodes::{NodeCommand, NodeSet};
pub use runs::{RunCommand, RunLs, RunPrune};
pub use schedule::{ExplainArgs, NextArgs};
pub use scripts::ScriptCommand;
pub use services::ServiceCommand;
pub use serving::{AgentArgs, HttpArgs, ServerArgs, TimeoutWord, UpArgs};
pub use state::StateCommand;
pub use values::{Format, JobName, KeyValue, RunRef, When, moment};

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::exit;

/// Belfry, a distributed cron: runs commands on time, on the right machine, once, and shows what happened.
#[derive(Debug, Parser)]
#[command(name = "belfry", version, after_help = exit::HELP, arg_required_else_help = true, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub server: ServerChoice,
    /// Print what the API answers, as JSON, for programs
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

/// Where the server is. Without any of these: a running `belfry up` of this machine, else the saved login.
#[derive(Clone, Debug, Default, Args)]
pub struct ServerChoice {
    /// Address of the server, as http://127.0.0.1:8787
    #[arg(long, global = true, env = "BELFRY_URL", value_name = "URL", help_heading = "Everywhere")]
    pub url: Option<String>,
    /// Token to use with --url; better in BELFRY_TOKEN, where other users cannot see it
    #[arg(
        long,
        global = true,
        env = "BELFRY_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Everywhere"
    )]
    pub token: Option<String>,
    /// Certificate (PEM) of the CA that signed the server's, for https; `ca.pem` in the server's data folder
    #[arg(long, global = true, env = "BELFRY_CA", value_name = "FILE", help_heading = "Everywhere")]
    pub ca: Option<PathBuf>,
    /// Data folder of a running `belfry up`
    #[arg(long, global = true, env = "BELFRY_DATA", value_name = "DIR", help_heading = "Everywhere")]
    pub data: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything on this machine: server, agent and database in one process
    Up(UpArgs),
    /// Start a server of a cluster
    Server(ServerArgs),
    /// Start an agent that joins a cluster
    Agent(AgentArgs),
    /// Jobs: what is run, and when
    #[command(subcommand)]
    Job(JobCommand),
    /// Runs: what became of jobs, their output
    #[command(subcommand)]
    Run(RunCommand),
    /// Scripts that jobs execute, kept with their versions
    #[command(subcommand)]
    Script(ScriptCommand),
    /// State: what jobs keep from run to run
    #[command(subcommand)]
    State(StateCommand),
    /// Nodes: the machines that execute
    #[command(subcommand)]
    Node(NodeCommand),
    /// Services: what always runs, on one node
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Show when a schedule fires; needs no server
    Next(NextArgs),
    /// Say what was decided about a job at an instant, by which rule, and why not otherwise
    Explain(ExplainArgs),
    /// Log in to a server and remember it
    Login(LoginArgs),
    /// Forget a saved login
    Logout,
    /// Show who you are to the server, and what you may do
    Whoami,
    /// Users and their roles
    #[command(subcommand)]
    User(UserCommand),
    /// Tokens for programs
    #[command(subcommand)]
    Token(TokenCommand),
    /// Who changed what
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Webhooks: how receivers know that it is this cluster that calls them
    #[command(subcommand)]
    Webhook(WebhookCommand),
    /// Settings that this command line uses
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Run a command of cron's on one of many hosts, with nothing but a coordinator; also when this program is called `dcron`
    ///
    /// In the crontab of each host: `* * * * * dcron DCRON_NAME=dbbackup.\%F_\%H\%M DCRON_COORD=etcd://h1:2379 -- /usr/local/bin/backup`.
    /// Parameters may come from the environment too. The guide, docs/dcron.md, explains all of them.
    Wrap {
        /// DCRON_KEY=VALUE… -- command arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Look for what is wrong, and say what to do about it
    Doctor,
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

#[derive(Debug, Subcommand)]
pub enum WebhookCommand {
    /// Print the secret that deliveries are signed with; for admins
    Secret {
        /// Make a new one; for a day deliveries are signed with both
        #[arg(long)]
        rotate: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show which server would be asked, and why
    Show,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_that_hold_everywhere_may_stand_on_both_sides() {
        for line in [["belfry", "--json", "job", "ls"], ["belfry", "job", "ls", "--json"]] {
            assert!(Cli::try_parse_from(line).unwrap().json);
        }
    }

    #[test]
    fn up_takes_the_data_folder_on_both_sides() {
        for line in [["belfry", "--data", "/d", "up"], ["belfry", "up", "--data", "/d"]] {
            match Cli::try_parse_from(line).unwrap().command {
                Command::Up(up) => assert_eq!(up.data, Some(PathBuf::from("/d"))),
                other => panic!("{other:?}"),
            }
        }
    }
}
