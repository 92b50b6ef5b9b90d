//! Durations and sizes as people write them: `90s`, `1h30m`, `500ms`, `512MiB`.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

const DURATION_UNITS_MS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
const DURATION_DAYS_MAX: u64 = 36_500;
const SIZE_UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// A length of time, whole milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

impl Span {
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }
    pub const fn get(self) -> Duration {
        self.0
    }
    pub fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Whole numbers with units, each unit once, the largest first.
    pub fn parse(text: &str) -> Result<Self, String> {
        const USE: &str = "use whole numbers with units such as 90s, 1h30m, 500ms or 2d";
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(format!("the duration is empty; {USE}"));
        }
        let mut total_ms: u64 = 0;
        let mut smallest_so_far = u64::MAX;
        while !rest.is_empty() {
            let (number, after) = rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count());
            if number.is_empty() {
                return Err(format!("\"{text}\" is not a duration; {USE}"));
            }
            let (unit, after) = after.split_at(after.bytes().take_while(u8::is_ascii_alphabetic).count());
            if unit.is_empty() {
                let why = if after.starts_with('.') { "is not a whole number" } else { "has no unit" };
                return Err(format!("\"{text}\": {number} {why}; {USE}"));
            }
            let Some((_, unit_ms)) = DURATION_UNITS_MS.iter().find(|(name, _)| *name == unit) else {
                return Err(format!("\"{text}\": unit \"{unit}\" is not known; use w, d, h, m, s or ms"));
            };
            if *unit_ms >= smallest_so_far {
                return Err(format!("\"{text}\": write each unit once, the largest first"));
            }
            smallest_so_far = *unit_ms;
            let part = number.parse::<u64>().ok().and_then(|n| n.checked_mul(*unit_ms));
            total_ms = part
                .and_then(|part| total_ms.checked_add(part))
                .filter(|ms| *ms <= DURATION_DAYS_MAX * 86_400_000)
                .ok_or_else(|| format!("\"{text}\" is too long; use at most {DURATION_DAYS_MAX}d"))?;
            rest = after.trim_start();
        }
        Ok(Self(Duration::from_millis(total_ms)))
    }
}

impl From<Duration> for Span {
    fn from(value: Duration) -> Self {
        Self(Duration::from_millis(value.as_millis() as u64))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_millis() as u64;
        if rest == 0 {
            return f.write_str("0s");
        }
        // Weeks are read but days are written: "14d" is easier to read than "2w".
        for (unit, unit_ms) in &DURATION_UNITS_MS[1..] {
            if rest >= *unit_ms {
                write!(f, "{}{unit}", rest / unit_ms)?;
                rest %= unit_ms;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

impl Size {
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }
    pub const fn bytes(self) -> u64 {
        self.0
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let refuse = || format!("`{text}` is not a size; write a number with a unit, such as 64KiB, 512MiB or 1GiB");
        let text_trimmed = text.trim();
        let digits = text_trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = text_trimmed[..digits].parse().map_err(|_| refuse())?;
        let unit = text_trimmed[digits..].trim();
        let (_, bytes) = SIZE_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refuse)?;
        number.checked_mul(*bytes).filter(|n| *n < 1 << 60).map(Self).ok_or_else(|| format!("`{text}` is too large"))
    }

    /// As a measurement is read: `1.5GiB`, not all of its digits.
    pub fn about(self) -> String {
        let (unit, bytes) = SIZE_UNITS[..4].iter().find(|(_, bytes)| self.0 >= *bytes).unwrap_or(&("B", 1));
        let tenths = (self.0 as f64 / *bytes as f64 * 10.0).floor() / 10.0;
        format!("{tenths}{unit}")
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, bytes) =
            SIZE_UNITS.iter().find(|(_, b)| self.0 >= *b && self.0.is_multiple_of(*b)).unwrap_or(&("B", 1));
        write!(f, "{}{unit}", self.0 / bytes)
    }
}

impl fmt::Debug for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! as_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                $name::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
as_text!(Span);
as_text!(Size);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_write_as_people_do() {
        for (text, ms, back) in [
            ("90s", 90_000, "1m30s"),
            ("1h30m", 5_400_000, "1h30m"),
            ("500ms", 500, "500ms"),
            ("2w", 1_209_600_000, "14d"),
            ("0s", 0, "0s"),
        ] {
            let span = Span::parse(text).unwrap();
            assert_eq!(span.get().as_millis(), ms, "{text}");
            assert_eq!(span.to_string(), back);
        }
        for text in ["", "5", "s", "1y", "-1s", "1.5h", "9999999999d", "1 5"] {
            assert!(Span::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_read_and_write_as_people_do() {
        for (text, bytes, back) in [
            ("512MiB", 536_870_912, "512MiB"),
            ("1 GB", 1_000_000_000, "1GB"),
            ("0B", 0, "0B"),
            ("1025B", 1025, "1025B"),
        ] {
            let size = Size::parse(text).unwrap();
            assert_eq!(size.bytes(), bytes, "{text}");
            if bytes != 0 {
                assert_eq!(size.to_string(), back);
            }
        }
        for (bytes, about) in [(0, "0B"), (1023, "1023B"), (1536 << 20, "1.5GiB"), ((1 << 30) - 1, "1023.9MiB")] {
            assert_eq!(Size::from_bytes(bytes).about(), about);
        }
        for text in ["", "5", "MiB", "1gib", "-1B", "99999999TiB"] {
            assert!(Size::parse(text).is_err(), "{text}");
        }
    }
}
