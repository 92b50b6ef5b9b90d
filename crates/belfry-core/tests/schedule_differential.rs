//! Our engine against two public ones, croner and cron. Where they differ, the reason is named here; a difference without a reason fails.

mod schedule_support;

use std::collections::BTreeMap;

use belfry_core::schedule::{DstRule, Schedule, ScheduleSpec, Window};
use jiff::Timestamp;
use schedule_support::chrono_zone::ChronoZone;
use schedule_support::expression::{Expression, Item};
use schedule_support::generate::{DENSE, SPARSE, generate};
use schedule_support::random::Random;
use schedule_support::zones::{ZoneCase, all_zones};

const SEED: u64 = 4_021_700;
const CASES: usize = 40_000;
const DAY_SECONDS: i64 = 86_400;

/// Why another engine gives another answer, and why ours stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Reason {
    /// No difference.
    Same,
    /// It does not read the operator at all.
    NotInItsLanguage,
    /// croner takes a list or range of hours, minutes or seconds for an interval; cron (Vixie) asks only whether the field starts with `*`.
    ListCountsAsInterval,
    /// croner takes `*/2` in a day field for a restriction, so that the other day field is enough; Vixie sees the `*`.
    SteppedStarRestrictsDay,
    /// croner counts weekday steps up to 7, so that `1/2` includes Sunday; for us a week ends with Saturday.
    WeekdayStepReachesSeven,
    /// croner forgets that 7 is Sunday in `7L`.
    LastSevenIsLost,
    /// croner makes `SUN-SUN` the whole week.
    SundayToSunday,
    /// croner counts year steps from year 1; we from 1970.
    YearStepsFromOne,
    /// We stop after 2199; croner goes to 5000, cron to 2100.
    OtherLastYear,
    /// croner's search may pass through a gap on its way from the start, and then fires at the gap's end although nothing was due in it.
    FiresAtAnyGap,
    /// croner drops a time in a gap over midnight, because the gap's end is on another day; ours fires there.
    GapOverMidnight,
    /// croner gives up in a gap of more than two hours (Vostok 1994, Kwajalein 1993, Apia 2011).
    LongGap,
    /// cron counts weekdays from Sunday = 1, which shows where numbers cannot be turned into names.
    SundayIsOne,
    /// cron wants day-of-month and day-of-week both to match.
    BothDaysMustMatch,
    /// cron does not know clock changes: it omits times in a gap and repeats or goes back in an overlap.
    NoClockChanges,
}

struct Case<'a> {
    expression: &'a Expression,
    zone: &'a ZoneCase,
    start: i64,
    ours: Option<i64>,
    theirs: Option<i64>,
}

impl Case<'_> {
    fn day_fields_hold(&self, test: impl Fn(&Item) -> bool) -> bool {
        test(&self.expression.day[0]) || test(&self.expression.weekday[0])
    }

    /// A clock change within a day of the start or of either answer.
    fn near_clock_change(&self) -> bool {
        let near = |second: i64| self.zone.changes.iter().any(|change| (change - second).abs() <= DAY_SECONDS);
        [Some(self.start), self.ours, self.theirs].into_iter().flatten().any(near)
    }

    /// Local time just before and at a fire, if the clock was put forward at that instant.
    fn gap_ending_at(&self, fire: Option<i64>) -> Option<[jiff::civil::DateTime; 2]> {
        let second = fire.filter(|fire| self.zone.changes.contains(fire))?;
        let [before, at] = [second - 1, second]
            .map(|second| self.zone.tz.to_datetime(Timestamp::from_second(second).expect("in range")));
        (at.duration_since(before) > jiff::SignedDuration::from_secs(1)).then_some([before, at])
    }

    fn long_gap(&self) -> bool {
        let offset = |second: i64| self.zone.tz.to_offset(Timestamp::from_second(second).expect("in range")).seconds();
        let near =
            |change: i64| (self.start - DAY_SECONDS..=self.ours.unwrap_or(self.start) + DAY_SECONDS).contains(&change);
        self.zone.changes.iter().any(|change| near(*change) && i64::from(offset(*change) - offset(change - 1)) > 7200)
    }

    fn beyond(&self, year: i16) -> bool {
        let end = jiff::civil::date(year, 12, 30)
            .at(0, 0, 0, 0)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .expect("in range")
            .timestamp();
        [self.ours, self.theirs].iter().flatten().any(|fire| *fire > end.as_second())
    }
}

#[test]
fn croner_differs_only_where_we_know_why() {
    compare(
        |case_text, zone, start| {
            let parser = croner::parser::CronParser::builder().sloppy_ranges(true).build();
            let cron = parser.parse(case_text).ok()?;
            let start = Timestamp::from_second(start).expect("in range").to_zoned(zone.tz.clone());
            Some(cron.find_next_occurrence(&start, false).ok().map(|next| next.timestamp().as_second()))
        },
        Expression::render,
        croner_reads,
        |case| {
            if case.theirs.is_none() && case.long_gap() {
                return Some(Reason::LongGap);
            }
            let expression = case.expression;
            let single = |items: &[Item]| matches!(items, [Item::Value(_)]);
            let is_fixed_for_croner = single(&expression.minute)
                && single(&expression.hour)
                && expression.second.as_deref().is_none_or(single);
            let steps_star = |item: &Item| matches!(item, Item::StepAny(_));
            let restricted = |item: &Item| !matches!(item, Item::Any | Item::Question);
            if expression.is_fixed_time() && !is_fixed_for_croner && case.near_clock_change() {
                Some(Reason::ListCountsAsInterval)
            } else if is_fixed_for_croner && case.gap_ending_at(case.theirs).is_some() {
                Some(Reason::FiresAtAnyGap)
            } else if case.gap_ending_at(case.ours).is_some_and(|[before, at]| before.date() != at.date()) {
                Some(Reason::GapOverMidnight)
            } else if case.day_fields_hold(steps_star)
                && restricted(&expression.day[0])
                && restricted(&expression.weekday[0])
            {
                Some(Reason::SteppedStarRestrictsDay)
            } else if expression.weekday.iter().any(|item| matches!(item, Item::StepFrom(..))) {
                Some(Reason::WeekdayStepReachesSeven)
            } else if expression.weekday.contains(&Item::LastOf(7)) {
                Some(Reason::LastSevenIsLost)
            } else if expression.weekday.contains(&Item::NameRange(0, 0)) {
                Some(Reason::SundayToSunday)
            } else if expression.year.iter().flatten().any(steps_star) {
                Some(Reason::YearStepsFromOne)
            } else if case.ours.is_none() && case.beyond(2199) {
                Some(Reason::OtherLastYear)
            } else {
                None
            }
        },
    );
}

#[test]
fn cron_crate_differs_only_where_we_know_why() {
    // It counts weekdays from Sunday = 1; names mean the same everywhere.
    let with_weekday_names = |expression: &Expression| {
        let mut expression = expression.clone();
        for item in &mut expression.weekday {
            *item = match *item {
                Item::Value(day) => Item::Name(day),
                Item::Range(first, last) if last < 7 => Item::NameRange(first, last),
                other => other,
            };
        }
        let text = expression.render();
        if expression.second.is_none() && expression.macro_name.is_none() { format!("0 {text}") } else { text }
    };
    compare(
        |case_text, zone, start| {
            let schedule: cron::Schedule = case_text.parse().ok()?;
            let start = chrono::TimeZone::timestamp_opt(&ChronoZone(zone.tz.clone()), start, 0).single()?;
            Some(schedule.after(&start).next().map(|next| next.timestamp()))
        },
        with_weekday_names,
        cron_crate_reads,
        |case| {
            let numbers = |item: &Item| matches!(item, Item::StepFrom(..) | Item::StepRange(..) | Item::Range(_, 7));
            if case.expression.weekday.iter().any(numbers) {
                return Some(Reason::SundayIsOne);
            }
            if case.expression.is_either_day() {
                Some(Reason::BothDaysMustMatch)
            } else if case.near_clock_change() {
                Some(Reason::NoClockChanges)
            } else if case.beyond(2100) {
                Some(Reason::OtherLastYear)
            } else {
                None
            }
        },
    );
}

fn croner_reads(expression: &Expression) -> bool {
    let lists = [&expression.minute, &expression.hour, &expression.day, &expression.month, &expression.weekday];
    // A star is no item of its lists, and its ranges do not wrap; only one that ends with the name SUN may.
    let star_in_list = lists
        .iter()
        .any(|items| items.len() > 1 && items.iter().any(|item| matches!(item, Item::Any | Item::Question)));
    let items = expression.items().all(|item| match *item {
        Item::Hash | Item::HashStep(_) | Item::HashRange(..) | Item::HashRangeStep(..) | Item::LastMinus(_) => false,
        Item::Range(first, last) | Item::StepRange(first, last, _) => first <= last,
        Item::NameRange(first, last) => first <= last || last == 0,
        _ => true,
    });
    items && !star_in_list && expression.macro_name != Some("@midnight")
}

fn cron_crate_reads(expression: &Expression) -> bool {
    let items = expression.items().all(|item| match *item {
        Item::Hash | Item::HashStep(_) | Item::HashRange(..) | Item::HashRangeStep(..) => false,
        Item::Last | Item::LastMinus(_) | Item::LastWorkingDay | Item::Nearest(_) | Item::Nth(..) | Item::LastOf(_) => {
            false
        }
        Item::Range(first, last) | Item::NameRange(first, last) | Item::StepRange(first, last, _) => first <= last,
        _ => true,
    });
    let weekdays = expression.weekday.iter().all(|item| match *item {
        // Its weekdays are numbered 1 to 7.
        Item::Range(_, last) => last < 7,
        Item::StepFrom(first, _) | Item::StepRange(first, ..) => first > 0,
        _ => true,
    });
    // A step as large as the field is refused.
    let fields = [
        (&expression.minute, 60),
        (&expression.hour, 24),
        (&expression.day, 31),
        (&expression.month, 12),
        (&expression.weekday, 7),
    ];
    let second = expression.second.as_ref().map(|items| (items, 60));
    let steps = fields.into_iter().chain(second).all(|(items, size)| {
        items.iter().all(
            |item| !matches!(*item, Item::StepAny(n) | Item::StepFrom(_, n) | Item::StepRange(_, _, n) if n >= size),
        )
    });
    items && weekdays && steps && !matches!(expression.macro_name, Some("@midnight" | "@annually"))
}

/// Asks both engines for the next fire in every case, `reads` whether the other one knows the operators, and `explain` for the reason of
/// each difference.
fn compare(
    next: impl Fn(&str, &ZoneCase, i64) -> Option<Option<i64>>,
    render: impl Fn(&Expression) -> String,
    reads: impl Fn(&Expression) -> bool,
    explain: impl Fn(&Case<'_>) -> Option<Reason>,
) {
    let zones = all_zones();
    let mut random = Random(SEED);
    let mut reasons: BTreeMap<Reason, u32> = BTreeMap::new();
    for number in 0..CASES {
        let featured = DENSE.iter().chain(&SPARSE).nth(number % (DENSE.len() + SPARSE.len())).expect("in range");
        let zone = random.pick(&zones);
        let expression = generate(&mut random, featured, 2030);
        let start = if random.one_in(2) && !zone.changes.is_empty() {
            random.pick(&zone.changes) + random.within(-DAY_SECONDS, DAY_SECONDS)
        } else {
            random.within(DAY_SECONDS, 4_000_000_000)
        };
        let text = expression.render();
        let spec = ScheduleSpec {
            expressions: std::slice::from_ref(&text),
            timezone: &zone.name,
            dst: DstRule::default(),
            window: Window::default(),
            seed: expression.seed,
            anchor: Timestamp::UNIX_EPOCH,
        };
        let Ok(schedule) = Schedule::compile(&spec) else {
            continue;
        };
        let ours = schedule.next_after(Timestamp::from_second(start).expect("in range")).map(Timestamp::as_second);
        let reason = match next(&render(&expression), zone, start) {
            None => {
                assert!(!reads(&expression), "{text} was refused");
                Reason::NotInItsLanguage
            }
            Some(theirs) if theirs == ours => Reason::Same,
            Some(theirs) => {
                let case = Case { expression: &expression, zone, start, ours, theirs };
                explain(&case).unwrap_or_else(|| {
                    panic!("{text} in {} after {start}: ours {ours:?}, theirs {theirs:?}", zone.name)
                })
            }
        };
        *reasons.entry(reason).or_default() += 1;
    }
    println!("seed {SEED}, {CASES} cases: {reasons:?}");
    let read_by_both = reasons.values().sum::<u32>() - reasons[&Reason::NotInItsLanguage];
    assert!(
        reasons[&Reason::Same] > read_by_both * 3 / 4 && read_by_both > 20_000,
        "too few cases agree for the comparison to mean anything"
    );
}
