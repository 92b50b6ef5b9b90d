//! SQLite behind [`Database`]: one writer thread that commits groups, and a few reader threads. Owns the threads and how a
//! connection is set up; knows no table but the list of migrations.

mod inline;
mod migrate;
mod reader;
mod step;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{mpsc, oneshot};

use crate::{Database, Dialect, Migration, Row, SqlError, Statement, Step, Written};
pub use inline::InlineSqlite;
use step::sql_error;

/// Transactions that wait for the writer; a caller beyond that waits for its place.
const WRITES_QUEUED_MAX: usize = 1024;
/// Queries that wait for a reader.
const READS_QUEUED_MAX: usize = 256;
/// 16 MiB of log between checkpoints: a checkpoint costs two syncs, so it must be rare against commits.
const WAL_CHECKPOINT_PAGES: u32 = 4096;
/// The log's file is cut back to this after a checkpoint.
const WAL_FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Every distinct statement of the store and the coordinator fits.
const STATEMENTS_CACHED_MAX: usize = 256;

/// How a database file is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// Threads that answer reads. Default 3.
    pub readers: usize,
    /// How long a write waits for another process that holds the file's write lock. Default 5 s.
    pub busy_timeout: Duration,
    /// Page cache of each connection, behind which the kernel has its own. Default 8 MiB.
    pub cache_kib: u32,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { readers: 3, busy_timeout: Duration::from_secs(5), cache_kib: 8 * 1024 }
    }
}

/// What the database has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqliteStats {
    /// Transactions answered with `Done`.
    pub transactions: u64,
    /// Durable commits, each one sync of the log.
    pub commits: u64,
    /// Rows inserted, updated or deleted by those transactions.
    pub rows_written: u64,
}

#[derive(Default)]
struct Counters {
    transactions: AtomicU64,
    commits: AtomicU64,
    rows_written: AtomicU64,
}

/// A handle; clones share the threads. Dropping the last one waits until what was queued is written, checkpoints and closes.
#[derive(Clone)]
pub struct Sqlite {
    shared: Arc<Shared>,
}

struct Shared {
    writes: Option<mpsc::Sender<writer::Order>>,
    reads: Option<mpsc::Sender<reader::Question>>,
    writer: Option<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    counters: Arc<Counters>,
}

impl Sqlite {
    /// Opens or creates the file. Blocks for a few milliseconds.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, SqlError> {
        let path = path.as_ref();
        let counters = Arc::new(Counters::default());
        let (writes, orders) = mpsc::channel(WRITES_QUEUED_MAX);
        let (reads, questions) = mpsc::channel(READS_QUEUED_MAX);
        let writing = connect(path, &options)?;
        let mut shared = Shared {
            writes: Some(writes),
            reads: Some(reads),
            writer: None,
            readers: vec![],
            counters: counters.clone(),
        };
        shared.writer = Some(thread("sqlite-writer", move || writer::run(writing, orders, &counters))?);
        let questions = reader::Questions::new(questions);
        for _ in 0..options.readers.max(1) {
            let mut reading = connect(path, &options)?;
            reading.pragma_update(None, "query_only", true).map_err(sql_error)?;
            let questions = questions.clone();
            shared.readers.push(thread("sqlite-reader", move || reader::answer_all(&mut reading, &questions))?);
        }
        Ok(Self { shared: Arc::new(shared) })
    }

    pub fn stats(&self) -> SqliteStats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        SqliteStats {
            transactions: of(&counters.transactions),
            commits: of(&counters.commits),
            rows_written: of(&counters.rows_written),
        }
    }

    async fn order<T>(
        &self,
        order: writer::Order,
        answer: oneshot::Receiver<Result<T, SqlError>>,
    ) -> Result<T, SqlError> {
        let Some(writes) = &self.shared.writes else { return Err(closed()) };
        writes.send(order).await.map_err(|_| closed())?;
        // The writer answers everything it takes; silence means that its thread died half-way.
        answer.await.unwrap_or(Err(SqlError::Unknown))
    }
}

/// A write whose future is dropped before it answers is carried out all the same.
#[async_trait]
impl Database for Sqlite {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        let (answer, answered) = oneshot::channel();
        // Held until the answer has come, or nobody waits for it any more.
        let asker = Arc::new(());
        let Some(reads) = &self.shared.reads else { return Err(closed()) };
        reads
            .send(reader::Question { statement, asker: Arc::downgrade(&asker), answer })
            .await
            .map_err(|_| closed())?;
        answered.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        let (answer, answered) = oneshot::channel();
        self.order(writer::Order::Write { steps, answer }, answered).await
    }

    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        let (answer, answered) = oneshot::channel();
        self.order(writer::Order::Migrate { scope, migrations, answer }, answered).await
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Readers first, and the writer only when they are gone: two connections that close at the same moment each take
        // the other for a user of the log, and leave it behind.
        self.reads = None;
        self.readers.drain(..).for_each(end);
        self.writes = None;
        self.writer.take().into_iter().for_each(end);
    }
}

fn end(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the database panicked");
    }
}

fn closed() -> SqlError {
    SqlError::Away("it was closed".into())
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, SqlError> {
    let started = std::thread::Builder::new().name(name.into()).spawn(work);
    started.map_err(|cause| SqlError::Away(format!("start thread {name}: {cause}")))
}

fn connect(path: &Path, options: &SqliteOptions) -> Result<Connection, SqlError> {
    set_up(path, options).map_err(|error| error.during(&format!("open {}", path.display())))
}

fn set_up(path: &Path, options: &SqliteOptions) -> Result<Connection, SqlError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sql_error)?;
    connection.busy_timeout(options.busy_timeout).map_err(sql_error)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_CACHED_MAX);
    let set = |name: &str, value: i64| connection.pragma_update(None, name, value).map_err(sql_error);
    set("page_size", 4096)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)).map_err(sql_error)?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(SqlError::Broken(format!("the file system allows no write-ahead log (journal mode is {mode})")));
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(sql_error)?;
    connection.pragma_update(None, "temp_store", "MEMORY").map_err(sql_error)?;
    set("foreign_keys", 1)?;
    set("cache_size", -i64::from(options.cache_kib))?;
    // No memory map: a read error of the disk would then be a SIGBUS that ends the process, not an error.
    set("mmap_size", 0)?;
    set("wal_autocheckpoint", i64::from(WAL_CHECKPOINT_PAGES))?;
    set("journal_size_limit", WAL_FILE_BYTES_MAX as i64)?;
    Ok(connection)
}
