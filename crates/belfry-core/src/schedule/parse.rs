//! From the text of one schedule to its compiled form. It reads text only; whether anything ever fires is judged elsewhere.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::units::Span;

use super::cron::{Cron, Years};
use super::days::{ALL_DAYS, YEAR_FIRST, YEAR_LAST};
use super::error::Refusal;
use super::field::{DAY, Field, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, YEAR};
use super::special_days::SpecialDays;

/// One schedule as written, understood.
#[derive(Debug)]
pub(super) enum Parsed {
    Cron(Cron),
    EverySeconds(i64),
    At(Timestamp),
    After(Duration),
    Boot,
}

pub(super) fn parse(text: &str, seed: u64) -> Result<Parsed, Refusal> {
    let text = text.trim();
    match text.strip_prefix('@') {
        Some(form) => parse_form(form, seed),
        None => parse_fields(text, seed).map(Parsed::Cron),
    }
}

fn parse_form(form: &str, seed: u64) -> Result<Parsed, Refusal> {
    let (name, argument) = match form.split_once(char::is_whitespace) {
        Some((name, argument)) => (name, argument.trim()),
        None => (form, ""),
    };
    let name = name.to_ascii_lowercase();
    let fields = match name.as_str() {
        "every" => return parse_every(argument),
        "after" => return parse_after(argument),
        "at" => return parse_at(argument),
        "boot" => "",
        "hourly" => "0 * * * *",
        "daily" | "midnight" => "0 0 * * *",
        "weekly" => "0 0 * * 0",
        "monthly" => "0 0 1 * *",
        "yearly" | "annually" => "0 0 1 1 *",
        "reboot" => return Err(refuse("\"@reboot\" is written @boot here")),
        _ => {
            return Err(refuse(format!(
                "\"@{name}\" is not known; use @hourly, @daily, @midnight, @weekly, @monthly, @yearly, @annually, \
                 @every 90s, @after 90s, @at 2027-01-01T00:00:00Z or @boot"
            )));
        }
    };
    if !argument.is_empty() {
        return Err(refuse(format!("\"@{name}\" stands alone; remove \"{argument}\"")));
    }
    if fields.is_empty() { Ok(Parsed::Boot) } else { parse_fields(fields, seed).map(Parsed::Cron) }
}

fn parse_every(argument: &str) -> Result<Parsed, Refusal> {
    let step = Span::parse(argument).map(Span::get).map_err(|why| refuse(format!("@every: {why}")))?;
    if step.is_zero() || step.subsec_millis() != 0 {
        return Err(refuse(format!("@every: \"{argument}\" is not possible; use whole seconds, at least 1s")));
    }
    Ok(Parsed::EverySeconds(step.as_secs() as i64))
}

fn parse_after(argument: &str) -> Result<Parsed, Refusal> {
    let delay = Span::parse(argument).map(Span::get).map_err(|why| refuse(format!("@after: {why}")))?;
    if delay.is_zero() {
        return Err(refuse(format!("@after: \"{argument}\" would never let it rest; use a delay such as 1s or more")));
    }
    Ok(Parsed::After(delay))
}

fn parse_at(argument: &str) -> Result<Parsed, Refusal> {
    const USE: &str = "use a date, time and offset such as 2027-01-01T00:00:00+08:00";
    let not_a_time = || refuse(format!("@at: \"{argument}\" is not an instant; {USE}"));
    if argument.contains('[') {
        return Err(not_a_time());
    }
    let instant: Timestamp = argument.parse().map_err(|_| not_a_time())?;
    if instant.subsec_nanosecond() != 0 {
        return Err(refuse(format!("@at: \"{argument}\" has a fraction of a second; use whole seconds")));
    }
    if !(YEAR_FIRST..=YEAR_LAST).contains(&i32::from(instant.to_zoned(TimeZone::UTC).year())) {
        return Err(refuse(format!("@at: \"{argument}\" is out of range; use the years 1970-2199")));
    }
    Ok(Parsed::At(instant))
}

fn parse_fields(text: &str, seed: u64) -> Result<Cron, Refusal> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let (second, rest, year) = match fields.as_slice() {
        [rest @ .., _, _] if rest.len() == 3 => ("0", &fields[..], None),
        [second, rest @ ..] if rest.len() == 5 => (*second, rest, None),
        [second, rest @ .., year] if rest.len() == 5 => (*second, rest, Some(*year)),
        other => {
            return Err(refuse(format!(
                "\"{text}\" has {} {}; use 5 (minute hour day-of-month month day-of-week), 6 (second first) or 7 (second first, year last)",
                other.len(),
                if other.len() == 1 { "field" } else { "fields" },
            )));
        }
    };
    let [minute, hour, day, month, weekday] = rest else {
        return Err(refuse(format!("\"{text}\" is not a schedule")));
    };
    if fields.len() == 6 && is_only_a_year(weekday) {
        return Err(WEEKDAY.refuse(format!(
            "day-of-week \"{weekday}\" looks like a year, but six fields start with seconds; \
             for a year put seconds in front: \"0 {text}\""
        )));
    }
    let mut special = SpecialDays::default();
    let days = read_field(&DAY, day, seed, |item| special.read_date(item))?;
    let weekdays = read_field(&WEEKDAY, weekday, seed, |item| special.read_weekday(item))?;
    Ok(Cron {
        seconds: read_field(&SECOND, second, seed, no_specials)?,
        minutes: read_field(&MINUTE, minute, seed, no_specials)?,
        hours: read_field(&HOUR, hour, seed, no_specials)? as u32,
        days: days as u32 & ALL_DAYS,
        months: read_field(&MONTH, month, seed, no_specials)? as u16,
        weekdays: weekdays as u8,
        years: year.map(|year| read_years(year, seed)).transpose()?.flatten(),
        special,
        either_day: !is_wild(day) && !is_wild(weekday),
        fixed_time: !is_wild(minute) && !is_wild(hour),
    })
}

/// As Vixie cron decides it: by the field's first character, so `*/2` is wild. `H/2` is `*/2` with a hashed phase, so it is wild too.
fn is_wild(text: &str) -> bool {
    text.starts_with(['*', '?']) || text.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("H/"))
}

fn is_only_a_year(text: &str) -> bool {
    let mut numbers = text.split([',', '-', '/']).filter_map(|part| part.parse::<i32>().ok());
    numbers.next().is_some_and(|first| first >= YEAR_FIRST)
}

fn read_field(
    field: &Field,
    text: &str,
    seed: u64,
    mut special: impl FnMut(&str) -> Result<bool, Refusal>,
) -> Result<u64, Refusal> {
    let mut set = 0;
    for item in text.split(',') {
        if !special(item)? {
            field.read_item(item, text, seed, |value| set |= 1 << value)?;
        }
    }
    Ok(set)
}

/// None when every year is in the set.
fn read_years(text: &str, seed: u64) -> Result<Option<Box<Years>>, Refusal> {
    if text == "*" {
        return Ok(None);
    }
    let mut years: Years = [0; 4];
    for item in text.split(',') {
        YEAR.read_item(item, text, seed, |year| {
            let bit = (year as i32 - YEAR_FIRST) as usize;
            years[bit / 64] |= 1 << (bit % 64);
        })?;
    }
    Ok(Some(Box::new(years)))
}

fn no_specials(_: &str) -> Result<bool, Refusal> {
    Ok(false)
}

fn refuse(message: impl Into<String>) -> Refusal {
    Refusal::new("schedule", message)
}
