//! What this incarnation has taken or refused and is done with. A key that comes again is known here, so nothing starts
//! twice. Bounded: an hour at least, unless there are more than a million, then the older half goes.

use std::collections::HashMap;
use std::time::Duration;

use crate::key::{Key, PackedKey};

/// Two generations; the older one is dropped as a whole.
#[derive(Default)]
pub(super) struct Past {
    young: HashMap<PackedKey, Known>,
    old: HashMap<PackedKey, Known>,
    young_since: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    Ended,
    Refused(Refusal),
}

/// Why an order was not taken, for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    OtherIncarnation,
    LowerTerm,
    Stopping,
    SpoolFull,
    DiskLow,
    Unwanted,
}

const GENERATION: Duration = Duration::from_secs(3600);
const KEYS_PER_GENERATION_MAX: usize = 500_000;

impl Refusal {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Refusal::OtherIncarnation => "the order is for another incarnation of this node",
            Refusal::LowerTerm => "the order comes from a server that does not own the shard any more",
            Refusal::Stopping => "the agent is stopping",
            Refusal::SpoolFull => {
                "its spool is full of results that no server has stored; see whether the store is up, or raise --spool-max of the agent"
            }
            Refusal::Unwanted => "it was recalled or killed before its order came",
            Refusal::DiskLow => {
                "it has less free disk than its floor; make room there, or lower --disk-floor of the agent"
            }
        }
    }
}

impl Past {
    pub(super) fn get(&self, key: Key) -> Option<Known> {
        let key = key.packed();
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    pub(super) fn remember(&mut self, key: Key, known: Known, now: Duration) {
        let since = *self.young_since.get_or_insert(now);
        if now.saturating_sub(since) >= GENERATION || self.young.len() >= KEYS_PER_GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
            self.young_since = Some(now);
        }
        self.young.insert(key.packed(), known);
    }
}

#[cfg(test)]
mod tests {
    use belfry_core::RunId;

    use super::*;

    fn key(run: u128) -> Key {
        Key { run: RunId::from_u128(run), attempt: 1 }
    }

    #[test]
    fn a_key_is_known_for_an_hour_and_not_for_ever() {
        let mut past = Past::default();
        let minute = |minute: u64| Duration::from_secs(60 * minute);
        past.remember(key(1), Known::Ended, minute(0));
        past.remember(key(2), Known::Refused(Refusal::LowerTerm), minute(59));
        past.remember(key(3), Known::Ended, minute(61));
        assert_eq!(past.get(key(1)), Some(Known::Ended));
        past.remember(key(4), Known::Ended, minute(119));
        assert_eq!(past.get(key(2)), Some(Known::Refused(Refusal::LowerTerm)));
        past.remember(key(5), Known::Ended, minute(122));
        assert_eq!(past.get(key(1)), None);
        assert_eq!(past.get(key(3)), Some(Known::Ended));
    }

    #[test]
    fn a_million_keys_are_enough() {
        let mut past = Past::default();
        for run in 0..1_200_000 {
            past.remember(key(run), Known::Ended, Duration::ZERO);
        }
        assert!(past.young.len() + past.old.len() <= 1_000_000);
        assert_eq!(past.get(key(1_199_999)), Some(Known::Ended));
        assert_eq!(past.get(key(700_000)), Some(Known::Ended));
    }
}
