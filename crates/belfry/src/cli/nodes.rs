//! Verbs and flags of `belfry node`.

use belfry_core::units::Span;
use clap::{ArgGroup, Args, Subcommand};

use super::KeyValue;

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes
    Ls,
    /// Show one node: how it is, and what its machine has
    Show {
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Change a node's weight, slots or labels
    Set(NodeSet),
    /// Give a node no new runs; what is running may finish
    Drain {
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Give a drained node runs again
    Undrain {
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Take a node out of every choice
    Exclude {
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Take an excluded node back in
    Include {
        #[arg(value_name = "NODE")]
        node: String,
    },
    /// Print the command that lets a new machine join, good once
    JoinToken {
        /// How long it may be used [default: 1h]
        #[arg(long = "for", value_name = "DURATION", value_parser = Span::parse)]
        good_for: Option<Span>,
    },
    /// Remove a node for good and make its credential worthless
    Rm {
        #[arg(value_name = "NODE")]
        node: String,
        /// Also when it is connected; what it runs is lost
        #[arg(long)]
        force: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("change").required(true).multiple(true).args(["weight", "slots", "labels", "unlabel"]))]
pub struct NodeSet {
    /// Name or id
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Share of the work, against other nodes
    #[arg(long, value_name = "N")]
    pub weight: Option<u32>,
    /// How many runs may go at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub slots: Option<u32>,
    /// Label to add or change; may be given several times
    #[arg(short, long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<KeyValue>,
    /// Label to take away; may be given several times
    #[arg(long, value_name = "KEY")]
    pub unlabel: Vec<String>,
}
