//! `next` per second, ours and croner's, in alternating rounds: one JSON line with medians for `xtask bench`.
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use belfry_core::schedule::{DstRule, Schedule, ScheduleSpec, Window, time_zone};
use jiff::{Timestamp, Zoned};

const ROUNDS: usize = 7;
const ROUND_TIME: Duration = Duration::from_millis(60);
const ZONE: &str = "Europe/Berlin";
const EXPRESSIONS: [(&str, &str); 4] =
    [("dense", "*/5 * * * *"), ("fixed", "30 2 * * *"), ("weekday", "0 9-17 * * 1-5"), ("leap_day", "0 0 29 2 *")];

fn main() {
    let start: Timestamp = "2026-11-17T00:00:00Z".parse().expect("an instant");
    let end: Timestamp = "2150-01-01T00:00:00Z".parse().expect("an instant");
    let mut rows = Vec::new();
    for (name, text) in EXPRESSIONS {
        let spec = ScheduleSpec {
            expressions: &[text.to_owned()],
            timezone: ZONE,
            dst: DstRule::default(),
            window: Window::default(),
            seed: 1,
            anchor: start,
        };
        let ours = Schedule::compile(&spec).expect("valid");
        let theirs: croner::Cron = text.parse().expect("valid");
        let zoned_start = start.to_zoned(time_zone(ZONE).expect("a zone"));
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            our_rates.push(rate(start, |t| ours.next_after(*t).filter(|next| *next < end).unwrap_or(start)));
            their_rates.push(rate(zoned_start.clone(), |t: &Zoned| {
                let next = theirs.find_next_occurrence(t, false).ok();
                next.filter(|next| next.timestamp() < end).unwrap_or_else(|| zoned_start.clone())
            }));
        }
        let (our_rate, their_rate) = (median(our_rates), median(their_rates));
        rows.push(format!(
            "{{\"name\":\"{name}\",\"expression\":\"{text}\",\"next_per_second\":{our_rate:.0},\"croner_per_second\":{their_rate:.0},\"ratio\":{:.2}}}",
            our_rate / their_rate
        ));
    }
    let compile = |text: &str| {
        let expressions = [text.to_owned()];
        let spec = ScheduleSpec {
            expressions: &expressions,
            timezone: ZONE,
            dst: DstRule::default(),
            window: Window::default(),
            seed: 1,
            anchor: start,
        };
        Schedule::compile(&spec)
    };
    let compiles = rate((), |()| drop(black_box(compile("30 2 * * 1-5"))));
    let refusals = rate((), |()| drop(black_box(compile("0 0 */31 * 5#3"))));
    let bytes = compile("30 2 * * 1-5").map_or(0, |schedule| schedule.memory_bytes());
    println!(
        "{{\"zone\":\"{ZONE}\",\"rounds\":{ROUNDS},\"compile_per_second\":{compiles:.0},\
         \"refuse_impossible_microseconds\":{:.1},\"bytes_per_schedule\":{bytes},\"rows\":[{}]}}",
        1e6 / refusals,
        rows.join(",")
    );
}

/// Steps per second, each from the instant that the last one gave.
fn rate<T>(start: T, next: impl Fn(&T) -> T) -> f64 {
    const STEPS_PER_LOOK: u32 = 256;
    let mut t = start;
    let mut steps = 0u64;
    let begun = Instant::now();
    while begun.elapsed() < ROUND_TIME {
        for _ in 0..STEPS_PER_LOOK {
            t = next(black_box(&t));
        }
        steps += u64::from(STEPS_PER_LOOK);
    }
    steps as f64 / begun.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
