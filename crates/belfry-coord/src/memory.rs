//! A coordinator inside one process: for tests, simulation, and as the plainest statement of the trait's meaning.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use belfry_core::Version;
use bytes::Bytes;

use crate::coordinator::check_commit;
use crate::hints::Listeners;
use crate::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Write};

/// Clones share the keys, as servers share a coordinator.
#[derive(Clone, Default)]
pub struct Memory {
    keyspace: Arc<Mutex<Keyspace>>,
    listeners: Listeners,
    sole_user: bool,
    room_bytes: Option<u64>,
}

#[derive(Default)]
struct Keyspace {
    version: Version,
    entries: BTreeMap<String, (Bytes, Version)>,
}

impl Memory {
    /// As if a lock of the operating system proved that nobody else is there.
    pub fn sole() -> Self {
        Self { sole_user: true, ..Self::default() }
    }

    /// Tells of a bound, which it does not keep.
    pub fn with_room(bytes: u64) -> Self {
        Self { room_bytes: Some(bytes), ..Self::default() }
    }

    fn keyspace(&self) -> MutexGuard<'_, Keyspace> {
        self.keyspace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keyspace {
    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Absent(key) => !self.entries.contains_key(key),
            Guard::At(key, version) => self.entries.get(key).is_some_and(|(_, at)| at == version),
        }
    }

    fn apply(&mut self, writes: Vec<Write>) -> Version {
        self.version.0 += 1;
        for write in writes {
            match write {
                Write::Put(key, value) => drop(self.entries.insert(key, (value, self.version))),
                Write::Delete(key) => drop(self.entries.remove(&key)),
            }
        }
        self.version
    }
}

#[async_trait]
impl Coordinator for Memory {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        let keyspace = self.keyspace();
        let found = keyspace.entries.get(key);
        Ok(found.map(|(value, version)| Entry { key: key.into(), value: value.clone(), version: *version }))
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        let keyspace = self.keyspace();
        let from_prefix = keyspace.entries.range(prefix.to_owned()..);
        Ok(from_prefix
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, (value, version))| Entry { key: key.clone(), value: value.clone(), version: *version })
            .collect())
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        check_commit(&guards, &writes)?;
        let mut keyspace = self.keyspace();
        if let Some(broken) = guards.iter().find(|guard| !keyspace.holds(guard)) {
            return Ok(Commit::Conflict { key: broken.key().to_owned() });
        }
        self.listeners.tell(&writes);
        Ok(Commit::Applied(keyspace.apply(writes)))
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        Ok(self.listeners.hints(prefix))
    }

    async fn room_bytes(&self) -> Result<Option<u64>, CoordError> {
        Ok(self.room_bytes)
    }

    fn sole_user(&self) -> bool {
        self.sole_user
    }
}
