//! Verbs and flags of `belfry run`.

use belfry_core::run::RunState;
use clap::{Args, Subcommand};

use super::{JobName, RunRef, When, moment};

#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// List runs, the newest first
    Ls(RunLs),
    /// Show everything about one run
    Show {
        /// A run's id, or a job's name for its last run
        #[arg(value_name = "RUN|JOB")]
        run: RunRef,
    },
    /// Print a run's output: what it wrote to stdout on stdout, what it wrote to stderr on stderr
    Logs {
        /// A run's id, or a job's name for its last run
        #[arg(value_name = "RUN|JOB")]
        run: RunRef,
        /// Go on until the run ends; exit code 1 when it does not succeed
        #[arg(short, long)]
        follow: bool,
        /// Output of this attempt [default: the last one]
        #[arg(long, value_name = "N", conflicts_with = "follow")]
        attempt: Option<u32>,
    },
    /// End a run
    Kill {
        /// A run's id, or a job's name for its last run
        #[arg(value_name = "RUN|JOB")]
        run: RunRef,
    },
    /// Run the same again, as a new run
    Rerun {
        /// A run's id, or a job's name for its last run
        #[arg(value_name = "RUN|JOB")]
        run: RunRef,
        /// Follow its output until it ends; exit code 1 when it does not succeed
        #[arg(short, long)]
        follow: bool,
    },
    /// Remove records and output of runs that ended long ago
    Prune(RunPrune),
}

#[derive(Debug, Args)]
pub struct RunLs {
    /// Only runs of this job
    #[arg(long, value_name = "NAME")]
    pub job: Option<JobName>,
    /// Only runs in this state; may be given several times
    #[arg(long, value_name = "STATE", value_parser = run_state)]
    pub state: Vec<RunState>,
    /// Only runs on this node
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    /// Planned at or after this moment, as 2026-07-01T04:00 or 2h (ago)
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub from: Option<When>,
    /// Planned before this moment
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub to: Option<When>,
    /// At most so many
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct RunPrune {
    /// Remove runs that were planned before this moment and have ended, as 2026-07-01 or 30d (ago)
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    pub before: When,
    /// Only runs of this namespace
    #[arg(long, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

fn run_state(text: &str) -> Result<RunState, String> {
    RunState::parse(text).ok_or_else(|| {
        let words: Vec<&str> = RunState::ALL.into_iter().map(RunState::as_str).collect();
        format!("`{text}` is not a state; use one of {}", words.join(", "))
    })
}
