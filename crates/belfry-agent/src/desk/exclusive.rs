//! Exclusive work: what may start elsewhere when this node is held dead. It is ended here before that can be: asked to end when
//! trust has been over for a while, killed soon after, whatever grace the job has; and killed at once when the servers say that
//! it is too late.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use belfry_exec::LastMoments;

use super::{Desk, KillOrder};
use crate::clock::Moment;
use crate::key::Key;

pub(crate) const CUT_OFF: &str = "the node lost contact with the servers, and ended it before it could start elsewhere";
const HELD_DEAD: &str = "the servers held the node dead, and it ended what could start elsewhere";

/// From its start until the spool has its end.
#[derive(Default)]
pub(super) struct Exclusive {
    going: HashSet<Key>,
    /// Asked to end, with the moment at which it is killed; none: it was killed.
    ending: HashMap<Key, Option<Duration>>,
}

impl Exclusive {
    pub(super) fn started(&mut self, key: Key) {
        self.going.insert(key);
    }

    pub(super) fn ended(&mut self, key: Key) {
        self.going.remove(&key);
        self.ending.remove(&key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.going.is_empty() && self.ending.is_empty()
    }

    pub(super) fn next_wake(&self, last_moments: Option<LastMoments>) -> Option<Duration> {
        let ask = last_moments.filter(|_| !self.going.is_empty()).map(|moments| moments.ask);
        let kill = self.ending.values().copied().flatten().min();
        [ask, kill].into_iter().flatten().min()
    }
}

impl Desk {
    pub(super) fn end_exclusive_in_time(&mut self, now: Moment) {
        if belfry_core::planted::is("exclusive_work_goes_on") {
            return;
        }
        let over = self.beats.last_moments().filter(|moments| now.boot >= moments.ask);
        if let Some(moments) = over.filter(|_| !self.exclusive.going.is_empty()) {
            let grace = moments.kill.saturating_sub(now.boot);
            self.beats.trust().asks_to_end();
            for key in std::mem::take(&mut self.exclusive.going) {
                tracing::warn!(%key, "{CUT_OFF}");
                self.kill_exclusive(key, grace, CUT_OFF);
                self.exclusive.ending.insert(key, Some(moments.kill));
            }
        }
        // The grace above is counted by another clock, which may stand still while the machine sleeps.
        let due = |kill_at: &Option<Duration>| kill_at.is_some_and(|at| now.boot >= at);
        let late: Vec<Key> =
            self.exclusive.ending.iter().filter(|(_, kill_at)| due(kill_at)).map(|(key, _)| *key).collect();
        for key in late {
            self.kill_exclusive(key, Duration::ZERO, CUT_OFF);
            self.exclusive.ending.insert(key, None);
        }
    }

    pub(super) fn end_exclusive_at_once(&mut self) {
        if belfry_core::planted::is("exclusive_work_goes_on") {
            self.exclusive = Exclusive::default();
            return;
        }
        let ending: Vec<Key> = self.exclusive.ending.keys().copied().collect();
        for key in self.exclusive.going.drain().chain(ending).collect::<Vec<_>>() {
            self.kill_exclusive(key, Duration::ZERO, HELD_DEAD);
            self.exclusive.ending.insert(key, None);
        }
    }

    fn kill_exclusive(&self, key: Key, grace: Duration, reason: &str) {
        if let Some(live) = self.live.get(&key) {
            live.kill(KillOrder { grace: Some(grace), reason: reason.to_owned(), abandoned: true });
        }
    }
}
