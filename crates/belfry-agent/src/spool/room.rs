//! How much of its bound the spool holds, and what follows: first output is cut, then no work is wanted, then none is taken. Ends of
//! runs are kept whatever it says.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Room {
    max_bytes: u64,
    /// Records that are submitted or kept, on the disk or in memory.
    held_bytes: AtomicU64,
    /// Of these, what the disk does not take.
    unwritten_bytes: AtomicU64,
    wants_no_work: AtomicBool,
}

/// What a node can do with the room that its spool has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Space {
    #[default]
    Enough,
    /// The servers are asked for no more work; what they have sent before they hear of it is taken.
    Scarce,
    /// Orders are refused.
    None,
}

/// What the disk does not take is in memory, and that has a bound too.
const UNWRITTEN_BYTES_MAX: u64 = 64 * 1024 * 1024;

impl Room {
    pub(super) fn new(max_bytes: u64, held_bytes: u64) -> Room {
        let (held_bytes, unwritten_bytes) = (AtomicU64::new(held_bytes), AtomicU64::new(0));
        Room { max_bytes, held_bytes, unwritten_bytes, wants_no_work: AtomicBool::new(false) }
    }

    pub(super) fn take(&self, bytes: u64) {
        self.held_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn unwritten(&self, bytes: u64) {
        self.unwritten_bytes.store(bytes, Ordering::Relaxed);
    }

    /// A quarter is left to the ends of runs.
    pub(super) fn is_enough_for_output(&self, bytes: u64) -> bool {
        self.held_bytes.load(Ordering::Relaxed) + bytes <= self.max_bytes / 4 * 3
            && self.unwritten_bytes.load(Ordering::Relaxed) + bytes <= UNWRITTEN_BYTES_MAX / 2
    }

    pub(super) fn space(&self) -> Space {
        // Less than what made it scarce: it does not come and go with each result.
        let (part, of) = if self.wants_no_work.load(Ordering::Relaxed) { (7, 8) } else { (15, 16) };
        let is_scarce = self.is_beyond(part, of);
        self.wants_no_work.store(is_scarce, Ordering::Relaxed);
        match () {
            () if self.is_beyond(1, 1) => Space::None,
            () if is_scarce => Space::Scarce,
            () => Space::Enough,
        }
    }

    fn is_beyond(&self, part: u64, of: u64) -> bool {
        let beyond = |bytes: &AtomicU64, max: u64| bytes.load(Ordering::Relaxed) > max / of * part;
        beyond(&self.held_bytes, self.max_bytes) || beyond(&self.unwritten_bytes, UNWRITTEN_BYTES_MAX)
    }
}
