//! A point in local time as `date +FORMAT` prints it (coreutils 9.1, C locale, years from 0 on); it never reads a clock.

use jiff::Zoned;

const WIDTH_MAX: usize = 100;
const LETTERS: &str = "aAbBcCdDeFgGhHIjklmMnNpPqrRsStTuUVwWxXyYzZ";
const LETTERS_AFTER_E: &str = "cCnpPqrRstTuxXyYzZ";
const LETTERS_AFTER_O: &str = "bBCdeghGHIjklmMnNpPrRsStTuUVwWyzZ";
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StampError {
    #[error("`{0}` is not a conversion of date(1); for a percent sign write `%%`")]
    Unknown(String),
    #[error("the format ends with `{0}`, a conversion without its letter; for a percent sign write `%%`")]
    Unfinished(String),
    #[error("the width of `{0}` is too large; use at most {WIDTH_MAX}")]
    TooWide(String),
}

/// What a format says at an instant in a zone; as date(1) would print it.
pub(crate) fn stamp(format: &str, at: &Zoned) -> Result<String, StampError> {
    let said = |piece| match piece {
        Piece::Literal(text) => text.to_owned(),
        Piece::Conversion(conversion) => conversion.print(at),
    };
    Ok(pieces(format)?.into_iter().map(said).collect())
}

/// Whether what the format gives changes with time: it has a conversion besides `%%`, `%n`, `%t` and the zone's.
pub(crate) fn changes_with_time(format: &str) -> Result<bool, StampError> {
    let changes = |piece: &Piece<'_>| matches!(piece, Piece::Conversion(c) if !"ntzZ".contains(c.letter));
    Ok(pieces(format)?.iter().any(changes))
}

enum Piece<'a> {
    Literal(&'a str),
    Conversion(Conversion),
}

/// One `%` with its flags, width, modifier and letter.
struct Conversion {
    pad: Option<Pad>,
    upper: bool,
    opposite_case: bool,
    width: Option<usize>,
    // date leaves these to libc and treats the digits that come back as a word: flags no longer reach them.
    libc_digits: bool,
    colons: usize,
    letter: char,
}

#[derive(Clone, Copy)]
enum Pad {
    Nothing,
    Space,
    Zero,
    ZeroWithPlus,
}

fn pieces(format: &str) -> Result<Vec<Piece<'_>>, StampError> {
    let mut pieces = Vec::new();
    let mut rest = format;
    while let Some(percent) = rest.find('%') {
        pieces.push(Piece::Literal(&rest[..percent]));
        let (piece, after) = piece_at_percent(&rest[percent..])?;
        pieces.push(piece);
        rest = after;
    }
    pieces.push(Piece::Literal(rest));
    Ok(pieces)
}

fn piece_at_percent(text: &str) -> Result<(Piece<'_>, &str), StampError> {
    let (flags, after) = split_after(&text[1..], |c| "-_0+^#".contains(c));
    let (width, after) = split_after(after, |c| c.is_ascii_digit());
    let (modifier, after) = after.split_at(usize::from(after.starts_with(['E', 'O'])));
    let (colons, after) = split_after(after, |c| c == ':');
    let letter = after.chars().next().ok_or_else(|| StampError::Unfinished(text.to_owned()))?;
    let (whole, after) = text.split_at(text.len() - after.len() + letter.len_utf8());
    if whole == "%%" {
        return Ok((Piece::Literal("%"), after));
    }
    let letters = match modifier {
        "E" => LETTERS_AFTER_E,
        "O" => LETTERS_AFTER_O,
        _ => LETTERS,
    };
    let colons_fit = colons.is_empty() || (letter == 'z' && colons.len() <= 3 && modifier != "O");
    if !letters.contains(letter) || !colons_fit {
        return Err(StampError::Unknown(whole.to_owned()));
    }
    let columns = width.parse().ok().filter(|columns| *columns <= WIDTH_MAX);
    if columns.is_none() && !width.is_empty() {
        return Err(StampError::TooWide(whole.to_owned()));
    }
    let pad = flags.chars().rev().find_map(|flag| match flag {
        '-' => Some(Pad::Nothing),
        '_' => Some(Pad::Space),
        '0' => Some(Pad::Zero),
        '+' => Some(Pad::ZeroWithPlus),
        _ => None,
    });
    // date reads `%-N` as the digits that the clock resolves, and those are all nine.
    let pad = pad.filter(|_| whole != "%-N");
    let libc_digits = match modifier {
        "E" => "CyY".contains(letter),
        "O" => letter != 's',
        _ => false,
    };
    let (upper, opposite_case) = (flags.contains('^'), flags.contains('#'));
    let colons = colons.len();
    let conversion = Conversion { pad, upper, opposite_case, width: columns, libc_digits, colons, letter };
    Ok((Piece::Conversion(conversion), after))
}

fn split_after(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

impl Conversion {
    fn print(&self, at: &Zoned) -> String {
        let (year, month, day) = (i64::from(at.year()), at.month(), at.day());
        let (hour, minute, second) = (at.hour(), at.minute(), at.second());
        let hour_of_half = (hour + 11) % 12 + 1;
        let half = if hour < 12 { "AM" } else { "PM" };
        let clock = format!("{hour:02}:{minute:02}:{second:02}");
        let weekday_name = WEEKDAYS[at.weekday().to_sunday_zero_offset() as usize];
        let month_name = MONTHS[month as usize - 1];
        let week_date = at.date().iso_week_date();
        // A day of the year counts from 1, a week from the first Sunday or Monday.
        let week_from = |weekday: i8| (at.day_of_year() + 6 - i16::from(weekday)) / 7;
        match self.letter {
            'a' => self.name(&weekday_name[..3]),
            'A' => self.name(weekday_name),
            'b' | 'h' => self.name(&month_name[..3]),
            'B' => self.name(month_name),
            'c' => self.name(&format!("{weekday_name:.3} {month_name:.3} {day:2} {clock} {year}")),
            'C' => self.year(year / 100, 2),
            'd' => self.zeros(day, 2),
            'D' => {
                let year_of_century = Self { letter: 'y', width: None, ..*self }.print(at);
                self.text(&format!("{month:02}/{day:02}/{year_of_century}"))
            }
            'e' => self.spaces(day, 2),
            'F' => {
                // A pad flag takes the four digits of the year away; only a width gives them back.
                let year_width = match (self.pad, self.width) {
                    (None, None) => 4,
                    (_, width) => width.unwrap_or(0).saturating_sub("-mm-dd".len()),
                };
                let year = Self { letter: 'Y', width: Some(year_width), ..*self }.print(at);
                format!("{year}-{month:02}-{day:02}")
            }
            'g' => self.year(i64::from(week_date.year()) % 100, 2),
            'G' => self.year(week_date.year().into(), 4),
            'H' => self.zeros(hour, 2),
            'I' => self.zeros(hour_of_half, 2),
            'j' => self.zeros(at.day_of_year(), 3),
            'k' => self.spaces(hour, 2),
            'l' => self.spaces(hour_of_half, 2),
            'm' => self.zeros(month, 2),
            'M' => self.zeros(minute, 2),
            'n' => self.text("\n"),
            'N' => self.fraction(at.subsec_nanosecond()),
            'p' => self.name(half),
            'P' => self.text(&half.to_lowercase()),
            'q' => self.zeros((month + 2) / 3, 1),
            'r' => self.text(&format!("{hour_of_half:02}:{minute:02}:{second:02} {half}")),
            'R' => self.text(&clock[..5]),
            's' => {
                let since_1970 = at.timestamp();
                self.zeros(since_1970.as_second() - i64::from(since_1970.subsec_nanosecond() < 0), 1)
            }
            'S' => self.zeros(second, 2),
            't' => self.text("\t"),
            'T' | 'X' => self.text(&clock),
            'u' => self.zeros(at.weekday().to_monday_one_offset(), 1),
            'U' => self.zeros(week_from(at.weekday().to_sunday_zero_offset()), 2),
            'V' => self.zeros(week_date.week(), 2),
            'w' => self.zeros(at.weekday().to_sunday_zero_offset(), 1),
            'W' => self.zeros(week_from(at.weekday().to_monday_zero_offset()), 2),
            'x' => self.text(&format!("{month:02}/{day:02}/{:02}", year % 100)),
            'y' => self.year(year % 100, 2),
            'Y' => self.year(year, 4),
            'z' => self.offset(at.offset().seconds()),
            // Only `Z` is left: no other letter gets this far.
            _ => self.name(at.time_zone().to_offset_info(at.timestamp()).abbreviation()),
        }
    }

    fn name(&self, name: &str) -> String {
        match self.letter {
            'p' | 'Z' if self.opposite_case => self.text(&name.to_lowercase()),
            'a' | 'A' | 'b' | 'B' | 'h' if self.opposite_case => self.text(&name.to_uppercase()),
            _ if self.upper => self.text(&name.to_uppercase()),
            _ => self.text(name),
        }
    }

    fn zeros(&self, value: impl Into<i64>, digits: usize) -> String {
        self.number(value.into(), digits, Pad::Zero)
    }

    fn spaces(&self, value: impl Into<i64>, digits: usize) -> String {
        self.number(value.into(), digits, Pad::Space)
    }

    fn number(&self, value: i64, digits: usize, pad: Pad) -> String {
        let sign = if value < 0 { "-" } else { "" };
        self.signed(sign, &value.unsigned_abs().to_string(), digits, pad)
    }

    fn year(&self, value: i64, digits: usize) -> String {
        let plus = matches!(self.pad, Some(Pad::ZeroWithPlus)) && self.width.is_some_and(|width| width > digits);
        match self.letter {
            'C' | 'G' | 'Y' if self.libc_digits => self.zeros(value, 1),
            _ if plus && !self.libc_digits => self.signed("+", &value.to_string(), digits, Pad::Zero),
            _ => self.zeros(value, digits),
        }
    }

    /// A fraction grows to the right: its width is a precision, and `-` and `_` concern the zeros at its end.
    fn fraction(&self, nanos: i32) -> String {
        let places = self.width.unwrap_or(9);
        let all = format!("{nanos:09}");
        let kept = &all[..places.min(9)];
        let short = match kept.trim_end_matches('0') {
            "" => "0",
            short => short,
        };
        match self.pad {
            Some(Pad::Nothing) => short.to_owned(),
            Some(Pad::Space) => format!("{short:<places$}"),
            _ => format!("{kept:0<places$}"),
        }
    }

    fn offset(&self, seconds: i32) -> String {
        let sign = if seconds < 0 { "-" } else { "+" };
        let (hours, minutes, seconds) = (seconds.abs() / 3600, seconds.abs() / 60 % 60, seconds.abs() % 60);
        let (digits, width) = match (self.colons, minutes, seconds) {
            (0, ..) => ((hours * 100 + minutes).to_string(), 5),
            (3, 0, 0) => (hours.to_string(), 3),
            (1, ..) | (3, _, 0) => (format!("{hours}:{minutes:02}"), 6),
            _ => (format!("{hours}:{minutes:02}:{seconds:02}"), 9),
        };
        self.signed(sign, &digits, width, Pad::Zero)
    }

    fn signed(&self, sign: &str, digits: &str, width: usize, pad: Pad) -> String {
        // date asks libc only for what is not negative.
        if self.libc_digits && sign != "-" {
            return self.text(&padded(sign, digits, width, pad));
        }
        padded(sign, digits, self.width.unwrap_or(width), self.pad.unwrap_or(pad))
    }

    fn text(&self, text: &str) -> String {
        padded("", text, self.width.unwrap_or(0), self.pad.unwrap_or(Pad::Space))
    }
}

/// Zeros go between the sign and the digits, spaces before both.
fn padded(sign: &str, digits: &str, width: usize, pad: Pad) -> String {
    match pad {
        Pad::Nothing => format!("{sign}{digits}"),
        Pad::Space => format!("{:>width$}", format!("{sign}{digits}")),
        Pad::Zero | Pad::ZeroWithPlus => {
            format!("{sign}{digits:0>rest$}", rest = width.saturating_sub(sign.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use jiff::Timestamp;
    use jiff::tz::TimeZone;

    use super::*;

    const FLAGS: [&str; 16] = ["", "-", "_", "0", "+", "^", "#", "^#", "#_", "^0", "-+", "_-", "-_", "+_", "0-", "--"];
    const WIDTHS: [&str; 8] = ["", "1", "2", "3", "5", "9", "12", "100"];
    const MOMENTS: &str = "
        UTC 1970-01-01T00:00:00Z 1969-12-31T23:59:58.5Z 2001-02-03T04:05:06.00000012Z 2024-02-29T12:00:00.012345678Z
        UTC 2026-12-31T23:59:59.999999999Z 2027-01-01T00:00:00.12Z 2000-01-01T00:00:00Z 9999-12-30T21:46:40Z
        UTC 0999-01-21T08:53:20Z 0000-07-18T07:06:40Z 0000-01-03T00:00:00Z 2010-01-03T13:59:59Z
        Asia/Kolkata 2026-07-31T18:29:59Z 2026-07-31T18:30:00Z 1850-01-01T00:00:00Z
        America/New_York 2026-03-08T06:59:59Z 2026-03-08T07:00:00Z 2026-11-01T05:30:00Z 2026-11-01T06:30:00Z
        America/New_York 1850-01-01T00:00:00Z 2024-02-29T17:00:00Z
        America/St_Johns 2024-02-29T03:30:00Z 2026-03-08T05:30:00Z
        Asia/Shanghai 2026-12-31T15:59:59Z 2026-12-31T16:00:00Z
        Pacific/Apia 2011-12-30T09:59:59Z 2011-12-30T10:00:00Z 2024-02-29T11:00:00Z
        Pacific/Guam 2024-12-29T14:00:00Z 2021-01-03T13:59:59Z
        Europe/London 2020-12-31T23:59:59Z 1840-01-01T00:00:00Z
        Africa/Monrovia 1970-06-01T00:00:00Z
        Europe/Berlin 2023-01-01T11:00:00Z 2028-12-31T12:00:00Z";

    fn every_format() -> Vec<String> {
        let mut ends: Vec<String> = LETTERS.chars().map(String::from).collect();
        ends.extend(LETTERS_AFTER_E.chars().map(|letter| format!("E{letter}")));
        ends.extend(LETTERS_AFTER_O.chars().map(|letter| format!("O{letter}")));
        ends.extend([":z", "::z", ":::z", "E:z", "E::z", "E:::z"].map(String::from));
        let mut formats = Vec::new();
        for flags in FLAGS {
            for width in WIDTHS {
                formats.extend(ends.iter().map(|end| format!("%{flags}{width}{end}")));
            }
        }
        formats
    }

    #[expect(clippy::disallowed_methods, reason = "date(1) is the oracle; it ends by itself")]
    fn date(arguments: &[&str], zone: &str) -> String {
        let output = Command::new("date").args(arguments).env("TZ", zone).env("LC_ALL", "C").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn at(instant: &str, zone: &str) -> Zoned {
        instant.parse::<Timestamp>().unwrap().to_zoned(TimeZone::get(zone).unwrap())
    }

    #[test]
    fn every_conversion_prints_what_date_prints() {
        // Other releases print a few flags differently; this one is the promise.
        if !date(&["--version"], "UTC").starts_with("date (GNU coreutils) 9.1\n") {
            return eprintln!("skipped: date is not that of coreutils 9.1");
        }
        let formats = every_format();
        for line in MOMENTS.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (zone, instants) = line.split_once(' ').unwrap();
            for instant in instants.split(' ') {
                // The kernel takes no argument above 128 KiB.
                formats.chunks(4000).for_each(|formats| check_against_date(formats, &at(instant, zone), zone));
            }
        }
    }

    fn check_against_date(formats: &[String], at: &Zoned, zone: &str) {
        let nanos = at.timestamp().as_nanosecond();
        let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
        let seconds = format!("@{sign}{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
        let printed = date(&["-d", &seconds, &format!("+{}|", formats.join("|"))], zone);
        let printed: Vec<&str> = printed.split_terminator('|').collect();
        assert_eq!(printed.len(), formats.len() + 1);
        for (format, printed) in formats.iter().zip(printed) {
            assert_eq!(stamp(format, at).as_deref(), Ok(printed), "{format} at {at}");
        }
    }

    #[test]
    fn a_name_of_a_backup_carries_its_local_minute() {
        let midnight = at("2026-07-31T18:30:00Z", "Asia/Kolkata");
        assert_eq!(stamp("dbbackup.%F_%H%M", &midnight).unwrap(), "dbbackup.2026-08-01_0000");
        assert_eq!(stamp("größe 100%%", &midnight).unwrap(), "größe 100%");
    }

    #[test]
    fn what_date_would_print_as_it_is_is_refused() {
        let now = at("2026-07-31T18:30:00Z", "UTC");
        for unknown in ["%Q", "%é", "%5%", "%Ed", "%OY", "%EEY", "%4_d", "%:d", "%::::z", "%O:z", "%:Ez"] {
            let refused = stamp(&format!("{unknown} %F"), &now).unwrap_err();
            assert!(matches!(&refused, StampError::Unknown(what) if unknown.starts_with(what)), "{unknown}: {refused}");
        }
        for unfinished in ["%", "%F%", "%-", "%5", "%E", "%:"] {
            let refused = stamp(unfinished, &now).unwrap_err();
            assert!(matches!(refused, StampError::Unfinished(_)), "{unfinished}: {refused}");
        }
        for wide in ["%101d", "%_99999999999999999999999F"] {
            assert_eq!(stamp(wide, &now), Err(StampError::TooWide(wide.to_owned())));
        }
        let refused = stamp("db.%Q", &now).unwrap_err().to_string();
        assert!(refused.starts_with("`%Q` is not a conversion of date(1)"), "{refused}");
    }

    #[test]
    fn a_zone_and_a_percent_sign_do_not_change_with_time() {
        for still in ["", "db", "%%", "100%%d", "a%n%t", "%z %:z %::z %:::z %Ez", "%#Z"] {
            assert_eq!(changes_with_time(still), Ok(false), "{still}");
        }
        for moving in ["%F", "db.%s", "%z%H", "%_5N", "%Ey", "%%%d"] {
            assert_eq!(changes_with_time(moving), Ok(true), "{moving}");
        }
        assert_eq!(changes_with_time("%F%"), Err(StampError::Unfinished("%".to_owned())));
    }
}
