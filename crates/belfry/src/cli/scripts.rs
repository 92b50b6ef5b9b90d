//! Verbs and flags of `belfry script`.

use std::path::PathBuf;

use clap::Subcommand;

use super::JobName;

#[derive(Debug, Subcommand)]
pub enum ScriptCommand {
    /// List scripts, each in its newest version
    Ls {
        /// Only this namespace
        #[arg(short, long, value_name = "NAMESPACE")]
        namespace: Option<String>,
    },
    /// Print a script
    Get {
        #[arg(value_name = "SCRIPT")]
        script: JobName,
        /// This version [default: the newest]
        #[arg(long, value_name = "N")]
        version: Option<u64>,
    },
    /// Store a new version of a script; jobs that name it execute it from their next run on
    Put {
        #[arg(value_name = "SCRIPT")]
        script: JobName,
        /// `-` for stdin
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// List the versions of a script, the newest first
    Versions {
        #[arg(value_name = "SCRIPT")]
        script: JobName,
    },
    /// Remove a script with all its versions; refused while jobs use it
    Rm {
        #[arg(value_name = "SCRIPT")]
        script: JobName,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}
