//! Every operator of the cron fields, as examples that a person can check on a calendar.

mod schedule_support;

use belfry_core::schedule::{Schedule, ScheduleSpec, Window};
use jiff::Timestamp;
use schedule_support::example::{AFTER_FIRST, check_fires, check_next, compile, instant};

#[test]
fn five_fields_start_with_minutes() {
    check_next("0 4 * * *", "Asia/Shanghai", "2026-03-01T04:00", "2026-03-02T04:00:00+08:00");
}

#[test]
fn six_fields_start_with_seconds() {
    check_next("30 0 4 * * *", "UTC", "2026-03-01T04:00", "2026-03-01T04:00:30+00:00");
}

#[test]
fn seven_fields_end_with_a_year() {
    check_next("0 0 0 1 1 ? 2030/10", "UTC", "2026-03-01T04:00", "2030-01-01T00:00:00+00:00");
    check_next("0 0 0 1 1 ? 2030/10", "UTC", "2030-03-01T04:00", "2040-01-01T00:00:00+00:00");
}

#[test]
fn zero_and_seven_are_sunday() {
    for sunday in ["0", "7", "SUN", "sun"] {
        check_next(&format!("0 0 * * {sunday}"), "UTC", "2026-11-16T00:00", "2026-11-22T00:00:00+00:00");
    }
    let weekend = &["2026-11-21T00:00:00+00:00", "2026-11-22T00:00:00+00:00", "2026-11-28T00:00:00+00:00"];
    check_fires(&["0 0 * * 6-7"], "UTC", AFTER_FIRST, "2026-11-16T00:00", weekend);
}

#[test]
fn ranges_wrap_round_the_end() {
    let long_weekend = &[
        "2026-11-20T00:00:00+00:00",
        "2026-11-21T00:00:00+00:00",
        "2026-11-22T00:00:00+00:00",
        "2026-11-23T00:00:00+00:00",
        "2026-11-27T00:00:00+00:00",
    ];
    check_fires(&["0 0 * * FRI-MON"], "UTC", AFTER_FIRST, "2026-11-17T00:00", long_weekend);
    let night = &[
        "2026-11-17T22:00:00+00:00",
        "2026-11-17T23:00:00+00:00",
        "2026-11-18T00:00:00+00:00",
        "2026-11-18T01:00:00+00:00",
        "2026-11-18T22:00:00+00:00",
    ];
    check_fires(&["0 22-1 * * *"], "UTC", AFTER_FIRST, "2026-11-17T12:00", night);
    check_next("0 0 1 NOV-FEB *", "UTC", "2026-02-01T00:00", "2026-11-01T00:00:00+00:00");
}

#[test]
fn steps_start_at_the_beginning_at_a_value_or_in_a_range() {
    check_fires(
        &["*/25 * * * *"],
        "UTC",
        AFTER_FIRST,
        "2026-11-17T00:00",
        &["2026-11-17T00:25:00+00:00", "2026-11-17T00:50:00+00:00", "2026-11-17T01:00:00+00:00"],
    );
    check_fires(
        &["10/25 * * * *"],
        "UTC",
        AFTER_FIRST,
        "2026-11-17T00:00",
        &["2026-11-17T00:10:00+00:00", "2026-11-17T00:35:00+00:00", "2026-11-17T01:10:00+00:00"],
    );
    check_fires(
        &["1-30/7 0 * * *"],
        "UTC",
        AFTER_FIRST,
        "2026-11-17T00:10",
        &[
            "2026-11-17T00:15:00+00:00",
            "2026-11-17T00:22:00+00:00",
            "2026-11-17T00:29:00+00:00",
            "2026-11-18T00:01:00+00:00",
        ],
    );
}

#[test]
fn last_day_of_the_month_knows_february_and_december() {
    check_fires(
        &["0 0 L * *"],
        "UTC",
        AFTER_FIRST,
        "2027-11-30T00:00",
        &["2027-12-31T00:00:00+00:00", "2028-01-31T00:00:00+00:00", "2028-02-29T00:00:00+00:00"],
    );
    check_next("0 0 L-3 * *", "UTC", "2027-02-01T00:00", "2027-02-25T00:00:00+00:00");
}

#[test]
fn last_working_day_is_not_a_weekend() {
    check_next("0 0 LW * *", "UTC", "2027-02-01T00:00", "2027-02-26T00:00:00+00:00");
    check_next("0 0 LW * *", "UTC", "2027-10-01T00:00", "2027-10-29T00:00:00+00:00");
}

#[test]
fn nearest_weekday_stays_in_its_month() {
    check_next("0 0 15W * *", "UTC", "2026-08-01T00:00", "2026-08-14T00:00:00+00:00"); // the 15th is a Saturday
    check_next("0 0 15W * *", "UTC", "2026-11-01T00:00", "2026-11-16T00:00:00+00:00"); // a Sunday
    check_next("0 0 1W * *", "UTC", "2026-07-31T00:00", "2026-08-03T00:00:00+00:00"); // Saturday the 1st: not back into July
    check_next("0 0 31W * *", "UTC", "2027-01-30T00:00", "2027-03-31T00:00:00+00:00"); // no 31st in February
    check_next("0 0 31W * *", "UTC", "2027-10-01T00:00", "2027-10-29T00:00:00+00:00"); // Sunday the 31st: not on into November
}

#[test]
fn last_and_nth_weekday_of_the_month() {
    check_next("0 0 * * 5L", "UTC", "2026-11-01T00:00", "2026-11-27T00:00:00+00:00");
    check_next("0 0 * * FRIL", "UTC", "2026-11-01T00:00", "2026-11-27T00:00:00+00:00");
    check_next("0 0 * * 5#3", "UTC", "2026-11-01T00:00", "2026-11-20T00:00:00+00:00");
    check_next("0 0 * * FRI#3", "UTC", "2026-11-01T00:00", "2026-11-20T00:00:00+00:00");
    check_next("0 0 * * 1#5", "UTC", "2026-12-01T00:00", "2027-03-29T00:00:00+00:00"); // only months with five Mondays
}

#[test]
fn day_of_month_or_weekday_when_both_are_restricted() {
    let fires = &[
        "2026-11-20T00:00:00+00:00",
        "2026-11-27T00:00:00+00:00",
        "2026-12-01T00:00:00+00:00",
        "2026-12-04T00:00:00+00:00",
    ];
    check_fires(&["0 0 1 * 5"], "UTC", AFTER_FIRST, "2026-11-17T00:00", fires);
}

#[test]
fn day_of_month_and_weekday_when_one_starts_with_a_star() {
    check_next("0 0 */2 * 5", "UTC", "2026-11-20T12:00", "2026-11-27T00:00:00+00:00"); // an odd day and a Friday
    check_next("0 0 ? * 5", "UTC", "2026-11-17T00:00", "2026-11-20T00:00:00+00:00");
    check_next("0 0 13 * ?", "UTC", "2026-11-17T00:00", "2026-12-13T00:00:00+00:00");
}

#[test]
fn leap_day_skips_the_year_2100() {
    check_fires(
        &["0 0 29 2 *"],
        "UTC",
        AFTER_FIRST,
        "2092-12-01T00:00",
        &["2096-02-29T00:00:00+00:00", "2104-02-29T00:00:00+00:00"],
    );
}

#[test]
fn a_fifth_monday_in_february_is_forty_years_away_at_the_most() {
    let fires = &["2044-02-29T00:00:00+00:00", "2072-02-29T00:00:00+00:00", "2112-02-29T00:00:00+00:00"];
    check_fires(&["0 0 * 2 1#5"], "UTC", AFTER_FIRST, "2026-01-01T00:00", fires);
}

#[test]
fn hash_is_stable_per_job_and_within_its_range() {
    let next = |text: &str, seed: u64| {
        let spec = ScheduleSpec {
            expressions: &[text.to_owned()],
            timezone: "UTC",
            dst: AFTER_FIRST,
            window: Window::default(),
            seed,
            anchor: Timestamp::UNIX_EPOCH,
        };
        let schedule = Schedule::compile(&spec).expect("valid");
        schedule.next_after(instant("2026-11-17T00:00:00Z")).expect("a fire")
    };
    assert_eq!(next("H H * * *", 42), next("H H * * *", 42));
    let spread: std::collections::BTreeSet<_> = (0..1000).map(|seed| next("H H * * *", seed)).collect();
    assert!(spread.len() > 600, "1,000 jobs fall on only {} minutes of the day", spread.len());
    for seed in 0..200 {
        let minute = |t: Timestamp| t.to_zoned(jiff::tz::TimeZone::UTC).minute();
        assert!((0..=29).contains(&minute(next("H(0-29) * * * *", seed))));
        assert!(minute(next("H/15 * * * *", seed)) < 16);
        assert!(next("0 0 H 2 *", seed) < instant("2027-03-01T00:00:00Z"), "H is a day that every month has");
    }
}

#[test]
fn hash_values_never_change_between_versions() {
    let schedule = compile(&["H H H(1-20) * *"], "UTC", AFTER_FIRST, Window::default());
    assert_eq!(schedule.next_after(instant("2026-11-17T00:00:00Z")), Some(instant("2026-11-17T17:15:00Z")));
}
