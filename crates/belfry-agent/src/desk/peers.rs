//! The sessions that are open, and which results each was given to deliver.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::key::Key;

/// One session with one server, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionId(pub u64);

#[derive(Default)]
pub(super) struct Peers {
    /// TTL of each session that was welcomed; `None` before that, and after a farewell.
    sessions: BTreeMap<SessionId, Option<Duration>>,
    /// Ended and not known to be stored.
    deliveries: HashMap<Key, Delivery>,
    carrier: Option<SessionId>,
}

struct Delivery {
    through: Option<SessionId>,
    since: Duration,
    /// No server has ordered it.
    fired_here: bool,
}

/// An end that was sent and not acknowledged for so long is sent again.
pub(super) const RESEND_AFTER: Duration = Duration::from_secs(60);
const RESENDS_AT_ONCE_MAX: usize = 1000;

impl Peers {
    pub(super) fn open(&mut self, session: SessionId) {
        self.sessions.insert(session, None);
    }

    pub(super) fn close(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    pub(super) fn welcome(&mut self, session: SessionId, ttl: Duration) {
        self.sessions.insert(session, Some(ttl));
    }

    /// What it was given to deliver is given anew, also to itself when it is welcomed again.
    pub(super) fn silence(&mut self, session: SessionId) {
        if let Some(ttl) = self.sessions.get_mut(&session) {
            *ttl = None;
        }
        let given = self.deliveries.values_mut().filter(|delivery| delivery.through == Some(session));
        given.for_each(|delivery| delivery.through = None);
    }

    pub(super) fn all(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn all_ready(&self) -> Vec<SessionId> {
        self.ready().map(|(session, _)| session).collect()
    }

    pub(super) fn is_ready(&self, session: SessionId) -> bool {
        self.sessions.get(&session).is_some_and(Option::is_some)
    }

    /// `preferred` while it lives, else the one that carries heartbeats, which knows that this node is not held dead; else any.
    pub(super) fn route(&self, preferred: Option<SessionId>) -> Option<SessionId> {
        let known = [preferred, self.carrier].into_iter().flatten().find(|session| self.is_ready(*session));
        known.or_else(|| self.first())
    }

    fn first(&self) -> Option<SessionId> {
        self.ready().next().map(|(session, _)| session)
    }

    /// The one session that heartbeats go through, with its TTL; another one when `silent` says so of the last.
    pub(super) fn carrier(&mut self, silent: impl Fn(SessionId) -> bool) -> Option<(SessionId, Duration)> {
        let current = self.carrier.filter(|session| self.is_ready(*session));
        let next = match current {
            Some(session) if !silent(session) => Some(session),
            Some(session) => {
                self.ready().map(|(other, _)| other).find(|other| *other > session).or_else(|| self.first())
            }
            None => self.first(),
        };
        self.carrier = next;
        let ttl = self.sessions.get(&next?).copied().flatten()?;
        Some((next?, ttl))
    }

    pub(super) fn is_carrier(&self, session: SessionId) -> bool {
        self.carrier == Some(session)
    }

    pub(super) fn deliver(&mut self, key: Key, through: Option<SessionId>, now: Duration) {
        let fired_here = self.deliveries.get(&key).is_some_and(|known| known.fired_here);
        self.deliveries.insert(key, Delivery { through, since: now, fired_here });
    }

    pub(super) fn was_fired_here(&mut self, key: Key) {
        if let Some(delivery) = self.deliveries.get_mut(&key) {
            delivery.fired_here = true;
        }
    }

    pub(super) fn delivered(&mut self, key: Key) {
        self.deliveries.remove(&key);
    }

    pub(super) fn is_undelivered(&self, key: Key) -> bool {
        self.deliveries.contains_key(&key)
    }

    /// What servers have ordered and may hold open: the rest would only make a hello long. Of more than `most` the earliest, which a former
    /// incarnation is likeliest to have finished: that would be given up as lost if it were not named. What this one has finished is
    /// asked for once more, and told.
    pub(super) fn finished_orders(&self, most: usize) -> Vec<Key> {
        let ordered = self.deliveries.iter().filter(|(_, delivery)| !delivery.fired_here);
        let mut keys: Vec<Key> = ordered.map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys.truncate(most);
        keys
    }

    pub(super) fn undelivered(&self) -> usize {
        self.deliveries.len()
    }

    /// Results that no living session has: each is assigned to the session that is returned with it.
    pub(super) fn reassign(&mut self, now: Duration) -> Vec<(Key, SessionId)> {
        let Some(session) = self.route(None) else { return Vec::new() };
        let sessions = &self.sessions;
        let lives = |session: &SessionId| sessions.get(session).is_some_and(Option::is_some);
        let stranded =
            self.deliveries.iter_mut().filter(|(_, delivery)| delivery.through.as_ref().is_none_or(|it| !lives(it)));
        let mut reassigned: Vec<_> = stranded
            .map(|(key, delivery)| {
                *delivery = Delivery { through: Some(session), since: now, ..*delivery };
                (*key, session)
            })
            .collect();
        reassigned.sort_unstable();
        reassigned
    }

    /// Results that have waited long for their acknowledgement, to be sent again; through another session each time, since a server
    /// that does not own the run cannot acknowledge it.
    pub(super) fn overdue(&mut self, now: Duration) -> Vec<(Key, SessionId)> {
        let ready: Vec<SessionId> = self.ready().map(|(session, _)| session).collect();
        let Some(first) = ready.first().copied() else { return Vec::new() };
        let after = |last: SessionId| ready.iter().copied().find(|session| *session > last).unwrap_or(first);
        let overdue =
            self.deliveries.iter_mut().filter(|(_, delivery)| now.saturating_sub(delivery.since) >= RESEND_AFTER);
        overdue
            .take(RESENDS_AT_ONCE_MAX)
            .map(|(key, delivery)| {
                let through = delivery.through.map_or(first, after);
                *delivery = Delivery { through: Some(through), since: now, ..*delivery };
                (*key, through)
            })
            .collect()
    }

    fn ready(&self) -> impl Iterator<Item = (SessionId, Duration)> {
        self.sessions.iter().filter_map(|(session, ttl)| Some((*session, (*ttl)?)))
    }
}

#[cfg(test)]
mod tests {
    use belfry_core::RunId;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const ONE: SessionId = SessionId(1);
    const TWO: SessionId = SessionId(2);

    fn two_servers() -> Peers {
        let mut peers = Peers::default();
        for session in [ONE, TWO] {
            peers.open(session);
            peers.welcome(session, TTL);
        }
        peers
    }

    #[test]
    fn heartbeats_stay_with_one_server_until_it_is_silent_or_gone() {
        let mut peers = two_servers();
        let mut carrier = |silent: bool| peers.carrier(|_| silent).map(|(session, _)| session);
        assert_eq!(carrier(false), Some(ONE));
        assert_eq!(carrier(false), Some(ONE));
        assert_eq!(carrier(true), Some(TWO));
        assert_eq!(carrier(false), Some(TWO));
        assert_eq!(carrier(true), Some(ONE));
        assert_eq!(carrier(true), Some(TWO));
        assert_eq!(peers.route(None), Some(TWO), "results go where it is known that the node lives");
        assert_eq!(peers.route(Some(ONE)), Some(ONE));
        peers.close(ONE);
        assert_eq!(peers.carrier(|_| false), Some((TWO, TTL)));
        peers.close(TWO);
        assert_eq!(peers.carrier(|_| false), None);
    }

    #[test]
    fn a_hello_names_the_earliest_results_of_orders_and_none_that_this_node_fired_by_itself() {
        let mut peers = two_servers();
        let key = |run| Key { run: RunId::from_u128(run), attempt: 1 };
        (1..=6).rev().for_each(|run| peers.deliver(key(run), None, Duration::ZERO));
        peers.was_fired_here(key(2));
        // Neither another session nor being asked for it again makes it an order.
        peers.reassign(Duration::ZERO);
        peers.overdue(RESEND_AFTER);
        peers.deliver(key(2), Some(TWO), RESEND_AFTER);
        assert_eq!(peers.finished_orders(3), [key(1), key(3), key(4)]);
        assert_eq!(peers.finished_orders(usize::MAX).len(), 5);
    }

    #[test]
    fn a_result_goes_to_another_session_when_its_own_is_gone() {
        let mut peers = two_servers();
        let key = Key { run: RunId::from_u128(1), attempt: 1 };
        peers.deliver(key, Some(ONE), Duration::ZERO);
        assert!(peers.reassign(Duration::ZERO).is_empty());
        peers.close(ONE);
        assert_eq!(peers.reassign(Duration::ZERO), [(key, TWO)]);
        assert!(peers.reassign(Duration::ZERO).is_empty(), "once");
        assert!(peers.overdue(RESEND_AFTER / 2).is_empty());
        assert_eq!(peers.overdue(RESEND_AFTER), [(key, TWO)]);
        peers.open(SessionId(3));
        peers.welcome(SessionId(3), TTL);
        assert_eq!(peers.overdue(RESEND_AFTER * 2), [(key, SessionId(3))], "another one, which may own the run");
        assert_eq!(peers.overdue(RESEND_AFTER * 3), [(key, TWO)]);
        peers.delivered(key);
        assert!(peers.overdue(RESEND_AFTER * 5).is_empty());
    }
}
