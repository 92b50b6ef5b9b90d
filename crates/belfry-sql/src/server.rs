//! What PostgreSQL and MySQL share behind [`Database`](crate::Database): a transaction's way from its first step to its commit,
//! what is known about it when something fails, and when it may be tried again. Speaks no dialect; a [`Driver`] does.
//!
//! Isolation is READ COMMITTED, where each statement sees all that was committed before it began, also when it first had to
//! wait for a row. That keeps the promise of one order for transactions whose first step locks a row that all who could
//! disturb them lock too, and every transaction of ours that reads before it writes begins so: the coordinator's with its
//! counter, an edit of jobs with its counter, users, tokens and sessions with the audit's counter, the record of ended runs with
//! a lock of its own. The others are single statements or touch rows by their key. SERIALIZABLE would make PostgreSQL undo
//! every transaction that had to wait for such a row, which are most of them when 16 shards commit.

mod failure;
mod places;

use std::future::Future;
use std::time::Duration;

use sqlx::Connection as _;
use tokio::time::{sleep, timeout};

use crate::{Migration, Row, SqlError, Statement, Step, StepResult, Written};
pub(crate) use failure::Failure;
use failure::in_time;
use places::{Lent, Places};

/// Servers' own limit for one statement, a wait for a lock included. It frees the locks of a caller that has gone.
pub(crate) const STATEMENT_WITHIN: Duration = Duration::from_secs(5);
/// Servers' limit for a transaction whose client says nothing more: one that is cut off in the middle of it holds a lock that everybody
/// else waits for.
pub(crate) const SILENT_WITHIN: Duration = Duration::from_secs(2);
/// Every distinct statement of the store and the coordinator fits, so that each stays prepared.
pub(crate) const STATEMENTS_CACHED_MAX: usize = 256;
/// All steps of a transaction up to its commit, or one read.
const STEPS_WITHIN: Duration = Duration::from_secs(8);
const COMMIT_WITHIN: Duration = Duration::from_secs(5);
/// A change of the schema may have to build an index over all runs.
const MIGRATE_WITHIN: Duration = Duration::from_secs(600);
/// How often a transaction is tried that the database undoes to end a deadlock.
const TRIES_MAX: u32 = 8;
const PAUSE_AFTER_DEADLOCK: Duration = Duration::from_millis(5);
/// Commits of 16 shards wait for each other's counter row in any case, so half of them at a time leave room for the recorder and
/// keep the database busy, which syncs once for those that end together. Three servers with a handle each for store and
/// coordinator take 72 connections with these and the readers: that fits into the 100 that PostgreSQL allows by default.
const WRITING_MAX: usize = 8;
/// Reads have connections of their own: they never queue behind writes, and these sessions refuse to write.
const READING_MAX: usize = 4;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Reading,
    Writing,
    Migrating,
}

pub(crate) type ConnectionOf<D> = <<D as Driver>::Server as sqlx::Database>::Connection;

/// One kind of server: how its connections are set up, its statements run and its errors understood.
pub(crate) trait Driver: Send + Sync + 'static {
    type Server: sqlx::Database;
    const BEGIN: &'static str;

    /// Refuses a read-only replica: what it answers may be old.
    fn connect(&self, purpose: Purpose) -> impl Future<Output = Result<ConnectionOf<Self>, Failure>> + Send
    where
        Self: Sized;

    fn run(
        &self,
        connection: &mut ConnectionOf<Self>,
        statement: &Statement,
    ) -> impl Future<Output = Result<StepResult, sqlx::Error>> + Send
    where
        Self: Sized;

    /// A statement without arguments that cannot be prepared.
    fn tell(
        &self,
        connection: &mut ConnectionOf<Self>,
        sql: &'static str,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send
    where
        Self: Sized;

    fn migrate(
        &self,
        connection: &mut ConnectionOf<Self>,
        scope: &'static str,
        migrations: &'static [Migration],
    ) -> impl Future<Output = Result<(), SqlError>> + Send
    where
        Self: Sized;

    /// What an answer of the server means.
    fn meaning(error: &dyn sqlx::error::DatabaseError) -> Failure
    where
        Self: Sized;
}

/// One database on a server.
pub(crate) struct Server<D: Driver> {
    pub(crate) driver: D,
    /// Kind, host, port and name, for messages.
    pub(crate) at: String,
    writing: Places<D>,
    reading: Places<D>,
}

impl<D: Driver> Server<D> {
    pub(crate) fn new(driver: D, at: String) -> Self {
        let writing = Places::new(Purpose::Writing, WRITING_MAX);
        let reading = Places::new(Purpose::Reading, READING_MAX);
        Self { driver, at, writing, reading }
    }

    /// The first read of a handle. Whoever opens one is about to write, and a connection takes a server longer than what is asked on it:
    /// the one for writing is opened meanwhile. What fails there is told by the first write.
    pub(crate) async fn read_first(&self, statement: &Statement) -> Result<Vec<Row>, SqlError> {
        let (rows, writing) = tokio::join!(self.read(statement), self.writing.lend(&self.driver));
        if let Ok(writing) = writing {
            writing.give_back();
        }
        rows
    }

    pub(crate) async fn read(&self, statement: &Statement) -> Result<Vec<Row>, SqlError> {
        loop {
            let mut lent = self.reading.lend(&self.driver).await.map_err(|failure| self.named(failure))?;
            match in_time::<D, _>(STEPS_WITHIN, self.driver.run(&mut lent.connection, statement)).await {
                Ok(result) => {
                    lent.give_back();
                    return Ok(result.rows);
                }
                // It may have died while it lay idle; a new one shows whether the server is there.
                Err(Failure::Lost(_)) if lent.was_idle => self.reading.forget_idle(),
                Err(failure) => return Err(self.named(failure)),
            }
        }
    }

    pub(crate) async fn write(&self, steps: &[Step]) -> Result<Written, SqlError> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.attempt(steps).await {
                Ok(written) => return Ok(written),
                Err(Failure::Stale) => {}
                Err(Failure::Undone(_)) if tries < TRIES_MAX => sleep(PAUSE_AFTER_DEADLOCK * tries).await,
                Err(failure) => return Err(self.named(failure)),
            }
        }
    }

    /// Whatever ends this early, also a caller that stops waiting, drops the connection, and the server undoes what it began.
    async fn attempt(&self, steps: &[Step]) -> Result<Written, Failure> {
        let mut lent = self.writing.lend(&self.driver).await?;
        match in_time::<D, _>(STEPS_WITHIN, self.driver.tell(&mut lent.connection, D::BEGIN)).await {
            Err(Failure::Lost(_)) if lent.was_idle => {
                self.writing.forget_idle();
                return Err(Failure::Stale);
            }
            begun => begun?,
        }
        let ran = timeout(STEPS_WITHIN, self.run_steps(&mut lent.connection, steps)).await;
        match ran.unwrap_or(Err(Failure::Silent(STEPS_WITHIN))) {
            Ok(Ran::AsExpected(results)) => self.commit(lent).await.map(|()| Written::Done(results)),
            Ok(Ran::Refused { step, found }) => {
                self.undo(lent).await;
                Ok(Written::Refused { step, found })
            }
            Err(failure @ (Failure::Undone(_) | Failure::Final(SqlError::Broken(_) | SqlError::Full(_)))) => {
                self.undo(lent).await;
                Err(failure)
            }
            // The server may have become a replica of another, to which this address leads now: connect anew.
            Err(failure) => {
                self.writing.forget_idle();
                self.reading.forget_idle();
                Err(failure)
            }
        }
    }

    async fn run_steps(&self, connection: &mut ConnectionOf<D>, steps: &[Step]) -> Result<Ran, Failure> {
        let mut results = Vec::with_capacity(steps.len());
        for (index, step) in steps.iter().enumerate() {
            let result = match self.driver.run(connection, &step.statement).await.map_err(Failure::of::<D>) {
                Ok(result) => result,
                Err(Failure::Unique) => return Ok(Ran::Refused { step: index, found: vec![] }),
                Err(failure) => return Err(failure),
            };
            if !step.expect.holds(&result) {
                return Ok(Ran::Refused { step: index, found: result.rows });
            }
            results.push(result);
        }
        Ok(Ran::AsExpected(results))
    }

    /// From here on an error does not say what happened, unless the server says that it has undone the transaction.
    async fn commit(&self, mut lent: Lent<'_, D>) -> Result<(), Failure> {
        match in_time::<D, _>(COMMIT_WITHIN, self.driver.tell(&mut lent.connection, "COMMIT")).await {
            Ok(()) => {
                lent.give_back();
                Ok(())
            }
            Err(undone @ Failure::Undone(_)) => Err(undone),
            Err(failure) => {
                tracing::warn!(at = %self.at, "no answer to a commit ({})", failure.error());
                Err(Failure::Final(SqlError::Unknown))
            }
        }
    }

    /// Nothing of it can take effect, whatever becomes of this; but the locks should go before the caller's next call.
    async fn undo(&self, mut lent: Lent<'_, D>) {
        if let Ok(Ok(())) = timeout(COMMIT_WITHIN, self.driver.tell(&mut lent.connection, "ROLLBACK")).await {
            lent.give_back();
        }
    }

    /// On a connection of its own, without the short limits.
    pub(crate) async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        let migrating = async {
            let mut connection = self.connect(Purpose::Migrating).await?;
            let migrated = self.driver.migrate(&mut connection, scope, migrations).await;
            self.close(connection).await;
            migrated.map_err(|error| error.during(&self.at))
        };
        let late = || Err(SqlError::Away(format!("{}: migrations not done in {MIGRATE_WITHIN:?}", self.at)));
        timeout(MIGRATE_WITHIN, migrating).await.unwrap_or_else(|_| late())
    }

    /// A connection that belongs to no place.
    pub(crate) async fn connect(&self, purpose: Purpose) -> Result<ConnectionOf<D>, SqlError> {
        places::connect(&self.driver, purpose).await.map_err(|failure| self.named(failure))
    }

    /// Servers note a connection that ends without a word as a fault. An error says that it is closed already.
    pub(crate) async fn close(&self, connection: ConnectionOf<D>) {
        timeout(COMMIT_WITHIN, connection.close()).await.ok();
    }

    fn named(&self, failure: Failure) -> SqlError {
        failure.error().during(&self.at)
    }
}

enum Ran {
    AsExpected(Vec<StepResult>),
    Refused { step: usize, found: Vec<Row> },
}

/// A schema that is newer than this build must not be written to.
pub(crate) fn check_known<'a>(
    scope: &str,
    mut applied: impl Iterator<Item = &'a str>,
    migrations: &[Migration],
) -> Result<(), SqlError> {
    match applied.find(|name| migrations.iter().all(|migration| migration.name != *name)) {
        None => Ok(()),
        Some(unknown) => Err(SqlError::Broken(format!(
            "made by a newer Belfry: its migration `{scope}/{unknown}` is unknown to this build; \
             start that version again, or restore a backup made before the upgrade"
        ))),
    }
}
