//! MySQL and MariaDB behind [`Database`]: how their sessions are set up, and what their error numbers mean to us.

mod migrate;
mod values;

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, SqlSafeStr as _, Statement as _, raw_sql};

use crate::server::{Driver, Failure, Purpose, SILENT_WITHIN, STATEMENT_WITHIN, STATEMENTS_CACHED_MAX, Server};
use crate::{Database, Dialect, Migration, Row, SqlError, Statement, Step, StepResult, Written, sql, url};

const PARAMETERS: &[&str] = &["ssl-mode", "ssl-ca", "ssl-cert", "ssl-key"];

/// A handle; clones share the connections, which are opened when they are needed.
#[derive(Clone)]
pub struct MySql {
    server: Arc<Server<MySqlDriver>>,
}

impl MySql {
    /// `mysql://user:password@host:port/database?ssl-mode=…`. Fails when the server cannot be reached now; later it may come and
    /// go.
    pub async fn connect(url: &str) -> Result<Self, SqlError> {
        let this = Self::named(url)?;
        let server = &this.server;
        let flush = server.read_first(&sql!("SELECT CAST(@@innodb_flush_log_at_trx_commit AS SIGNED)")).await?;
        if flush.first().is_some_and(|row| row.opt_int(0) != Some(1)) {
            tracing::warn!(at = %server.at, "innodb_flush_log_at_trx_commit is not 1: a crash there can lose what Belfry was told is safe");
        }
        Ok(this)
    }

    /// Without reaching for it: it may be away now.
    pub fn named(url: &str) -> Result<Self, SqlError> {
        url::check(url, &["mysql", "mariadb"], PARAMETERS)?;
        let options = MySqlConnectOptions::from_str(url).map_err(|cause| url::unreadable("MySQL", &cause))?;
        let (host, port) = (options.get_host(), options.get_port());
        let at = url::shown("MySQL", host, port, options.get_socket(), options.get_database())?;
        let options = options
            .charset("utf8mb4")
            .collation("utf8mb4_bin")
            .statement_cache_capacity(STATEMENTS_CACHED_MAX)
            // Modes and the zone are the session's, below.
            .pipes_as_concat(false)
            .no_engine_substitution(false)
            .timezone(None)
            // Texts of statements would fill our log; what fails is reported by who asked.
            .disable_statement_logging();
        let server = Server::new(MySqlDriver { options }, at);
        Ok(Self { server: Arc::new(server) })
    }
}

impl fmt::Debug for MySql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MySql").field(&self.server.at).finish()
    }
}

/// An upsert touches two rows where it updates one, as MySQL counts; other writes count the rows that match.
#[async_trait]
impl Database for MySql {
    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.server.read(&statement).await
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.server.write(&steps).await
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        // Mostly nothing is to be done, and a command of cron's has no time to wait for a server that changes its own tables: one lock
        // is for all scopes. What fails here is told below.
        if let Ok(noted) = self.server.read(&migrate::noted(scope)).await
            && migrate::are_all_done(&noted, migrations)
        {
            return Ok(());
        }
        self.server.migrate(scope, migrations).await
    }
}

pub(crate) struct MySqlDriver {
    options: MySqlConnectOptions,
}

impl Driver for MySqlDriver {
    type Server = sqlx::MySql;
    const BEGIN: &'static str = "START TRANSACTION";

    async fn connect(&self, purpose: Purpose) -> Result<MySqlConnection, Failure> {
        let mut connection = self.options.connect().await.map_err(Failure::of_connecting::<Self>)?;
        let facts = self.run(&mut connection, &sql!("SELECT VERSION(), CAST(@@read_only AS SIGNED)")).await;
        let facts = facts.map_err(Failure::of::<Self>)?.rows;
        if facts.first().is_none_or(|row| row.int(1) != 0) {
            return Err(Failure::away("connected to a read-only replica; name the primary"));
        }
        let is_mariadb = facts.first().is_some_and(|row| row.text(0).contains("MariaDB"));
        let set = raw_sql(AssertSqlSafe(session(purpose, is_mariadb))).execute(&mut connection).await;
        set.map_err(Failure::of::<Self>)?;
        Ok(connection)
    }

    async fn run(&self, connection: &mut MySqlConnection, statement: &Statement) -> Result<StepResult, sqlx::Error> {
        let text = AssertSqlSafe(statement.sql.clone()).into_sql_str();
        let prepared = (&mut *connection).prepare(text).await?;
        let query = prepared.query_with(values::arguments(&statement.args)?);
        if prepared.columns().is_empty() {
            let touched = query.execute(connection).await?.rows_affected();
            return Ok(StepResult { touched, rows: vec![] });
        }
        let rows = query.fetch_all(connection).await?;
        Ok(StepResult { touched: 0, rows: rows.iter().map(values::row).collect::<Result<_, _>>()? })
    }

    async fn tell(&self, connection: &mut MySqlConnection, sql: &'static str) -> Result<(), sqlx::Error> {
        raw_sql(sql).execute(connection).await.map(drop)
    }

    async fn migrate(
        &self,
        connection: &mut MySqlConnection,
        scope: &'static str,
        migrations: &'static [Migration],
    ) -> Result<(), SqlError> {
        migrate::migrate(self, connection, scope, migrations).await
    }

    /// By error number, which says more than MySQL's SQLSTATE.
    fn meaning(error: &dyn sqlx::error::DatabaseError) -> Failure {
        let number = number(error);
        let says = || format!("{} ({number})", error.message());
        match number {
            1022 | 1062 | 1586 => Failure::Unique,
            // A deadlock; a record that changed since it was read; both undo the whole transaction.
            1213 | 1020 => Failure::Undone(says()),
            // Disk full, table full, error writing a file.
            3 | 1021 | 1026 | 1114 => Failure::Final(SqlError::Full(says())),
            1836 | 1792 => Failure::away(format!("connected to a read-only replica: {}", says())),
            1290 if error.message().contains("read-only") || error.message().contains("read_only") => {
                Failure::away(format!("connected to a read-only replica: {}", says()))
            }
            // Shutting down, connection killed, errors of its network, a transaction that was silent for too long.
            1053 | 1077 | 1152 | 1158..=1161 | 1184 | 1927 | 4031 => Failure::Lost(says()),
            // Too many connections (in all, or of this user), host blocked, a lock not given in time, statement interrupted or
            // past its limit, node of a cluster not ready.
            1040 | 1129 | 1203 | 1226 | 1205 | 1317 | 1969 | 3024 | 1047 => Failure::away(says()),
            1153 => Failure::Final(SqlError::Broken(format!("{}; raise max_allowed_packet on the server", says()))),
            _ => Failure::Final(SqlError::Broken(says())),
        }
    }
}

fn number(error: &dyn sqlx::error::DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// Strict: what does not fit is an error, not cut. MySQL knows no limit for a silent transaction, only for a silent session, and
/// its statement limit covers queries alone; a wait for a lock is limited everywhere.
fn session(purpose: Purpose, is_mariadb: bool) -> String {
    let (statement, silent) = match purpose {
        Purpose::Reading | Purpose::Writing => (STATEMENT_WITHIN.as_secs(), SILENT_WITHIN.as_secs()),
        Purpose::Migrating => (0, 0),
    };
    let limits = match is_mariadb {
        true => format!("max_statement_time = {statement}, idle_transaction_timeout = {silent}"),
        false => format!("max_execution_time = {}", statement * 1000),
    };
    let access = if purpose == Purpose::Reading { "READ ONLY" } else { "READ WRITE" };
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO', \
         default_storage_engine = InnoDB, innodb_lock_wait_timeout = {}, {limits}; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, {access}",
        STATEMENT_WITHIN.as_secs()
    )
}
