//! The days that depend on the shape of a month: `L`, `L-3`, `LW`, `15W`, `5L` and `5#3`.

use super::days::Month;
use super::error::Refusal;
use super::field::{DAY, WEEKDAY};

const SUNDAY: u32 = 0;
const SATURDAY: u32 = 6;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct SpecialDays {
    /// Bit `weekday * 6 + n` for the n-th such weekday (0 to 4) and n = 5 for the last one.
    nth_weekdays: u64,
    /// Bit n: n days before the last day of the month.
    before_last: u32,
    /// Bit d: the weekday (Monday to Friday) nearest to day d; bit 0: the last weekday of the month.
    near_weekdays: u32,
}

impl SpecialDays {
    /// `L`, `L-3`, `LW` and `15W`. False: the item is an ordinary one.
    pub fn read_date(&mut self, item: &str) -> Result<bool, Refusal> {
        let upper = item.to_ascii_uppercase();
        if upper == "L" {
            self.add_before_last(0);
        } else if upper == "LW" {
            self.add_last_working_day();
        } else if let Some(before) = upper.strip_prefix("L-") {
            match before.parse::<u32>() {
                Ok(days) if (1..=30).contains(&days) => self.add_before_last(days),
                _ => {
                    return Err(DAY.refuse(format!("day-of-month \"{item}\" is not known; use L-1 to L-30")));
                }
            }
        } else if let Some(day) = upper.strip_suffix('W') {
            match DAY.value(day) {
                Ok(day) => self.add_nearest_weekday(day),
                Err(_) => {
                    let message = format!("day-of-month \"{item}\": W follows one day; use 1W to 31W, or LW");
                    return Err(DAY.refuse(message));
                }
            }
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// `5L` and `5#3`. False: the item is an ordinary one.
    pub fn read_weekday(&mut self, item: &str) -> Result<bool, Refusal> {
        if let Some((weekday, nth)) = item.split_once('#') {
            let weekday = WEEKDAY.value(weekday)? % 7;
            match nth.parse::<u32>() {
                Ok(nth @ 1..=5) => self.add_nth_weekday(weekday, nth),
                _ => {
                    let message = format!(
                        "day-of-week \"{item}\": \"{nth}\" is not possible after #; use 1-5, or 5L for the last Friday"
                    );
                    return Err(WEEKDAY.refuse(message));
                }
            }
        } else if let Some(weekday) = item.strip_suffix(['L', 'l']) {
            if weekday.is_empty() {
                return Err(WEEKDAY.refuse(
                    "day-of-week \"L\" needs a day in front; use 5L or FRIL for the last Friday of the month",
                ));
            }
            self.add_last_weekday(WEEKDAY.value(weekday)? % 7);
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// `L` (0) and `L-3` (3).
    fn add_before_last(&mut self, days: u32) {
        self.before_last |= 1 << days;
    }

    /// `15W`.
    fn add_nearest_weekday(&mut self, day: u32) {
        self.near_weekdays |= 1 << day;
    }

    /// `LW`.
    fn add_last_working_day(&mut self) {
        self.near_weekdays |= 1;
    }

    /// `5#3`; `nth` counts from 1.
    fn add_nth_weekday(&mut self, weekday: u32, nth: u32) {
        self.nth_weekdays |= 1 << (weekday * 6 + nth - 1);
    }

    /// `5L`.
    fn add_last_weekday(&mut self, weekday: u32) {
        self.nth_weekdays |= 1 << (weekday * 6 + 5);
    }

    pub fn is_none(&self) -> bool {
        self.nth_weekdays == 0 && self.before_last == 0 && self.near_weekdays == 0
    }

    /// Days of a month that the day-of-month field's specials name, as bits 1 to 31.
    pub fn by_date(&self, month: Month) -> u32 {
        let mut days = 0;
        for before in bits(self.before_last.into()) {
            if before < month.length {
                days |= 1 << (month.length - before);
            }
        }
        for day in bits(self.near_weekdays.into()) {
            if day <= month.length {
                days |= 1 << nearest_weekday(month, day);
            }
        }
        days
    }

    /// Days of a month that the day-of-week field's specials name, as bits 1 to 31; day 31 only where the month has it.
    pub fn by_weekday(&self, month: Month) -> u32 {
        let mut days = 0;
        for bit in bits(self.nth_weekdays) {
            let (weekday, nth) = (bit / 6, bit % 6);
            let first = 1 + (weekday + 7 - month.weekday_of_first()) % 7;
            let day = if nth == 5 { first + (month.length - first) / 7 * 7 } else { first + 7 * nth };
            if day <= month.length {
                days |= 1 << day;
            }
        }
        days
    }
}

/// The day from Monday to Friday nearest to `day`, within the month; for 0 the last one of the month.
fn nearest_weekday(month: Month, day: u32) -> u32 {
    let weekday_of = |day: u32| (month.weekday_of_first() + day - 1) % 7;
    if day == 0 {
        return match weekday_of(month.length) {
            SATURDAY => month.length - 1,
            SUNDAY => month.length - 2,
            _ => month.length,
        };
    }
    match weekday_of(day) {
        SATURDAY if day == 1 => 3,
        SATURDAY => day - 1,
        SUNDAY if day == month.length => day - 2,
        SUNDAY => day + 1,
        _ => day,
    }
}

fn bits(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (bit < 64).then_some(bit)
    })
}
