//! The store's conformance suite on a real PostgreSQL, a new database for each case.

use std::sync::{Arc, Mutex, Weak};

use belfry_core::run::RunState;
use belfry_sql::{Database, Postgres, sql};
use belfry_store::Store;
use belfry_store::conformance::sample;
use belfry_testkit::{servers, until};

/// Shared by the cases that run at the same time, and gone with the last of them.
static SERVER: Mutex<Weak<servers::Postgres>> = Mutex::new(Weak::new());

async fn open() -> (Store, Arc<servers::Postgres>) {
    let (database, server) = database().await;
    (Store::open(database).await.unwrap(), server)
}

async fn database() -> (Arc<Postgres>, Arc<servers::Postgres>) {
    let server = tokio::task::spawn_blocking(|| {
        let mut shared = SERVER.lock().unwrap();
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(servers::Postgres::start());
            *shared = Arc::downgrade(&server);
            server
        })
    });
    let server = server.await.unwrap();
    (Arc::new(Postgres::connect(&server.fresh_database()).await.unwrap()), server)
}

belfry_store::store_conformance!(open);

/// A plan that was made while the table was empty is kept until the table is analyzed, which for a herd is too late.
#[tokio::test]
async fn records_are_found_by_their_ids_from_the_first_one_on() {
    const BATCHES: i64 = 30;
    const BATCH: i64 = 200;
    let (database, _server) = database().await;
    let store = Store::open(database.clone()).await.unwrap();
    for batch in 0..BATCHES {
        let run = |n| sample::run(sample::job_id(1), batch * BATCH + n, RunState::Succeeded);
        store.record_runs(&(0..BATCH).map(run).collect::<Vec<_>>()).await.unwrap();
    }
    let count = async |what: &str| {
        let text = format!("SELECT CAST({what} AS BIGINT) FROM pg_stat_user_tables WHERE relname = 'runs'");
        database.read(sql!(text)).await.unwrap()[0].int(0)
    };
    until("the server has counted them", async || (count("n_tup_ins").await == BATCHES * BATCH).then_some(())).await;
    let in_indexes = "(SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = 'runs')";
    let read = count(&format!("seq_tup_read + {in_indexes}")).await;
    assert!(read <= 3 * BATCHES * BATCH, "{read} rows were read to record {} runs", BATCHES * BATCH);
}
