//! Runs that wait for their instant, for a slot or for what they need, in the order of their instants. One that needs more than there is
//! keeps back those behind it that need something too, so that it has its turn, and no others.

use std::collections::BTreeMap;
use std::time::Duration;

use belfry_core::room::Amounts;
use belfry_proto::session::Dispatch;

use super::promises;
use crate::key::Key;

/// Who starts what waits, and beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// As soon as there is a slot.
    Ordered,
    /// The same, by this node itself.
    Local,
    /// Takes no slot: it always runs, and would leave none to others.
    Service,
}

#[derive(Default)]
pub(super) struct Queues {
    pub ordered: Queue,
    pub local: Queue,
    pub services: Queue,
}

impl Queues {
    pub(super) fn of(&mut self, kind: Kind) -> &mut Queue {
        match kind {
            Kind::Ordered => &mut self.ordered,
            Kind::Local => &mut self.local,
            Kind::Service => &mut self.services,
        }
    }

    pub(super) fn first_to_give_up(&self, now: Duration) -> Option<Key> {
        self.all().find_map(|queue| queue.first_to_give_up(now))
    }

    pub(super) fn next_give_up(&self) -> Option<Duration> {
        self.all().filter_map(Queue::next_give_up).min()
    }

    fn all(&self) -> impl Iterator<Item = &Queue> {
        [&self.ordered, &self.local, &self.services].into_iter()
    }
}

#[derive(Default)]
pub(super) struct Queue {
    by_due: BTreeMap<Place, Key>,
    /// Those that need something.
    needy_by_due: BTreeMap<Place, (Key, Amounts)>,
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
    pub needs: Amounts,
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
        let needs = promises::from_wire(dispatch.needs);
        let order = Order { dispatch, due, needs, give_up, arrival: self.arrivals };
        self.let_go(key, &order);
        self.by_give_up.insert((order.give_up, order.arrival), key);
        order
    }

    pub(super) fn remove(&mut self, order: &Order) {
        self.by_due.remove(&(order.due, order.arrival));
        self.needy_by_due.remove(&(order.due, order.arrival));
        self.by_give_up.remove(&(order.give_up, order.arrival));
    }

    /// It keeps its place and is not due until it is let go.
    pub(super) fn hold(&mut self, order: &Order) {
        self.by_due.remove(&(order.due, order.arrival));
        self.needy_by_due.remove(&(order.due, order.arrival));
    }

    pub(super) fn let_go(&mut self, key: Key, order: &Order) {
        let place = (order.due, order.arrival);
        if order.needs.is_none() {
            self.by_due.insert(place, key);
        } else {
            self.needy_by_due.insert(place, (key, order.needs));
        }
    }

    /// `may_go`: there is room for such needs, or never will be.
    pub(super) fn first_due(&self, now: Duration, may_go: impl Fn(Amounts) -> bool) -> Option<Key> {
        self.first(may_go).filter(|((due, _), _)| *due <= now).map(|(_, key)| key)
    }

    fn first(&self, may_go: impl Fn(Amounts) -> bool) -> Option<(Place, Key)> {
        let plain = self.by_due.first_key_value().map(|(place, key)| (*place, *key));
        let needy = self.needy_by_due.first_key_value().filter(|(_, (_, needs))| may_go(*needs));
        [plain, needy.map(|(place, (key, _))| (*place, *key))].into_iter().flatten().min()
    }

    fn first_to_give_up(&self, now: Duration) -> Option<Key> {
        self.by_give_up.first_key_value().filter(|((give_up, _), _)| *give_up < now).map(|(_, key)| *key)
    }

    /// What waits for room waits for an event, not for a time.
    pub(super) fn next_due(&self, may_go: impl Fn(Amounts) -> bool) -> Option<Duration> {
        self.first(may_go).map(|((due, _), _)| due)
    }

    /// Just after the instant at which the first one is given up.
    fn next_give_up(&self) -> Option<Duration> {
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

    fn any(_: Amounts) -> bool {
        true
    }

    #[test]
    fn who_needs_more_than_there_is_keeps_back_only_those_who_need_something() {
        let mut queue = Queue::default();
        let now = Duration::from_secs(100);
        let needy = |memory, start_in_ms| Dispatch {
            needs: Some(belfry_proto::session::Amounts { memory, ..Default::default() }),
            ..dispatch(start_in_ms, 0)
        };
        let large = queue.add(key(1), needy(8, -30), now);
        queue.add(key(2), needy(1, -20), now);
        let plain = queue.add(key(3), dispatch(-10, 0), now);
        let little = |needs: Amounts| needs.memory <= 1;
        assert_eq!(queue.first_due(now, little), Some(key(3)));
        queue.remove(&plain);
        assert_eq!((queue.first_due(now, little), queue.next_due(little)), (None, None));
        assert_eq!(queue.first_due(now, any), Some(key(1)));
        queue.remove(&large);
        assert_eq!(queue.first_due(now, little), Some(key(2)));
    }

    #[test]
    fn the_earliest_instant_is_first_and_arrival_decides_between_equals() {
        let mut queue = Queue::default();
        let now = Duration::from_secs(100);
        let later = queue.add(key(1), dispatch(500, 0), now);
        let first = queue.add(key(2), dispatch(-500, 0), now);
        let second = queue.add(key(3), dispatch(-500, 0), now);
        assert_eq!(queue.first_due(now, any), Some(key(2)));
        queue.remove(&first);
        assert_eq!(queue.first_due(now, any), Some(key(3)));
        queue.remove(&second);
        assert_eq!(queue.first_due(now, any), None);
        assert_eq!(queue.next_due(any), Some(later.due));
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
