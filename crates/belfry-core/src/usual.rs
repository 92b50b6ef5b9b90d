//! How long a job's runs usually take, judged by the newest ones that succeeded.

/// So many are remembered of each job.
pub const REMEMBERED_MAX: usize = 100;

/// A job of a few seconds that takes a few more is no news.
const EXCEEDED_BY_MS: i64 = 60_000;

/// Half of the runs took at most `p50_ms`, 95 of 100 at most `p95_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usual {
    pub p50_ms: u64,
    pub p95_ms: u64,
    /// How many runs say so.
    pub runs: u32,
}

impl Usual {
    /// None when nothing is known.
    pub fn of(mut took_ms: Vec<u64>) -> Option<Self> {
        took_ms.sort_unstable();
        // The smallest that so many of a hundred do not exceed.
        let at = |percent: usize| took_ms[(took_ms.len() * percent).div_ceil(100).max(1) - 1];
        (!took_ms.is_empty()).then(|| Self { p50_ms: at(50), p95_ms: at(95), runs: took_ms.len() as u32 })
    }

    /// A run that has taken so long takes far longer than usual.
    pub fn is_exceeded(&self, elapsed_ms: i64) -> bool {
        elapsed_ms > 2 * self.p95_ms as i64 + EXCEEDED_BY_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_and_nearly_all_of_the_runs_took_at_most_so_long() {
        for (took, p50_ms, p95_ms) in [
            (vec![7], 7, 7),
            (vec![9, 1], 1, 9),
            (vec![3, 1, 2], 2, 3),
            ((1..=100).rev().collect(), 50, 95),
            ((1..=20).collect(), 10, 19),
        ] {
            let runs = took.len() as u32;
            assert_eq!(Usual::of(took), Some(Usual { p50_ms, p95_ms, runs }));
        }
        assert_eq!(Usual::of(vec![]), None);
    }
}
