//! Whether an attempt that ended badly is followed by another one, and when.

use std::time::Duration;

use crate::job::{Backoff, Retry};
use crate::run::RunState;

/// What an attempt came to, as far as retrying is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// 1 for the first.
    pub attempt: u32,
    pub state: RunState,
    pub exit_code: Option<i32>,
}

/// The delay before the next attempt, or none if there is none. `spread` in 0..1 shifts an exponential delay by up to a
/// tenth, so that a herd that failed together does not come back together.
pub fn next_attempt(retry: Option<&Retry>, attempted: Attempted, spread: f64) -> Option<Duration> {
    let retry = retry?;
    if attempted.attempt >= retry.attempts || !retry.on.iter().any(|on| matches(on, attempted)) {
        return None;
    }
    let delay = match retry.backoff {
        Backoff::Fixed => retry.delay.get(),
        Backoff::Exponential => {
            let doubled = retry.delay.get().saturating_mul(1u32 << (attempted.attempt - 1).min(20));
            doubled.mul_f64(1.0 + spread.clamp(0.0, 1.0) * 0.1)
        }
    };
    Some(delay.min(retry.max_delay.get()))
}

fn matches(on: &str, attempted: Attempted) -> bool {
    match on.strip_prefix("exit:") {
        Some(code) => attempted.state == RunState::Failed && code.parse().ok() == attempted.exit_code,
        None => on == attempted.state.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::RetryWhere;
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
        Attempted { attempt, state: RunState::Failed, exit_code: Some(code) }
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
        let rule = retry(&["exit:75", "lost"], Backoff::Fixed);
        assert!(next_attempt(Some(&rule), failed(1, 75), 0.0).is_some());
        assert!(next_attempt(Some(&rule), failed(1, 1), 0.0).is_none());
        let lost = Attempted { attempt: 1, state: RunState::Lost, exit_code: None };
        assert!(next_attempt(Some(&rule), lost, 0.0).is_some());
    }

    #[test]
    fn exponential_doubles_up_to_the_bound() {
        let rule = retry(&["failed"], Backoff::Exponential);
        let delays: Vec<_> = (1..4).map(|n| next_attempt(Some(&rule), failed(n, 1), 0.0).unwrap().as_secs()).collect();
        assert_eq!(delays, [10, 20, 30]);
        assert_eq!(next_attempt(Some(&rule), failed(1, 1), 1.0).unwrap(), Duration::from_secs(11));
    }
}
