//! The one thread that writes: takes what is queued, runs it as one group inside one durable commit, and answers each
//! caller only after that commit. It never answers `Done` before the log is synced.
//!
//! Inside a group every transaction has its own savepoint, so a refused one undoes itself alone; and a later one sees what
//! an earlier one of the same group wrote, which is the order in which they take effect.

use std::sync::atomic::Ordering;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use super::Counters;
use super::migrate::migrate;
use super::step::{Failed, commit_error, run_step, sql_error};
use crate::{Migration, SqlError, Step, Written};

/// Transactions that share one commit.
const GROUP_TRANSACTIONS_MAX: usize = 256;
/// Steps and rows of a group, about 10 ms of work: the first caller of a group waits for its last.
const GROUP_WORK_MAX: usize = 4096;

type Answer<T> = oneshot::Sender<Result<T, SqlError>>;

pub(super) enum Order {
    Write { steps: Vec<Step>, answer: Answer<Written> },
    Migrate { scope: &'static str, migrations: &'static [Migration], answer: Answer<()> },
}

pub(super) fn run(connection: Connection, mut orders: mpsc::Receiver<Order>, counters: &Counters) {
    let mut next = orders.blocking_recv();
    while let Some(order) = next {
        let held_over = match order {
            Order::Write { steps, answer } => Group::begin(&connection, counters).run(steps, answer, &mut orders),
            Order::Migrate { scope, migrations, answer } => {
                // A caller that no longer waits is no error: its order was carried out all the same.
                answer.send(migrate(&connection, scope, migrations)).ok();
                None
            }
        };
        next = held_over.or_else(|| orders.blocking_recv());
    }
    let checkpoint = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    let closed = connection.close().map_err(|(_, error)| error);
    if let Err(error) = checkpoint.and(closed) {
        tracing::warn!(%error, "database closed without a checkpoint; the next start catches up");
    }
}

struct Group<'a> {
    connection: &'a Connection,
    counters: &'a Counters,
    /// Set when nothing of this group can be committed any more.
    failed: Option<SqlError>,
    waiting: Vec<(Answer<Written>, Result<Written, SqlError>)>,
    work: usize,
    rows_written: u64,
}

impl<'a> Group<'a> {
    fn begin(connection: &'a Connection, counters: &'a Counters) -> Self {
        // IMMEDIATE: a read that turns into a write would fail at once, whatever the busy timeout.
        let failed = connection.execute_batch("BEGIN IMMEDIATE").map_err(sql_error).err();
        Group { connection, counters, failed, waiting: vec![], work: 0, rows_written: 0 }
    }

    /// Runs the first transaction and all that are queued behind it, up to the bounds. Gives back an order that is not
    /// for a group.
    fn run(mut self, steps: Vec<Step>, answer: Answer<Written>, orders: &mut mpsc::Receiver<Order>) -> Option<Order> {
        self.add(steps, answer);
        let mut held_over = None;
        while self.waiting.len() < GROUP_TRANSACTIONS_MAX && self.work < GROUP_WORK_MAX {
            match orders.try_recv() {
                Ok(Order::Write { steps, answer }) => self.add(steps, answer),
                Ok(other) => {
                    held_over = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        self.commit();
        held_over
    }

    /// After a failure only takes callers in, so that they hear of it now instead of each waiting for its own time-out.
    fn add(&mut self, steps: Vec<Step>, answer: Answer<Written>) {
        let written = match &self.failed {
            Some(_) => Ok(Written::Refused { step: 0, found: vec![] }),
            None => self.transaction(&steps).unwrap_or_else(|error| {
                self.failed = Some(sql_error(error));
                Ok(Written::Refused { step: 0, found: vec![] })
            }),
        };
        self.waiting.push((answer, written));
    }

    /// The outer error ends the group, the inner one only this transaction.
    fn transaction(&mut self, steps: &[Step]) -> rusqlite::Result<Result<Written, SqlError>> {
        self.control("SAVEPOINT caller")?;
        let mut results = Vec::with_capacity(steps.len());
        let mut ended = None;
        for (index, step) in steps.iter().enumerate() {
            match run_step(self.connection, step) {
                Ok(result) => results.push(result),
                Err(Failed::Refused { found }) => ended = Some(Ok(Written::Refused { step: index, found })),
                // SQLite itself rolls the whole transaction back at some errors (disk full, I/O, memory).
                Err(Failed::Error(error)) if self.connection.is_autocommit() || spoils_group(&error) => {
                    return Err(error);
                }
                Err(Failed::Error(error)) => ended = Some(Err(sql_error(error))),
            }
            if ended.is_some() {
                break;
            }
        }
        self.work += 1 + steps.len() + results.iter().map(|r| r.rows.len() + r.touched as usize).sum::<usize>();
        if ended.is_some() {
            self.control("ROLLBACK TO caller")?;
        }
        self.control("RELEASE caller")?;
        Ok(ended.unwrap_or_else(|| {
            self.rows_written += results.iter().map(|r| r.touched).sum::<u64>();
            Ok(Written::Done(results))
        }))
    }

    fn control(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }

    fn commit(mut self) {
        if self.failed.is_none() {
            self.failed = self.connection.execute_batch("COMMIT").map_err(commit_error).err();
        }
        if let Some(error) = self.failed {
            if !self.connection.is_autocommit()
                && let Err(error) = self.connection.execute_batch("ROLLBACK")
            {
                tracing::error!(%error, "roll back a group of {} transactions", self.waiting.len());
            }
            for (answer, _) in self.waiting {
                answer.send(Err(error.clone())).ok();
            }
            return;
        }
        let done = self.waiting.iter().filter(|(_, written)| matches!(written, Ok(Written::Done(_)))).count();
        self.counters.transactions.fetch_add(done as u64, Ordering::Relaxed);
        self.counters.commits.fetch_add(u64::from(self.rows_written > 0), Ordering::Relaxed);
        self.counters.rows_written.fetch_add(self.rows_written, Ordering::Relaxed);
        for (answer, written) in self.waiting {
            answer.send(written).ok();
        }
    }
}

fn spoils_group(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseCorrupt, DiskFull, NotADatabase, OutOfMemory, SystemIoFailure};
    matches!(
        error.sqlite_error_code(),
        Some(DiskFull | SystemIoFailure | OutOfMemory | DatabaseBusy | DatabaseCorrupt | NotADatabase)
    )
}
