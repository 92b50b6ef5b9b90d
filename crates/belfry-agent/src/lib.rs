//! A node: takes work from servers, starts each run at its instant and at most once, and keeps every result on disk until
//! a server has stored it. It never touches the store or the coordinator; what is due it decides only for the jobs that are its own
//! (`run_on: each` and `home`).

mod agent;
mod alarm;
mod clock;
mod config;
mod desk;
mod desk_loop;
mod directory;
mod error;
mod execution;
mod identity;
mod key;
mod leftovers;
mod local;
mod logins;
mod membership;
mod outbox;
mod prepare;
mod programs;
mod remote;
mod session;
mod settle;
mod simulated;
mod spool;
mod tasks;
mod trust;

pub use agent::{Agent, LocalLink};
pub use clock::{Clock, SystemClock};
pub use config::AgentConfig;
pub use error::AgentError;
pub use local::MemoryJournal;
pub use membership::JoinError;
pub use programs::{Program, Programs};
pub use simulated::Machine;
pub use spool::MemoryDisk;
pub use tasks::Spawn;
