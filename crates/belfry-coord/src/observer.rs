//! The observer's side of liveness: which heartbeats stood still for a full TTL on **this** machine's clock, and at which
//! version. Compares no clocks of two machines, and kills nobody: that takes a commit guarded by the version named here.

use std::collections::HashMap;
use std::time::Duration;

use belfry_core::Version;

use crate::{Commit, CoordError, Coordinator, Entry, Guard, Heartbeat, Life, Write};

/// What this observer knows of one party.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Nothing was listed yet.
    NotLooked,
    /// Not in the last list.
    Absent,
    Alive,
    /// Unchanged for a full TTL. Whoever acts on it guards this version.
    StoodStill(Version),
    /// Stopped by itself, or marked lost. Guarded in the same way.
    Ended(Version),
}

/// Feed it with lists; ask it with the time.
///
/// A stale list cannot kill a living party: the first sight of a version is dated when it was **seen**, and the takeover is
/// guarded by that version, so if the party beat since, whether it was seen or not, the commit is refused.
/// `a_takeover_guarded_by_an_old_heartbeat_is_refused` fails without that guard.
pub struct Observer {
    ttl: Duration,
    looked: bool,
    seen: HashMap<String, Sight>,
}

struct Sight {
    version: Version,
    since: Duration,
    ended: bool,
}

impl Observer {
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, looked: false, seen: HashMap::new() }
    }

    /// A complete list of the heartbeats, and the boottime **after** it was answered.
    pub fn observe(&mut self, entries: &[Entry], boottime: Duration) {
        self.looked = true;
        let mut before = std::mem::take(&mut self.seen);
        for entry in entries {
            let sight = match before.remove(&entry.key) {
                // An older version than the one known is a stale read: the party has not begun to be silent anew.
                Some(sight) if sight.version >= entry.version => sight,
                Some(_) | None => {
                    // A heartbeat that cannot be read is treated as a silent one: after a TTL it may be replaced.
                    let ended = Heartbeat::decode(entry).is_ok_and(|heartbeat| heartbeat.life != Life::Beating);
                    Sight { version: entry.version, since: boottime, ended }
                }
            };
            self.seen.insert(entry.key.clone(), sight);
        }
    }

    pub fn liveness(&self, key: &str, boottime: Duration) -> Liveness {
        match self.seen.get(key) {
            None if self.looked => Liveness::Absent,
            None => Liveness::NotLooked,
            Some(sight) if sight.ended => Liveness::Ended(sight.version),
            Some(sight) if boottime.saturating_sub(sight.since) >= self.ttl => Liveness::StoodStill(sight.version),
            Some(_) => Liveness::Alive,
        }
    }

    /// Every party that stood still and is not marked yet, with the version to guard.
    pub fn stood_still(&self, boottime: Duration) -> Vec<(String, Version)> {
        let mut silent: Vec<_> = self
            .seen
            .keys()
            .filter_map(|key| match self.liveness(key, boottime) {
                Liveness::StoodStill(version) => Some((key.clone(), version)),
                Liveness::NotLooked | Liveness::Absent | Liveness::Alive | Liveness::Ended(_) => None,
            })
            .collect();
        silent.sort();
        silent
    }
}

/// Marks a party lost, if its heartbeat is still at the version that stood still. Its next beat is then refused. After an
/// unknown outcome simply look again: marking twice is guarded by the version, so it happens once.
pub async fn mark_lost(coordinator: &dyn Coordinator, key: &str, at: Version) -> Result<Commit, CoordError> {
    let conflict = Commit::Conflict { key: key.to_owned() };
    let Some(entry) = coordinator.get(key).await? else { return Ok(conflict) };
    if entry.version != at {
        return Ok(conflict);
    }
    let lost = match Heartbeat::decode(&entry) {
        Ok(heartbeat) => Heartbeat { life: Life::Lost, ..heartbeat },
        Err(_) => Heartbeat { beat: 0, life: Life::Lost, info: serde_json::Value::Null },
    };
    let put = Write::Put(key.to_owned(), lost.encode()?);
    coordinator.commit(vec![Guard::At(key.to_owned(), at)], vec![put]).await
}
