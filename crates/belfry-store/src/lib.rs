//! What Belfry keeps: jobs with every revision, runs and their output, users, nodes, settings and the audit trail, in a SQL
//! database. One file per noun. It never decides when or where something runs, and never reads a clock: `now` comes in.

mod attempts;
mod audit;
mod branches;
mod callers;
mod columns;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod deliveries;
mod dialect;
mod error;
mod impatient;
mod jobs;
mod joins;
mod nodes;
mod output;
mod overview;
mod page;
mod prompt;
mod retention;
mod revisions;
mod run_filter;
mod runs;
mod schema;
mod scripts;
mod sessions;
mod settings;
mod standings;
mod store;
mod tokens;
mod trouble;
mod users;

#[cfg(test)]
mod query_plans;

/// What the database said when it did not do what was asked.
pub use belfry_sql::SqlError as StoreFailure;

pub use audit::{Actor, AuditEntry, AuditFilter, AuditPlace};
pub use callers::Callers;
pub use deliveries::Tried;
pub use error::{ChangeRefused, StoreError};
pub use impatient::Contact;
pub use jobs::{Applied, Change, JobChange, JobCursor, JobFilter, JobLife, RawJob};
pub use joins::Joined;
pub use nodes::{NodeChange, NodeRecord};
pub use output::{OutputChunk, Stream, Told};
pub use overview::{DayCount, NamespaceCount, Overview, StoreFacts};
pub use page::Page;
pub use retention::{PruneBatch, RetentionRules};
pub use revisions::Revision;
pub use run_filter::{JobRef, RunFilter};
pub use runs::RecentRun;
pub use scripts::{Script, ScriptPlace};
pub use standings::{LastRun, Standing};
pub use store::Store;
pub use tokens::{NewToken, SecretHash, Token, TokenOwner};
pub use trouble::Troubled;
pub use users::{NewUser, User, UserChange};
