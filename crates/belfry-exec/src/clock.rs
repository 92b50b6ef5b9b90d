//! The clocks this crate reads, in one place, also usable in the zygote, which has no runtime.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the epoch.
pub(crate) fn wall_ns() -> i64 {
    let now = read(ClockId::CLOCK_REALTIME);
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

/// Time since some fixed point; never goes back.
pub(crate) fn monotonic() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Goes on while the machine sleeps.
pub(crate) fn boottime() -> Duration {
    read(ClockId::CLOCK_BOOTTIME)
}

pub(crate) fn timestamp(ns: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_nanosecond(i128::from(ns)).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
}

fn read(clock: ClockId) -> Duration {
    // All of them exist on every Linux, so the only failure would be a broken kernel.
    clock_gettime(clock).map(Duration::from).unwrap_or_default()
}
