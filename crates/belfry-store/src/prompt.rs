//! The store as those ask it who have something else to go by: who says nothing for so long is away for them, whatever it says later.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Statement, Step, Written};

use crate::Store;

struct Prompt {
    database: Arc<dyn Database>,
    /// For each read, and for each transaction.
    within: Duration,
}

impl Store {
    /// The same store, from which no question waits longer than this for its answer.
    pub fn prompt(&self, within: Duration) -> Store {
        Store::over(Arc::new(Prompt { database: self.database(), within }))
    }
}

#[async_trait]
impl Database for Prompt {
    fn dialect(&self) -> Dialect {
        self.database.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        let answer = tokio::time::timeout(self.within, self.database.read(statement)).await;
        answer.unwrap_or_else(|_| Err(SqlError::Away(format!("no answer within {} s", self.within.as_secs_f32()))))
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        let answer = tokio::time::timeout(self.within, self.database.write(steps)).await;
        answer.unwrap_or(Err(SqlError::Unknown))
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.database.migrate(scope, migrations).await
    }
}
