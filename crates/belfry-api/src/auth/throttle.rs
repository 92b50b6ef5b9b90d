//! Slows down guessing: after a few wrong passwords for a user from an address, and after many from one address, it has to wait.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};

use belfry_core::Timestamp;
use belfry_core::job::NAME_BYTES_MAX;

const FREE_TRIES_PER_USER: u32 = 5;
const FREE_TRIES_PER_ADDRESS: u32 = 50;
const WAIT_FIRST_MS: i64 = 2_000;
const WAIT_MAX_MS: i64 = 15 * 60_000;
/// Failures are forgotten after so long without another.
const FORGET_AFTER_MS: i64 = 30 * 60_000;
const REMEMBERED_MAX: usize = 10_000;

type Key = (Option<String>, Option<IpAddr>);

#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    last: Timestamp,
}

impl Failures {
    fn wait_ms(self, free: u32) -> i64 {
        match self.count.checked_sub(free) {
            None => 0,
            Some(over) => WAIT_FIRST_MS.saturating_mul(1 << over.min(16)).min(WAIT_MAX_MS),
        }
    }
}

#[derive(Default)]
pub struct LoginThrottle {
    failures: Mutex<HashMap<Key, Failures>>,
}

impl LoginThrottle {
    /// The seconds to wait before another try is looked at, or nothing. A try that may go on is counted as failed until
    /// [`LoginThrottle::succeeded`] says otherwise: tries made at the same time are counted too.
    pub fn try_again_in(&self, user: &str, address: Option<IpAddr>, now: Timestamp) -> Option<u64> {
        let (user, address) = (remembered(user), address.map(whose));
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let keys: [(Key, u32); 2] =
            [((Some(user), address), FREE_TRIES_PER_USER), ((None, address), FREE_TRIES_PER_ADDRESS)];
        let left_ms = keys.iter().filter_map(|(key, free)| {
            let known = failures.get(key)?;
            Some(known.wait_ms(*free) - (now.as_millisecond() - known.last.as_millisecond()))
        });
        let left_ms = left_ms.max().unwrap_or(0);
        if left_ms > 0 {
            return Some((left_ms as u64).div_ceil(1000));
        }
        for (key, _) in keys {
            let known = failures.entry(key).or_insert(Failures { count: 0, last: now });
            if now.as_millisecond() - known.last.as_millisecond() > FORGET_AFTER_MS {
                known.count = 0;
            }
            known.count += 1;
            known.last = now;
        }
        if failures.len() > REMEMBERED_MAX {
            forget_oldest(&mut failures);
        }
        None
    }

    pub fn succeeded(&self, user: &str, address: Option<IpAddr>) {
        let (user, address) = (remembered(user), address.map(whose));
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(&(Some(user), address));
        // The address keeps its count, less this one: signing in as oneself must not make guessing others free.
        if let Some(known) = failures.get_mut(&(None, address)) {
            known.count = known.count.saturating_sub(1);
        }
    }
}

/// No user has a longer name: whatever is sent, little is kept of it.
fn remembered(user: &str) -> String {
    user.chars().take(NAME_BYTES_MAX).collect()
}

/// Who has one address of IPv6 has the 2^64 of its network.
fn whose(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// The older half goes at once, so that a flood of names costs little per name.
fn forget_oldest(failures: &mut HashMap<Key, Failures>) {
    let mut times: Vec<Timestamp> = failures.values().map(|known| known.last).collect();
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    let median = *median;
    failures.retain(|_, known| known.last > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000 + ms).unwrap()
    }
    const HERE: Option<IpAddr> = Some(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));

    #[test]
    fn guessing_gets_slower_and_a_success_clears_it() {
        let throttle = LoginThrottle::default();
        for n in 0..5 {
            assert_eq!(throttle.try_again_in("ada", HERE, at(n)), None, "try {n}");
        }
        assert_eq!(throttle.try_again_in("ada", HERE, at(5)), Some(2));
        assert_eq!(throttle.try_again_in("bob", HERE, at(5)), None, "another user is free");
        assert_eq!(throttle.try_again_in("ada", HERE, at(2_500)), None, "after the wait");
        assert_eq!(throttle.try_again_in("ada", HERE, at(2_600)), Some(4), "twice as long");
        throttle.succeeded("ada", HERE);
        assert_eq!(throttle.try_again_in("ada", HERE, at(2_700)), None);
    }

    #[test]
    fn one_address_cannot_guess_for_many_users() {
        let throttle = LoginThrottle::default();
        for n in 0..50 {
            assert_eq!(throttle.try_again_in(&format!("user{n}"), HERE, at(0)), None);
        }
        assert!(throttle.try_again_in("another", HERE, at(1)).is_some());
        assert_eq!(throttle.try_again_in("another", None, at(1)), None);
    }

    #[test]
    fn the_addresses_of_one_network_are_one_address() {
        let throttle = LoginThrottle::default();
        let try_from = |address: String, ms| throttle.try_again_in("ada", Some(address.parse().unwrap()), at(ms));
        for n in 0..5 {
            assert_eq!(try_from(format!("2001:db8::{n}"), 0), None, "try {n}");
        }
        assert!(try_from("2001:db8::ffff".to_owned(), 1).is_some());
        assert_eq!(try_from("2001:db8:0:1::1".to_owned(), 1), None, "another network");
    }

    #[test]
    fn little_is_kept_of_a_long_name() {
        let throttle = LoginThrottle::default();
        throttle.try_again_in(&"a".repeat(1 << 20), HERE, at(0));
        let kept = throttle
            .failures
            .lock()
            .unwrap()
            .keys()
            .filter_map(|(user, _)| user.clone())
            .map(|user| user.len())
            .sum::<usize>();
        assert_eq!(kept, NAME_BYTES_MAX);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let throttle = LoginThrottle::default();
        for n in 0..30_000u32 {
            let address = IpAddr::V4(std::net::Ipv4Addr::from(n));
            throttle.try_again_in("ada", Some(address), at(i64::from(n)));
        }
        assert!(throttle.failures.lock().unwrap().len() <= REMEMBERED_MAX + 2);
    }
}
