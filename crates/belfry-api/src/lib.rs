//! The HTTP edge of a server: every route, who may call it, and the one form of answers and refusals. It never decides when or where
//! something runs; it asks `belfry-control`, and keeps nothing that the store does not have.

pub mod access;
mod auth;
mod bootstrap;
mod contact;
mod deeds;
mod errors;
mod forward;
mod input;
mod job_schema;
mod merge_patch;
pub mod metrics;
mod moment;
pub mod openapi;
mod page;
mod plans;
mod router;
mod routes;
mod state;

pub use bootstrap::{ADMIN, BootstrapError, create_token, ensure_admin};
pub use errors::ApiError;
pub use router::router;
pub use routes::console::files as console_files;
pub use state::{ApiSettings, ApiState, Clock, Joining};
