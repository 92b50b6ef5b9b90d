//! PostgreSQL behind [`Database`]: how its sessions are set up, and what its error codes mean to us.

mod migrate;
mod values;

use std::fmt;
use std::str::FromStr as _;
use std::sync::Arc;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, Row as _, Statement as _, raw_sql};

use crate::marks::NumberedTexts;
use crate::server::{Driver, Failure, Purpose, SILENT_WITHIN, STATEMENT_WITHIN, STATEMENTS_CACHED_MAX, Server};
use crate::{Database, Dialect, Migration, Row, SqlError, Statement, Step, StepResult, Written, sql, url};

const PARAMETERS: &[&str] = &["sslmode", "sslrootcert", "sslcert", "sslkey"];

/// A handle; clones share the connections, which are opened when they are needed.
#[derive(Clone)]
pub struct Postgres {
    server: Arc<Server<PostgresDriver>>,
}

impl Postgres {
    /// `postgres://user:password@host:port/database?sslmode=…`. Fails when the server cannot be reached now; later it may come
    /// and go.
    pub async fn connect(url: &str) -> Result<Self, SqlError> {
        let this = Self::named(url)?;
        let server = &this.server;
        let fsync = server.read_first(&sql!("SELECT current_setting('fsync')")).await?;
        if fsync.first().is_some_and(|row| row.opt_text(0) == Some("off")) {
            tracing::warn!(at = %server.at, "runs with fsync off: a power failure there can lose or damage what Belfry was told is safe");
        }
        Ok(this)
    }

    /// Without reaching for it: it may be away now.
    pub fn named(url: &str) -> Result<Self, SqlError> {
        url::check(url, &["postgres", "postgresql"], PARAMETERS)?;
        let options = PgConnectOptions::from_str(url).map_err(|cause| url::unreadable("PostgreSQL", &cause))?;
        let (host, port) = (options.get_host(), options.get_port());
        let at = url::shown("PostgreSQL", host, port, options.get_socket(), options.get_database())?;
        let options = options
            .application_name("belfry")
            .statement_cache_capacity(STATEMENTS_CACHED_MAX)
            // Texts of statements would fill our log; what fails is reported by who asked.
            .disable_statement_logging();
        let server = Server::new(PostgresDriver { options, texts: NumberedTexts::default() }, at);
        Ok(Self { server: Arc::new(server) })
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Postgres").field(&self.server.at).finish()
    }
}

#[async_trait]
impl Database for Postgres {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.server.read(&statement).await
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.server.write(&steps).await
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        // Mostly nothing is to be done, and a command of cron's has no time to lose. What fails here is told below.
        let applied = sql!("SELECT name FROM belfry_migrations WHERE scope = ? ORDER BY name", scope);
        if let Ok(applied) = self.server.read(&applied).await
            && applied.iter().map(|row| row.text(0)).eq(migrations.iter().map(|migration| migration.name))
        {
            return Ok(());
        }
        self.server.migrate(scope, migrations).await
    }
}

pub(crate) struct PostgresDriver {
    options: PgConnectOptions,
    texts: NumberedTexts,
}

impl Driver for PostgresDriver {
    type Server = sqlx::Postgres;
    const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

    async fn connect(&self, purpose: Purpose) -> Result<PgConnection, Failure> {
        let mut connection = self.options.connect().await.map_err(Failure::of_connecting::<Self>)?;
        let told = raw_sql(AssertSqlSafe(session(purpose))).fetch_all(&mut connection).await;
        // What it answers last.
        match told.map_err(Failure::of::<Self>)?.last().map(|row| row.try_get(0)) {
            Some(Ok(false)) => Ok(connection),
            _ => Err(Failure::away("connected to a read-only replica; name the primary")),
        }
    }

    async fn run(&self, connection: &mut PgConnection, statement: &Statement) -> Result<StepResult, sqlx::Error> {
        // Prepared without types, so that the server says what it takes: a NULL has no type of its own, and a statement stays
        // prepared with the types of its first use.
        let prepared = (&mut *connection).prepare_with(self.texts.of(&statement.sql), &[]).await?;
        let query = prepared.query_with(values::arguments(&prepared, &statement.args)?);
        if prepared.columns().is_empty() {
            let touched = query.execute(connection).await?.rows_affected();
            return Ok(StepResult { touched, rows: vec![] });
        }
        let rows = query.fetch_all(connection).await?;
        Ok(StepResult { touched: 0, rows: rows.iter().map(values::row).collect::<Result<_, _>>()? })
    }

    async fn tell(&self, connection: &mut PgConnection, sql: &'static str) -> Result<(), sqlx::Error> {
        raw_sql(sql).execute(connection).await.map(drop)
    }

    async fn migrate(
        &self,
        connection: &mut PgConnection,
        scope: &'static str,
        migrations: &'static [Migration],
    ) -> Result<(), SqlError> {
        migrate::migrate(self, connection, scope, migrations).await
    }

    /// By SQLSTATE.
    fn meaning(error: &dyn sqlx::error::DatabaseError) -> Failure {
        let code = error.code().unwrap_or_default();
        let says = || format!("{} ({code})", error.message());
        match &*code {
            "23505" => Failure::Unique,
            "40001" | "40P01" => Failure::Undone(says()),
            "53100" => Failure::Final(SqlError::Full(says())),
            "25006" => Failure::away(format!("connected to a read-only replica: {}", says())),
            // Shut down, crashed, or ended by an administrator or by a limit of the session; a prepared statement that is gone.
            "57P01" | "57P02" | "57P05" | "25P03" | "26000" => Failure::Lost(says()),
            // A newer Belfry has changed a table while this connection had prepared a query of it.
            "0A000" if error.message().contains("cached plan") => Failure::Lost(says()),
            // Starting, no more connections, cancelled by its time limit, a lock not given in time, an error of its disk.
            "57P03" | "57014" | "55P03" | "58030" => Failure::away(says()),
            _ if code.starts_with("08") => Failure::Lost(says()),
            _ if code.starts_with("53") => Failure::away(says()),
            _ => Failure::Final(SqlError::Broken(says())),
        }
    }
}

/// `synchronous_commit = off` answers before the log is on the disk; its other values are at least as good as `on`. Queries are
/// short: compiling one would take longer than running it. They find their rows by an index: a plan that was made, and kept, while a table
/// was small must not read all of it when it has grown. A statement that waits for a lock is given up when its client is gone
/// (from PostgreSQL 14 on): else those that gave up waiting stay in the queue before those that try again. Asked last is whether it is a
/// replica.
fn session(purpose: Purpose) -> String {
    let (statement, silent) = match purpose {
        Purpose::Reading | Purpose::Writing => (STATEMENT_WITHIN.as_millis(), SILENT_WITHIN.as_millis()),
        Purpose::Migrating => (0, 0),
    };
    let read_only = if purpose == Purpose::Reading { "on" } else { "off" };
    format!(
        "SET statement_timeout = {statement}; SET idle_in_transaction_session_timeout = {silent}; SET jit = off; \
         SET enable_seqscan = off; \
         SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = {read_only}; \
         SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'; \
         SELECT set_config('client_connection_check_interval', '250', false) \
         WHERE current_setting('server_version_num')::int >= 140000; \
         SELECT pg_is_in_recovery()"
    )
}
