//! One field of a cron expression as a set of values: `*`, numbers, names, lists, ranges (also wrapping), steps and `H`.

use super::days::{YEAR_FIRST, YEAR_LAST};
use super::error::Refusal;
use super::jitter::field_hash;

/// What a field is called, which values it takes, and which names stand for them.
#[derive(Debug)]
pub(super) struct Field {
    pub name: &'static str,
    min: u32,
    max: u32,
    /// The largest number that may be written: 7 for Sunday, `max` elsewhere.
    written_max: u32,
    /// The largest value that `H` takes: 28 for days, so that it exists in every month.
    hash_max: u32,
    names: &'static [&'static str],
    /// What a person may write.
    accepts: &'static str,
    /// Position in the longest form; part of the stable hash of `H`, so never renumber.
    position: u8,
}

const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

pub(super) const SECOND: Field = Field::numbers("second", 0, 59, "0-59", 0);
pub(super) const MINUTE: Field = Field::numbers("minute", 0, 59, "0-59", 1);
pub(super) const HOUR: Field = Field::numbers("hour", 0, 23, "0-23", 2);
pub(super) const DAY: Field =
    Field { hash_max: 28, ..Field::numbers("day-of-month", 1, 31, "1-31, L, L-3, LW or 15W", 3) };
pub(super) const MONTH: Field = Field { names: &MONTHS, ..Field::numbers("month", 1, 12, "1-12 or JAN-DEC", 4) };
pub(super) const WEEKDAY: Field = Field {
    names: &WEEKDAYS,
    written_max: 7,
    ..Field::numbers("day-of-week", 0, 6, "0-7 (0 and 7 are Sunday), SUN-SAT, 5L or 5#3", 5)
};
pub(super) const YEAR: Field = Field::numbers("year", YEAR_FIRST as u32, YEAR_LAST as u32, "1970-2199", 6);

impl Field {
    const fn numbers(name: &'static str, min: u32, max: u32, accepts: &'static str, position: u8) -> Self {
        Self { name, min, max, written_max: max, hash_max: max, names: &[], accepts, position }
    }

    pub fn refuse(&self, message: impl Into<String>) -> Refusal {
        Refusal::new(self.name, message)
    }

    /// Puts every value of one list item into `put`. `text` is the whole field, for messages.
    pub fn read_item(&self, item: &str, text: &str, seed: u64, mut put: impl FnMut(u32)) -> Result<(), Refusal> {
        let (base, step) = match item.split_once('/') {
            Some((base, step)) => (base, Some(self.step(step, item)?)),
            None => (item, None),
        };
        if let Some(inside) = base.strip_prefix(['H', 'h']) {
            return self.read_hashed(inside, step, item, seed, put);
        }
        let values = match base {
            "" => {
                return Err(self.refuse(format!("{} \"{text}\" has an empty item; use {}", self.name, self.accepts)));
            }
            "*" => Values::plain(self.min, self.max),
            "?" if !self.is_day() || step.is_some() => {
                let message =
                    format!("{} \"{text}\": ? stands alone, for day-of-month or day-of-week; use *", self.name);
                return Err(self.refuse(message));
            }
            "?" => Values::plain(self.min, self.max),
            _ => match base.split_once('-') {
                Some((low, high)) => self.range(low, high)?,
                None => {
                    let low = self.value(base)? % self.modulus();
                    Values::plain(low, if step.is_some() { self.max } else { low })
                }
            },
        };
        for value in values.iter(self).step_by(step.unwrap_or(1)) {
            put(value);
        }
        Ok(())
    }

    /// One number or name, as written (Sunday may be 7).
    pub fn value(&self, text: &str) -> Result<u32, Refusal> {
        if let Some(index) = self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            // Months count from 1, weekdays from 0, as their fields do.
            return Ok(index as u32 + self.min);
        }
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err(self.refuse(format!("{} \"{text}\" is not known; use {}", self.name, self.accepts)));
        }
        match text.parse::<u32>() {
            Ok(value) if (self.min..=self.written_max).contains(&value) => Ok(value),
            _ => Err(self.refuse(format!("{} \"{text}\" is out of range; use {}", self.name, self.accepts))),
        }
    }

    fn read_hashed(
        &self,
        inside: &str,
        step: Option<usize>,
        item: &str,
        seed: u64,
        mut put: impl FnMut(u32),
    ) -> Result<(), Refusal> {
        let bad = || self.refuse(format!("{} \"{item}\" is not known; use H, H/15, H(0-29) or H(0-29)/10", self.name));
        if self.position == YEAR.position {
            return Err(self.refuse("year \"H\" is not possible; name the years, such as 2027 or 2027-2030"));
        }
        let values = match inside {
            "" => Values::plain(self.min, self.hash_max),
            _ => {
                let range = inside.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).ok_or_else(bad)?;
                let (low, high) = range.split_once('-').ok_or_else(bad)?;
                self.range(low, high)?
            }
        };
        let count = values.iter(self).count();
        let phases = step.unwrap_or(count).min(count) as u64;
        let phase = (field_hash(seed, self.position) % phases) as usize;
        match step {
            Some(step) => values.iter(self).skip(phase).step_by(step).for_each(put),
            None => values.iter(self).nth(phase).into_iter().for_each(&mut put),
        }
        Ok(())
    }

    fn range(&self, low: &str, high: &str) -> Result<Values, Refusal> {
        if low.is_empty() || high.is_empty() {
            return Err(self.refuse(format!("{} \"{low}-{high}\" is not a range; use {}", self.name, self.accepts)));
        }
        let (mut first, last) = (self.value(low)?, self.value(high)?);
        if first > self.max && last <= self.max {
            first = self.min;
        }
        if first > last && self.position == YEAR.position {
            return Err(self.refuse(format!("year \"{low}-{high}\" runs backwards; write the earlier year first")));
        }
        Ok(Values { first, last, wraps: first > last })
    }

    fn step(&self, text: &str, item: &str) -> Result<usize, Refusal> {
        let count = self.max - self.min + 1;
        let written = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
        match written {
            Some(step) if (1..=count).contains(&step) => Ok(step as usize),
            _ => Err(self.refuse(format!("{} \"{item}\": step \"{text}\" is not possible; use 1-{count}", self.name))),
        }
    }

    fn is_day(&self) -> bool {
        self.position == DAY.position || self.position == WEEKDAY.position
    }

    /// 7 for weekdays (7 is 0 again), otherwise larger than every value.
    fn modulus(&self) -> u32 {
        if self.position == WEEKDAY.position { 7 } else { u32::MAX }
    }
}

/// The values from `first` to `last`, over the field's end if it wraps.
#[derive(Clone, Copy)]
struct Values {
    first: u32,
    last: u32,
    wraps: bool,
}

impl Values {
    fn plain(first: u32, last: u32) -> Self {
        Self { first, last, wraps: false }
    }

    fn iter(self, field: &Field) -> impl Iterator<Item = u32> {
        let modulus = field.modulus();
        let (head_end, tail) = if self.wraps { (field.max, field.min..self.last + 1) } else { (self.last, 0..0) };
        (self.first..head_end + 1).chain(tail).map(move |value| value % modulus)
    }
}
