//! Words and rules of Belfry: ids, the job document, schedules, what is due, where it runs, and the life of a run.
//!
//! Nothing here reads a clock, does I/O or is async: time and facts come in as values, decisions go out as values.

pub mod attempt;
pub mod attention;
pub mod cursor;
pub mod due;
pub mod explain;
pub mod forecast;
pub mod homes;
pub mod id;
pub mod job;
pub mod job_table;
pub mod join;
pub mod outward;
pub mod overlap;
pub mod place;
pub mod planted;
pub mod policy;
pub mod retry;
pub mod role;
pub mod room;
pub mod run;
pub mod schedule;
pub mod service;
pub mod skew;
pub mod state;
pub mod units;
pub mod usual;
pub mod webhook;
pub mod wrapped;

pub use id::{Fence, Incarnation, JobId, NodeId, RunId, ServerId, ShardId, Term, Version};
pub use jiff::Timestamp;
pub use job::{Job, JobDocument, Refusal};
