//! The store as people ask for it: who waits at a console wants an answer within seconds, and at once while it is known that there is
//! none. Whoever records or fires waits with the patient handle.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Statement, Step, Written, sql};

use crate::Store;

/// Whether the store answers at all, as far as those know who have asked it.
pub trait Contact: Send + Sync + 'static {
    /// Why it need not be asked now.
    fn is_lost(&self) -> Option<String>;
    /// It did not answer.
    fn lost(&self, why: &SqlError);
    fn found(&self);
}

const READ_WITHIN: Duration = Duration::from_secs(3);
/// Whoever answers nothing at all within this, after a question that it did not answer, is away.
const ANYTHING_WITHIN: Duration = Duration::from_secs(1);
const WRITE_WITHIN: Duration = Duration::from_secs(5);

struct Impatient {
    database: Arc<dyn Database>,
    contact: Arc<dyn Contact>,
}

impl Store {
    /// The same store for those who would rather hear that it is away.
    pub fn impatient(&self, contact: Arc<dyn Contact>) -> Store {
        Store::over(Arc::new(Impatient { database: self.database(), contact }))
    }
}

impl Impatient {
    fn check(&self) -> Result<(), SqlError> {
        self.contact.is_lost().map_or(Ok(()), |why| Err(SqlError::Away(why)))
    }

    fn heard<T>(&self, answer: Result<T, SqlError>) -> Result<T, SqlError> {
        match &answer {
            Err(why @ (SqlError::Away(_) | SqlError::Unknown)) => self.contact.lost(why),
            // A disk without room can be read from.
            Ok(_) | Err(SqlError::Full(_) | SqlError::Broken(_) | SqlError::TooSlow(_)) => self.contact.found(),
        }
        answer
    }

    /// One question that takes long must not make everybody be told that the store is away: it is asked for something that costs nothing.
    async fn why_silent(&self) -> SqlError {
        // Another who waited as long may have found out.
        if let Err(away) = self.check() {
            return away;
        }
        let asked = tokio::time::timeout(ANYTHING_WITHIN, self.database.read(sql!("SELECT 1"))).await;
        let silent = || SqlError::Away(format!("no answer within {} s", READ_WITHIN.as_secs()));
        match self.heard(asked.unwrap_or_else(|_| Err(silent()))) {
            Err(away @ (SqlError::Away(_) | SqlError::Unknown)) => away,
            Ok(_) | Err(SqlError::Full(_) | SqlError::Broken(_) | SqlError::TooSlow(_)) => {
                SqlError::TooSlow(READ_WITHIN)
            }
        }
    }
}

#[async_trait]
impl Database for Impatient {
    fn dialect(&self) -> Dialect {
        self.database.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.check()?;
        match tokio::time::timeout(READ_WITHIN, self.database.read(statement)).await {
            Ok(answer) => self.heard(answer),
            Err(_) => Err(self.why_silent().await),
        }
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.check()?;
        let answer = tokio::time::timeout(WRITE_WITHIN, self.database.write(steps)).await;
        self.heard(answer.unwrap_or(Err(SqlError::Unknown)))
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.database.migrate(scope, migrations).await
    }
}
