//! How long this node may believe that the servers hold it alive. Counted on its own clock from the moment before the
//! acknowledged heartbeat was **sent**, never from the answer: a slow answer would stretch trust past a takeover.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use belfry_exec::{Deadline, LastMoments};

use crate::desk::SessionId;

/// Clones are the same trust: the desk renews it, whoever starts work asks it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    /// Boottime in ns; 0: never.
    until_ns: Arc<AtomicU64>,
    /// What the shims of exclusive runs hold to; none in a simulation, which has no shims.
    deadline: Option<Deadline>,
}

impl Trust {
    pub(crate) fn with(deadline: Deadline) -> Trust {
        Trust { deadline: Some(deadline), ..Trust::default() }
    }

    fn renew(&self, until: Duration, last_moments: LastMoments) {
        self.until_ns.fetch_max(until.as_nanos() as u64, Ordering::Relaxed);
        if let Some(deadline) = &self.deadline {
            deadline.put_off(last_moments);
        }
    }

    fn end(&self) {
        self.until_ns.store(0, Ordering::Relaxed);
        if let Some(deadline) = &self.deadline {
            deadline.is_over();
        }
    }

    /// The desk asks what is exclusive to end, so that no shim does.
    pub(crate) fn asks_to_end(&self) {
        if let Some(deadline) = &self.deadline {
            deadline.asked();
        }
    }

    pub(crate) fn was_given(&self) -> bool {
        self.until_ns.load(Ordering::Relaxed) > 0
    }

    /// Nothing that was dispatched is started when this is false.
    pub(crate) fn may_start(&self, boottime: Duration) -> bool {
        boottime <= Duration::from_nanos(self.until_ns.load(Ordering::Relaxed))
    }
}

/// The heartbeats of this node: when the next one is due, and which were sent when.
pub(crate) struct Heartbeats {
    trust: Trust,
    last_moments: Option<LastMoments>,
    last_sequence: u64,
    pending: VecDeque<Sent>,
    next_at: Option<Duration>,
}

struct Sent {
    sequence: u64,
    t_send: Duration,
    ttl: Duration,
    to: SessionId,
}

const PENDING_MAX: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Renewed,
    /// The servers hold this incarnation dead.
    Refused,
    /// Not of a heartbeat that is waited for.
    Unknown,
}

impl Heartbeats {
    pub(crate) fn new(trust: Trust) -> Heartbeats {
        Heartbeats { trust, last_moments: None, last_sequence: 0, pending: VecDeque::new(), next_at: None }
    }

    pub(crate) fn trust(&self) -> &Trust {
        &self.trust
    }

    /// None: no heartbeat was ever acknowledged, so nothing runs that could be exclusive.
    pub(crate) fn last_moments(&self) -> Option<LastMoments> {
        self.last_moments
    }

    pub(crate) fn next_at(&self) -> Option<Duration> {
        self.next_at
    }

    /// The next one is due now: a session was opened, or the one that carried them was lost.
    pub(crate) fn hurry(&mut self, now: Duration) {
        self.next_at = Some(now);
    }

    pub(crate) fn pause(&mut self) {
        self.next_at = None;
    }

    /// Whether the last heartbeat through this session is still unanswered, so that another session had better be tried.
    pub(crate) fn is_silent(&self, session: SessionId) -> bool {
        self.pending.back().is_some_and(|sent| sent.to == session)
    }

    /// The sequence of the heartbeat that is sent through `to` at `now`.
    pub(crate) fn send(&mut self, to: SessionId, ttl: Duration, now: Duration) -> u64 {
        self.last_sequence += 1;
        if self.pending.len() == PENDING_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back(Sent { sequence: self.last_sequence, t_send: now, ttl, to });
        self.next_at = Some(now + ttl / 4);
        self.last_sequence
    }

    /// `now` is of no account: see the head of this file.
    pub(crate) fn answered(&mut self, sequence: u64, accepted: bool, now: Duration) -> Answer {
        let Some(place) = self.pending.iter().position(|sent| sent.sequence == sequence) else {
            return Answer::Unknown;
        };
        let Some(sent) = self.pending.get(place) else { return Answer::Unknown };
        if !accepted {
            return Answer::Refused;
        }
        let from = if belfry_core::planted::is("trust_from_reply") { now } else { sent.t_send };
        let last_moments = last_moments(from, sent.ttl);
        self.trust.renew(trusted_until(from, sent.ttl), last_moments);
        self.last_moments = Some(last_moments);
        self.pending.drain(..=place);
        Answer::Renewed
    }

    /// This incarnation is over: no answer to its heartbeats means anything any more.
    pub(crate) fn start_over(&mut self) {
        self.trust.end();
        self.last_moments = None;
        self.pending.clear();
        self.next_at = None;
    }
}

/// Half of the TTL from the send: the other half is for what is exclusive to stop before anybody else may start it.
fn trusted_until(t_send: Duration, ttl: Duration) -> Duration {
    t_send + ttl / 2
}

/// When exclusive work ends because contact is lost. Nobody holds this node dead before a whole TTL has passed since the send. The
/// last fifth is for clocks whose rates differ, and for the kernel to let go.
fn last_moments(t_send: Duration, ttl: Duration) -> LastMoments {
    LastMoments { ask: t_send + ttl * 6 / 10, kill: t_send + ttl * 8 / 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);
    const SERVER: SessionId = SessionId(1);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn trust_counts_from_the_send_of_the_very_heartbeat_that_was_acknowledged() {
        let trust = Trust::default();
        let mut beats = Heartbeats::new(trust.clone());
        let first = beats.send(SERVER, TTL, at(100));
        let _second = beats.send(SERVER, TTL, at(103));
        assert!(!trust.was_given());
        assert_eq!(beats.answered(first, true, at(200)), Answer::Renewed);
        assert!(trust.may_start(at(105)));
        assert!(!trust.may_start(at(106)), "the second one was not acknowledged");
        assert_eq!(beats.last_moments(), Some(LastMoments { ask: at(106), kill: at(108) }));
    }

    #[test]
    fn an_answer_to_an_older_heartbeat_takes_nothing_away() {
        let trust = Trust::default();
        let mut beats = Heartbeats::new(trust.clone());
        let first = beats.send(SERVER, TTL, at(100));
        let second = beats.send(SERVER, TTL, at(103));
        beats.answered(second, true, at(200));
        assert_eq!(beats.answered(first, true, at(200)), Answer::Unknown);
        assert!(trust.may_start(at(108)));
    }

    #[test]
    fn what_is_answered_after_the_incarnation_is_over_means_nothing() {
        let trust = Trust::default();
        let mut beats = Heartbeats::new(trust.clone());
        let first = beats.send(SERVER, TTL, at(100));
        beats.start_over();
        assert_eq!(beats.answered(first, false, at(200)), Answer::Unknown);
        assert_eq!(beats.answered(first, true, at(200)), Answer::Unknown);
        assert!(!trust.was_given());
    }
}
