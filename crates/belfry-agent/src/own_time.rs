//! The time that a node goes by, in what it fires by itself and in all that it reports: the wall clock's, unless that is doubted.
//!
//! A clock that is an hour ahead for a moment would have the fires of that hour claimed, and the cursors on the disk would keep their jobs
//! silent until it has come there again; and history would say of a run that it lasted an hour. So nothing is dated by the wall clock alone: what
//! happens is noted on the clock that never steps, and the time at which that began is believed apart from the wall clock.
//!
//! Servers ask their agents for the time, and say what most clocks agree on where that can be decided: then a wall clock that differs is
//! not gone by, for as long as it does. Of servers that say different things the one counts that is nearest to the node's own clock: one server
//! with a wrong idea moves nobody whom another confirms.
//!
//! A node may have nobody to ask. Then the time goes on after a step as it did before, until the wall clock has stood for a minute where it
//! is. Then the step was meant: a clock that was set after boot, a machine that was restored. What lies between was missed, or is still to
//! come. A minute is enough for whoever sets a clock to see a mistake and undo it, and short beside the hour that a missed fire may wait.
//!
//! What is read first is believed until servers say otherwise: nothing is known of before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belfry_proto::session::AgreedTime;

use crate::clock::{Clock, Moment, Seen, micros};
use crate::desk::SessionId;

/// As far as the clock of a node may be off. What sets clocks right goes slowly below that.
const STEP_US: i64 = 2_000_000;
const BELIEVED_AFTER: Duration = Duration::from_secs(60);
/// The two clocks are read one after the other: what differs by less is no news.
const READ_APART_US: i64 = 1_000;

/// Shared by all of a node.
pub(crate) struct NodeClock {
    clock: Arc<dyn Clock>,
    time: Mutex<OwnTime>,
}

impl NodeClock {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> NodeClock {
        let time = OwnTime::new(Seen::of(clock.as_ref()));
        NodeClock { clock, time: Mutex::new(time) }
    }

    pub(crate) fn boottime(&self) -> Duration {
        self.clock.boottime()
    }

    pub(crate) fn now(&self) -> Moment {
        let mut time = self.time.lock().unwrap_or_else(PoisonError::into_inner);
        time.at(Seen::of(self.clock.as_ref()))
    }

    /// A server says what most clocks agree on.
    pub(crate) fn is_told(&self, session: SessionId, agreed: AgreedTime) {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).told.insert(session, agreed);
    }

    pub(crate) fn closed(&self, session: SessionId) {
        self.time.lock().unwrap_or_else(PoisonError::into_inner).told.remove(&session);
    }
}

/// What is thought of the wall clock.
pub(crate) struct OwnTime {
    /// When the machine booted, by the wall clock as it was read last.
    booted_at_us: i64,
    /// As it is believed.
    believed_us: i64,
    doubt: Doubt,
    /// By the servers whose sessions are open.
    told: BTreeMap<SessionId, AgreedTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    None,
    /// It stepped, last at this moment on the clock that never does.
    Stepped(Duration),
    /// Most clocks say otherwise, or said so when there was contact.
    Outvoted,
}

impl OwnTime {
    pub(crate) fn new(seen: Seen) -> Self {
        let booted_at_us = booted_at_us(seen);
        Self { booted_at_us, believed_us: booted_at_us, doubt: Doubt::None, told: BTreeMap::new() }
    }

    /// The same moment, with the time as it is believed.
    pub(crate) fn at(&mut self, seen: Seen) -> Moment {
        let booted_at_us = booted_at_us(seen);
        let step_us = booted_at_us - std::mem::replace(&mut self.booted_at_us, booted_at_us);
        let agreed = self.nearest_agreed();
        let judged = match agreed {
            Some((at_us, within_us)) if (booted_at_us - at_us).abs() > within_us => Doubt::Outvoted,
            Some(_) => Doubt::None,
            None => self.without_servers(step_us, seen.boot),
        };
        let believed_us = match (judged, agreed) {
            (Doubt::None, _) => booted_at_us,
            (Doubt::Outvoted, Some((at_us, _))) => at_us,
            (Doubt::Outvoted | Doubt::Stepped(_), _) => self.believed_us,
        };
        if (believed_us - self.believed_us).abs() > READ_APART_US {
            self.believed_us = believed_us;
        }
        let before = std::mem::replace(&mut self.doubt, judged);
        self.say(before, step_us);
        Moment {
            boot: seen.boot,
            wall_ms: (self.believed_us + micros(seen.boot)).div_euclid(1000),
            shown_ms: seen.wall_us.div_euclid(1000),
        }
    }

    /// When the machine booted, and as far as a clock may be off from that.
    fn nearest_agreed(&self) -> Option<(i64, i64)> {
        let us = |ms: i64| ms.saturating_mul(1000);
        let within_us = |agreed: &AgreedTime| us(i64::try_from(agreed.within_ms).unwrap_or(i64::MAX));
        let agreed = self.told.values().map(|agreed| (us(agreed.booted_at_ms), within_us(agreed)));
        agreed.min_by_key(|(at_us, _)| self.booted_at_us.abs_diff(*at_us))
    }

    fn without_servers(&self, step_us: i64, now: Duration) -> Doubt {
        let steps = step_us.abs() > STEP_US;
        let is_back = (self.booted_at_us - self.believed_us).abs() <= STEP_US;
        match self.doubt {
            Doubt::None if !steps => Doubt::None,
            Doubt::None => Doubt::Stepped(now),
            Doubt::Stepped(_) | Doubt::Outvoted if is_back => Doubt::None,
            Doubt::Stepped(_) | Doubt::Outvoted if steps => Doubt::Stepped(now),
            Doubt::Stepped(since) if now.saturating_sub(since) >= BELIEVED_AFTER => Doubt::None,
            as_before @ (Doubt::Stepped(_) | Doubt::Outvoted) => as_before,
        }
    }

    fn say(&self, before: Doubt, step_us: i64) {
        let off_ms = (self.booted_at_us - self.believed_us) / 1000;
        match (before, self.doubt) {
            (Doubt::Outvoted, Doubt::Outvoted)
            | (Doubt::Stepped(_), Doubt::Stepped(_))
            | (Doubt::None, Doubt::None) => {}
            (_, Doubt::Outvoted) => tracing::warn!(
                "the wall clock of this machine is off by {off_ms} ms, as the servers and most of their nodes see it; what this node fires by itself, and what it reports, goes by their time until the clock is set right; check time synchronisation"
            ),
            (_, Doubt::Stepped(_)) => tracing::warn!(
                "the wall clock stepped by {} ms, and no server says whether it is right now; the time goes on as before until the clock has stood for {} s",
                step_us / 1000,
                BELIEVED_AFTER.as_secs()
            ),
            (_, Doubt::None) => tracing::info!("the wall clock is believed again"),
        }
    }
}

fn booted_at_us(seen: Seen) -> i64 {
    seen.wall_us - micros(seen.boot)
}

#[cfg(test)]
mod tests;
