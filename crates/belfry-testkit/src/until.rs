//! Waiting for facts.

use std::time::Duration;

use jiff::Timestamp;

const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks until there is an answer; fails with `what` when there is none after a long time.
pub async fn until<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    match until_within(PATIENCE, look).await {
        Some(found) => found,
        None => panic!("waited {PATIENCE:?} in vain until {what}"),
    }
}

pub async fn until_within<T>(patience: Duration, mut look: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let give_up = tokio::time::Instant::now() + patience;
    loop {
        if let Some(found) = look().await {
            return Some(found);
        }
        if tokio::time::Instant::now() >= give_up {
            return None;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "tests look at the same clock as the processes that they start")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// As exact as the machine is; blocks for the last few milliseconds.
#[expect(clippy::disallowed_methods, reason = "a test that aims at an instant has nothing else to do")]
pub async fn sleep_until(instant: Timestamp) {
    const COARSE: Duration = Duration::from_millis(15);
    let left = || Duration::try_from(instant.duration_since(now())).unwrap_or_default();
    tokio::time::sleep(left().saturating_sub(COARSE)).await;
    std::thread::sleep(left());
}
