//! Runs that wait for their instant or for a slot, in the order of their instants.

use std::collections::BTreeMap;
use std::time::Duration;

use belfry_proto::session::Dispatch;

use crate::key::Key;

#[derive(Default)]
pub(super) struct Queue {
    by_due: BTreeMap<Place, Key>,
    by_give_up: BTreeMap<Place, Key>,
    arrivals: u64,
}

/// An instant on the boottime clock; what arrived first goes first.
type Place = (Duration, u64);

/// A run that was taken and has not started.
#[derive(Debug)]
pub(crate) struct Order {
    pub dispatch: Dispatch,
    pub due: Duration,
    give_up: Duration,
    arrival: u64,
}

impl Queue {
    /// `arrived` is the boottime at which the dispatch came.
    pub(super) fn add(&mut self, key: Key, dispatch: Dispatch, arrived: Duration) -> Order {
        self.arrivals += 1;
        let wait = Duration::from_millis(dispatch.start_in_ms.unsigned_abs());
        let due = if dispatch.start_in_ms < 0 { arrived.saturating_sub(wait) } else { arrived.saturating_add(wait) };
        // Late orders wait for a slot as long as others do: their lateness was weighed by whoever sent them.
        let give_up = due.max(arrived).saturating_add(Duration::from_millis(dispatch.start_within_ms));
        let order = Order { dispatch, due, give_up, arrival: self.arrivals };
        self.by_due.insert((order.due, order.arrival), key);
        self.by_give_up.insert((order.give_up, order.arrival), key);
        order
    }

    pub(super) fn remove(&mut self, order: &Order) {
        self.by_due.remove(&(order.due, order.arrival));
        self.by_give_up.remove(&(order.give_up, order.arrival));
    }

    pub(super) fn first_due(&self, now: Duration) -> Option<Key> {
        self.by_due.first_key_value().filter(|((due, _), _)| *due <= now).map(|(_, key)| *key)
    }

    pub(super) fn first_to_give_up(&self, now: Duration) -> Option<Key> {
        self.by_give_up.first_key_value().filter(|((give_up, _), _)| *give_up < now).map(|(_, key)| *key)
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.by_due.first_key_value().map(|((due, _), _)| *due)
    }

    /// Just after the instant at which the first one is given up.
    pub(super) fn next_give_up(&self) -> Option<Duration> {
        self.by_give_up.first_key_value().map(|((give_up, _), _)| *give_up + Duration::from_nanos(1))
    }
}

#[cfg(test)]
mod tests {
    use belfry_core::RunId;

    use super::*;

    fn key(run: u128) -> Key {
        Key { run: RunId::from_u128(run), attempt: 1 }
    }

    fn dispatch(start_in_ms: i64, start_within_ms: u64) -> Dispatch {
        Dispatch { start_in_ms, start_within_ms, ..Default::default() }
    }

    #[test]
    fn the_earliest_instant_is_first_and_arrival_decides_between_equals() {
        let mut queue = Queue::default();
        let now = Duration::from_secs(100);
        let later = queue.add(key(1), dispatch(500, 0), now);
        let first = queue.add(key(2), dispatch(-500, 0), now);
        let second = queue.add(key(3), dispatch(-500, 0), now);
        assert_eq!(queue.first_due(now), Some(key(2)));
        queue.remove(&first);
        assert_eq!(queue.first_due(now), Some(key(3)));
        queue.remove(&second);
        assert_eq!(queue.first_due(now), None);
        assert_eq!(queue.next_due(), Some(later.due));
    }

    #[test]
    fn a_late_order_may_still_wait_for_a_slot() {
        let mut queue = Queue::default();
        let now = Duration::from_secs(100);
        queue.add(key(1), dispatch(-60_000, 1000), now);
        assert_eq!(queue.first_to_give_up(now + Duration::from_millis(1000)), None);
        assert_eq!(queue.first_to_give_up(now + Duration::from_millis(1001)), Some(key(1)));
    }
}
