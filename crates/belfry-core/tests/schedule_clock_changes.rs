//! What happens when clocks change, as examples that a person can check on a calendar.

mod schedule_support;

use belfry_core::schedule::{ClockNote, Window, time_zone_names};
use schedule_support::example::{AFTER_FIRST, BOTH, LAST, SKIP, check_fires, check_next, compile, instant, local};

#[test]
fn every_is_not_moved_by_clock_changes() {
    let fires = &["2026-03-28T12:00:00+01:00", "2026-03-29T13:00:00+02:00"];
    let window = Window { from: Some(instant("2026-03-27T11:00:00Z")), until: None };
    let schedule = compile(&["@every 1d"], "Europe/Berlin", AFTER_FIRST, window);
    let first = schedule.next_after(instant("2026-03-27T12:00:00Z")).expect("a fire");
    let second = schedule.next_after(first).expect("a fire");
    assert_eq!([first, second], [instant(fires[0]), instant(fires[1])]);
}

#[test]
fn spring_forward_moves_the_missing_hour_to_its_end() {
    check_next("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T03:00:00+02:00");
}

#[test]
fn several_times_in_one_gap_are_one_fire() {
    let fires = &["2026-03-29T03:00:00+02:00", "2026-03-30T02:05:00+02:00"];
    check_fires(&["5,30,45 2 * * *"], "Europe/Berlin", AFTER_FIRST, "2026-03-28T12:00", fires);
    check_fires(
        &["30 2,3 * * *"],
        "Europe/Berlin",
        AFTER_FIRST,
        "2026-03-28T12:00",
        &["2026-03-29T03:00:00+02:00", "2026-03-29T03:30:00+02:00"],
    );
}

#[test]
fn skip_leaves_the_missing_hour_out() {
    check_fires(&["30 2 * * *"], "Europe/Berlin", SKIP, "2026-03-28T12:00", &["2026-03-30T02:30:00+02:00"]);
}

#[test]
fn overlap_fires_in_the_pass_that_was_asked_for() {
    let (first, second) = ("2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00");
    let next_day = "2026-10-26T02:30:00+01:00";
    check_fires(&["30 2 * * *"], "Europe/Berlin", AFTER_FIRST, "2026-10-24T12:00", &[first, next_day]);
    check_fires(&["30 2 * * *"], "Europe/Berlin", LAST, "2026-10-24T12:00", &[second, next_day]);
    check_fires(&["30 2 * * *"], "Europe/Berlin", BOTH, "2026-10-24T12:00", &[first, second, next_day]);
}

#[test]
fn a_list_of_hours_is_a_fixed_time_not_an_interval() {
    check_fires(
        &["30 2,14 * * *"],
        "Europe/Berlin",
        AFTER_FIRST,
        "2026-03-28T15:00",
        &["2026-03-29T03:00:00+02:00", "2026-03-29T14:30:00+02:00"],
    );
    check_fires(
        &["30 2,14 * * *"],
        "Europe/Berlin",
        AFTER_FIRST,
        "2026-10-24T15:00",
        &["2026-10-25T02:30:00+02:00", "2026-10-25T14:30:00+01:00"],
    );
}

#[test]
fn intervals_never_pause_nor_double_at_clock_changes() {
    for (day, hours) in [("2026-03-29", 23), ("2026-10-25", 25)] {
        for rule in [AFTER_FIRST, SKIP, LAST, BOTH] {
            let schedule = compile(&["*/15 * * * *"], "Europe/Berlin", rule, Window::default());
            let midnight = local(&format!("{day}T00:00"), "Europe/Berlin");
            let mut t = midnight;
            for quarter in 1..=hours * 4 {
                let next = schedule.next_after(t).expect("a fire");
                assert_eq!(next.as_second(), midnight.as_second() + quarter * 900);
                t = next;
            }
        }
    }
}

#[test]
fn every_second_hour_makes_nothing_up_in_a_gap() {
    check_fires(&["0 */2 * * *"], "Europe/Berlin", AFTER_FIRST, "2026-03-29T00:00", &["2026-03-29T04:00:00+02:00"]);
    check_fires(
        &["0 */2 * * *"],
        "Europe/Berlin",
        AFTER_FIRST,
        "2026-10-25T00:00",
        &["2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T04:00:00+01:00"],
    );
}

#[test]
fn hashed_steps_are_intervals_as_stars_are() {
    let schedule = compile(&["H/15 H/1 * * *"], "Europe/Berlin", AFTER_FIRST, Window::default());
    let mut t = schedule.next_after(local("2026-10-25T00:00", "Europe/Berlin")).expect("a fire");
    for _ in 0..40 {
        let next = schedule.next_after(t).expect("a fire");
        assert_eq!(next.as_second() - t.as_second(), 900);
        t = next;
    }
}

#[test]
fn a_whole_day_can_be_missing() {
    check_fires(
        &["0 12 * * *"],
        "Pacific/Apia",
        AFTER_FIRST,
        "2011-12-29T12:00",
        &["2011-12-31T00:00:00+14:00", "2011-12-31T12:00:00+14:00"],
    );
    check_fires(&["0 12 * * *"], "Pacific/Apia", SKIP, "2011-12-29T12:00", &["2011-12-31T12:00:00+14:00"]);
    check_fires(
        &["0 12 30 * *"],
        "Pacific/Apia",
        AFTER_FIRST,
        "2011-12-29T12:00",
        &["2011-12-31T00:00:00+14:00", "2012-01-30T12:00:00+14:00"],
    );
}

#[test]
fn a_clock_change_can_be_half_an_hour() {
    check_next("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", "2026-10-04T02:30:00+11:00");
    check_fires(
        &["45 1 * * *"],
        "Australia/Lord_Howe",
        BOTH,
        "2026-04-04T12:00",
        &["2026-04-05T01:45:00+11:00", "2026-04-05T01:45:00+10:30"],
    );
}

#[test]
fn midnight_itself_can_be_missing() {
    check_next("@daily", "Africa/Cairo", "2026-04-23T12:00", "2026-04-24T01:00:00+03:00");
}

#[test]
fn an_offset_can_have_seconds() {
    let schedule = compile(&["0 12 * * *"], "Africa/Monrovia", AFTER_FIRST, Window::default());
    assert_eq!(schedule.next_after(instant("1971-06-01T00:00:00Z")), Some(instant("1971-06-01T12:44:30Z")));
}

#[test]
fn previews_tell_what_the_clock_change_did() {
    let schedule = compile(&["30 2 * * *"], "Europe/Berlin", BOTH, Window::default());
    let note = |text: &str| schedule.note_for(instant(text));
    assert_eq!(
        note("2026-03-29T03:00:00+02:00"),
        Some(ClockNote::MovedFromGap { local: jiff::civil::datetime(2026, 3, 29, 2, 30, 0, 0) })
    );
    assert_eq!(note("2026-10-25T02:30:00+02:00"), Some(ClockNote::FirstPass));
    assert_eq!(note("2026-10-25T02:30:00+01:00"), Some(ClockNote::SecondPass));
    assert_eq!(note("2026-10-26T02:30:00+01:00"), None);
    assert_eq!(note("2026-10-25T02:31:00+01:00"), None, "no fire, no note");
}

#[test]
fn zones_come_from_the_bundled_database_in_any_case() {
    assert!(time_zone_names().len() > 590);
    check_next("0 4 * * *", "europe/berlin", "2026-03-01T04:00", "2026-03-02T04:00:00+01:00");
}
