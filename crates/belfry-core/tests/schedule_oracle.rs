//! Every zone of the database, every operator, half of the windows across a clock change: next and prev against brute force.
//!
//! A case is one (schedule, zone, start, direction): the engine's answer is compared with the oracle's list of all fires.

mod schedule_support;

use std::collections::BTreeSet;

use belfry_core::schedule::{DstRule, GapRule, OverlapRule, Schedule, ScheduleSpec, Window};
use belfry_core::units::Span;
use jiff::{Timestamp, ToSpan};
use schedule_support::compare::{Counts, check};
use schedule_support::expression::Expression;
use schedule_support::generate::{DENSE, SPARSE, generate};
use schedule_support::oracle::{WallClock, fires_of_days};
use schedule_support::random::Random;
use schedule_support::zones::{ZoneCase, all_zones};

const SEED: u64 = 20_261_115;
const CASES_MIN: u64 = 1_000_000;
const CASES_PER_OPERATOR_MIN: u64 = 20_000;
const WINDOWS_PER_ZONE: usize = 6;
const SCHEDULES_PER_WINDOW: usize = 11;
const SPARSE_PER_ZONE: usize = 14;
const HOURS_48: i64 = 48 * 3600;

#[test]
fn next_and_prev_agree_with_brute_force_in_every_zone() {
    let zones = all_zones();
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let halves: Vec<_> = (0..2)
            .map(|half| {
                let zones = &zones;
                scope.spawn(move || {
                    let mut counts = Counts::default();
                    for (number, zone) in zones.iter().enumerate().filter(|(number, _)| number % 2 == half) {
                        let mut random = Random(SEED + number as u64);
                        counts.zones.insert(zone.name.clone());
                        check_windows(zone, &mut random, number, &mut counts);
                        check_sparse(zone, &mut random, number, &mut counts);
                        check_forms(zone, &mut random, &mut counts);
                    }
                    counts
                })
            })
            .collect();
        for half in halves {
            counts.merge(half.join().expect("no case differs"));
        }
    });

    println!(
        "seed {SEED}; {} zones; {} cases; {} fires walked; {} refused as never firing",
        counts.zones.len(),
        counts.cases,
        counts.walked,
        counts.refused
    );
    println!("{} windows of 48 h, {} of them across a clock change", counts.windows, counts.windows_across_change);
    for (operator, cases) in &counts.operators {
        println!("{cases:>10}  {operator}");
    }
    assert_eq!(counts.zones.len(), zones.len());
    assert!(counts.cases >= CASES_MIN);
    assert!(counts.windows_across_change * 2 >= counts.windows);
    let forms = [
        "@every",
        "@at",
        "@after",
        "@boot",
        "several",
        "window",
        "gap after",
        "gap skip",
        "overlap first",
        "overlap last",
        "overlap both",
    ];
    for operator in DENSE.iter().chain(&SPARSE).chain(&forms) {
        let cases = counts.operators.get(operator).copied().unwrap_or(0);
        assert!(cases >= CASES_PER_OPERATOR_MIN, "{operator}: only {cases} cases");
    }
}

/// All fires in random stretches of 48 hours.
fn check_windows(zone: &ZoneCase, random: &mut Random, number: usize, counts: &mut Counts) {
    // Zones without changes cannot cross one; the others make up for them.
    let crossing = if zone.changes.is_empty() { 0 } else { WINDOWS_PER_ZONE - 1 };
    for window in 0..WINDOWS_PER_ZONE {
        let start = if window < crossing {
            let recent = zone.changes.partition_point(|change| *change < 2_000_000_000).max(1);
            let change =
                if random.one_in(4) { *random.pick(&zone.changes) } else { *random.pick(&zone.changes[..recent]) };
            change - random.within(3600, HOURS_48 - 3600)
        } else {
            random.within(86_400, 7_257_000_000)
        };
        let end = start + HOURS_48;
        let clock = WallClock::new(&zone.tz, start, end);
        counts.windows += 1;
        counts.windows_across_change += u64::from(zone.changes.iter().any(|change| start < *change && *change < end));
        for nth in 0..SCHEDULES_PER_WINDOW {
            let dst = random_dst(random);
            let count = if random.one_in(6) { random.within(2, 3) as usize } else { 1 };
            let seed = random.next();
            let mut expressions = Vec::new();
            for extra in 0..count {
                let featured = DENSE[(number * 7 + window * SCHEDULES_PER_WINDOW + nth + extra * 5) % DENSE.len()];
                expressions.push(Expression { seed, ..generate(random, featured, 2026) });
            }
            let mut fires = BTreeSet::new();
            for expression in &expressions {
                if expression.is_fixed_time() {
                    let date = |second| zone.tz.to_datetime(Timestamp::from_second(second).expect("in range")).date();
                    let (first, last) = (date(start).saturating_sub(2.days()), date(end).saturating_add(2.days()));
                    fires.extend(fires_of_days(expression, &zone.tz, dst, first, last));
                } else {
                    fires.extend(clock.fires(expression));
                }
            }
            fires.retain(|fire| (start..end).contains(fire));
            let edges: Vec<i64> = fires.iter().copied().take(100).collect();
            let window = random_window(random, start, end, &edges);
            fires.retain(|fire| window.contains(Timestamp::from_second(*fire).expect("in range")));
            let fires: Vec<i64> = fires.into_iter().collect();
            check(zone, &expressions, dst, window, &fires, start..end, random, counts);
        }
    }
}

/// Three years day by day, for rules that need the calendar.
fn check_sparse(zone: &ZoneCase, random: &mut Random, number: usize, counts: &mut Counts) {
    for nth in 0..SPARSE_PER_ZONE {
        let year = if random.one_in(2) { random.within(2015, 2035) } else { random.within(1970, 2197) };
        let featured = SPARSE[(number * SPARSE_PER_ZONE + nth) % SPARSE.len()];
        let expression = generate(random, featured, year);
        let dst = random_dst(random);
        let (first, last) = (jiff::civil::date(year as i16, 1, 1), jiff::civil::date(year as i16 + 2, 12, 31));
        let fires: Vec<i64> = fires_of_days(&expression, &zone.tz, dst, first, last).into_iter().collect();
        let second =
            |date: jiff::civil::Date| zone.tz.to_timestamp(date.at(12, 0, 0, 0)).expect("in range").as_second();
        let range = second(first.saturating_add(2.days()))..second(last.saturating_sub(2.days()));
        let fires: Vec<i64> = fires.into_iter().filter(|fire| range.contains(fire)).collect();
        check(zone, &[expression], dst, Window::default(), &fires, range, random, counts);
    }
}

/// `@every` by adding the step again and again, `@at`, `@after` and `@boot` by what they say.
fn check_forms(zone: &ZoneCase, random: &mut Random, counts: &mut Counts) {
    for _ in 0..48 {
        let anchor = random.within(0, 4_000_000_000);
        let anchored = Timestamp::from_second(anchor).expect("in range");
        let compile = |text: String, window: Window| {
            let spec = ScheduleSpec {
                expressions: &[text],
                timezone: &zone.name,
                dst: DstRule::default(),
                window,
                seed: 1,
                anchor: anchored,
            };
            Schedule::compile(&spec).unwrap_or_else(|refused| panic!("{refused}"))
        };
        let step = random.within(1, 200_000);
        let text = format!("@every {}", Span::from(std::time::Duration::from_secs(step as u64)));
        let from = random.one_in(2).then(|| anchor + random.within(-10_000, 10_000));
        let window = Window { from: from.map(|from| Timestamp::from_second(from).expect("in range")), until: None };
        let schedule = compile(text, window);
        let t = anchor + random.within(-20, 40) * step + random.within(-1, 1);
        let (mut next, mut prev) = (from.unwrap_or(anchor + step), None);
        while next <= t {
            if next < t {
                prev = Some(next);
            }
            next += step;
        }
        let at = Timestamp::from_second(t).expect("in range");
        assert_eq!(schedule.next_after(at).map(Timestamp::as_second), Some(next));
        assert_eq!(schedule.prev_before(at).map(Timestamp::as_second), prev);
        counts.add(&["@every"], 2);

        let schedule = compile(format!("@at {anchored}"), Window::default());
        let start =
            anchored.checked_add(jiff::SignedDuration::from_millis(random.within(-1500, 1500))).expect("in range");
        assert_eq!(schedule.next_after(start), (start < anchored).then_some(anchored));
        assert_eq!(schedule.prev_before(start), (start > anchored).then_some(anchored));
        counts.add(&["@at"], 2);

        let delay = std::time::Duration::from_millis(random.within(1, 1_000_000_000) as u64);
        let schedule = compile(format!("@after {}", Span::from(delay)), Window::default());
        assert_eq!(
            (schedule.delay_after_end(), schedule.next_after(start), schedule.at_boot()),
            (Some(delay), None, false)
        );
        counts.add(&["@after"], 1);

        let schedule = compile("@boot".into(), Window::default());
        assert_eq!((schedule.at_boot(), schedule.next_after(start), schedule.delay_after_end()), (true, None, None));
        counts.add(&["@boot"], 1);
    }
}

fn random_dst(random: &mut Random) -> DstRule {
    let gap = *random.pick(&[GapRule::After, GapRule::After, GapRule::Skip]);
    let overlap = *random.pick(&[OverlapRule::First, OverlapRule::Last, OverlapRule::Both]);
    DstRule { gap, overlap }
}

/// Mostly open; otherwise half of the edges are at a fire.
fn random_window(random: &mut Random, start: i64, end: i64, fires: &[i64]) -> Window {
    let mut edge = || match random.within(0, 15) {
        0 => Some(random.within(start - 7200, end + 7200)),
        1 if !fires.is_empty() => Some(*random.pick(fires)),
        _ => None,
    };
    let (from, until) = (edge(), edge());
    let instant = |second: Option<i64>| second.map(|second| Timestamp::from_second(second).expect("in range"));
    match (from, until) {
        (Some(from), Some(until)) if from >= until => Window::default(),
        (from, until) => Window { from: instant(from), until: instant(until) },
    }
}
