//! Forward-only changes of the schema, all that are missing in one transaction. An advisory lock makes a second process wait,
//! which then finds the work done.

use sqlx::postgres::PgConnection;

use super::PostgresDriver;
use crate::server::{Driver as _, Failure, check_known};
use crate::{Migration, SqlError, sql};

/// Held until the commit. The number is one that nothing else is likely to use in a database of ours.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7378697629480001)";

pub(super) async fn migrate(
    driver: &PostgresDriver,
    connection: &mut PgConnection,
    scope: &str,
    migrations: &[Migration],
) -> Result<(), SqlError> {
    let tell = async |connection: &mut PgConnection, text: &'static str| {
        driver.tell(connection, text).await.map_err(|error| Failure::of::<PostgresDriver>(error).error())
    };
    tell(connection, PostgresDriver::BEGIN).await?;
    // Two that create the same table at once collide in the catalogue, whatever IF NOT EXISTS says: the lock comes first.
    tell(connection, LOCK).await?;
    tell(
        connection,
        "CREATE TABLE IF NOT EXISTS belfry_migrations (
            scope VARCHAR(64) NOT NULL, name VARCHAR(128) NOT NULL, applied_at BIGINT NOT NULL,
            PRIMARY KEY (scope, name))",
    )
    .await?;
    let run = async |connection: &mut PgConnection, statement| {
        driver.run(connection, &statement).await.map_err(|error| Failure::of::<PostgresDriver>(error).error())
    };
    let names = sql!("SELECT name FROM belfry_migrations WHERE scope = ? ORDER BY name", scope);
    let applied = run(connection, names).await?.rows;
    check_known(scope, applied.iter().map(|row| row.text(0)), migrations)?;
    for migration in migrations.iter().filter(|m| !applied.iter().any(|row| row.text(0) == m.name)) {
        for statement in migration.statements {
            let done = tell(connection, statement).await;
            done.map_err(|error| error.during(&format!("migration `{scope}/{}`", migration.name)))?;
        }
        let record = sql!(
            "INSERT INTO belfry_migrations (scope, name, applied_at)
             VALUES (?, ?, (EXTRACT(EPOCH FROM clock_timestamp()) * 1000)::BIGINT)",
            scope,
            migration.name
        );
        run(connection, record).await?;
    }
    driver.tell(connection, "COMMIT").await.map_err(|error| match Failure::of::<PostgresDriver>(error) {
        Failure::Lost(_) => SqlError::Unknown,
        failure => failure.error(),
    })
}
