//! How far the output of each attempt has been taken, and which ends were not taken because output before them is missing.
//!
//! **When the end of a run is in the store, so is all of its output that its agent kept.** An agent tells a session the chunks of an
//! attempt from the first on, numbered without a hole, and then the end with their count. A chunk is taken when it is the next one and
//! there is room for it; what is taken is written before the end is, or goes with this process. So an end is taken only when as many
//! chunks were: else it is as if it had never been said. The agent forgets nothing that was not acknowledged, and tells all of it
//! again, when it is asked or after its own time. Each time more of it is taken, since what was taken before needs no room. To forget a
//! count is safe for the same reason.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use belfry_core::{NodeId, RunId};
use tokio::time::Instant;

/// A run and the number of one of its attempts.
pub type Key = (RunId, u32);

#[derive(Debug, Default)]
pub struct Taken {
    counts: HashMap<Key, Count>,
    /// Ends that were not taken, and who has them. Bounded: agents say them again without being asked, only later.
    missed: BTreeMap<Key, NodeId>,
    /// The same, of what nodes fired by themselves and there was no room for.
    missed_local: BTreeMap<Key, NodeId>,
}

#[derive(Debug)]
struct Count {
    chunks: u64,
    last: Instant,
}

/// What becomes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Take,
    /// It was taken before.
    Known,
    /// There is no room, or one before it was not taken.
    Leave,
}

const MISSED_MAX: usize = 100_000;
/// Runs whose agents are asked at once: they are told one after the other.
const ASKED_AT_ONCE_MAX: usize = 64;
/// What another server goes on with is forgotten after this.
const IDLE_MAX: Duration = Duration::from_secs(300);

impl Taken {
    pub fn judge(&mut self, key: Key, sequence: u64, has_room: bool) -> Verdict {
        let count = self.counts.entry(key).or_insert_with(|| Count { chunks: 0, last: Instant::now() });
        count.last = Instant::now();
        match sequence.cmp(&count.chunks) {
            std::cmp::Ordering::Less => Verdict::Known,
            std::cmp::Ordering::Equal if has_room => {
                count.chunks += 1;
                Verdict::Take
            }
            std::cmp::Ordering::Equal | std::cmp::Ordering::Greater => Verdict::Leave,
        }
    }

    /// Whether the end may be taken.
    pub fn has_all(&self, key: Key, chunks: u64) -> bool {
        chunks <= self.counts.get(&key).map_or(0, |count| count.chunks)
            || belfry_core::planted::is("end_taken_without_its_output")
    }

    pub fn missed(&mut self, key: Key, node: NodeId) {
        if self.missed.len() < MISSED_MAX {
            self.missed.insert(key, node);
        }
    }

    pub fn missed_local(&mut self, key: Key, node: NodeId) {
        if self.missed_local.len() < MISSED_MAX {
            self.missed_local.insert(key, node);
        }
    }

    /// Some whose agents are to be asked now; the earliest first.
    pub fn next_missed(&mut self) -> Vec<(Key, NodeId)> {
        std::iter::from_fn(|| self.missed.pop_first()).take(ASKED_AT_ONCE_MAX).collect()
    }

    pub fn next_missed_local(&mut self) -> Vec<(Key, NodeId)> {
        std::iter::from_fn(|| self.missed_local.pop_first()).take(ASKED_AT_ONCE_MAX).collect()
    }

    /// Its end is in the store, and its agent has been told.
    pub fn forget(&mut self, key: Key) {
        self.counts.remove(&key);
        self.missed.remove(&key);
        self.missed_local.remove(&key);
    }

    pub fn forget_idle(&mut self, is_open: impl Fn(RunId) -> bool) {
        let now = Instant::now();
        self.counts.retain(|(run, _), count| now.duration_since(count.last) < IDLE_MAX || is_open(*run));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        (RunId::from_u128(1), 1)
    }

    #[test]
    fn an_end_is_taken_when_all_of_its_output_was_however_often_it_took() {
        let mut taken = Taken::default();
        assert!(taken.has_all(key(), 0), "it printed nothing");
        let mut room = 2;
        let mut tell = |taken: &mut Taken| {
            let mut verdicts = Vec::new();
            for sequence in 0..5 {
                let verdict = taken.judge(key(), sequence, room > 0);
                room -= i32::from(verdict == Verdict::Take);
                verdicts.push(verdict);
            }
            room = 2;
            verdicts
        };
        use Verdict::{Known, Leave, Take};
        assert_eq!(tell(&mut taken), [Take, Take, Leave, Leave, Leave]);
        assert!(!taken.has_all(key(), 5));
        assert_eq!(tell(&mut taken), [Known, Known, Take, Take, Leave]);
        assert!(!taken.has_all(key(), 5));
        assert_eq!(tell(&mut taken), [Known, Known, Known, Known, Take]);
        assert!(taken.has_all(key(), 5));
        // Who comes in the middle has nothing to go by.
        taken.forget(key());
        assert_eq!(taken.judge(key(), 4, true), Leave);
        assert!(!taken.has_all(key(), 5));
    }

    #[test]
    fn who_has_an_end_that_was_not_taken_is_asked_once() {
        let mut taken = Taken::default();
        let node = NodeId::from_u128(7);
        taken.missed(key(), node);
        taken.missed(key(), node);
        assert_eq!(taken.next_missed(), [(key(), node)]);
        assert!(taken.next_missed().is_empty());
        taken.missed(key(), node);
        taken.forget(key());
        assert!(taken.next_missed().is_empty());
    }
}
