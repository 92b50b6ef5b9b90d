//! Time as an injected value: a clock that counts suspend and never steps, for waiting and trust, and the wall clock, for
//! people.

use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

pub trait Clock: Send + Sync + 'static {
    /// Since the machine booted, suspended time included (CLOCK_BOOTTIME).
    fn boottime(&self) -> Duration;

    /// The wall clock; may step.
    fn now(&self) -> Timestamp;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boottime(&self) -> Duration {
        // It exists on every Linux since 2.6.39, so the only failure would be a broken kernel.
        clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock that everybody else asks")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Both clocks, read at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub boot: Duration,
    pub wall_us: i64,
}

/// What is paused between two readings reads again.
const READ_WITHIN: Duration = Duration::from_micros(200);

impl Seen {
    pub(crate) fn of(clock: &dyn Clock) -> Seen {
        let mut boot = clock.boottime();
        let mut tries = 3;
        loop {
            let wall_us = clock.now().as_microsecond();
            let after = clock.boottime();
            tries -= 1;
            if tries == 0 || after.saturating_sub(boot) <= READ_WITHIN {
                return Seen { boot, wall_us };
            }
            boot = after;
        }
    }
}

/// A moment as a node goes by it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub boot: Duration,
    /// As it is believed: see `own_time`.
    pub wall_ms: i64,
    /// By the wall clock, believed or not, for servers that ask for it.
    pub shown_ms: i64,
}

/// More than two readings of the clocks differ by, and less than anybody minds.
const AS_TOLD_MS: u64 = 100;

/// Something that servers were told of when it happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub at: Duration,
    pub ms: i64,
}

impl Moment {
    /// As it was told, unless the clock was found wrong since.
    pub(crate) fn ms_of(&self, told: Told) -> i64 {
        let ms = self.ms_at(told.at);
        if ms.abs_diff(told.ms) <= AS_TOLD_MS { told.ms } else { ms }
    }

    /// The time of what happened at this boottime.
    pub(crate) fn ms_at(&self, boot: Duration) -> i64 {
        (self.wall_ms * 1000 + micros(boot) - micros(self.boot)).div_euclid(1000)
    }
}

pub(crate) fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_stays_as_it_was_unless_the_clock_was_found_wrong_since() {
        let told = Told { at: Duration::from_secs(10), ms: 1_000_010_000 };
        let at = |wall_ms| Moment { boot: Duration::from_millis(12_500), wall_ms, shown_ms: wall_ms };
        for drift_ms in [-100, -1, 0, 1, 100] {
            assert_eq!(at(1_000_012_500 + drift_ms).ms_of(told), told.ms);
        }
        for step_ms in [-3_600_000, -101, 101, 3_600_000] {
            assert_eq!(at(1_000_012_500 + step_ms).ms_of(told), told.ms + step_ms);
        }
    }
}
