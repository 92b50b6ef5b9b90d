//! Verbs and flags of `belfry state`.

use clap::Subcommand;

use super::{JobName, KeyValue};

#[derive(Debug, Subcommand)]
pub enum StateCommand {
    /// Print what a job keeps from run to run, as KEY=VALUE lines, or the value of one key
    Get {
        #[arg(value_name = "JOB")]
        job: JobName,
        #[arg(value_name = "KEY")]
        key: Option<String>,
    },
    /// Set keys for the next run of a job; KEY= removes one. A run that is going may write over them
    Set {
        #[arg(value_name = "JOB")]
        job: JobName,
        #[arg(value_name = "KEY=VALUE", required = true)]
        values: Vec<KeyValue>,
    },
}
