//! One cron expression as bit sets, and the local times that match it. It knows the calendar, but neither zones nor clock changes.

use super::days::{ALL_DAYS, DAY_LAST, DAY_SECONDS, Month, YEAR_FIRST, YEAR_LAST};
use super::special_days::SpecialDays;

/// No match: later than every local time.
pub(super) const NEVER: i64 = i64::MAX;
/// No match: earlier than every local time.
pub(super) const NEVER_BEFORE: i64 = i64::MIN;

const ALL_MONTHS: u16 = 0x1ffe;
const ALL_WEEKDAYS: u8 = 0x7f;
/// Any 41 years in a row, even around 2100, hold every weekday of 1 January in both leap and common years. What matches no day of
/// them matches no day at all.
const YEARS_UNTIL_ALL_SEEN: i32 = 41;

/// Bit `year - 1970`.
pub(super) type Years = [u64; 4];

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Cron {
    pub seconds: u64,
    pub minutes: u64,
    pub hours: u32,
    /// Bits 1 to 31.
    pub days: u32,
    pub special: SpecialDays,
    /// None: every year.
    pub years: Option<Box<Years>>,
    /// Bits 1 to 12.
    pub months: u16,
    /// Bit 0 is Sunday.
    pub weekdays: u8,
    /// Day-of-month and day-of-week are both restricted: one of them is enough.
    pub either_day: bool,
    /// Hour and minute are both fixed: the DST rule applies.
    pub fixed_time: bool,
}

impl Cron {
    /// The first matching local second at or after `local` (seconds since 1970-01-01 00:00 local), or [`NEVER`].
    pub fn next_local(&self, local: i64) -> i64 {
        let local = local.max(0);
        let day = local / DAY_SECONDS;
        if day > i64::from(DAY_LAST) {
            return NEVER;
        }
        let (day, second) = (day as i32, (local % DAY_SECONDS) as u32);
        if self.is_every_day() {
            return match self.next_second_of_day(second) {
                Some(found) => at(day, found),
                None if day < DAY_LAST => at(day + 1, self.first_second_of_day()),
                None => NEVER,
            };
        }
        let (month, dom) = Month::of_day(day);
        let matching = self.days_of(month);
        if matching >> dom & 1 == 1
            && let Some(found) = self.next_second_of_day(second)
        {
            return at(day, found);
        }
        let later = matching & (u32::MAX << dom << 1);
        let found =
            if later != 0 { Some(month.first + later.trailing_zeros() as i32 - 1) } else { self.next_day_after(month) };
        found.map_or(NEVER, |day| at(day, self.first_second_of_day()))
    }

    /// The last matching local second at or before `local`, or [`NEVER_BEFORE`].
    pub fn prev_local(&self, local: i64) -> i64 {
        if local < 0 {
            return NEVER_BEFORE;
        }
        let local = local.min(at(DAY_LAST, DAY_SECONDS as u32 - 1));
        let (day, second) = ((local / DAY_SECONDS) as i32, (local % DAY_SECONDS) as u32);
        if self.is_every_day() {
            return match self.prev_second_of_day(second) {
                Some(found) => at(day, found),
                None if day > 0 => at(day - 1, self.last_second_of_day()),
                None => NEVER_BEFORE,
            };
        }
        let (month, dom) = Month::of_day(day);
        let matching = self.days_of(month);
        if matching >> dom & 1 == 1
            && let Some(found) = self.prev_second_of_day(second)
        {
            return at(day, found);
        }
        let earlier = matching & ((1 << dom) - 1);
        let found =
            if earlier != 0 { Some(month.first + earlier.ilog2() as i32 - 1) } else { self.last_day_before(month) };
        found.map_or(NEVER_BEFORE, |day| at(day, self.last_second_of_day()))
    }

    fn is_every_day(&self) -> bool {
        self.days == ALL_DAYS && self.weekdays == ALL_WEEKDAYS && self.months == ALL_MONTHS && self.years.is_none()
    }

    /// Matching days of a month as bits 1 to 31.
    fn days_of(&self, month: Month) -> u32 {
        if self.months >> month.month & 1 == 0 || !self.has_year(month.year) {
            return 0;
        }
        let mut by_date = self.days;
        let mut by_weekday =
            if self.weekdays == ALL_WEEKDAYS { ALL_DAYS } else { month.days_with_weekday(self.weekdays) };
        if !self.special.is_none() {
            by_date |= self.special.by_date(month);
            by_weekday |= self.special.by_weekday(month);
        }
        let matching = if self.either_day { by_date | by_weekday } else { by_date & by_weekday };
        matching & month.valid_days()
    }

    fn has_year(&self, year: i32) -> bool {
        let bit = (year - YEAR_FIRST) as usize;
        self.years.as_ref().is_none_or(|years| years[bit / 64] >> (bit % 64) & 1 == 1)
    }

    fn next_day_after(&self, month: Month) -> Option<i32> {
        let mut months_left = u32::from(self.months) & (u32::MAX << month.month << 1);
        let last = if self.years.is_none() { YEAR_LAST.min(month.year + YEARS_UNTIL_ALL_SEEN) } else { YEAR_LAST };
        for year in month.year..=last {
            if self.has_year(year) {
                while months_left != 0 {
                    let candidate = Month::new(year, months_left.trailing_zeros());
                    let matching = self.days_of(candidate);
                    if matching != 0 {
                        return Some(candidate.first + matching.trailing_zeros() as i32 - 1);
                    }
                    months_left &= months_left - 1;
                }
            }
            months_left = u32::from(self.months);
        }
        None
    }

    fn last_day_before(&self, month: Month) -> Option<i32> {
        let mut months_left = u32::from(self.months) & ((1 << month.month) - 1);
        let first = if self.years.is_none() { YEAR_FIRST.max(month.year - YEARS_UNTIL_ALL_SEEN) } else { YEAR_FIRST };
        for year in (first..=month.year).rev() {
            if self.has_year(year) {
                while months_left != 0 {
                    let number = months_left.ilog2();
                    let candidate = Month::new(year, number);
                    let matching = self.days_of(candidate);
                    if matching != 0 {
                        return Some(candidate.first + matching.ilog2() as i32 - 1);
                    }
                    months_left &= !(1 << number);
                }
            }
            months_left = u32::from(self.months);
        }
        None
    }

    fn next_second_of_day(&self, second_of_day: u32) -> Option<u32> {
        let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1 {
                let seconds = self.seconds & (u64::MAX << second);
                if seconds != 0 {
                    return Some(hour * 3600 + minute * 60 + seconds.trailing_zeros());
                }
            }
            let minutes = self.minutes & (u64::MAX << minute << 1);
            if minutes != 0 {
                return Some(hour * 3600 + minutes.trailing_zeros() * 60 + self.seconds.trailing_zeros());
            }
        }
        let hours = self.hours & (u32::MAX << hour << 1);
        let rest = self.minutes.trailing_zeros() * 60 + self.seconds.trailing_zeros();
        (hours != 0).then(|| hours.trailing_zeros() * 3600 + rest)
    }

    fn prev_second_of_day(&self, second_of_day: u32) -> Option<u32> {
        let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
        if self.hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1 {
                let seconds = self.seconds & ((2 << second) - 1);
                if seconds != 0 {
                    return Some(hour * 3600 + minute * 60 + seconds.ilog2());
                }
            }
            let minutes = self.minutes & ((1 << minute) - 1);
            if minutes != 0 {
                return Some(hour * 3600 + minutes.ilog2() * 60 + self.seconds.ilog2());
            }
        }
        let hours = self.hours & ((1 << hour) - 1);
        (hours != 0).then(|| hours.ilog2() * 3600 + self.minutes.ilog2() * 60 + self.seconds.ilog2())
    }

    fn first_second_of_day(&self) -> u32 {
        self.hours.trailing_zeros() * 3600 + self.minutes.trailing_zeros() * 60 + self.seconds.trailing_zeros()
    }

    fn last_second_of_day(&self) -> u32 {
        self.hours.ilog2() * 3600 + self.minutes.ilog2() * 60 + self.seconds.ilog2()
    }
}

fn at(day: i32, second_of_day: u32) -> i64 {
    i64::from(day) * DAY_SECONDS + i64::from(second_of_day)
}
