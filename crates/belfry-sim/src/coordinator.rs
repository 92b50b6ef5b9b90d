//! The coordinator of a simulation: one keyspace, and from each server a way to it on which requests and answers are delayed, lost,
//! or late by many seconds, and reads are old. What is committed is looked at from outside.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use belfry_coord::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Memory, Write};
use belfry_core::Version;
use bytes::Bytes;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::faults::HEALED_AT;
use crate::world::{World, spawn};

/// How old a read may be at most; older values are forgotten.
pub const LAG_MAX: Duration = Duration::from_secs(10);
/// As the backends: silence for so long is an unknown outcome.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);

/// Commits.
const FORGET_EVERY: u64 = 128;

/// The one truth.
pub struct Keyspace {
    world: Arc<World>,
    memory: Memory,
    past: Mutex<BTreeMap<String, Vec<Value>>>,
}

struct Value {
    at: Duration,
    version: Version,
    /// None: deleted.
    bytes: Option<Bytes>,
}

/// The way from one server.
#[derive(Default)]
pub struct Way {
    state: Mutex<Condition>,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Condition {
    pub cut: bool,
    /// Refused at once instead of silence, while it is cut.
    pub refuses: bool,
    pub lag: Duration,
    /// Of commits, in percent, each.
    pub lose_answers: u64,
    pub delay_commits: u64,
    pub slow: Duration,
}

impl Way {
    pub fn set(&self, change: impl FnOnce(&mut Condition)) {
        change(&mut self.lock());
    }

    pub fn get(&self) -> Condition {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Condition> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keyspace {
    pub fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, memory: Memory::default(), past: Mutex::default() })
    }

    fn apply(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        let done = self.memory.commit(guards, writes.clone()).now_or_never().expect("memory answers at once")?;
        if let Commit::Applied(version) = done {
            let at = self.world.elapsed();
            let mut past = self.past();
            for write in writes {
                let (key, bytes) = match write {
                    Write::Put(key, bytes) => (key, Some(bytes)),
                    Write::Delete(key) => (key, None),
                };
                let values = past.entry(key.clone()).or_default();
                let before = values.last().and_then(|value| Some((value.at, value.bytes.clone()?)));
                self.world.witness().written(&self.world, &key, before, bytes.as_ref());
                let forgotten = values.iter().rposition(|value| value.at + LAG_MAX < at).unwrap_or(0);
                values.drain(..forgotten);
                values.push(Value { at, version, bytes });
            }
            if version.0.is_multiple_of(FORGET_EVERY) {
                let is_long_gone = |last: &Value| last.bytes.is_none() && last.at + LAG_MAX < at;
                past.retain(|_, values| !values.last().is_some_and(is_long_gone));
            }
        }
        Ok(done)
    }

    /// As it was so long ago.
    fn read(&self, lag: Duration, of: impl Fn(&str) -> bool, from: &str) -> Vec<Entry> {
        let until = self.world.elapsed().saturating_sub(lag);
        let past = self.past();
        let keys = past.range(from.to_owned()..).take_while(|(key, _)| of(key));
        keys.filter_map(|(key, values)| {
            let value = values.iter().rev().find(|value| value.at <= until)?;
            Some(Entry { key: key.clone(), value: value.bytes.clone()?, version: value.version })
        })
        .collect()
    }

    fn past(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Value>>> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a server holds.
pub struct RemoteCoordinator {
    pub world: Arc<World>,
    pub keyspace: Arc<Keyspace>,
    pub way: Arc<Way>,
    pub server: String,
}

impl RemoteCoordinator {
    fn travel(&self) -> Duration {
        self.world.dice().ms(0, 2) + self.way.get().slow / 2
    }

    async fn reach(&self) -> Result<Duration, CoordError> {
        tokio::time::sleep(self.travel()).await;
        self.still_there().await?;
        let lag = self.way.get().lag;
        Ok(if lag.is_zero() { lag } else { self.world.dice().ms(0, lag.as_millis() as u64) })
    }

    async fn still_there(&self) -> Result<(), CoordError> {
        let condition = self.way.get();
        if condition.cut {
            if !condition.refuses {
                tokio::time::sleep(ANSWER_WITHIN).await;
            }
            return Err(CoordError::Away("cut off".into()));
        }
        Ok(())
    }
}

#[async_trait]
impl Coordinator for RemoteCoordinator {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        let lag = self.reach().await?;
        let found = self.keyspace.read(lag, |found| found == key, key).pop();
        tokio::time::sleep(self.travel()).await;
        self.still_there().await?;
        Ok(found)
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        let lag = self.reach().await?;
        let found = self.keyspace.read(lag, |key| key.starts_with(prefix), prefix);
        tokio::time::sleep(self.travel()).await;
        self.still_there().await?;
        Ok(found)
    }

    /// Once sent it is on its way, whatever becomes of the sender.
    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        let condition = self.way.get();
        if condition.cut && condition.refuses {
            return Err(CoordError::Away("refused".into()));
        }
        let (there, back) = (self.travel(), self.travel());
        let (answer_lost, late) = {
            let mut dice = self.world.dice();
            let late = if dice.chance(condition.delay_commits) { dice.ms(100, 20_000) } else { Duration::ZERO };
            // A late heartbeat of the dead brings them back to life for a TTL: that is no fault any more when all is healed.
            let late = late.min(HEALED_AT.saturating_sub(self.world.elapsed()));
            (dice.chance(condition.lose_answers), late)
        };
        let (answer, answered) = oneshot::channel();
        let (world, keyspace, way, server) =
            (self.world.clone(), self.keyspace.clone(), self.way.clone(), self.server.clone());
        spawn(async move {
            tokio::time::sleep(there).await;
            if late > Duration::ZERO {
                spawn(silence(answer));
                tokio::time::sleep(late).await;
                let done = keyspace.apply(guards, writes);
                world.trace(format_args!("{server} late commit {done:?}"));
                return;
            }
            if way.get().cut {
                return silence(answer).await;
            }
            let key = writes.first().map_or(String::new(), |write| write.key().to_owned());
            let done = keyspace.apply(guards, writes);
            world.trace(format_args!("{server} commit {key} {done:?}"));
            tokio::time::sleep(back).await;
            if answer_lost || way.get().cut {
                return silence(answer).await;
            }
            let _ = answer.send(done);
        });
        answered.await.unwrap_or(Err(CoordError::Unknown))
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        self.keyspace.memory.watch(prefix).await
    }
}

/// The sender hears nothing until it gives up.
async fn silence<T>(answer: oneshot::Sender<T>) {
    tokio::time::sleep(ANSWER_WITHIN).await;
    drop(answer);
}
