//! Forward-only changes of the schema, each applied once. Runs in one immediate transaction, so that of two processes that
//! start together the second finds the work done.

use rusqlite::Connection;

use super::step::{commit_error, sql_error};
use crate::{Migration, SqlError};

pub(super) fn migrate(connection: &Connection, scope: &str, migrations: &[Migration]) -> Result<(), SqlError> {
    connection.execute_batch("BEGIN IMMEDIATE").map_err(sql_error)?;
    let applied = apply_missing(connection, scope, migrations)
        .and_then(|()| connection.execute_batch("COMMIT").map_err(commit_error));
    if applied.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK").map_err(sql_error)?;
    }
    applied
}

fn apply_missing(connection: &Connection, scope: &str, migrations: &[Migration]) -> Result<(), SqlError> {
    connection
        .execute_batch(
            "CREATE TABLE IF NOT EXISTS belfry_migrations (
                scope VARCHAR(64) NOT NULL, name VARCHAR(128) NOT NULL, applied_at BIGINT NOT NULL,
                PRIMARY KEY (scope, name))",
        )
        .map_err(sql_error)?;
    let applied = applied_names(connection, scope).map_err(sql_error)?;
    if let Some(unknown) = applied.iter().find(|name| migrations.iter().all(|m| m.name != name.as_str())) {
        return Err(SqlError::Broken(format!(
            "made by a newer Belfry: its migration `{scope}/{unknown}` is unknown to this build; \
             start that version again, or restore a backup made before the upgrade"
        )));
    }
    for migration in migrations.iter().filter(|m| !applied.iter().any(|name| name == m.name)) {
        for statement in migration.statements {
            connection
                .execute_batch(statement)
                .map_err(sql_error)
                .map_err(|error| error.during(&format!("migration `{scope}/{}`", migration.name)))?;
        }
        connection
            .execute(
                "INSERT INTO belfry_migrations (scope, name, applied_at)
                 VALUES (?, ?, CAST(unixepoch('subsec') * 1000 AS INTEGER))",
                (scope, migration.name),
            )
            .map_err(sql_error)?;
    }
    Ok(())
}

fn applied_names(connection: &Connection, scope: &str) -> rusqlite::Result<Vec<String>> {
    let mut query = connection.prepare("SELECT name FROM belfry_migrations WHERE scope = ? ORDER BY name")?;
    query.query_map([scope], |row| row.get(0))?.collect()
}
