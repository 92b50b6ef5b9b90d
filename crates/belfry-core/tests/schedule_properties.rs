//! What holds for every schedule, whatever it says: order, inverse, bounds, and no panic on any text.

mod schedule_support;

use belfry_core::schedule::{DstRule, GapRule, OverlapRule, Schedule, ScheduleSpec, Window};
use belfry_core::units::Span;
use jiff::Timestamp;
use proptest::prelude::*;
use schedule_support::generate::{DENSE, SPARSE, generate};
use schedule_support::random::Random;

const ZONES: [&str; 9] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Shanghai",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "America/Nuuk",
    "Antarctica/Troll",
];

fn schedule() -> impl Strategy<Value = (Schedule, String)> {
    let rule = (
        prop_oneof![Just(GapRule::After), Just(GapRule::Skip)],
        prop_oneof![Just(OverlapRule::First), Just(OverlapRule::Last), Just(OverlapRule::Both)],
    );
    (any::<u64>(), 0..DENSE.len() + SPARSE.len(), 0..ZONES.len(), rule).prop_filter_map(
        "never fires",
        |(seed, featured, zone, (gap, overlap))| {
            let featured = DENSE.iter().chain(&SPARSE).nth(featured).expect("in range");
            let expression = generate(&mut Random(seed), featured, 2030);
            let text = expression.render();
            let spec = ScheduleSpec {
                expressions: std::slice::from_ref(&text),
                timezone: ZONES[zone],
                dst: DstRule { gap, overlap },
                window: Window::default(),
                seed: expression.seed,
                anchor: Timestamp::UNIX_EPOCH,
            };
            Schedule::compile(&spec)
                .ok()
                .map(|schedule| (schedule, format!("{text} in {} {:?}", ZONES[zone], spec.dst)))
        },
    )
}

fn instant() -> impl Strategy<Value = Timestamp> {
    (-1_000_000i64..7_300_000_000, 0i32..1_000_000_000)
        .prop_map(|(second, nano)| Timestamp::new(second, if second < 0 { 0 } else { nano }).expect("in range"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, rng_seed: proptest::test_runner::RngSeed::Fixed(20_261_115), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn next_is_strictly_later_and_prev_leads_back((schedule, text) in schedule(), start in instant()) {
        let mut t = start;
        for _ in 0..20 {
            let Some(next) = schedule.next_after(t) else { break };
            prop_assert!(next > t, "{text}: {next} after {t}");
            prop_assert_eq!(next.subsec_nanosecond(), 0);
            prop_assert_eq!(schedule.next_after(next - std::time::Duration::from_nanos(1)), Some(next), "{}", text);
            if let Some(prev) = schedule.prev_before(next) {
                prop_assert!(prev <= t, "{text}: {prev} lies between {t} and {next}");
                prop_assert_eq!(schedule.next_after(prev), Some(next), "{}", text);
            }
            t = next;
        }
    }

    #[test]
    fn prev_is_strictly_earlier_and_next_leads_back((schedule, text) in schedule(), start in instant()) {
        let mut t = start;
        for _ in 0..20 {
            let Some(prev) = schedule.prev_before(t) else { break };
            prop_assert!(prev < t, "{text}: {prev} before {t}");
            let next = schedule.next_after(prev);
            prop_assert!(next.is_none_or(|next| next >= t), "{text}: {next:?} lies between {prev} and {t}");
            t = prev;
        }
    }

    #[test]
    fn any_text_is_compiled_or_refused(text in r"(@?[ -~é]{0,40}|([0-9A-Z*?/,#()LWH-]{1,8} ){4,7}[0-9*])", start in instant()) {
        let spec = ScheduleSpec {
            expressions: &[text],
            timezone: "Europe/Berlin",
            dst: DstRule::default(),
            window: Window::default(),
            seed: 9,
            anchor: start,
        };
        if let Ok(schedule) = Schedule::compile(&spec) {
            prop_assert!(schedule.next_after(start).is_none_or(|next| next > start));
        }
    }

    #[test]
    fn durations_survive_being_written(ms in 0u64..3_000_000_000_000) {
        let duration = std::time::Duration::from_millis(ms);
        prop_assert_eq!(Span::parse(&Span::from(duration).to_string()), Ok(Span::from(duration)));
    }
}
