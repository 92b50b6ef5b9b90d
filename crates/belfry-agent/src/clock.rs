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
pub(crate) struct Moment {
    pub boot: Duration,
    pub wall_ms: i64,
}

impl Moment {
    pub(crate) fn of(clock: &dyn Clock) -> Moment {
        Moment { boot: clock.boottime(), wall_ms: clock.now().as_millisecond() }
    }
}
