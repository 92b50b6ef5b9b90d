//! What becomes of a fire: run it now, wait for its instant, or record it as skipped, and why.

use jiff::Timestamp;

use crate::job::{Misfire, MisfirePolicy};
use crate::schedule::Schedule;

/// A fire that is this late is still "on time": a busy server is not a missed fire.
pub const ON_TIME_MS: i64 = 5_000;

/// The verdict on one fire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    Run,
    Skip { reason: String },
}

/// Judges a fire at `now`. A fire in the future or hardly late runs; one that was missed follows the job's misfire rule,
/// which looks at the fires between it and now, at most `limit` of them.
pub fn judge(schedule: &Schedule, misfire: &Misfire, planned: Timestamp, now: Timestamp) -> Due {
    let late_ms = now.as_millisecond() - planned.as_millisecond();
    if late_ms <= ON_TIME_MS {
        return Due::Run;
    }
    let skip = |why: String| Due::Skip { reason: format!("missed by {}: {why}", seconds(late_ms)) };
    match misfire.policy {
        MisfirePolicy::Skip => skip("misfire.policy is skip".to_owned()),
        _ if late_ms > misfire.within.get().as_millis() as i64 => {
            skip(format!("later than misfire.within {}", misfire.within))
        }
        MisfirePolicy::Latest => {
            if newer_missed(schedule, planned, now, 1) == 0 {
                Due::Run
            } else {
                skip("misfire.policy is latest, and a later fire was missed too".to_owned())
            }
        }
        MisfirePolicy::All => {
            if newer_missed(schedule, planned, now, misfire.limit) < misfire.limit {
                Due::Run
            } else {
                skip(format!("misfire.limit is {}, and as many later fires were missed too", misfire.limit))
            }
        }
    }
}

/// How many fires lie after `planned` and up to `now`, counted up to `enough`.
fn newer_missed(schedule: &Schedule, planned: Timestamp, now: Timestamp, enough: u32) -> u32 {
    let mut at = planned;
    for count in 0..enough {
        match schedule.next_after(at) {
            Some(next) if next <= now => at = next,
            _ => return count,
        }
    }
    enough
}

fn seconds(ms: i64) -> String {
    crate::units::Span::from(std::time::Duration::from_secs((ms / 1000).max(0) as u64)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Action, JobDocument, Shell};
    use crate::units::Span;

    fn every_minute() -> Schedule {
        let mut document = JobDocument::new("a", Action::Shell(Shell { command: "true".into() }));
        document.schedule.0.push("* * * * *".into());
        document.compile_schedule("2026-01-01T00:00:00Z".parse().unwrap()).unwrap()
    }

    fn runs(policy: MisfirePolicy, limit: u32, within_s: u64, now: &str) -> Vec<u32> {
        let schedule = every_minute();
        let misfire = Misfire { policy, within: Span::from_secs(within_s), limit };
        let now: Timestamp = now.parse().unwrap();
        (0..10)
            .filter(|minute| {
                let planned: Timestamp = format!("2026-01-01T10:0{minute}:00Z").parse().unwrap();
                judge(&schedule, &misfire, planned, now) == Due::Run
            })
            .collect()
    }

    #[test]
    fn what_is_hardly_late_or_still_to_come_runs_under_every_policy() {
        for policy in [MisfirePolicy::Skip, MisfirePolicy::Latest, MisfirePolicy::All] {
            assert_eq!(runs(policy, 10, 3600, "2026-01-01T10:08:04Z")[..].last(), Some(&9), "{policy:?}");
            assert!(runs(policy, 10, 3600, "2026-01-01T10:08:04Z").contains(&8), "{policy:?}");
        }
    }

    #[test]
    fn missed_fires_follow_the_policy() {
        let now = "2026-01-01T10:05:30Z";
        assert_eq!(runs(MisfirePolicy::Skip, 10, 3600, now), [6, 7, 8, 9]);
        assert_eq!(runs(MisfirePolicy::Latest, 10, 3600, now), [5, 6, 7, 8, 9]);
        assert_eq!(runs(MisfirePolicy::All, 10, 3600, now), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(runs(MisfirePolicy::All, 2, 3600, now), [4, 5, 6, 7, 8, 9]);
        assert_eq!(runs(MisfirePolicy::All, 10, 100, now), [4, 5, 6, 7, 8, 9]);
        assert_eq!(runs(MisfirePolicy::Latest, 10, 20, now), [6, 7, 8, 9]);
    }
}
