//! The conformance suite against every backend that needs no server, printed as backend × case.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use belfry_coord::conformance::conformance;
use belfry_coord::{Coordinator, Memory, SqlCoordinator, Users};
use belfry_sql::{Sqlite, SqliteOptions};

/// A new file in this folder for each case.
async fn sqlite(folder: &Path, users: Users) -> Arc<dyn Coordinator> {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let file = format!("coord-{}.db", FILES.fetch_add(1, Ordering::Relaxed));
    let database = Sqlite::open(folder.join(file), SqliteOptions::default()).unwrap();
    Arc::new(SqlCoordinator::open(Arc::new(database), users).await.unwrap())
}

fn all_held(backend: &str, reports: &[belfry_coord::conformance::CaseReport]) {
    for report in reports {
        println!("{backend:<14} {report}");
    }
    let failed = reports.iter().filter(|report| report.verdict.is_err()).count();
    assert_eq!(failed, 0, "{failed} of {} cases failed on {backend}", reports.len());
}

#[tokio::test]
async fn memory_conforms() {
    let reports = conformance(|| async { Arc::new(Memory::default()) as Arc<dyn Coordinator> }).await;
    all_held("memory", &reports);
}

#[tokio::test]
async fn sqlite_conforms() {
    let folder = tempfile::tempdir().unwrap();
    all_held("sqlite", &conformance(|| sqlite(folder.path(), Users::Many)).await);
}

#[tokio::test]
async fn sqlite_with_one_user_conforms() {
    let folder = tempfile::tempdir().unwrap();
    all_held("sqlite (sole)", &conformance(|| sqlite(folder.path(), Users::SoleByLock)).await);
}

#[tokio::test]
async fn a_commit_of_another_process_gives_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let open = || async {
        let database = Sqlite::open(folder.path().join("coord.db"), SqliteOptions::default()).unwrap();
        SqlCoordinator::open(Arc::new(database), Users::Many).await.unwrap()
    };
    let (one, other) = tokio::join!(open(), open());
    let mut hints = one.watch("jobs/").await.unwrap();
    let put = belfry_coord::Write::Put("jobs/a".into(), "1".into());
    other.commit(vec![], vec![put]).await.unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(10), hints.changed()).await.expect("a hint");
}

#[test]
fn planted_bugs_are_caught() {
    belfry_testkit::planted::are_caught_in("belfry-coord/backends");
}
