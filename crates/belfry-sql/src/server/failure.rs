//! Why something did not happen on a server, as far as trying again depends on it.

use std::future::Future;
use std::time::Duration;

use super::Driver;
use crate::SqlError;

#[derive(Debug)]
pub(crate) enum Failure {
    /// A unique key is broken.
    Unique,
    /// The server has undone the transaction to end a deadlock: it never happened, and may be tried again.
    Undone(String),
    /// The connection that lay idle had died before anything was sent: another one may do.
    Stale,
    /// The connection broke.
    Lost(String),
    /// No answer in this time. What was asked may still be going on.
    Silent(Duration),
    Final(SqlError),
}

impl Failure {
    pub(crate) fn of<D: Driver>(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(answer) => D::meaning(&*answer),
            sqlx::Error::Io(cause) => Failure::Lost(cause.to_string()),
            other => Failure::Final(SqlError::Broken(other.to_string())),
        }
    }

    /// What is between us and the server may hang up in the middle of a word, as a proxy does whose server is down; sqlx calls that a breach
    /// of the protocol. Later the same name stands for mistakes of ours.
    pub(crate) fn of_connecting<D: Driver>(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Protocol(cause) => Failure::Lost(cause),
            other => Self::of::<D>(other),
        }
    }

    pub(crate) fn away(message: impl Into<String>) -> Self {
        Failure::Final(SqlError::Away(message.into()))
    }

    /// For the caller: it has had no effect, unless it says that this is unknown.
    pub(crate) fn error(self) -> SqlError {
        match self {
            Failure::Final(error) => error,
            Failure::Lost(cause) => SqlError::Away(cause),
            Failure::Silent(limit) => SqlError::Away(format!("no answer within {} s", limit.as_secs())),
            Failure::Stale => SqlError::Away("the connection was closed".to_owned()),
            Failure::Undone(cause) => SqlError::Away(format!("other writers keep undoing this one: {cause}")),
            Failure::Unique => SqlError::Broken("a unique key is broken".to_owned()),
        }
    }
}

pub(super) async fn in_time<D: Driver, T>(
    limit: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done.map_err(Failure::of::<D>),
        Err(_) => Err(Failure::Silent(limit)),
    }
}
