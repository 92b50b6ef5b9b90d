//! The calendar in integers: day numbers since 1970-01-01, and the days of one month as bits 1 to 31.

pub(super) const YEAR_FIRST: i32 = 1970;
pub(super) const YEAR_LAST: i32 = 2199;
pub(super) const DAY_SECONDS: i64 = 86_400;
/// 2199-12-31.
pub(super) const DAY_LAST: i32 = day_number(2200, 1, 1) - 1;
pub(super) const ALL_DAYS: u32 = 0xffff_fffe;

/// One month of the calendar: where it starts and how long it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Month {
    pub year: i32,
    pub month: u32,
    /// Day number of its first day.
    pub first: i32,
    pub length: u32,
}

impl Month {
    pub fn new(year: i32, month: u32) -> Self {
        Self { year, month, first: day_number(year, month, 1), length: month_length(year, month) }
    }

    /// The month that holds a day number, and the day in it (1 to 31).
    pub fn of_day(day: i32) -> (Self, u32) {
        let (year, month, dom) = civil_from_day(day);
        let first = day - (dom as i32 - 1);
        (Self { year, month, first, length: month_length(year, month) }, dom)
    }

    /// 0 is Sunday.
    pub fn weekday_of_first(self) -> u32 {
        weekday(self.first)
    }

    /// Bits 1 to `length`.
    pub fn valid_days(self) -> u32 {
        ALL_DAYS & (u32::MAX >> (31 - self.length))
    }

    /// Days of this month whose weekday is in the set (bit 0 = Sunday).
    pub fn days_with_weekday(self, weekdays: u8) -> u32 {
        let set = u64::from(weekdays & 0x7f);
        let shift = self.weekday_of_first();
        // Bit 0 is now the weekday of the first; five copies cover the month, one place up because days start at 1.
        let from_first = ((set | set << 7) >> shift) & 0x7f;
        ((from_first * 0x1020_4081) << 1) as u32
    }
}

/// 0 is Sunday. 1970-01-01 was a Thursday.
pub(super) const fn weekday(day: i32) -> u32 {
    (day + 4).rem_euclid(7) as u32
}

const fn is_leap(year: i32) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub(super) const fn month_length(year: i32, month: u32) -> u32 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01 of a date (Howard Hinnant's algorithm; March starts the year so that the leap day comes last).
pub(super) const fn day_number(year: i32, month: u32, dom: u32) -> i32 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month as i32 + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + dom as i32 - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// Year, month and day of a day number from 0 on (the algorithm of Neri and Schneider: two divisions fewer than the classic one).
fn civil_from_day(day: i32) -> (i32, u32, u32) {
    let shifted = (day + 719_468) as u32;
    let quarter_days = 4 * shifted + 3;
    let century = quarter_days / 146_097;
    let in_century = quarter_days % 146_097 / 4;
    let scaled = 2_939_745 * u64::from(4 * in_century + 3);
    let year_of_century = (scaled >> 32) as u32;
    let day_of_year = (scaled as u32) / 2_939_745 / 4;
    let month_and_day = 2_141 * day_of_year + 197_913;
    let month = month_and_day >> 16;
    let dom = (month_and_day & 0xffff) / 2_141 + 1;
    let year = (100 * century + year_of_century) as i32;
    // The algorithm's year starts in March.
    if day_of_year >= 306 { (year + 1, month - 12, dom) } else { (year, month, dom) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_number_agrees_with_jiff() {
        let mut date = jiff::civil::date(1970, 1, 1);
        for day in 0..=DAY_LAST {
            let (month, dom) = Month::of_day(day);
            assert_eq!(
                (month.year, month.month, dom),
                (i32::from(date.year()), date.month() as u32, date.day() as u32)
            );
            assert_eq!(month.length, date.days_in_month() as u32);
            assert_eq!(weekday(day), date.weekday().to_sunday_zero_offset() as u32);
            assert_eq!(day_number(month.year, month.month, dom), day);
            assert_eq!(month.days_with_weekday(1 << weekday(day)) >> dom & 1, 1, "{date}");
            assert_eq!(month.days_with_weekday(!(1 << weekday(day))) >> dom & 1, 0, "{date}");
            date = date.tomorrow().expect("within jiff's range");
        }
        assert_eq!(date.year(), 2200);
    }
}
