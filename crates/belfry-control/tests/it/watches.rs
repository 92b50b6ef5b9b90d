//! A coordinator that opens no watch at first.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use belfry_coord::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Memory, Write, keys};
use belfry_testkit::until;

use crate::support::Cluster;

#[derive(Default)]
struct SlowToOpen {
    inner: Memory,
    refused: Mutex<BTreeSet<String>>,
    open: Mutex<BTreeSet<String>>,
}

#[async_trait]
impl Coordinator for SlowToOpen {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.inner.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        self.inner.list(prefix).await
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        self.inner.commit(guards, writes).await
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        if self.refused.lock().unwrap().insert(prefix.to_owned()) {
            return Err(CoordError::Away("it opens no watch yet".into()));
        }
        self.open.lock().unwrap().insert(prefix.to_owned());
        self.inner.watch(prefix).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_whose_opening_failed_is_opened_again() {
    let coordinator = Arc::new(SlowToOpen::default());
    let cluster = Cluster { coordinator: coordinator.clone(), ..Cluster::new().await };
    let server = cluster.server("a").await;
    for watched in [keys::CHANGED, keys::HOMES, keys::VACATED, keys::WRAPPED] {
        until(watched, async || coordinator.open.lock().unwrap().contains(watched).then_some(())).await;
    }
    server.stop().await;
}
