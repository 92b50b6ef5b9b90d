//! Brute force: all fires of an expression in a stretch of time, by stepping the wall clock and asking jiff for every conversion.

use std::collections::BTreeSet;

use belfry_core::schedule::{DstRule, GapRule, OverlapRule};
use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};

use super::expression::{Expression, HOUR, MINUTE, SECOND};

/// A real stretch of time within one local minute.
struct Slot {
    utc: i64,
    date: Date,
    hour: usize,
    minute: usize,
    first_second: i64,
    seconds: i64,
}

/// The local clock of a zone from one UTC second to another, minute by minute.
pub struct WallClock {
    pub start: i64,
    pub end: i64,
    slots: Vec<Slot>,
}

impl WallClock {
    pub fn new(tz: &TimeZone, start: i64, end: i64) -> Self {
        let local = |second: i64| tz.to_datetime(Timestamp::from_second(second).expect("in range"));
        let mut slots: Vec<Slot> = Vec::new();
        let mut at = start;
        while at < end {
            let now = local(at);
            let full = now.second() == 0
                && at + 60 <= end
                && local(at + 59) == now.saturating_add(jiff::Span::new().seconds(59));
            let seconds = if full { 60 } else { 1 };
            slots.push(Slot {
                utc: at,
                date: now.date(),
                hour: now.hour() as usize,
                minute: now.minute() as usize,
                first_second: i64::from(now.second()),
                seconds,
            });
            at += seconds;
        }
        Self { start, end, slots }
    }

    /// The fires of an interval expression: whatever the clock on the wall shows counts.
    pub fn fires(&self, expression: &Expression) -> BTreeSet<i64> {
        let tables = Tables::new(expression);
        let mut fires = BTreeSet::new();
        let mut day: Option<(Date, bool)> = None;
        for slot in &self.slots {
            let matches = match day {
                Some((date, matches)) if date == slot.date => matches,
                _ => expression.matches_date(slot.date),
            };
            day = Some((slot.date, matches));
            if matches && tables.hours[slot.hour] && tables.minutes[slot.minute] {
                for second in slot.first_second..slot.first_second + slot.seconds {
                    if tables.seconds[second as usize] {
                        fires.insert(slot.utc + second - slot.first_second);
                    }
                }
            }
        }
        fires
    }
}

struct Tables {
    seconds: Vec<bool>,
    minutes: Vec<bool>,
    hours: Vec<bool>,
}

impl Tables {
    fn new(expression: &Expression) -> Self {
        let seed = expression.seed;
        let seconds = match &expression.second {
            Some(items) => SECOND.table(items, seed),
            None => (0..60).map(|second| second == 0).collect(),
        };
        Self { seconds, minutes: MINUTE.table(&expression.minute, seed), hours: HOUR.table(&expression.hour, seed) }
    }
}

/// The fires of all matching local times on the days from `first` to `last`: the calendar is stepped, then each local time is turned
/// into instants by the rule for clock changes.
pub fn fires_of_days(expression: &Expression, tz: &TimeZone, dst: DstRule, first: Date, last: Date) -> BTreeSet<i64> {
    let tables = Tables::new(expression);
    let mut fires = BTreeSet::new();
    let mut date = first;
    while date <= last {
        if expression.matches_date(date) {
            for hour in (0..24).filter(|hour| tables.hours[*hour]) {
                for minute in (0..60).filter(|minute| tables.minutes[*minute]) {
                    for second in (0..60).filter(|second| tables.seconds[*second]) {
                        let local = date.at(hour as i8, minute as i8, second as i8, 0);
                        instants(expression.is_fixed_time(), tz, dst, local, &mut fires);
                    }
                }
            }
        }
        date = date.tomorrow().expect("in range");
    }
    fires
}

fn instants(fixed: bool, tz: &TimeZone, dst: DstRule, local: DateTime, fires: &mut BTreeSet<i64>) {
    let at = |offset: jiff::tz::Offset| offset.to_timestamp(local).expect("in range").as_second();
    match tz.to_ambiguous_timestamp(local).offset() {
        AmbiguousOffset::Unambiguous { offset } => {
            fires.insert(at(offset));
        }
        AmbiguousOffset::Gap { before, after } => {
            if fixed && dst.gap == GapRule::After {
                // Read with the later offset the local time lies before the change; the change follows it.
                let earlier = after.to_timestamp(local).expect("in range");
                let change =
                    tz.following(earlier).find(|change| change.offset() != before).expect("a gap has a change");
                fires.insert(change.timestamp().as_second());
            }
        }
        AmbiguousOffset::Fold { before, after } => {
            if !fixed || dst.overlap != OverlapRule::Last {
                fires.insert(at(before));
            }
            if !fixed || dst.overlap != OverlapRule::First {
                fires.insert(at(after));
            }
        }
    }
}
