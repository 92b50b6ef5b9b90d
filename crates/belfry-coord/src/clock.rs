//! Time as an injected value: a clock that never steps and counts suspend, for deadlines, and the wall clock, for people.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belfry_core::Timestamp;
use nix::time::{ClockId, clock_gettime};

pub trait Clock: Send + Sync + 'static {
    /// Since the machine booted, suspended time included (CLOCK_BOOTTIME): trust and silence are measured on this, so that
    /// an owner that was suspended finds its trust gone when it wakes.
    fn boottime(&self) -> Duration;

    /// The wall clock; may step.
    fn now(&self) -> Timestamp;
}

#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boottime(&self) -> Duration {
        let time = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has CLOCK_BOOTTIME since 2.6.39");
        Duration::from(time)
    }

    #[expect(clippy::disallowed_methods, reason = "the clock that the ban points at")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Stands still until it is moved; clones are the same clock.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<(Duration, Timestamp)>>);

impl ManualClock {
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(Mutex::new((Duration::from_secs(1000), now))))
    }

    /// Both clocks go on.
    pub fn advance(&self, by: Duration) {
        let mut time = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        time.0 += by;
        time.1 = time.1.saturating_add(by).unwrap_or(Timestamp::MAX);
    }

    /// Only the wall clock jumps.
    pub fn step_wall(&self, to: Timestamp) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1 = to;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::at(Timestamp::UNIX_EPOCH)
    }
}

impl Clock for ManualClock {
    fn boottime(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn now(&self) -> Timestamp {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}
