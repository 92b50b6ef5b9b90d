use super::*;

const BOOTED_MS: i64 = 1_800_000_000_000;
const HOUR_S: i64 = 3600;
const ONE: SessionId = SessionId(1);
const TWO: SessionId = SessionId(2);

/// After so many seconds, with a wall clock that is so far ahead.
fn seen(second: i64, ahead_s: i64) -> Seen {
    Seen { boot: Duration::from_secs(second as u64), wall_us: (BOOTED_MS + (second + ahead_s) * 1000) * 1000 }
}

fn starts(ahead_s: i64) -> OwnTime {
    OwnTime::new(seen(0, ahead_s))
}

/// How far ahead the time is that is gone by.
fn ahead_s(time: &mut OwnTime, second: i64, wall_ahead_s: i64) -> i64 {
    let now = time.at(seen(second, wall_ahead_s));
    assert_eq!(now.shown_ms, BOOTED_MS + (second + wall_ahead_s) * 1000);
    (now.wall_ms - BOOTED_MS) / 1000 - second
}

/// As a server says it whose time is so far ahead.
fn told(ahead_s: i64) -> AgreedTime {
    AgreedTime { booted_at_ms: BOOTED_MS + ahead_s * 1000, within_ms: 2000 }
}

#[test]
fn a_clock_that_steps_again_is_followed_a_minute_after_that() {
    let mut time = starts(0);
    for (second, wall, gone_by) in [
        (1, HOUR_S, 0),
        (50, 2 * HOUR_S, 0),
        (109, 2 * HOUR_S, 0),
        (110, 2 * HOUR_S, 2 * HOUR_S),
        // What is set right bit by bit is no step.
        (111, 2 * HOUR_S - 2, 2 * HOUR_S - 2),
        (112, 2 * HOUR_S - 4, 2 * HOUR_S - 4),
        (113, 0, 2 * HOUR_S - 4),
        (114, 2 * HOUR_S - 4, 2 * HOUR_S - 4),
    ] {
        assert_eq!(ahead_s(&mut time, second, wall), gone_by, "at {second}");
    }
}

#[test]
fn a_wrong_clock_is_not_gone_by_from_the_moment_servers_say_so_until_it_is_right() {
    for wrong in [HOUR_S, -HOUR_S, 3] {
        let mut time = starts(wrong);
        assert_eq!(ahead_s(&mut time, 1, wrong), wrong, "nothing is known of before");
        time.told.insert(ONE, told(0));
        assert_eq!(ahead_s(&mut time, 2, wrong), 0);
        assert_eq!(ahead_s(&mut time, 600, wrong), 0, "however long it stands there");
        assert_eq!(ahead_s(&mut time, 601, 2 * wrong), 0, "or wherever it goes");
        // It is a second off, which is right enough.
        assert_eq!(ahead_s(&mut time, 602, 1), 1);
        assert_eq!(ahead_s(&mut time, 603, wrong), 0, "a step is noticed without a further word");
    }
}

#[test]
fn what_was_known_when_contact_was_lost_is_gone_by_until_the_clock_is_set() {
    let mut time = starts(HOUR_S);
    time.told.insert(ONE, told(0));
    assert_eq!(ahead_s(&mut time, 1, HOUR_S), 0);
    time.told.remove(&ONE);
    assert_eq!(ahead_s(&mut time, 6_000, HOUR_S), 0);
    // To something else than what it was thought to be: as any step without servers.
    assert_eq!(ahead_s(&mut time, 6_001, 100), 0);
    assert_eq!(ahead_s(&mut time, 6_061, 100), 100);
    time.told.insert(TWO, told(0));
    assert_eq!(ahead_s(&mut time, 6_062, 100), 0);
    time.told.clear();
    assert_eq!(ahead_s(&mut time, 6_063, 1), 1, "set right");
}

#[test]
fn a_clock_that_one_server_confirms_is_gone_by_whatever_the_others_say() {
    let mut time = starts(0);
    time.told.insert(ONE, told(HOUR_S));
    assert_eq!(ahead_s(&mut time, 1, 0), HOUR_S);
    time.told.insert(TWO, told(-1));
    assert_eq!(ahead_s(&mut time, 2, 0), 0);
    // Confirmed, a step needs no minute.
    assert_eq!(ahead_s(&mut time, 3, HOUR_S), HOUR_S);
}

#[test]
fn what_happened_is_dated_by_the_time_as_it_is_believed_now() {
    let mut time = starts(HOUR_S);
    let started = Duration::from_millis(1_250);
    assert_eq!(time.at(seen(2, HOUR_S)).ms_at(started), BOOTED_MS + HOUR_S * 1000 + 1_250);
    time.told.insert(ONE, told(0));
    assert_eq!(time.at(seen(2, HOUR_S)).ms_at(started), BOOTED_MS + 1_250);
}
