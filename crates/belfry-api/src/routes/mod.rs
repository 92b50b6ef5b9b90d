//! The routes, one file per noun.

pub mod apply;
pub mod audit;
pub mod cluster;
pub mod events;
pub mod explain;
pub mod fires;
pub mod health;
pub mod job_actions;
pub mod jobs;
pub mod nodes;
pub mod output;
pub mod placeholder;
pub mod revisions;
pub mod runs;
pub mod session;
pub mod stream;
pub mod tokens;
pub mod users;
