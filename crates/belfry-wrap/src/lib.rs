//! `dcron`: a command in many hosts' crontabs that runs on one of them, with nothing but a coordinator. It is a process per line and minute:
//! it starts quickly, has one thread, and is gone when its command is. It knows no servers and no jobs; whoever calls it may (`history`).
//!
//! A way through it: `parameters` → `name` → `wrapper` (who runs it: rule in `belfry_core::wrapped`) → `hold` (heartbeats, attempts) →
//! `command` (the process tree) → the record's end. `beside`: what else is done while the wrapper that this one replaces is still in use.

mod beside;
mod cleaning;
mod command;
mod copy;
mod detach;
mod exit;
mod folder;
mod history;
mod hold;
mod host;
mod instance;
mod leftovers;
mod name;
mod parameters;
mod program;
mod saving;
mod signals;
mod stamp;
mod tasks;
mod wrapper;

pub use detach::{Detached, detach};
pub use exit::Failure;
pub use history::{Output, Piece, TellOutput, Untold};
pub use parameters::Parameters;
pub use wrapper::{Surroundings, Unreachable, run};
