//! What all of a simulation share: time, chance, the trace, and what was seen from outside.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_core::Timestamp;
use tokio::time::Instant;
use xxhash_rust::xxh3::Xxh3;

use crate::dice::Dice;
use crate::witness::Witness;

/// 2026-11-16T00:00:00Z: a whole minute, so that cron's instants are easy to tell.
const BEGINNING: Timestamp = Timestamp::constant(1_794_787_200, 0);

pub fn beginning() -> Timestamp {
    BEGINNING
}

pub struct World {
    began: Instant,
    pub ttl: Duration,
    dice: Mutex<Dice>,
    trace: Mutex<Trace>,
    witness: Mutex<Witness>,
}

struct Trace {
    hash: Xxh3,
    events: u64,
    printed: bool,
}

/// Words go into the hash without being put together first.
impl fmt::Write for Trace {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        self.hash.update(words.as_bytes());
        Ok(())
    }
}

impl World {
    pub fn new(seed: u64, ttl: Duration, printed: bool) -> Self {
        Self {
            began: Instant::now(),
            ttl,
            dice: Mutex::new(Dice::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xbe1f_4217)),
            trace: Mutex::new(Trace { hash: Xxh3::new(), events: 0, printed }),
            witness: Mutex::default(),
        }
    }

    /// True time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn wall(&self) -> Timestamp {
        beginning().saturating_add(self.elapsed()).unwrap_or(Timestamp::MAX)
    }

    pub fn dice(&self) -> MutexGuard<'_, Dice> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn witness(&self) -> MutexGuard<'_, Witness> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Part of what must be the same when a seed is run again.
    pub fn trace(&self, event: fmt::Arguments<'_>) {
        let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.elapsed();
        trace.hash.update(&at.as_nanos().to_le_bytes());
        fmt::write(&mut *trace, event).expect("hashing does not fail");
        trace.events += 1;
        if trace.printed {
            eprintln!("{:>10.3} {event}", at.as_secs_f64());
        }
    }

    pub fn trace_hash(&self) -> (u64, u64) {
        let trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
        (trace.hash.digest(), trace.events)
    }
}

/// Runs whatever is not part of a process: the network, the disks, the faults.
#[expect(clippy::disallowed_methods, reason = "the world has no process; it ends with the runtime of its seed")]
pub fn spawn(future: impl Future<Output = ()> + Send + 'static) {
    drop(tokio::spawn(future));
}
