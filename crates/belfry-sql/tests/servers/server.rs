//! The two kinds of servers as one, with the little that is said differently to each.

use std::sync::Arc;

use belfry_sql::{Database, Migration, MySql, Postgres, SqlError, Statement, Written, sql};
use belfry_testkit::servers;

pub enum Server {
    Postgres(servers::Postgres),
    MariaDb(servers::MariaDb),
}

impl Server {
    pub fn kind(&self) -> &'static str {
        match self {
            Server::Postgres(_) => "postgres",
            Server::MariaDb(_) => "mariadb",
        }
    }

    pub fn fresh_name(&self) -> String {
        match self {
            Server::Postgres(server) => server.fresh_database_name(),
            Server::MariaDb(server) => server.fresh_database_name(),
        }
    }

    pub fn address(&self) -> String {
        match self {
            Server::Postgres(server) => server.address(),
            Server::MariaDb(server) => server.address(),
        }
    }

    pub async fn connect_at(&self, address: &str, name: &str) -> Result<Arc<dyn Database>, SqlError> {
        Ok(match self {
            Server::Postgres(server) => Arc::new(Postgres::connect(&server.url_of(address, name)).await?),
            Server::MariaDb(server) => Arc::new(MySql::connect(&server.url_of(address, name)).await?),
        })
    }

    pub async fn connect(&self, name: &str) -> Arc<dyn Database> {
        self.connect_at(&self.address(), name).await.unwrap()
    }

    /// With the table `marks` in a new database.
    pub async fn marks(&self) -> Arc<dyn Database> {
        let database = self.connect(&self.fresh_name()).await;
        database.migrate("test", self.table()).await.unwrap();
        database
    }

    pub fn table(&self) -> &'static [Migration] {
        match self {
            Server::Postgres(_) => &[Migration {
                name: "0001-marks",
                statements: &[
                    "CREATE TABLE marks (id BIGINT PRIMARY KEY, word TEXT NOT NULL, body BYTEA, share FLOAT8)",
                ],
            }],
            Server::MariaDb(_) => &[Migration {
                name: "0001-marks",
                statements: &["CREATE TABLE marks (id BIGINT PRIMARY KEY, \
                               word TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, body LONGBLOB, share DOUBLE)"],
            }],
        }
    }

    /// A query that takes so long.
    pub fn sleep(&self, seconds: u32) -> Statement {
        match self {
            Server::Postgres(_) => sql!(format!("SELECT pg_sleep({seconds})")),
            Server::MariaDb(_) => sql!(format!("SELECT SLEEP({seconds})")),
        }
    }

    /// Taken by the session, for as long as it lives. Who had it before may have gone a moment ago only.
    pub fn lock_of_migrations(&self) -> Statement {
        match self {
            Server::Postgres(_) => sql!("SELECT pg_advisory_lock(7378697629480001)"),
            Server::MariaDb(_) => sql!("SELECT GET_LOCK(CONCAT('belfry-', LEFT(SHA1(DATABASE()), 32)), 4)"),
        }
    }

    /// A commit as it goes over the wire; the session's set-up has the word COMMITTED in it.
    pub fn commit(&self) -> &'static [u8] {
        match self {
            Server::Postgres(_) => b"COMMIT\0",
            Server::MariaDb(_) => b"\x03COMMIT",
        }
    }

    pub fn sql(&self, statement: &str) -> String {
        match self {
            Server::Postgres(server) => server.sql(statement).unwrap(),
            Server::MariaDb(server) => server.sql(statement).unwrap(),
        }
    }

    pub fn open_transactions(&self) -> u32 {
        let count = match self {
            Server::Postgres(_) => {
                "SELECT COUNT(*) FROM pg_stat_activity WHERE backend_type = 'client backend' \
                 AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
            }
            Server::MariaDb(_) => "SELECT COUNT(*) FROM information_schema.innodb_trx",
        };
        self.sql(count).trim().parse().unwrap()
    }

    pub fn kill(&mut self) {
        match self {
            Server::Postgres(server) => server.kill(),
            Server::MariaDb(server) => server.kill(),
        }
    }

    pub fn restart(&mut self) {
        match self {
            Server::Postgres(server) => server.restart(),
            Server::MariaDb(server) => server.restart(),
        }
    }
}

pub fn insert(id: i64) -> Statement {
    sql!("INSERT INTO marks (id, word) VALUES (?, ?)", id, "here")
}

pub async fn ids(database: &dyn Database) -> Vec<i64> {
    database.read(sql!("SELECT id FROM marks ORDER BY id")).await.unwrap().iter().map(|row| row.int(0)).collect()
}

pub fn refused_at(written: Result<Written, SqlError>) -> Option<usize> {
    match written.unwrap() {
        Written::Refused { step, .. } => Some(step),
        Written::Done(_) => None,
    }
}
