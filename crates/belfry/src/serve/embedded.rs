//! The embedded database: two SQLite files in the data folder, one for history and definitions, one for ownership and claims, so
//! that a claim never waits for a page of history.

use std::sync::Arc;

use anyhow::Context;
use belfry_coord::{Coordinator, SqlCoordinator, Users};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::Store;

use super::DataDir;

pub struct Embedded {
    pub store: Store,
    pub coordinator: Arc<dyn Coordinator>,
}

impl Embedded {
    /// The folder's lock proves that no other process uses the files.
    pub async fn open(data: &DataDir) -> anyhow::Result<Self> {
        let open = |name: &str| {
            let path = data.file(name);
            Sqlite::open(&path, SqliteOptions::default()).with_context(|| format!("open {}", path.display()))
        };
        let store = Store::open(Arc::new(open("belfry.db")?)).await.context("bring belfry.db up to date")?;
        let coordinator = SqlCoordinator::open(Arc::new(open("coordinator.db")?), Users::SoleByLock)
            .await
            .context("bring coordinator.db up to date")?;
        Ok(Self { store, coordinator: Arc::new(coordinator) })
    }
}
