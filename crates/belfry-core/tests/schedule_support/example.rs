//! How an example reads: an expression, a zone, a local start, and the local times that must follow.

use std::time::Duration;

use belfry_core::schedule::{DstRule, GapRule, OverlapRule, Schedule, ScheduleSpec, Window, time_zone};
use jiff::Timestamp;

pub const AFTER_FIRST: DstRule = DstRule { gap: GapRule::After, overlap: OverlapRule::First };
pub const SKIP: DstRule = DstRule { gap: GapRule::Skip, overlap: OverlapRule::First };
pub const LAST: DstRule = DstRule { gap: GapRule::After, overlap: OverlapRule::Last };
pub const BOTH: DstRule = DstRule { gap: GapRule::After, overlap: OverlapRule::Both };

pub fn compile(expressions: &[&str], zone: &str, dst: DstRule, window: Window) -> Schedule {
    let expressions: Vec<String> = expressions.iter().map(|text| (*text).to_owned()).collect();
    let anchor = instant("2026-01-01T00:00:00Z");
    let spec = ScheduleSpec { expressions: &expressions, timezone: zone, dst, window, seed: 42, anchor };
    Schedule::compile(&spec).unwrap_or_else(|refused| panic!("{refused}"))
}

pub fn instant(text: &str) -> Timestamp {
    text.parse().expect("an instant")
}

pub fn local(text: &str, zone: &str) -> Timestamp {
    let civil: jiff::civil::DateTime = text.parse().expect("a local time");
    time_zone(zone).expect("a zone").to_ambiguous_timestamp(civil).compatible().expect("in range")
}

/// The fires after a local time, as many as are expected, written as local time with offset.
pub fn check_fires(expressions: &[&str], zone: &str, dst: DstRule, start: &str, expected: &[&str]) {
    let schedule = compile(expressions, zone, dst, Window::default());
    let mut t = local(start, zone);
    let mut found = Vec::new();
    for _ in expected {
        let Some(next) = schedule.next_after(t) else {
            break;
        };
        assert!(schedule.prev_before(next + Duration::from_nanos(1)) == Some(next), "{next} is not seen from behind");
        let zoned = next.to_zoned(time_zone(zone).expect("a zone"));
        found.push(zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string());
        t = next;
    }
    assert_eq!(found, expected, "{expressions:?} in {zone} after {start}");
}

pub fn check_next(expression: &str, zone: &str, start: &str, expected: &str) {
    check_fires(&[expression], zone, AFTER_FIRST, start, &[expected]);
}
