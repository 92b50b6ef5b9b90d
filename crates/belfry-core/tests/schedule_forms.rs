//! The `@` forms, windows, lists of schedules, jitter and durations, as examples.

mod schedule_support;

use std::time::Duration;

use belfry_core::schedule::{Window, jitter_for};
use belfry_core::units::Span;
use jiff::Timestamp;
use schedule_support::example::{AFTER_FIRST, check_fires, check_next, compile, instant, local};

#[test]
fn macros_are_what_cron_makes_them() {
    check_next("@hourly", "UTC", "2026-11-17T00:30", "2026-11-17T01:00:00+00:00");
    check_next("@daily", "UTC", "2026-11-17T00:30", "2026-11-18T00:00:00+00:00");
    check_next("@midnight", "UTC", "2026-11-17T00:30", "2026-11-18T00:00:00+00:00");
    check_next("@weekly", "UTC", "2026-11-17T00:30", "2026-11-22T00:00:00+00:00");
    check_next("@monthly", "UTC", "2026-11-17T00:30", "2026-12-01T00:00:00+00:00");
    check_next("@yearly", "UTC", "2026-11-17T00:30", "2027-01-01T00:00:00+00:00");
    check_next("@annually", "UTC", "2026-11-17T00:30", "2027-01-01T00:00:00+00:00");
}

#[test]
fn every_counts_from_creation_without_firing_at_it() {
    check_fires(
        &["@every 90s"],
        "UTC",
        AFTER_FIRST,
        "2025-01-01T00:00",
        &["2026-01-01T00:01:30+00:00", "2026-01-01T00:03:00+00:00"],
    );
}

#[test]
fn every_with_a_window_fires_first_at_its_start() {
    let window = Window { from: Some(instant("2026-02-01T00:00:07Z")), until: Some(instant("2026-02-01T00:03:07Z")) };
    let schedule = compile(&["@every 90s"], "UTC", AFTER_FIRST, window);
    let mut fires = Vec::new();
    let mut t = instant("2026-01-01T00:00:00Z");
    while let Some(next) = schedule.next_after(t) {
        fires.push(next.to_string());
        t = next;
    }
    assert_eq!(fires, ["2026-02-01T00:00:07Z", "2026-02-01T00:01:37Z"]);
}

#[test]
fn after_and_boot_are_no_function_of_time() {
    let schedule = compile(&["@after 90s", "@boot"], "UTC", AFTER_FIRST, Window::default());
    assert_eq!(schedule.delay_after_end(), Some(Duration::from_secs(90)));
    assert!(schedule.at_boot() && !schedule.is_empty());
    assert_eq!(schedule.next_after(Timestamp::UNIX_EPOCH), None);
}

#[test]
fn no_expression_means_manual_only() {
    let schedule = compile(&[], "UTC", AFTER_FIRST, Window::default());
    assert!(schedule.is_empty());
    assert_eq!(schedule.next_after(Timestamp::UNIX_EPOCH), None);
}

#[test]
fn at_fires_once() {
    check_fires(
        &["@at 2027-01-01T00:00:00+08:00"],
        "UTC",
        AFTER_FIRST,
        "2026-01-01T00:00",
        &["2026-12-31T16:00:00+00:00"],
    );
    let schedule = compile(&["@at 2027-01-01T00:00:00+08:00"], "UTC", AFTER_FIRST, Window::default());
    assert!(schedule.first_fire_exists(instant("2026-12-31T16:00:00Z")));
    assert!(!schedule.first_fire_exists(instant("2026-12-31T16:00:01Z")));
}

#[test]
fn several_expressions_on_one_instant_are_one_fire() {
    check_fires(
        &["0 * * * *", "*/30 * * * *"],
        "UTC",
        AFTER_FIRST,
        "2026-11-17T00:10",
        &["2026-11-17T00:30:00+00:00", "2026-11-17T01:00:00+00:00", "2026-11-17T01:30:00+00:00"],
    );
}

#[test]
fn window_holds_its_start_but_not_its_end() {
    let window = Window { from: Some(instant("2026-12-01T00:00:00Z")), until: Some(instant("2026-12-03T00:00:00Z")) };
    let schedule = compile(&["@daily"], "UTC", AFTER_FIRST, window);
    assert_eq!(schedule.next_after(Timestamp::MIN), Some(instant("2026-12-01T00:00:00Z")));
    assert_eq!(schedule.next_after(instant("2026-12-02T00:00:00Z")), None);
    assert_eq!(schedule.prev_before(Timestamp::MAX), Some(instant("2026-12-02T00:00:00Z")));
    assert_eq!(schedule.prev_before(instant("2026-12-01T00:00:00Z")), None);
}

#[test]
fn fires_end_with_the_year_2199() {
    check_fires(&["0 0 1 1 *"], "Asia/Tokyo", AFTER_FIRST, "2198-06-01T00:00", &["2199-01-01T00:00:00+09:00"]);
    let schedule = compile(&["* * * * * *"], "Asia/Tokyo", AFTER_FIRST, Window::default());
    let last = local("2199-12-31T23:59:59", "Asia/Tokyo");
    assert_eq!(schedule.prev_before(Timestamp::MAX), Some(last));
    assert_eq!(schedule.next_after(last), None);
    assert_eq!(schedule.next_after(Timestamp::MIN), Some(local("1970-01-01T00:00", "Asia/Tokyo")));
    assert_eq!(schedule.prev_before(Timestamp::MIN), None);
}

#[test]
fn jitter_is_stable_and_bounded() {
    let max = Duration::from_secs(30);
    let planned = instant("2026-11-17T04:00:00Z");
    assert_eq!(jitter_for(7, planned, max), jitter_for(7, planned, max));
    assert_eq!(jitter_for(7, planned, Duration::ZERO), Duration::ZERO);
    let all: Vec<Duration> = (0..10_000).map(|seed| jitter_for(seed, planned, max)).collect();
    assert!(all.iter().all(|jitter| *jitter <= max && jitter.subsec_nanos() % 1_000_000 == 0));
    let early = all.iter().filter(|jitter| **jitter < max / 2).count();
    assert!((4_700..5_300).contains(&early), "{early} of 10,000 in the first half");
    assert!((0..1000).any(|seed| jitter_for(seed, planned, Duration::from_millis(1)).is_zero()));
    assert!((0..1000).any(|seed| jitter_for(seed, planned, Duration::from_millis(1)) == Duration::from_millis(1)));
}

#[test]
fn durations_are_read_and_written_back() {
    for (text, ms, written) in [
        ("90s", 90_000, "1m30s"),
        ("1h30m", 5_400_000, "1h30m"),
        ("1h 30m", 5_400_000, "1h30m"),
        ("500ms", 500, "500ms"),
        ("2d", 172_800_000, "2d"),
        ("1w", 604_800_000, "7d"),
        ("1m30s5ms", 90_005, "1m30s5ms"),
        ("0s", 0, "0s"),
    ] {
        let duration = Span::parse(text).expect(text).get();
        assert_eq!(duration, Duration::from_millis(ms));
        assert_eq!(Span::from(duration).to_string(), written);
        assert_eq!(Span::parse(written), Ok(Span::from(duration)));
    }
}

#[test]
fn a_schedule_takes_a_few_machine_words() {
    let bytes = |texts: &[&str]| compile(texts, "Europe/Berlin", AFTER_FIRST, Window::default()).memory_bytes();
    let one = bytes(&["30 2 L * 5#3"]);
    let per_expression = bytes(&["30 2 * * *", "@hourly"]) - one;
    println!("{one} bytes for one expression, {per_expression} for each further one");
    assert!(per_expression <= 64 && one <= 128);
}
