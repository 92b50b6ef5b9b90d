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
mod host;
mod identity;
mod key;
mod leftovers;
mod limits;
mod local;
mod local_api;
mod logins;
mod membership;
mod outbox;
mod own_time;
mod policy;
mod prepare;
mod programs;
mod remote;
mod run_logs;
mod saving;
mod script;
mod session;
mod settle;
mod signature;
mod simulated;
mod spool;
mod state;
mod tasks;
mod trust;

pub use agent::{Agent, LocalLink};
pub use clock::{Clock, SystemClock};
pub use config::AgentConfig;
pub use error::AgentError;
pub use local::MemoryJournal;
pub use local_api::{JobView, NoReply, Question, Reply, TaskView};
pub use membership::JoinError;
pub use programs::{Program, Programs};
pub use run_logs::RunLogsConfig;
pub use simulated::Machine;
pub use spool::MemoryDisk;
pub use tasks::Spawn;
