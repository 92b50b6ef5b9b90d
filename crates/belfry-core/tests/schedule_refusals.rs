//! What is refused, and the exact words a person reads.

use belfry_core::schedule::{DstRule, Schedule, ScheduleSpec, Window};
use belfry_core::units::Span;
use jiff::Timestamp;

fn refusal(texts: &[&str], timezone: &str, window: Window) -> (&'static str, String) {
    let expressions: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
    let spec = ScheduleSpec {
        expressions: &expressions,
        timezone,
        dst: DstRule::default(),
        window,
        seed: 1,
        anchor: Timestamp::UNIX_EPOCH,
    };
    match Schedule::compile(&spec) {
        Ok(_) => ("accepted", String::new()),
        Err(refused) => (refused.field, refused.message),
    }
}

#[test]
fn expressions_are_refused_with_field_value_and_what_would_do() {
    let weekday_use = "use 0-7 (0 and 7 are Sunday), SUN-SAT, 5L or 5#3";
    let day_use = "use 1-31, L, L-3, LW or 15W";
    let counts = "use 5 (minute hour day-of-month month day-of-week), 6 (second first) or 7 (second first, year last)";
    let never = "it never fires: no time in the years 1970-2199 matches; use a date that exists";
    let table: &[(&str, &str, String)] = &[
        ("", "schedule", format!("\"\" has 0 fields; {counts}")),
        ("*", "schedule", format!("\"*\" has 1 field; {counts}")),
        ("* * * *", "schedule", format!("\"* * * *\" has 4 fields; {counts}")),
        ("* * * * * * * *", "schedule", format!("\"* * * * * * * *\" has 8 fields; {counts}")),
        ("60 * * * *", "minute", "minute \"60\" is out of range; use 0-59".into()),
        ("99999999999 * * * *", "minute", "minute \"99999999999\" is out of range; use 0-59".into()),
        ("-1 * * * *", "minute", "minute \"-1\" is not a range; use 0-59".into()),
        ("5- * * * *", "minute", "minute \"5-\" is not a range; use 0-59".into()),
        ("a * * * *", "minute", "minute \"a\" is not known; use 0-59".into()),
        ("é * * * *", "minute", "minute \"é\" is not known; use 0-59".into()),
        ("+5 * * * *", "minute", "minute \"+5\" is not known; use 0-59".into()),
        ("? * * * *", "minute", "minute \"?\": ? stands alone, for day-of-month or day-of-week; use *".into()),
        ("L * * * *", "minute", "minute \"L\" is not known; use 0-59".into()),
        ("1,,2 * * * *", "minute", "minute \"1,,2\" has an empty item; use 0-59".into()),
        ("1, * * * *", "minute", "minute \"1,\" has an empty item; use 0-59".into()),
        ("1-2-3 * * * *", "minute", "minute \"2-3\" is not known; use 0-59".into()),
        ("*-5 * * * *", "minute", "minute \"*\" is not known; use 0-59".into()),
        ("*/0 * * * *", "minute", "minute \"*/0\": step \"0\" is not possible; use 1-60".into()),
        ("*/61 * * * *", "minute", "minute \"*/61\": step \"61\" is not possible; use 1-60".into()),
        ("*/ * * * *", "minute", "minute \"*/\": step \"\" is not possible; use 1-60".into()),
        ("*/5/5 * * * *", "minute", "minute \"*/5/5\": step \"5/5\" is not possible; use 1-60".into()),
        ("/5 * * * *", "minute", "minute \"/5\" has an empty item; use 0-59".into()),
        ("H(0-60) * * * *", "minute", "minute \"60\" is out of range; use 0-59".into()),
        ("H(5) * * * *", "minute", "minute \"H(5)\" is not known; use H, H/15, H(0-29) or H(0-29)/10".into()),
        ("HH * * * *", "minute", "minute \"HH\" is not known; use H, H/15, H(0-29) or H(0-29)/10".into()),
        ("0 24 * * *", "hour", "hour \"24\" is out of range; use 0-23".into()),
        ("61 0 0 * * *", "second", "second \"61\" is out of range; use 0-59".into()),
        ("0 0 0 * *", "day-of-month", format!("day-of-month \"0\" is out of range; {day_use}")),
        ("0 0 32 * *", "day-of-month", format!("day-of-month \"32\" is out of range; {day_use}")),
        ("0 0 L-0 * *", "day-of-month", "day-of-month \"L-0\" is not known; use L-1 to L-30".into()),
        ("0 0 L-31 * *", "day-of-month", "day-of-month \"L-31\" is not known; use L-1 to L-30".into()),
        ("0 0 W * *", "day-of-month", "day-of-month \"W\": W follows one day; use 1W to 31W, or LW".into()),
        ("0 0 1-5W * *", "day-of-month", "day-of-month \"1-5W\": W follows one day; use 1W to 31W, or LW".into()),
        ("0 0 32W * *", "day-of-month", "day-of-month \"32W\": W follows one day; use 1W to 31W, or LW".into()),
        ("0 0 5L * *", "day-of-month", format!("day-of-month \"5L\" is not known; {day_use}")),
        ("0 0 ?/2 * *", "day-of-month", "day-of-month \"?/2\": ? stands alone, for day-of-month or day-of-week; use *".into()),
        ("0 0 * 13 *", "month", "month \"13\" is out of range; use 1-12 or JAN-DEC".into()),
        ("0 0 * JANUARY *", "month", "month \"JANUARY\" is not known; use 1-12 or JAN-DEC".into()),
        ("0 0 * * 8", "day-of-week", format!("day-of-week \"8\" is out of range; {weekday_use}")),
        ("0 0 * * MONDAY", "day-of-week", format!("day-of-week \"MONDAY\" is not known; {weekday_use}")),
        ("0 0 * * L", "day-of-week", "day-of-week \"L\" needs a day in front; use 5L or FRIL for the last Friday of the month".into()),
        ("0 0 * * 5#6", "day-of-week", "day-of-week \"5#6\": \"6\" is not possible after #; use 1-5, or 5L for the last Friday".into()),
        ("0 0 * * 5#0", "day-of-week", "day-of-week \"5#0\": \"0\" is not possible after #; use 1-5, or 5L for the last Friday".into()),
        ("0 0 * * 9#1", "day-of-week", format!("day-of-week \"9\" is out of range; {weekday_use}")),
        ("0 0 * * 15W", "day-of-week", format!("day-of-week \"15W\" is not known; {weekday_use}")),
        (
            "0 0 1 1 * 2027",
            "day-of-week",
            "day-of-week \"2027\" looks like a year, but six fields start with seconds; for a year put seconds in front: \"0 0 0 1 1 * 2027\"".into(),
        ),
        (
            "0 0 1 1 * 2027-2030",
            "day-of-week",
            "day-of-week \"2027-2030\" looks like a year, but six fields start with seconds; for a year put seconds in front: \"0 0 0 1 1 * 2027-2030\"".into(),
        ),
        ("0 0 0 1 1 * 1969", "year", "year \"1969\" is out of range; use 1970-2199".into()),
        ("0 0 0 1 1 * 2200", "year", "year \"2200\" is out of range; use 1970-2199".into()),
        ("0 0 0 1 1 * 2030-2027", "year", "year \"2030-2027\" runs backwards; write the earlier year first".into()),
        ("0 0 0 1 1 * H", "year", "year \"H\" is not possible; name the years, such as 2027 or 2027-2030".into()),
        ("0 0 30 2 *", "schedule", never.into()),
        ("0 0 31 4,6,9,11 *", "schedule", never.into()),
        ("0 0 0 29 2 * 2027", "schedule", never.into()),
        ("0 0 0 29 2 * 2100", "schedule", never.into()),
        ("0 0 */31 * 5#3", "schedule", never.into()),
        (
            "@fortnightly",
            "schedule",
            "\"@fortnightly\" is not known; use @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually, @every 90s, @after 90s, @at 2027-01-01T00:00:00Z or @boot".into(),
        ),
        ("@reboot", "schedule", "\"@reboot\" is written @boot here".into()),
        ("@daily 5", "schedule", "\"@daily\" stands alone; remove \"5\"".into()),
        ("@every", "schedule", "@every: the duration is empty; use whole numbers with units such as 90s, 1h30m, 500ms or 2d".into()),
        ("@every 90", "schedule", "@every: \"90\": 90 has no unit; use whole numbers with units such as 90s, 1h30m, 500ms or 2d".into()),
        ("@every 0s", "schedule", "@every: \"0s\" is not possible; use whole seconds, at least 1s".into()),
        ("@every 500ms", "schedule", "@every: \"500ms\" is not possible; use whole seconds, at least 1s".into()),
        ("@after 0s", "schedule", "@after: \"0s\" would never let it rest; use a delay such as 1s or more".into()),
        (
            "@at 2200-01-01T00:00:00Z",
            "schedule",
            "@at: \"2200-01-01T00:00:00Z\" is out of range; use the years 1970-2199".into(),
        ),
        ("@at tomorrow", "schedule", "@at: \"tomorrow\" is not an instant; use a date, time and offset such as 2027-01-01T00:00:00+08:00".into()),
        ("@at 2027-01-01T00:00:00", "schedule", "@at: \"2027-01-01T00:00:00\" is not an instant; use a date, time and offset such as 2027-01-01T00:00:00+08:00".into()),
        ("@at 2027-01-01T00:00:00.5Z", "schedule", "@at: \"2027-01-01T00:00:00.5Z\" has a fraction of a second; use whole seconds".into()),
    ];
    for (text, field, message) in table {
        assert_eq!(refusal(&[text], "UTC", Window::default()), (*field, message.clone()), "{text}");
    }
}

#[test]
fn a_refusal_names_the_expression_of_the_list() {
    let expressions = ["@daily".to_owned(), "0 24 * * *".to_owned()];
    let spec = ScheduleSpec {
        expressions: &expressions,
        timezone: "UTC",
        dst: DstRule::default(),
        window: Window::default(),
        seed: 1,
        anchor: Timestamp::UNIX_EPOCH,
    };
    let refused = Schedule::compile(&spec).expect_err("hour 24");
    assert_eq!(refused.index, Some(1));
    assert_eq!(refused.to_string(), "schedule \"0 24 * * *\": hour \"24\" is out of range; use 0-23");
    assert_eq!(
        refusal(&["@after 1s", "@after 2s"], "UTC", Window::default()).1,
        "a second @after; a job has at most one"
    );
}

#[test]
fn zones_and_windows_are_refused_by_name() {
    for zone in ["Europe/Berln", "", "CEST", "Etc/Unknown", "+02:00", "../etc/passwd"] {
        let message =
            format!("timezone \"{zone}\" is not known; use an IANA name such as Europe/Berlin, Asia/Shanghai or UTC");
        assert_eq!(refusal(&["@daily"], zone, Window::default()), ("timezone", message));
    }
    let at = |text: &str| Some(text.parse::<Timestamp>().expect("an instant"));
    let reversed = Window { from: at("2027-01-01T00:00:00Z"), until: at("2027-01-01T00:00:00Z") };
    assert_eq!(
        refusal(&[], "UTC", reversed),
        (
            "window",
            "window.until 2027-01-01T00:00:00Z is not after window.from 2027-01-01T00:00:00Z; use a later end".into()
        )
    );
    let narrow = Window { from: at("2027-01-02T00:00:00Z"), until: at("2027-01-03T00:00:00Z") };
    for text in ["0 0 1 * *", "@at 2027-01-03T00:00:00Z", "0 0 0 * * * 2026"] {
        assert_eq!(
            refusal(&[text], "UTC", narrow),
            ("window", "it never fires in the window from 2027-01-02T00:00:00Z until 2027-01-03T00:00:00Z; widen the window or change the schedule".into())
        );
    }
}

#[test]
fn a_time_that_the_clock_skips_for_ever_is_refused() {
    let spec = ScheduleSpec {
        expressions: &["0 30 2 29 3 * 2026".to_owned()],
        timezone: "Europe/Berlin",
        dst: DstRule { gap: belfry_core::schedule::GapRule::Skip, ..DstRule::default() },
        window: Window::default(),
        seed: 1,
        anchor: Timestamp::UNIX_EPOCH,
    };
    assert!(Schedule::compile(&spec).is_err());
    assert!(Schedule::compile(&ScheduleSpec { dst: DstRule::default(), ..spec }).is_ok());
}

#[test]
fn what_is_over_loads_but_is_not_saved_anew() {
    let now: Timestamp = "2026-11-17T00:00:00Z".parse().expect("an instant");
    for text in ["0 0 0 1 1 * 2020-2026", "@at 2026-11-17T00:00:00Z"] {
        let expressions = ["@daily".to_owned(), text.to_owned()];
        let spec = ScheduleSpec {
            expressions: &expressions,
            timezone: "UTC",
            dst: DstRule::default(),
            window: Window::default(),
            seed: 1,
            anchor: Timestamp::UNIX_EPOCH,
        };
        assert!(Schedule::compile(&spec).is_ok(), "a saved job loads");
        let refused = Schedule::compile_for_saving(&spec, now).expect_err("no fire after now");
        assert_eq!(
            (refused.index, refused.message.as_str()),
            (Some(1), "it never fires again: all its times are in the past; use a later date")
        );
    }
}

#[test]
fn durations_are_refused_with_a_reason() {
    let numbers = "use whole numbers with units such as 90s, 1h30m, 500ms or 2d";
    for (text, message) in [
        ("", format!("the duration is empty; {numbers}")),
        ("90", format!("\"90\": 90 has no unit; {numbers}")),
        ("1.5h", format!("\"1.5h\": 1 is not a whole number; {numbers}")),
        ("-5s", format!("\"-5s\" is not a duration; {numbers}")),
        ("s", format!("\"s\" is not a duration; {numbers}")),
        ("5 s", format!("\"5 s\": 5 has no unit; {numbers}")),
        ("5y", "\"5y\": unit \"y\" is not known; use w, d, h, m, s or ms".into()),
        ("5M", "\"5M\": unit \"M\" is not known; use w, d, h, m, s or ms".into()),
        ("30m1h", "\"30m1h\": write each unit once, the largest first".into()),
        ("1h1h", "\"1h1h\": write each unit once, the largest first".into()),
        ("36501d", "\"36501d\" is too long; use at most 36500d".into()),
        ("99999999999999999999s", "\"99999999999999999999s\" is too long; use at most 36500d".into()),
    ] {
        assert_eq!(Span::parse(text), Err(message));
    }
}

#[test]
fn rules_and_windows_read_as_in_the_job_document() {
    let rule: DstRule = serde_json::from_str(r#"{"overlap": "both"}"#).expect("a rule");
    assert_eq!(serde_json::to_string(&rule).expect("json"), r#"{"gap":"after","overlap":"both"}"#);
    assert!(serde_json::from_str::<DstRule>(r#"{"gap": "before"}"#).is_err());
    assert!(serde_json::from_str::<DstRule>(r#"{"gaps": "after"}"#).is_err());
    let window: Window = serde_json::from_str(r#"{"from": "2026-12-01T00:00:00Z"}"#).expect("a window");
    assert_eq!(serde_json::to_string(&window).expect("json"), r#"{"from":"2026-12-01T00:00:00Z"}"#);
    assert!(serde_json::from_str::<Window>(r#"{"to": "2026-12-01T00:00:00Z"}"#).is_err());
}
