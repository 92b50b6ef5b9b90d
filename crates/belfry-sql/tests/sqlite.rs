//! What `Sqlite` promises, on real files: groups share commits, refusals undo only themselves, a full disk heals.
#![expect(clippy::disallowed_methods, reason = "mount and umount are run as they are")]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use belfry_sql::{Database, Migration, SqlError, Sqlite, SqliteOptions, Statement, Written, sql};

const TABLE: &[Migration] = &[Migration {
    name: "0001-marks",
    statements: &["CREATE TABLE marks (id BIGINT PRIMARY KEY, word TEXT NOT NULL, body BLOB)"],
}];

async fn marks(folder: &Path) -> Sqlite {
    let database = Sqlite::open(folder.join("test.db"), SqliteOptions::default()).unwrap();
    database.migrate("test", TABLE).await.unwrap();
    database
}

fn insert(id: i64) -> Statement {
    sql!("INSERT INTO marks (id, word) VALUES (?, ?)", id, "here")
}

async fn count(database: &Sqlite) -> i64 {
    database.read(sql!("SELECT COUNT(*) FROM marks")).await.unwrap()[0].int(0)
}

fn refused_at(written: Result<Written, SqlError>) -> Option<usize> {
    match written.unwrap() {
        Written::Refused { step, .. } => Some(step),
        Written::Done(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_at_the_same_time_share_commits() {
    let folder = tempfile::tempdir().unwrap();
    let database = Arc::new(marks(folder.path()).await);
    let before = database.stats();
    let writers = (0..2000).map(|id| {
        let database = database.clone();
        async move { database.write(vec![insert(id).touching(1)]).await }
    });
    for written in futures_util::future::join_all(writers).await {
        assert_eq!(refused_at(written), None);
    }
    let after = database.stats();
    assert_eq!(after.transactions - before.transactions, 2000);
    assert_eq!(after.rows_written - before.rows_written, 2000);
    let commits = after.commits - before.commits;
    assert!(commits <= 200, "{commits} commits for 2000 transactions");
    assert_eq!(count(&database).await, 2000);
}

#[tokio::test]
async fn a_refused_step_undoes_only_its_own_transaction() {
    let folder = tempfile::tempdir().unwrap();
    let database = marks(folder.path()).await;
    let update = sql!("UPDATE marks SET word = 'gone' WHERE id = ?", 99);
    let (first, second, third) = tokio::join!(
        database.write(vec![insert(1).touching(1)]),
        database.write(vec![insert(2).touching(1), update.touching(1), insert(3).anything()]),
        database.write(vec![insert(4).touching(1), sql!("SELECT id FROM marks ORDER BY id").returning(2)]),
    );
    assert_eq!(refused_at(first), None);
    assert_eq!(refused_at(second), Some(1));
    let Written::Done(results) = third.unwrap() else { panic!("refused") };
    let seen: Vec<i64> = results[1].rows.iter().map(|row| row.int(0)).collect();
    assert_eq!(seen, [1, 4], "a later transaction of a group sees the earlier ones");
    assert_eq!(results[1].touched, 0, "a query touches nothing");
    assert_eq!(count(&database).await, 2);
}

#[tokio::test]
async fn a_broken_unique_key_refuses_and_another_constraint_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let database = marks(folder.path()).await;
    assert_eq!(refused_at(database.write(vec![insert(1).touching(1)]).await), None);
    assert_eq!(refused_at(database.write(vec![insert(2).anything(), insert(1).anything()]).await), Some(1));
    let null = sql!("INSERT INTO marks (id, word) VALUES (?, ?)", 5, None::<String>);
    let (broken, fine) =
        tokio::join!(database.write(vec![null.anything()]), database.write(vec![insert(6).touching(1)]));
    assert!(matches!(broken, Err(SqlError::Broken(_))), "{broken:?}");
    assert_eq!(refused_at(fine), None);
    assert!(matches!(database.write(vec![sql!("NONSENSE").anything()]).await, Err(SqlError::Broken(_))));
    assert!(database.read(sql!("DELETE FROM marks")).await.is_err(), "a read cannot write");
    assert_eq!(count(&database).await, 2);
}

#[tokio::test]
async fn values_come_back_as_they_went_in() {
    let folder = tempfile::tempdir().unwrap();
    let database = marks(folder.path()).await;
    let body = vec![0u8, 255, 0, 128];
    let row = sql!("INSERT INTO marks (id, word, body) VALUES (?, ?, ?)", i64::MIN, "钟楼 %_'", body.clone());
    assert_eq!(refused_at(database.write(vec![row.touching(1)]).await), None);
    let rows = database.read(sql!("SELECT id, word, body, NULL, 0.5 FROM marks")).await.unwrap();
    assert_eq!((rows[0].int(0), rows[0].text(1), rows[0].blob(2)), (i64::MIN, "钟楼 %_'", &body[..]));
    assert_eq!(rows[0].opt_int(3), None);
}

#[tokio::test]
async fn two_handles_write_one_file_and_the_last_one_leaves_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = tokio::join!(marks(folder.path()), marks(folder.path()));
    for id in 0..50 {
        let (a, b) =
            tokio::join!(one.write(vec![insert(2 * id).touching(1)]), two.write(vec![insert(2 * id + 1).touching(1)]));
        assert_eq!((refused_at(a), refused_at(b)), (None, None));
    }
    assert_eq!((count(&one).await, count(&two).await), (100, 100));
    drop((one, two));
    assert!(!folder.path().join("test.db-wal").exists(), "a clean stop leaves one file");
    assert_eq!(count(&marks(folder.path()).await).await, 100);
}

#[tokio::test]
async fn what_was_queued_is_written_before_the_close() {
    let folder = tempfile::tempdir().unwrap();
    let database = marks(folder.path()).await;
    for id in 0..20 {
        let mut write = Box::pin(database.write(vec![insert(id).touching(1)]));
        assert!(futures_util::poll!(write.as_mut()).is_pending());
    }
    drop(database);
    assert_eq!(count(&marks(folder.path()).await).await, 20);
}

#[tokio::test]
async fn migrations_run_once_and_an_unknown_one_is_refused() {
    const NEWER: &[Migration] = &[
        TABLE[0],
        Migration { name: "0002-more", statements: &["ALTER TABLE marks ADD COLUMN more BIGINT", "DROP TABLE absent"] },
    ];
    const REPAIRED: &[Migration] =
        &[TABLE[0], Migration { name: "0002-more", statements: &["ALTER TABLE marks ADD COLUMN more BIGINT"] }];
    let folder = tempfile::tempdir().unwrap();
    let database = marks(folder.path()).await;
    database.migrate("test", TABLE).await.unwrap();
    let error = database.migrate("test", NEWER).await.unwrap_err().to_string();
    assert!(error.contains("test/0002-more"), "{error}");
    database.migrate("test", REPAIRED).await.expect("the half that ran was undone");
    let error = database.migrate("test", TABLE).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("newer Belfry"), "{error}");
    database.migrate("other", &[]).await.unwrap();
}

#[test]
fn a_file_that_cannot_be_opened_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "not a database, but long enough to be taken for one ".repeat(100)).unwrap();
    let error = Sqlite::open(&text, SqliteOptions::default()).err().unwrap();
    assert!(error.to_string().contains("notes.txt") && !error.is_transient(), "{error}");
    let error = Sqlite::open(folder.path().join("no/such/folder.db"), SqliteOptions::default()).err().unwrap();
    assert!(error.to_string().contains("folder.db"), "{error}");
}

/// A file system of 2 MiB, gone when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "tmpfs"]).arg(folder.path()).output();
        mount.is_ok_and(|done| done.status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(self.0.path()).status().ok();
    }
}

/// Needs root, to mount; says so and passes otherwise.
#[tokio::test]
async fn a_full_disk_refuses_clearly_and_heals_when_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        eprintln!("skipped: no tmpfs can be mounted here");
        return;
    };
    let folder = disk.0.path();
    let database = marks(folder).await;
    let ballast = folder.join("ballast");
    std::fs::write(&ballast, vec![0; 1024 * 1024]).unwrap();
    let mut written = 0;
    let full = loop {
        let row = sql!("INSERT INTO marks (id, word, body) VALUES (?, 'x', ?)", written, vec![7; 16 * 1024]);
        match database.write(vec![row.touching(1)]).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 1000, "2 MiB never filled");
    };
    assert!(matches!(full, SqlError::Full(_)) && full.is_transient() && !full.outcome_unknown(), "{full:?}");
    assert_eq!(count(&database).await, written, "nothing of the refused write is there");
    std::fs::remove_file(&ballast).unwrap();
    assert_eq!(refused_at(database.write(vec![insert(written).touching(1)]).await), None);
    drop(database);
    let database = marks(folder).await;
    assert_eq!(count(&database).await, written + 1);
    let sound = database.read(sql!("PRAGMA integrity_check")).await.unwrap();
    assert_eq!(sound[0].text(0), "ok");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_nobody_waits_for_any_more_gives_its_reader_back() {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions { readers: 1, ..SqliteOptions::default() };
    let database = Sqlite::open(folder.path().join("test.db"), options).unwrap();
    let endless = sql!("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n");
    let given_up = tokio::time::timeout(Duration::from_millis(300), database.read(endless)).await;
    assert!(given_up.is_err(), "it ends by itself");
    let next = tokio::time::timeout(Duration::from_secs(30), database.read(sql!("SELECT 1"))).await;
    if next.is_err() {
        // Dropped, it would wait for its reader for ever.
        std::mem::forget(database);
        panic!("the only reader is still at it");
    }
    assert_eq!(next.unwrap().unwrap()[0].int(0), 1);
}
