//! Where a server keeps what it knows and what it owns: the one place that names concrete databases and coordinators.
//!
//! Without URLs two SQLite files in the data folder, one for history and definitions, one for ownership and claims, so that a claim
//! never waits for a page of history.

use std::sync::Arc;

use anyhow::{Context, bail};
use belfry_coord::{Coordinator, EtcdCoordinator, SqlCoordinator, Users, ZooKeeperCoordinator};
use belfry_sql::{Database, MySql, Postgres, Sqlite, SqliteOptions};
use belfry_store::Store;

use super::DataDir;

pub struct Backends {
    pub store: Store,
    pub coordinator: Arc<dyn Coordinator>,
    /// It does not answer, and a snapshot stands in for it.
    pub store_is_away: bool,
}

const DATABASES: &str = "postgres://…, mysql://… and sqlite:PATH";
const COORDINATORS: &str = "etcd://…, zookeeper://…, postgres://…, mysql://… and sqlite:PATH";

impl Backends {
    /// The folder's lock proves that no other process uses the files.
    pub async fn embedded(data: &DataDir) -> anyhow::Result<Self> {
        let store = open_store(sqlite(data.file("belfry.db"))?).await.context("belfry.db")?;
        let coordinator = SqlCoordinator::open(sqlite(data.file("coordinator.db"))?, Users::SoleByLock)
            .await
            .context("bring coordinator.db up to date")?;
        Ok(Self { store, coordinator: Arc::new(coordinator), store_is_away: false })
    }

    /// The coordinator is the store's database unless another is named. With a snapshot the store may be away.
    pub async fn open(
        data: &DataDir,
        store: Option<&str>,
        coordinator: Option<&str>,
        has_snapshot: bool,
    ) -> anyhow::Result<Self> {
        let Some(store_url) = store else {
            if coordinator.is_some() {
                bail!(
                    "--coordinator needs --store: several servers share their jobs and history too; {DATABASES} are accepted"
                );
            }
            return Self::embedded(data).await;
        };
        let coordinator = coordinator.filter(|url| *url != store_url);
        let opened = async {
            let database = database("--store", store_url, DATABASES).await?;
            anyhow::Ok((open_store(database.clone()).await.context("--store")?, database))
        };
        let (store, database, store_is_away) = match opened.await {
            Ok((store, database)) => (store, database, false),
            Err(cause) if has_snapshot && coordinator.is_some() && is_transient(&cause) => {
                tracing::error!("{cause:#}; this server starts from its snapshot");
                let database = named(store_url)?;
                (Store::over(database.clone()), database, true)
            }
            Err(cause) => return Err(cause),
        };
        let coordinator = match coordinator {
            Some(url) => connect_coordinator("--coordinator", url).await?,
            None => on_database("--store", database).await?,
        };
        Ok(Self { store, coordinator, store_is_away })
    }
}

/// `flag`: who named it.
pub async fn connect_coordinator(flag: &'static str, url: &str) -> anyhow::Result<Arc<dyn Coordinator>> {
    Ok(match scheme(url) {
        "etcd" | "etcds" => Arc::new(EtcdCoordinator::connect(url).await.context(flag)?),
        "zookeeper" => Arc::new(ZooKeeperCoordinator::open(url).await.context(flag)?),
        _ => on_database(flag, database(flag, url, COORDINATORS).await?).await?,
    })
}

async fn on_database(flag: &'static str, database: Arc<dyn Database>) -> anyhow::Result<Arc<dyn Coordinator>> {
    Ok(Arc::new(SqlCoordinator::open(database, Users::Many).await.context(flag)?))
}

async fn database(flag: &'static str, url: &str, accepted: &str) -> anyhow::Result<Arc<dyn Database>> {
    Ok(match scheme(url) {
        "postgres" | "postgresql" => Arc::new(Postgres::connect(url).await.context(flag)?),
        "mysql" | "mariadb" => Arc::new(MySql::connect(url).await.context(flag)?),
        "sqlite" => sqlite(url.trim_start_matches("sqlite:").into()).context(flag)?,
        // Not the URL itself: it may hold a password.
        other => bail!("{flag}: `{other}` is not known; {accepted} are accepted"),
    })
}

/// Without reaching for it.
fn named(url: &str) -> anyhow::Result<Arc<dyn Database>> {
    Ok(match scheme(url) {
        "postgres" | "postgresql" => Arc::new(Postgres::named(url)?),
        "mysql" | "mariadb" => Arc::new(MySql::named(url)?),
        _ => bail!("--store: only a server can be away"),
    })
}

fn is_transient(cause: &anyhow::Error) -> bool {
    let by_store = cause.chain().filter_map(|cause| cause.downcast_ref::<belfry_store::StoreError>());
    let by_database = cause.chain().filter_map(|cause| cause.downcast_ref::<belfry_sql::SqlError>());
    by_store.map(|cause| cause.is_transient()).chain(by_database.map(|cause| cause.is_transient())).any(|it| it)
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn sqlite(path: std::path::PathBuf) -> anyhow::Result<Arc<dyn Database>> {
    let database = Sqlite::open(&path, SqliteOptions::default()).with_context(|| format!("open {}", path.display()))?;
    Ok(Arc::new(database))
}

async fn open_store(database: Arc<dyn Database>) -> anyhow::Result<Store> {
    Store::open(database).await.context("bring the database up to date")
}
