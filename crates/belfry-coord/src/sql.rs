//! The coordinator on a relational database: one table of keys, and one counter row that every commit moves first.
//!
//! The counter comes first because its row lock puts all commits in one order: on databases that run transactions side by
//! side, a commit's guards are read only after the commit before it ended. It is a row and not a sequence, because a
//! sequence hands out numbers in an order that differs from the order of the commits.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_core::Version;
use belfry_sql::{Database, Dialect, Migration, Row, Statement, Step, Value, Written, sql};
use bytes::Bytes;
use futures_util::stream;

use crate::coordinator::check_commit;
use crate::hints::Listeners;
use crate::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Write};

/// How often a watch looks whether another process has committed.
const POLL_EVERY: Duration = Duration::from_millis(500);

// Keys are bytes, so that every database compares them byte by byte, whatever its collation.
const SQLITE: &[Migration] = &[Migration {
    name: "0001-keys",
    statements: &[
        "CREATE TABLE coord_kv (name BLOB PRIMARY KEY, value BLOB NOT NULL, version BIGINT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE coord_counter (id INTEGER PRIMARY KEY, version BIGINT NOT NULL)",
        "INSERT INTO coord_counter (id, version) VALUES (1, 0)",
    ],
}];
const POSTGRES: &[Migration] = &[Migration {
    name: "0001-keys",
    statements: &[
        "CREATE TABLE coord_kv (name BYTEA PRIMARY KEY, value BYTEA NOT NULL, version BIGINT NOT NULL)",
        "CREATE TABLE coord_counter (id INTEGER PRIMARY KEY, version BIGINT NOT NULL)",
        "INSERT INTO coord_counter (id, version) VALUES (1, 0)",
    ],
}];
const MYSQL: &[Migration] = &[
    Migration {
        name: "0001-keys",
        statements: &["CREATE TABLE coord_kv (name VARBINARY(512) PRIMARY KEY, value LONGBLOB NOT NULL, \
                       version BIGINT NOT NULL)"],
    },
    Migration {
        name: "0002-counter",
        statements: &["CREATE TABLE coord_counter (id INTEGER PRIMARY KEY, version BIGINT NOT NULL)"],
    },
    Migration { name: "0003-zero", statements: &["INSERT INTO coord_counter (id, version) VALUES (1, 0)"] },
];

const GUARDS_STEP: usize = 1;

/// Who else may use the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Users {
    /// The caller holds a lock of the operating system that keeps every other process out.
    SoleByLock,
    Many,
}

pub struct SqlCoordinator {
    database: Arc<dyn Database>,
    users: Users,
    listeners: Listeners,
}

impl SqlCoordinator {
    /// Makes the tables when they are missing.
    pub async fn open(database: Arc<dyn Database>, users: Users) -> Result<Self, CoordError> {
        let migrations = match database.dialect() {
            Dialect::Sqlite => SQLITE,
            Dialect::Postgres => POSTGRES,
            Dialect::MySql => MYSQL,
        };
        database.migrate("coord", migrations).await?;
        Ok(Self { database, users, listeners: Listeners::default() })
    }
}

#[async_trait]
impl Coordinator for SqlCoordinator {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        let found = sql!("SELECT name, value, version FROM coord_kv WHERE name = ?", key.as_bytes());
        self.database.read(found).await?.into_iter().next().map(entry).transpose()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        let matching = match end_of(prefix) {
            Some(end) => sql!(
                "SELECT name, value, version FROM coord_kv WHERE name >= ? AND name < ? ORDER BY name",
                prefix.as_bytes(),
                end
            ),
            None => sql!("SELECT name, value, version FROM coord_kv ORDER BY name"),
        };
        self.database.read(matching).await?.into_iter().map(entry).collect()
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        check_commit(&guards, &writes)?;
        let mut steps = vec![sql!("UPDATE coord_counter SET version = version + 1 WHERE id = 1").touching(1)];
        steps.extend(guard_step(&guards));
        steps.extend(put_step(self.database.dialect(), &writes));
        steps.extend(delete_step(&writes));
        steps.push(sql!("SELECT version FROM coord_counter WHERE id = 1").returning(1));
        match self.database.write(steps).await? {
            Written::Done(results) => {
                self.listeners.tell(&writes);
                let counter = results.last().and_then(|result| result.rows.first());
                let counter = counter.ok_or_else(|| CoordError::Broken("the counter gave no row".into()))?;
                Ok(Commit::Applied(version(counter, 0)?))
            }
            Written::Refused { step: GUARDS_STEP, found } => match guards.iter().find(|guard| !holds(guard, &found)) {
                Some(guard) => Ok(Commit::Conflict { key: guard.key().to_owned() }),
                None => Err(CoordError::Broken("its keys are not what they were read as".into())),
            },
            Written::Refused { .. } => Err(CoordError::Broken("its counter row is gone; restore a backup".into())),
        }
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        if self.users == Users::SoleByLock {
            return Ok(self.listeners.hints(prefix));
        }
        let own = self.listeners.listen(prefix);
        let seen = counter(&*self.database).await?;
        let watch = (self.database.clone(), own, seen);
        Ok(Hints::new(stream::unfold(watch, |(database, own, mut seen)| async move {
            loop {
                tokio::select! {
                    () = own.notified() => break,
                    () = tokio::time::sleep(POLL_EVERY) => {}
                }
                // An error is no hint: whoever needs the truth lists by itself and meets the error there.
                match counter(&*database).await {
                    Ok(now) if now != seen => {
                        seen = now;
                        break;
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            Some(((), (database, own, seen)))
        })))
    }

    fn sole_user(&self) -> bool {
        self.users == Users::SoleByLock
    }
}

/// All guards in one statement: on a database across the network each statement is a round trip.
fn guard_step(guards: &[Guard]) -> Option<Step> {
    let mut there: Vec<Row> = guards.iter().filter_map(row_of).collect();
    there.sort_by(|a, b| a.blob(0).cmp(b.blob(0)));
    there.dedup();
    let keys = guards.iter().map(Guard::key);
    let found = one_of("SELECT name, version FROM coord_kv WHERE name IN", keys, " ORDER BY name")?;
    Some(found.returning_these(there))
}

fn row_of(guard: &Guard) -> Option<Row> {
    match guard {
        Guard::Absent(_) => None,
        Guard::At(key, version) => Some(Row(vec![key.as_bytes().into(), version.0.into()])),
    }
}

fn holds(guard: &Guard, found: &[Row]) -> bool {
    let there = found.iter().find(|row| row.blob(0) == guard.key().as_bytes());
    there == row_of(guard).as_ref()
}

/// All puts in one statement, as the guards.
fn put_step(dialect: Dialect, writes: &[Write]) -> Option<Step> {
    let mut args = vec![];
    for write in writes {
        if let Write::Put(key, value) = write {
            args.push(Value::from(key.as_bytes()));
            args.push(Value::from(&value[..]));
        }
    }
    let more = (args.len() / 2).checked_sub(1)?;
    let rows = match dialect {
        // Which version it is is asked once, not in each row.
        Dialect::Postgres => format!(
            "SELECT these.name, these.value, counter.version \
             FROM (VALUES (CAST(? AS BYTEA), CAST(? AS BYTEA)){}) AS these (name, value), coord_counter AS counter WHERE counter.id = 1",
            ", (?, ?)".repeat(more)
        ),
        Dialect::Sqlite | Dialect::MySql => {
            const ROW: &str = "(?, ?, (SELECT version FROM coord_counter WHERE id = 1))";
            format!("VALUES {ROW}{}", format!(", {ROW}").repeat(more))
        }
    };
    let replace = match dialect {
        Dialect::Sqlite | Dialect::Postgres => {
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value, version = excluded.version"
        }
        Dialect::MySql => "ON DUPLICATE KEY UPDATE value = VALUES(value), version = VALUES(version)",
    };
    let sql = format!("INSERT INTO coord_kv (name, value, version) {rows} {replace}");
    Some(Statement { sql: sql.into(), args }.anything())
}

fn delete_step(writes: &[Write]) -> Option<Step> {
    let deleted = writes.iter().filter(|write| matches!(write, Write::Delete(_))).map(Write::key);
    Some(one_of("DELETE FROM coord_kv WHERE name IN", deleted, "")?.anything())
}

/// A statement about all of these keys. The last one is named again until there are as many as in one of few texts, so that each text
/// stays prepared. None: there is no key.
fn one_of<'a>(before: &str, keys: impl Iterator<Item = &'a str>, after: &str) -> Option<Statement> {
    let mut args: Vec<Value> = keys.map(|key| key.as_bytes().into()).collect();
    let last = args.last()?.clone();
    args.resize(args.len().next_power_of_two(), last);
    let marks = vec!["?"; args.len()].join(", ");
    Some(Statement { sql: format!("{before} ({marks}){after}").into(), args })
}

async fn counter(database: &dyn Database) -> Result<Version, CoordError> {
    let rows = database.read(sql!("SELECT version FROM coord_counter WHERE id = 1")).await?;
    rows.first().map_or_else(|| Err(CoordError::Broken("its counter row is gone".into())), |row| version(row, 0))
}

/// The first key after all that begin with `prefix`. UTF-8 never has a byte 0xFF, so the last byte can always grow.
fn end_of(prefix: &str) -> Option<Vec<u8>> {
    let mut end = prefix.as_bytes().to_vec();
    *end.last_mut()? += 1;
    Some(end)
}

fn version(row: &Row, column: usize) -> Result<Version, CoordError> {
    u64::try_from(row.int(column)).map(Version).map_err(|_| CoordError::Broken("a version below zero".into()))
}

fn entry(row: Row) -> Result<Entry, CoordError> {
    let version = version(&row, 2)?;
    let mut columns = row.0.into_iter();
    match (columns.next(), columns.next()) {
        (Some(Value::Blob(key)), Some(Value::Blob(value))) => {
            let key = String::from_utf8(key).map_err(|_| CoordError::Broken("a key that is not UTF-8".into()))?;
            Ok(Entry { key, value: Bytes::from(value), version })
        }
        _ => Err(CoordError::Broken("a key or value that is not bytes".into())),
    }
}
