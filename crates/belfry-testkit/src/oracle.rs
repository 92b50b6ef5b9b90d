//! When the simple schedules of tests are due, written apart from the engine under test: plain arithmetic on seconds since 1970.

use jiff::Timestamp;

/// `*/n * * * * *` for an n that divides 60, in any zone with whole minutes.
pub fn every_seconds(n: i64, after: Timestamp, up_to: Timestamp) -> Vec<Timestamp> {
    assert_eq!(60 % n, 0, "cron counts its steps within the minute");
    let first = after.as_second() + 1;
    let instants = (first..=up_to.as_second()).filter(|second| second % n == 0);
    instants.map(|second| Timestamp::from_second(second).expect("in range")).collect()
}

/// `a,b,c * * * * *`.
pub fn seconds_of_minute(seconds: &[i64], after: Timestamp, up_to: Timestamp) -> Vec<Timestamp> {
    every_seconds(1, after, up_to).into_iter().filter(|at| seconds.contains(&(at.as_second() % 60))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_belongs_to_the_interval_that_it_ends() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let fires = every_seconds(2, at("2026-01-01T00:00:00.500Z"), at("2026-01-01T00:00:04Z"));
        assert_eq!(fires, [at("2026-01-01T00:00:02Z"), at("2026-01-01T00:00:04Z")]);
        assert_eq!(
            every_seconds(1, at("2026-01-01T00:00:02Z"), at("2026-01-01T00:00:03Z")),
            [at("2026-01-01T00:00:03Z")]
        );
        let listed = seconds_of_minute(&[0, 59], at("2026-01-01T00:00:30Z"), at("2026-01-01T00:01:30Z"));
        assert_eq!(listed, [at("2026-01-01T00:00:59Z"), at("2026-01-01T00:01:00Z")]);
    }
}
