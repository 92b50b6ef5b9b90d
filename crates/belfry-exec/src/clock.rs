//! The clocks this crate reads, in one place, also usable in the zygote, which has no runtime. None of them is the wall clock: that may step,
//! and what the time is believed to be only the agent knows.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time since some fixed point; never goes back.
pub(crate) fn monotonic() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Goes on while the machine sleeps.
pub(crate) fn boottime() -> Duration {
    read(ClockId::CLOCK_BOOTTIME)
}

pub(crate) fn boottime_ns() -> u64 {
    u64::try_from(boottime().as_nanos()).unwrap_or(u64::MAX)
}

fn read(clock: ClockId) -> Duration {
    // All of them exist on every Linux, so the only failure would be a broken kernel.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}
