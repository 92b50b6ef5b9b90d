//! Values on the command line that have rules of their own: names, references, pairs and moments. It reads text only.

use std::fmt;
use std::str::FromStr;

use belfry_core::job::{DEFAULT_NAMESPACE, check_name};
use belfry_core::units::Span;
use belfry_core::{RunId, Timestamp};
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

/// `name` (of the default namespace) or `namespace/name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobName {
    /// None when only a name was given.
    pub namespace: Option<String>,
    pub name: String,
}

impl JobName {
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }
}

impl FromStr for JobName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        if let Some(namespace) = namespace {
            check_name("namespace", namespace).map_err(|refusal| refusal.to_string())?;
        }
        check_name("name", name).map_err(|refusal| refusal.to_string())?;
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned() })
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace(), self.name)
    }
}

/// A run by its id, or the last run of a job by the job's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunRef {
    Id(RunId),
    LastOf(JobName),
}

impl FromStr for RunRef {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(RunRef::Id(id));
        }
        text.parse().map(RunRef::LastOf).map_err(|_| {
            format!("`{text}` is neither a run's id (26 characters, see `belfry run ls`) nor a job's name")
        })
    }
}

/// `key=value`; the value may be empty and may contain `=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue(pub String, pub String);

impl FromStr for KeyValue {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self(key.to_owned(), value.to_owned())),
            _ => Err(format!("`{text}` is not KEY=VALUE")),
        }
    }
}

impl fmt::Display for KeyValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.0, self.1)
    }
}

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Yaml,
    Json,
    Toml,
}

/// A moment as written: it becomes an instant only with a zone and the present moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    Now,
    Instant(Timestamp),
    /// Date and time without an offset: in the zone asked for, else the local one.
    Local(DateTime),
    Ago(Span),
    In(Span),
}

impl When {
    pub fn at(&self, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
        let too_far = |span: &Span| format!("{span} from now is too far away");
        match self {
            When::Now => Ok(now),
            When::Instant(instant) => Ok(*instant),
            When::Local(local) => zone.to_timestamp(*local).map_err(|e| format!("{local} is not a time here: {e}")),
            When::Ago(span) => now.checked_sub(span.get()).map_err(|_| too_far(span)),
            When::In(span) => now.checked_add(span.get()).map_err(|_| too_far(span)),
        }
    }
}

/// Reads `now`, an RFC 3339 instant, a local date (and time), `2h` or `-2h` (that long ago), `+2h` (that long from now).
pub fn moment(text: &str) -> Result<When, String> {
    let text = text.trim();
    if text == "now" {
        return Ok(When::Now);
    }
    if let Some(span) = text.strip_prefix('+') {
        return Span::parse(span).map(When::In);
    }
    if let Ok(span) = Span::parse(text.strip_prefix('-').unwrap_or(text)) {
        return Ok(When::Ago(span));
    }
    if let Ok(instant) = text.parse::<Timestamp>() {
        return Ok(When::Instant(instant));
    }
    let local = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(|date| date.at(0, 0, 0, 0)));
    local.map(When::Local).map_err(|_| {
        format!("`{text}` is not a moment; write 2027-01-01T04:00:00+08:00, 2027-01-01T04:00, 2027-01-01, now, 2h (ago) or +2h")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_may_carry_its_namespace() {
        assert_eq!("backup".parse::<JobName>().unwrap().to_string(), "default/backup");
        assert_eq!("db/backup".parse::<JobName>().unwrap().to_string(), "db/backup");
        for text in ["", "/", "a/", "/a", "a/b/c", "Upper", "..", "a b"] {
            assert!(text.parse::<JobName>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_run_is_named_by_id_or_by_its_job() {
        assert!(matches!("01J00000000000000000000000".parse(), Ok(RunRef::Id(_))));
        assert!(matches!("db/backup".parse(), Ok(RunRef::LastOf(_))));
        assert!("Not A Thing".parse::<RunRef>().is_err());
    }

    #[test]
    fn moments_are_read_as_people_write_them() {
        let now = at("2026-07-01T12:00:00Z");
        let berlin = belfry_core::schedule::time_zone("Europe/Berlin").unwrap();
        for (text, expected) in [
            ("now", "2026-07-01T12:00:00Z"),
            ("2h", "2026-07-01T10:00:00Z"),
            ("-2h", "2026-07-01T10:00:00Z"),
            ("+1d", "2026-07-02T12:00:00Z"),
            ("2026-01-01T04:00:00+08:00", "2025-12-31T20:00:00Z"),
            ("2026-07-01T04:00", "2026-07-01T02:00:00Z"),
            ("2026-07-01 04:00:30", "2026-07-01T02:00:30Z"),
            ("2026-07-01", "2026-06-30T22:00:00Z"),
        ] {
            assert_eq!(moment(text).unwrap().at(now, &berlin).unwrap(), at(expected), "{text}");
        }
        for text in ["", "yesterday", "2026-13-01", "25:00"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_may_contain_an_equals_sign() {
        assert_eq!("A=b=c".parse::<KeyValue>().unwrap(), KeyValue("A".into(), "b=c".into()));
        assert!("A".parse::<KeyValue>().is_err());
        assert!("=b".parse::<KeyValue>().is_err());
    }
}
