//! What becomes of a run when another run of its job is still going, judged at the planned instant.

use crate::job::Overlap;

/// How many runs of one job may wait behind the running one (`overlap: queue`).
pub const QUEUE_MAX: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Go {
    Start,
    /// Behind the ones that are going or waiting.
    Wait,
    /// End the ones that are going, then start.
    Replace,
    Skip {
        reason: String,
    },
}

/// `going`: runs of the job that have started or are about to and have not ended; `waiting`: runs queued behind them.
pub fn judge(overlap: Overlap, going: usize, waiting: usize) -> Go {
    if going == 0 && waiting == 0 {
        return Go::Start;
    }
    match overlap {
        Overlap::Allow => Go::Start,
        Overlap::Forbid => Go::Skip { reason: "overlap is forbid, and the run before it had not ended".to_owned() },
        Overlap::Queue if waiting < QUEUE_MAX => Go::Wait,
        Overlap::Queue => Go::Skip { reason: format!("overlap is queue, and {QUEUE_MAX} runs were already waiting") },
        Overlap::Replace => Go::Replace,
    }
}

/// Whether a run was skipped because of this rule: that is what its job asked for.
pub fn is_reason(reason: &str) -> bool {
    reason.contains("overlap")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_in_one_line() {
        assert_eq!(judge(Overlap::Forbid, 0, 0), Go::Start);
        assert!(matches!(judge(Overlap::Forbid, 1, 0), Go::Skip { .. }));
        assert_eq!(judge(Overlap::Allow, 9, 0), Go::Start);
        assert_eq!(judge(Overlap::Queue, 1, 9), Go::Wait);
        assert!(matches!(judge(Overlap::Queue, 1, 10), Go::Skip { .. }));
        assert_eq!(judge(Overlap::Queue, 0, 1), Go::Wait, "the queue is kept in order");
        assert_eq!(judge(Overlap::Replace, 1, 0), Go::Replace);
    }

    #[test]
    fn its_reasons_are_known_again() {
        for (overlap, going, waiting) in [(Overlap::Forbid, 1, 0), (Overlap::Queue, 1, 10)] {
            let Go::Skip { reason } = judge(overlap, going, waiting) else { panic!("{overlap:?} starts it") };
            assert!(is_reason(&reason), "{reason}");
        }
        assert!(!is_reason("missed by 7 s: misfire.policy is skip"));
    }
}
