//! How long a party may believe that it is still held alive. Counted from the moment before its last successful heartbeat
//! was **sent**, never from the answer.
//!
//! An observer holds a party dead one full TTL after it first saw the last heartbeat, which is after that heartbeat was
//! applied, which is after it was sent. Trust from `t_send` over at most 0.8 TTL therefore ends before anyone may take
//! over, as long as two clocks' rates agree within 10 %. Counted from the answer, a slow answer would stretch trust past
//! the takeover: `trust_counts_from_send` fails then.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const NEVER: u64 = 0;

/// Clones are the same trust: the heartbeat renews it, whoever starts work asks it.
#[derive(Clone, Debug)]
pub struct Trust {
    ttl: Duration,
    /// Boottime in ns of the send of the last heartbeat that succeeded.
    t_send: Arc<AtomicU64>,
}

impl Trust {
    /// No trust until the first [`Self::renew`].
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, t_send: Arc::new(AtomicU64::new(NEVER)) }
    }

    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The heartbeat that was sent at this boottime is known to have been applied. An older one changes nothing.
    pub fn renew(&self, t_send: Duration) {
        self.t_send.fetch_max(t_send.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A refused heartbeat: dead by definition.
    pub fn end(&self) {
        self.t_send.store(NEVER, Ordering::Relaxed);
    }

    /// Nothing exclusive is started after this boottime; asked again right before exec.
    pub fn may_start(&self, boottime: Duration) -> bool {
        self.start_until().is_some_and(|until| boottime < until)
    }

    /// t_send + 0.5 TTL.
    pub fn start_until(&self) -> Option<Duration> {
        self.after_send(5)
    }

    /// Exclusive work gets TERM here: t_send + 0.6 TTL.
    pub fn term_at(&self) -> Option<Duration> {
        self.after_send(6)
    }

    /// Exclusive work gets KILL here: t_send + 0.8 TTL.
    pub fn kill_at(&self) -> Option<Duration> {
        self.after_send(8)
    }

    fn after_send(&self, tenths: u32) -> Option<Duration> {
        match self.t_send.load(Ordering::Relaxed) {
            NEVER => None,
            t_send => Some(Duration::from_nanos(t_send) + self.ttl * tenths / 10),
        }
    }
}
