//! Results of runs that neither the store nor the coordinator knows. One look proves nothing, since what the coordinator says may be old;
//! a second one, later by more than it can be old, does: the run was open before its agent had a result. It is made when the agent says
//! its result again, as it does until somebody has stored it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_core::RunId;

/// A member of ZooKeeper that is behind by its `syncLimit`, 10 s unless somebody has set more, is put out by the others.
const READ_AGE_MAX: Duration = Duration::from_secs(45);
/// An agent may say its results to other servers in turn, once a minute.
const KEPT_FOR: Duration = Duration::from_secs(3600);
const LOOKS_MAX: usize = 100_000;

/// A run and the number of one of its attempts.
type Key = (RunId, u32);

/// When each was looked for in vain first, by the clock that never steps.
#[derive(Debug, Default)]
pub struct Forgotten(Mutex<HashMap<Key, Duration>>);

impl Forgotten {
    /// It was looked for in vain again. True: nobody will ever know it.
    pub fn is_unknown_still(&self, key: Key, now: Duration) -> bool {
        let mut looks = self.lock();
        if looks.len() >= LOOKS_MAX {
            looks.retain(|_, first| now.saturating_sub(*first) < KEPT_FOR);
        }
        match looks.get(&key) {
            Some(first) if now.saturating_sub(*first) < READ_AGE_MAX => false,
            Some(_) => looks.remove(&key).is_some(),
            None => {
                // Without room its turn comes later.
                if looks.len() < LOOKS_MAX {
                    looks.insert(key, now);
                }
                false
            }
        }
    }

    pub fn is_known(&self, key: Key) {
        self.lock().remove(&key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Duration>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_forgotten_when_it_is_unknown_twice_with_more_in_between_than_a_read_is_old() {
        let forgotten = Forgotten::default();
        let at = |seconds: u64| Duration::from_secs(1000 + seconds);
        let key = (RunId::from_u128(1), 1);
        assert!(!forgotten.is_unknown_still(key, at(0)));
        assert!(!forgotten.is_unknown_still(key, at(10)));
        assert!(!forgotten.is_unknown_still((key.0, 2), at(60)), "another attempt");
        assert!(forgotten.is_unknown_still(key, at(60)));
        assert!(!forgotten.is_unknown_still(key, at(61)), "it was acknowledged, and begins anew");
    }

    #[test]
    fn what_was_found_in_between_begins_anew() {
        let forgotten = Forgotten::default();
        let key = (RunId::from_u128(1), 1);
        assert!(!forgotten.is_unknown_still(key, Duration::from_secs(1000)));
        forgotten.is_known(key);
        assert!(!forgotten.is_unknown_still(key, Duration::from_secs(1060)));
    }
}
