//! Whether an attempt that ended badly is followed by another one, and when.

use std::time::Duration;

use crate::RunId;
use crate::job::{Action, Backoff, JobDocument, Retry, WhenCutOff};
use crate::run::RunState;

/// An exponential delay is shifted by up to this part of it, so that a herd that failed together does not come back together.
const SPREAD: f64 = 0.1;
const AFTER_ABANDONED: Duration = Duration::from_secs(1);

/// What an attempt came to, as far as retrying is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// 1 for the first.
    pub attempt: u32,
    pub state: RunState,
    pub exit_code: Option<i32>,
    /// Its node gave it up: what `lost` is to a server.
    pub abandoned: bool,
}

impl Attempted {
    fn is_lost(self) -> bool {
        self.state == RunState::Lost || self.abandoned
    }
}

/// The delay before the next attempt, or none if there is none. `spread` is in 0..1, see [`spread`]. After `lost` there is no
/// delay: it took a TTL to find out, and nothing says that the work itself fails. What its node gave up comes a moment later: nodes that
/// are cut off together would else use up all attempts in no time.
pub fn next_attempt(retry: Option<&Retry>, attempted: Attempted, spread: f64) -> Option<Duration> {
    let retry = retry?;
    if attempted.attempt >= retry.attempts || !retry.on.iter().any(|on| matches(on, attempted)) {
        return None;
    }
    if attempted.is_lost() {
        return Some(if attempted.abandoned { AFTER_ABANDONED } else { Duration::ZERO });
    }
    Some(match retry.backoff {
        Backoff::Fixed => retry.delay.get(),
        Backoff::Exponential => {
            let max = retry.max_delay.get();
            let doubled = retry.delay.get().saturating_mul(1u32 << attempted.attempt.saturating_sub(1).min(20));
            let shift = spread.clamp(0.0, 1.0) * SPREAD;
            let later = doubled.min(max).mul_f64(1.0 + shift);
            // At the bound there is only room before it.
            if later <= max { later } else { max.mul_f64(1.0 - shift) }
        }
    })
}

/// The same on every server.
pub fn spread(run: RunId, attempt: u32) -> f64 {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&run.as_u128().to_be_bytes());
    bytes[16..].copy_from_slice(&attempt.to_be_bytes());
    (xxhash_rust::xxh3::xxh3_64(&bytes) >> 11) as f64 / (1u64 << 53) as f64
}

fn matches(on: &str, attempted: Attempted) -> bool {
    match on.strip_prefix("exit:") {
        Some(code) => attempted.state == RunState::Failed && code.parse().ok() == attempted.exit_code,
        None if on == RunState::Lost.as_str() => attempted.is_lost(),
        None => on == attempted.state.as_str(),
    }
}

impl JobDocument {
    /// Whether its work must have ended where it runs before it may start elsewhere. So is all that is started again when it is
    /// lost, whatever `when_cut_off` says.
    pub fn is_exclusive(&self) -> bool {
        let starts_again = |retry: &Retry| retry.attempts > 1 && retry.on.iter().any(|on| on == "lost");
        let is_service = matches!(self.action, Action::Service(_));
        is_service || self.when_cut_off == WhenCutOff::Stop || self.retry.as_ref().is_some_and(starts_again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{RetryWhere, Shell};
    use crate::units::Span;

    fn retry(on: &[&str], backoff: Backoff) -> Retry {
        Retry {
            attempts: 4,
            on: on.iter().map(|s| (*s).to_owned()).collect(),
            delay: Span::from_secs(10),
            backoff,
            max_delay: Span::from_secs(30),
            on_node: RetryWhere::Any,
        }
    }

    fn failed(attempt: u32, code: i32) -> Attempted {
        Attempted { attempt, state: RunState::Failed, exit_code: Some(code), abandoned: false }
    }

    #[test]
    fn attempts_are_starts_in_all() {
        let rule = retry(&["failed"], Backoff::Fixed);
        assert_eq!(next_attempt(Some(&rule), failed(3, 1), 0.0), Some(Duration::from_secs(10)));
        assert_eq!(next_attempt(Some(&rule), failed(4, 1), 0.0), None);
        assert_eq!(next_attempt(None, failed(1, 1), 0.0), None);
    }

    #[test]
    fn only_what_is_listed_is_retried() {
        let rule = retry(&["exit:75", "timed_out"], Backoff::Fixed);
        assert!(next_attempt(Some(&rule), failed(1, 75), 0.0).is_some());
        assert!(next_attempt(Some(&rule), failed(1, 1), 0.0).is_none());
        for state in RunState::ALL {
            let attempted = Attempted { attempt: 1, state, exit_code: None, abandoned: false };
            assert_eq!(next_attempt(Some(&rule), attempted, 0.0).is_some(), state == RunState::TimedOut, "{state}");
        }
    }

    #[test]
    fn what_is_lost_starts_again_at_once_and_what_was_abandoned_soon_if_lost_is_listed() {
        let lost = Attempted { attempt: 1, state: RunState::Lost, exit_code: None, abandoned: false };
        let killed_by_its_node = Attempted { state: RunState::Killed, abandoned: true, ..lost };
        let never_started = Attempted { state: RunState::Skipped, abandoned: true, ..lost };
        for (attempted, delay) in
            [(lost, Duration::ZERO), (killed_by_its_node, AFTER_ABANDONED), (never_started, AFTER_ABANDONED)]
        {
            assert_eq!(next_attempt(Some(&retry(&["lost"], Backoff::Fixed)), attempted, 0.5), Some(delay));
            assert_eq!(next_attempt(Some(&retry(&["failed"], Backoff::Fixed)), attempted, 0.5), None);
        }
        let killed_by_a_person = Attempted { abandoned: false, ..killed_by_its_node };
        assert_eq!(next_attempt(Some(&retry(&["lost", "failed"], Backoff::Fixed)), killed_by_a_person, 0.5), None);
    }

    #[test]
    fn exponential_doubles_up_to_the_bound() {
        let rule = retry(&["failed"], Backoff::Exponential);
        let delays: Vec<_> = (1..4).map(|n| next_attempt(Some(&rule), failed(n, 1), 0.0).unwrap().as_secs()).collect();
        assert_eq!(delays, [10, 20, 30]);
        assert_eq!(next_attempt(Some(&rule), failed(1, 1), 1.0).unwrap(), Duration::from_secs(11));
        assert_eq!(next_attempt(Some(&rule), failed(3, 1), 1.0).unwrap(), Duration::from_secs(27), "not beyond it");
        let many = Retry { attempts: 100, ..rule };
        assert_eq!(next_attempt(Some(&many), failed(99, 1), 0.0), Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_fixed_delay_is_what_it_says() {
        let rule = Retry { max_delay: Span::from_secs(1), ..retry(&["failed"], Backoff::Fixed) };
        for (attempt, spread) in [(1, 0.0), (2, 0.7), (3, 1.0)] {
            assert_eq!(next_attempt(Some(&rule), failed(attempt, 1), spread), Some(Duration::from_secs(10)));
        }
    }

    #[test]
    fn a_herd_is_spread() {
        let spreads: Vec<f64> = (0..1000).map(|n| spread(RunId::from_u128(n), 1)).collect();
        assert!(spreads.iter().all(|spread| (0.0..1.0).contains(spread)));
        let lower = spreads.iter().filter(|spread| **spread < 0.5).count();
        assert!((400..600).contains(&lower), "{lower}");
        assert_ne!(spread(RunId::from_u128(1), 1), spread(RunId::from_u128(1), 2));
    }

    #[test]
    fn exclusive_is_what_starts_again_when_lost_and_what_says_so() {
        let mut document = JobDocument::new("a", Action::Shell(Shell { command: "true".into() }));
        assert!(!document.is_exclusive());
        document.retry = Some(retry(&["failed"], Backoff::Fixed));
        assert!(!document.is_exclusive());
        document.retry = Some(retry(&["failed", "lost"], Backoff::Fixed));
        assert!(document.is_exclusive());
        document.retry = Some(Retry { attempts: 1, ..retry(&["lost"], Backoff::Fixed) });
        assert!(!document.is_exclusive(), "it is never started again");
        document.when_cut_off = WhenCutOff::Stop;
        assert!(document.is_exclusive());
    }
}
