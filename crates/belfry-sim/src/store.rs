//! The store of a simulation: one SQLite in memory, and from each server a way to it that can be cut.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_sql::{Database, Dialect, InlineSqlite, Migration, Row, SqlError, Statement, Step, Written};
use tokio::sync::oneshot;

use crate::coordinator::Way;
use crate::world::{World, spawn};

const ANSWER_WITHIN: Duration = Duration::from_secs(1);

pub struct RemoteStore {
    pub world: Arc<World>,
    pub database: Arc<InlineSqlite>,
    pub way: Arc<Way>,
}

impl RemoteStore {
    async fn reach(&self) -> Result<(), SqlError> {
        let way = self.world.dice().ms(0, 3) + self.way.get().slow;
        tokio::time::sleep(way).await;
        if self.way.get().cut {
            tokio::time::sleep(ANSWER_WITHIN).await;
            return Err(SqlError::Away("cut off".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Database for RemoteStore {
    fn dialect(&self) -> Dialect {
        self.database.dialect()
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.reach().await?;
        self.database.read(statement).await
    }

    /// Once sent it happens, whatever becomes of the sender.
    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.reach().await?;
        let (answer, answered) = oneshot::channel();
        let (database, way) = (self.database.clone(), self.way.clone());
        let (there, lost) = {
            let mut dice = self.world.dice();
            (dice.ms(0, 3), dice.chance(way.get().lose_answers))
        };
        spawn(async move {
            tokio::time::sleep(there).await;
            let written = database.write(steps).await;
            if lost || way.get().cut {
                tokio::time::sleep(ANSWER_WITHIN).await;
                return;
            }
            let _ = answer.send(written);
        });
        answered.await.unwrap_or(Err(SqlError::Unknown))
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.reach().await?;
        self.database.migrate(scope, migrations).await
    }
}
