//! SQLite in memory, in the caller's own thread: nothing waits, so a simulation decides how long it takes. No file, no sync.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use rusqlite::Connection;

use super::migrate::migrate;
use super::step::{Failed, run, run_step, sql_error};
use crate::{Database, Dialect, Migration, Row, SqlError, Statement, Step, Written};

/// For simulation.
pub struct InlineSqlite(Mutex<Connection>);

impl InlineSqlite {
    pub fn new() -> Result<Self, SqlError> {
        let connection = Connection::open_in_memory().map_err(sql_error)?;
        connection.set_prepared_statement_cache_capacity(super::STATEMENTS_CACHED_MAX);
        Ok(Self(Mutex::new(connection)))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Database for InlineSqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        run(&self.connection(), &statement).map(|result| result.rows).map_err(sql_error)
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        let mut connection = self.connection();
        // Undone when it is dropped uncommitted.
        let transaction = connection.transaction().map_err(sql_error)?;
        let mut results = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            match run_step(&transaction, step) {
                Ok(result) => results.push(result),
                Err(Failed::Refused { found }) => return Ok(Written::Refused { step: index, found }),
                Err(Failed::Error(error)) => return Err(sql_error(error)),
            }
        }
        transaction.commit().map_err(sql_error)?;
        Ok(Written::Done(results))
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        migrate(&self.connection(), scope, migrations)
    }
}
