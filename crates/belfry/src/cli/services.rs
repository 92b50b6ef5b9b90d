//! Verbs and flags of `belfry service`.

use clap::Subcommand;

use super::JobName;

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// List services: where each runs, since when, and how it ended last
    Ls,
    /// End a service where it runs, and start it on another node when it has ended
    Move {
        name: JobName,
        /// The node to move to [default: any other one that fits]
        #[arg(long, value_name = "NODE")]
        to: Option<String>,
    },
}
