//! The store's conformance suite on a real MariaDB, a new database for each case.

use std::sync::{Arc, Mutex, Weak};

use belfry_sql::MySql;
use belfry_store::Store;
use belfry_testkit::servers;

/// Shared by the cases that run at the same time, and gone with the last of them.
static SERVER: Mutex<Weak<servers::MariaDb>> = Mutex::new(Weak::new());

async fn open() -> (Store, Arc<servers::MariaDb>) {
    let server = tokio::task::spawn_blocking(|| {
        let mut shared = SERVER.lock().unwrap();
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(servers::MariaDb::start());
            *shared = Arc::downgrade(&server);
            server
        })
    });
    let server = server.await.unwrap();
    let database = MySql::connect(&server.fresh_database()).await.unwrap();
    (Store::open(Arc::new(database)).await.unwrap(), server)
}

belfry_store::store_conformance!(open);
