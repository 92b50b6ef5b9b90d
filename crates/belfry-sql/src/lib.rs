//! A relational database as Belfry uses it: read-only queries, and transactions that are a list of steps, each of which
//! may state how many rows it must touch. No dialect leaks upwards; the store and the `sql` coordinator stand on it.
//!
//! Steps instead of interactive transactions: nothing holds the database's write lock across an await of ours, and a
//! backend may put many callers' transactions into one durable commit.

mod marks;
mod mysql;
mod postgres;
mod server;
mod sqlite;
mod url;
mod value;

pub use mysql::MySql;
pub use postgres::Postgres;
pub use sqlite::{InlineSqlite, Sqlite, SqliteOptions, SqliteStats};
pub use value::{Row, Value};

use std::time::Duration;

use async_trait::async_trait;

/// Which SQL is spoken. Only what cannot be said portably asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
    MySql,
}

/// One statement with `?` placeholders (backends translate) and its arguments.
#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: std::borrow::Cow<'static, str>,
    pub args: Vec<Value>,
}

/// One step of a transaction.
#[derive(Clone, Debug)]
pub struct Step {
    pub statement: Statement,
    pub expect: Expect,
}

/// What a step must find, else the whole transaction is undone.
#[derive(Clone, Debug, PartialEq)]
pub enum Expect {
    Anything,
    /// A write that touches (matches) exactly so many rows.
    Touched(u64),
    /// A query that returns exactly so many rows.
    Rows(u64),
    /// A query that returns exactly these rows, in this order.
    These(Vec<Row>),
}

impl Expect {
    fn holds(&self, result: &StepResult) -> bool {
        match self {
            Expect::Anything => true,
            Expect::Touched(rows) => result.touched == *rows,
            Expect::Rows(rows) => result.rows.len() as u64 == *rows,
            Expect::These(rows) => result.rows == *rows,
        }
    }
}

/// What a transaction did.
#[derive(Clone, Debug)]
pub enum Written {
    /// All steps held; durable. One entry per step: rows touched, and rows returned by a query.
    Done(Vec<StepResult>),
    /// The step of this index did not find what it expected but, if it is a query, these rows; or it broke a unique key. Nothing was
    /// written.
    Refused { step: usize, found: Vec<Row> },
}

#[derive(Clone, Debug, Default)]
pub struct StepResult {
    pub touched: u64,
    pub rows: Vec<Row>,
}

/// Promises: `write` is one transaction that is durable (synced to disk) when it answers `Done`. Transactions of several callers
/// take effect in one order, if those that read before they write begin with a write, or a locking read, of a row that all who
/// could disturb them begin with. `read` sees every transaction that was answered before it began. An error of `write` with
/// `outcome_unknown()` may have taken effect, or may still; any other error has had no effect. A write whose future is dropped
/// may have taken effect, or may still.
#[async_trait]
pub trait Database: Send + Sync + 'static {
    fn dialect(&self) -> Dialect;
    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError>;
    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError>;
    /// Applies each migration (name, statements) that has not been applied yet, in order, once, also when two processes
    /// start at the same time.
    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError>;
}

/// A forward-only change of the schema; never edited after a release.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    pub name: &'static str,
    pub statements: &'static [&'static str],
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum SqlError {
    #[error("database is away: {0}")]
    Away(String),
    #[error("no room on the disk of the database: {0}")]
    Full(String),
    #[error("the database did not answer in time; the write may have happened")]
    Unknown,
    /// It answers, but not this.
    #[error("the database did not answer this within {} s, and answers others", .0.as_secs())]
    TooSlow(Duration),
    #[error("database: {0}")]
    Broken(String),
}

impl SqlError {
    pub fn is_transient(&self) -> bool {
        match self {
            SqlError::Away(_) | SqlError::Full(_) | SqlError::Unknown | SqlError::TooSlow(_) => true,
            SqlError::Broken(_) => false,
        }
    }

    pub fn outcome_unknown(&self) -> bool {
        matches!(self, SqlError::Unknown)
    }

    /// The same error, saying what was tried.
    pub fn during(self, what: &str) -> Self {
        match self {
            SqlError::Away(cause) => SqlError::Away(format!("{what}: {cause}")),
            SqlError::Full(cause) => SqlError::Full(format!("{what}: {cause}")),
            SqlError::Unknown => SqlError::Unknown,
            SqlError::TooSlow(limit) => SqlError::TooSlow(limit),
            SqlError::Broken(cause) => SqlError::Broken(format!("{what}: {cause}")),
        }
    }
}

/// `sql!("… WHERE id = ?", id, name)`
#[macro_export]
macro_rules! sql {
    ($text:expr $(, $arg:expr)* $(,)?) => {
        $crate::Statement { sql: ::std::borrow::Cow::from($text), args: vec![$($crate::Value::from($arg)),*] }
    };
}

impl Statement {
    pub fn anything(self) -> Step {
        Step { statement: self, expect: Expect::Anything }
    }
    pub fn touching(self, rows: u64) -> Step {
        Step { statement: self, expect: Expect::Touched(rows) }
    }
    pub fn returning(self, rows: u64) -> Step {
        Step { statement: self, expect: Expect::Rows(rows) }
    }
    pub fn returning_these(self, rows: Vec<Row>) -> Step {
        Step { statement: self, expect: Expect::These(rows) }
    }
}
