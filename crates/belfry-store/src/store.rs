//! The handle that every noun's methods hang on, and the two ways they reach the database.

use std::sync::Arc;

use belfry_sql::{Database, Row, SqlError, Statement, Step, StepResult, Written};

use crate::{StoreError, schema};

/// Cheap to clone; all clones share one database.
#[derive(Clone)]
pub struct Store {
    db: Arc<dyn Database>,
}

impl Store {
    /// Brings the schema up to date.
    pub async fn open(db: Arc<dyn Database>) -> Result<Self, StoreError> {
        db.migrate("store", schema::migrations(db.dialect())).await?;
        Ok(Self { db })
    }

    /// On a database that is away, and whose schema is known to be up to date.
    pub fn over(db: Arc<dyn Database>) -> Self {
        Self { db }
    }

    pub(crate) fn database(&self) -> Arc<dyn Database> {
        self.db.clone()
    }

    pub(crate) fn dialect(&self) -> belfry_sql::Dialect {
        self.db.dialect()
    }

    pub(crate) async fn read(&self, statement: Statement) -> Result<Vec<Row>, StoreError> {
        Ok(self.db.read(statement).await?)
    }

    /// A transaction whose steps may be refused; the caller knows what that means.
    pub(crate) async fn try_write(&self, steps: Vec<Step>) -> Result<Written, StoreError> {
        Ok(self.db.write(steps).await?)
    }

    /// A transaction without guards: a refusal is a defect.
    pub(crate) async fn write(&self, steps: Vec<Step>) -> Result<Vec<StepResult>, StoreError> {
        match self.db.write(steps).await? {
            Written::Done(results) => Ok(results),
            Written::Refused { step, .. } => {
                Err(SqlError::Broken(format!("step {step} of an unguarded write was refused")).into())
            }
        }
    }
}
