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
///
/// Silence counts only while it could be heard: when the coordinator was away, its return must not find everybody silent, so that the
/// quickest to look gives up all the others. `what_could_not_be_heard_is_no_silence` fails without that.
pub struct Observer {
    ttl: Duration,
    /// When the last list was answered.
    looked: Option<Duration>,
    seen: HashMap<String, Sight>,
}

struct Sight {
    version: Version,
    /// At the last look.
    silent_for: Duration,
    ended: bool,
}

impl Observer {
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, looked: None, seen: HashMap::new() }
    }

    /// How long silence has to last.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// A complete list of the heartbeats, and the boottime **after** it was answered.
    pub fn observe(&mut self, entries: &[Entry], boottime: Duration) {
        // Looks come every TTL/4. A longer time between two counts for a part only: never more than has passed, so that nobody is
        // held dead too early; and always something, so that slow looks find the dead too.
        let heard = self.looked.map_or(Duration::ZERO, |last| boottime.saturating_sub(last).min(self.ttl * 3 / 8));
        self.looked = Some(boottime);
        let mut before = std::mem::take(&mut self.seen);
        for entry in entries {
            let sight = match before.remove(&entry.key) {
                // An older version than the one known is a stale read: the party has not begun to be silent anew.
                Some(sight) if sight.version >= entry.version => {
                    Sight { silent_for: sight.silent_for + heard, ..sight }
                }
                Some(_) | None => {
                    // A heartbeat that cannot be read is treated as a silent one: after a TTL it may be replaced.
                    let ended = Heartbeat::decode(entry).is_ok_and(|heartbeat| heartbeat.life != Life::Beating);
                    Sight { version: entry.version, silent_for: Duration::ZERO, ended }
                }
            };
            self.seen.insert(entry.key.clone(), sight);
        }
    }

    pub fn liveness(&self, key: &str, boottime: Duration) -> Liveness {
        match self.seen.get(key) {
            None if self.looked.is_some() => Liveness::Absent,
            None => Liveness::NotLooked,
            Some(sight) if sight.ended => Liveness::Ended(sight.version),
            Some(sight) if self.silence(sight, boottime) >= self.ttl => Liveness::StoodStill(sight.version),
            Some(_) => Liveness::Alive,
        }
    }

    fn silence(&self, sight: &Sight, boottime: Duration) -> Duration {
        sight.silent_for + self.since_the_last_look(boottime)
    }

    fn since_the_last_look(&self, boottime: Duration) -> Duration {
        self.looked.map_or(Duration::ZERO, |last| boottime.saturating_sub(last))
    }

    /// Every party that stood still and is not marked yet, with the version to guard.
    pub fn stood_still(&self, boottime: Duration) -> Vec<(String, Version)> {
        self.matching(|sight| !sight.ended && self.silence(sight, boottime) >= self.ttl)
    }

    /// Also those that have ended, or were marked, so long ago.
    pub fn gone(&self, boottime: Duration, after_end: Duration) -> Vec<(String, Version)> {
        let span = |sight: &Sight| if sight.ended { after_end } else { self.ttl };
        self.matching(|sight| self.silence(sight, boottime) >= span(sight))
    }

    fn matching(&self, is_meant: impl Fn(&Sight) -> bool) -> Vec<(String, Version)> {
        let meant = self.seen.iter().filter(|(_, sight)| is_meant(sight));
        let mut meant: Vec<_> = meant.map(|(key, sight)| (key.clone(), sight.version)).collect();
        meant.sort();
        meant
    }
}

/// Marks a party lost, if its heartbeat is still at the version that stood still. Its next beat is then refused. After an
/// unknown outcome simply look again: marking twice is guarded by the version, so it happens once.
pub async fn mark_lost(coordinator: &dyn Coordinator, key: &str, at: Version) -> Result<Commit, CoordError> {
    let conflict = Commit::Conflict { key: key.to_owned() };
    let Some(entry) = coordinator.get(key).await? else { return Ok(conflict) };
    let unguarded = belfry_core::planted::is("takeover_unguarded");
    if entry.version != at && !unguarded {
        return Ok(conflict);
    }
    let lost = match Heartbeat::decode(&entry) {
        Ok(heartbeat) => Heartbeat { life: Life::Lost, ..heartbeat },
        Err(_) => Heartbeat { beat: 0, life: Life::Lost, info: serde_json::Value::Null },
    };
    let put = Write::Put(key.to_owned(), lost.encode()?);
    let guards = if unguarded { vec![] } else { vec![Guard::At(key.to_owned(), at)] };
    coordinator.commit(guards, vec![put]).await
}
