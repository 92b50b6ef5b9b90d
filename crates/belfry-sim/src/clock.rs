//! The clocks of one machine: one that never steps but may go a little fast or slow, and a wall clock that may be off.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use belfry_core::Timestamp;

use crate::world::World;

pub struct MachineClock {
    world: Arc<World>,
    booted_before: Duration,
    /// How much faster than the world, in millionths.
    drift_ppm: i64,
    off_ms: AtomicI64,
}

impl MachineClock {
    pub fn new(world: Arc<World>, booted_before: Duration, drift_ppm: i64) -> Arc<Self> {
        Arc::new(Self { world, booted_before, drift_ppm, off_ms: AtomicI64::new(0) })
    }

    pub fn step_to(&self, off_ms: i64) {
        self.off_ms.store(off_ms, Ordering::Relaxed);
    }

    pub fn is_off(&self) -> bool {
        self.off_ms.load(Ordering::Relaxed) != 0
    }

    fn read_boottime(&self) -> Duration {
        let true_us = self.world.elapsed().as_micros() as i64;
        let us = true_us + true_us / 1_000_000 * self.drift_ppm + true_us % 1_000_000 * self.drift_ppm / 1_000_000;
        self.booted_before + Duration::from_micros(us as u64)
    }

    fn read_wall(&self) -> Timestamp {
        let off = jiff_ms(self.off_ms.load(Ordering::Relaxed));
        self.world.wall().saturating_add(off).unwrap_or(Timestamp::MAX)
    }
}

fn jiff_ms(ms: i64) -> jiff::SignedDuration {
    jiff::SignedDuration::from_millis(ms)
}

impl belfry_coord::Clock for MachineClock {
    fn boottime(&self) -> Duration {
        self.read_boottime()
    }

    fn now(&self) -> Timestamp {
        self.read_wall()
    }
}

impl belfry_agent::Clock for MachineClock {
    fn boottime(&self) -> Duration {
        self.read_boottime()
    }

    fn now(&self) -> Timestamp {
        self.read_wall()
    }
}
