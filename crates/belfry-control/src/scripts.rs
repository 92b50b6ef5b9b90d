//! Stored scripts as this server knows them, to be sent with orders: firing never waits for the store. A server without jobs that name
//! scripts reads none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use belfry_proto::session;
use belfry_store::{Script, Store};

use crate::context::Context;

/// The newest version of each, by namespace and name.
#[derive(Debug, Default)]
pub struct Scripts {
    known: RwLock<Known>,
    wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    /// The store's number of the last change that is seen here.
    change: Option<u64>,
    by_name: HashMap<(String, String), Arc<Script>>,
}

impl Scripts {
    pub fn are(&self, scripts: Vec<Script>, change: Option<u64>) {
        let place = |script: &Script| (script.namespace.clone(), script.name.clone());
        let by_name = scripts.into_iter().map(|script| (place(&script), Arc::new(script))).collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Known { change, by_name };
    }

    pub fn for_agent(&self, namespace: &str, name: &str) -> Option<session::Script> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let script = known.by_name.get(&(namespace.to_owned(), name.to_owned()))?;
        Some(session::Script { version: script.version, sha256: script.sha256.clone(), body: script.body.clone() })
    }

    pub fn all(&self) -> Vec<Script> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Script> = known.by_name.values().map(|script| (**script).clone()).collect();
        all.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        all
    }

    /// From now on they are followed.
    pub fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }

    /// A job of this server has named one.
    pub fn are_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    fn change(&self) -> Option<u64> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).change
    }
}

/// Whether a document may name one, without reading it.
pub fn is_named_in(document: &[u8]) -> bool {
    const FIELD: &[u8] = b"\"script\"";
    document.windows(FIELD.len()).any(|part| part == FIELD)
}

/// As the store has them now; nothing is read again that has not changed.
pub async fn bring(context: &Context, store: &Store) {
    let looked = async {
        let change = store.last_script_change().await?;
        if context.scripts.change() != Some(change) {
            let (scripts, change) = store.newest_scripts().await?;
            context.scripts.are(scripts, Some(change));
        }
        Ok::<(), belfry_store::StoreError>(())
    };
    if let Err(cause) = looked.await {
        context.store_health.away(context.now(), crate::chain(&cause));
    }
}
