//! Forward-only changes of the schema on a database that commits at every one of them. Before a statement runs it is noted as
//! begun, and afterwards as done; so a start after a crash goes on where that one stopped, and knows which statement may have
//! happened although it was not noted. A named lock makes a second process wait, which then finds the work done.

use sqlx::mysql::MySqlConnection;

use super::{MySqlDriver, number};
use crate::server::{Driver as _, Failure, check_known};
use crate::{Migration, Row, SqlError, Statement, sql};

/// How long another process may take for its migrations before this one gives up.
const LOCK_WITHIN_SECONDS: i64 = 300;
/// That a table, column, index or row is there already, or that what should be dropped is not.
const DONE_BEFORE: &[u16] = &[1050, 1060, 1061, 1062, 1051, 1091];

/// What is known of the migrations of a scope.
pub(super) fn noted(scope: &str) -> Statement {
    sql!("SELECT name, statements_begun, statements_done FROM belfry_migrations WHERE scope = ? ORDER BY name", scope)
}

/// To the last statement, and no other build has done more.
pub(super) fn are_all_done(noted: &[Row], migrations: &[Migration]) -> bool {
    let done = noted.iter().map(|row| (row.text(0), row.int(2) as usize));
    done.eq(migrations.iter().map(|migration| (migration.name, migration.statements.len())))
}

pub(super) async fn migrate(
    driver: &MySqlDriver,
    connection: &mut MySqlConnection,
    scope: &str,
    migrations: &[Migration],
) -> Result<(), SqlError> {
    let mut work = Work { driver, connection, scope };
    // Locks are the server's, not the database's: its name is part of the lock's.
    let lock = sql!("SELECT GET_LOCK(CONCAT('belfry-', LEFT(SHA1(DATABASE()), 32)), ?)", LOCK_WITHIN_SECONDS);
    if work.run(lock).await?.first().and_then(|row| row.opt_int(0)) != Some(1) {
        return Err(SqlError::Away(format!("another process has migrated it for {LOCK_WITHIN_SECONDS} s")));
    }
    // Ends with the connection, which is dropped after this.
    work.tell(
        "CREATE TABLE IF NOT EXISTS belfry_migrations (
            scope VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
            name VARCHAR(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
            statements_begun INT NOT NULL, statements_done INT NOT NULL, applied_at BIGINT NOT NULL,
            PRIMARY KEY (scope, name))",
    )
    .await?;
    let noted = work.run(noted(scope)).await?;
    check_known(scope, noted.iter().map(|row| row.text(0)), migrations)?;
    for migration in migrations {
        let note = noted.iter().find(|row| row.text(0) == migration.name);
        work.apply(migration, note).await?;
    }
    Ok(())
}

struct Work<'a> {
    driver: &'a MySqlDriver,
    connection: &'a mut MySqlConnection,
    scope: &'a str,
}

impl Work<'_> {
    async fn apply(&mut self, migration: &Migration, note: Option<&Row>) -> Result<(), SqlError> {
        let (begun, done) = note.map_or((0, 0), |row| (row.int(1) as usize, row.int(2) as usize));
        for (index, statement) in migration.statements.iter().enumerate().skip(done) {
            self.note(migration.name, index + 1, index).await?;
            // Begun and not done: it was applied before the crash, or not at all.
            let again = begun > index;
            match self.driver.tell(self.connection, statement).await {
                Ok(()) => {}
                Err(sqlx::Error::Database(cause)) if again && DONE_BEFORE.contains(&number(&*cause)) => {
                    tracing::info!("migration `{}/{}` had applied statement {index}", self.scope, migration.name);
                }
                Err(cause) => {
                    let what = format!("migration `{}/{}`, statement {index}", self.scope, migration.name);
                    return Err(meant(cause).during(&what));
                }
            }
            self.note(migration.name, index + 1, index + 1).await?;
        }
        Ok(())
    }

    async fn note(&mut self, name: &str, begun: usize, done: usize) -> Result<(), SqlError> {
        let text = "INSERT INTO belfry_migrations (scope, name, statements_begun, statements_done, applied_at) \
                    VALUES (?, ?, ?, ?, CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)) \
                    ON DUPLICATE KEY UPDATE statements_begun = VALUES(statements_begun), \
                    statements_done = VALUES(statements_done), applied_at = VALUES(applied_at)";
        self.run(sql!(text, self.scope, name, begun as u64, done as u64)).await.map(drop)
    }

    async fn run(&mut self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        let result = self.driver.run(self.connection, &statement).await;
        result.map(|result| result.rows).map_err(meant)
    }

    async fn tell(&mut self, text: &'static str) -> Result<(), SqlError> {
        self.driver.tell(self.connection, text).await.map_err(meant)
    }
}

fn meant(error: sqlx::Error) -> SqlError {
    match Failure::of::<MySqlDriver>(error) {
        Failure::Unique => SqlError::Broken("a row is there already".to_owned()),
        failure => failure.error(),
    }
}
