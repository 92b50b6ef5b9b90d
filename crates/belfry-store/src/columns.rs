//! How the words of `belfry-core` become columns and come back: ids as text, instants as epoch milliseconds, documents as JSON.

use std::str::FromStr;

use belfry_core::Timestamp;
use belfry_sql::{Row, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::StoreError;

pub(crate) const DAY_MS: i64 = 86_400_000;
/// Of a column for names.
const WORD_CHARS_MAX: usize = 128;

pub(crate) fn ms(at: Timestamp) -> i64 {
    at.as_millisecond()
}

pub(crate) fn opt_ms(at: Option<Timestamp>) -> Value {
    at.map(ms).into()
}

pub(crate) fn instant(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

pub(crate) fn opt_instant(row: &Row, column: usize) -> Option<Timestamp> {
    row.opt_int(column).map(instant)
}

/// Ids and other words that are kept as their text. No text of PostgreSQL has a NUL: a row with one would be refused, and all that are
/// written with it.
pub(crate) fn word(value: impl ToString) -> Value {
    let text = value.to_string();
    Value::Text(if text.contains('\0') { text.replace('\0', "\u{FFFD}") } else { text })
}

/// A word that has a bound, of somebody who need not know it.
pub(crate) fn short_word(value: &str) -> Value {
    match value.char_indices().nth(WORD_CHARS_MAX) {
        None => word(value),
        Some((end, _)) => word(&value[..end]),
    }
}

pub(crate) fn opt_short_word(value: Option<&str>) -> Value {
    value.map_or(Value::Null, short_word)
}

pub(crate) fn opt_word(value: Option<impl ToString>) -> Value {
    value.map_or(Value::Null, word)
}

pub(crate) fn parsed<T: FromStr>(row: &Row, column: usize, what: &str) -> Result<T, StoreError>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    row.text(column).parse().map_err(|cause: T::Err| StoreError::unreadable(what, cause))
}

pub(crate) fn opt_parsed<T: FromStr>(row: &Row, column: usize, what: &str) -> Result<Option<T>, StoreError>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    if *row.get(column) == Value::Null { Ok(None) } else { parsed(row, column, what).map(Some) }
}

/// All 64 bits, also those beyond what SQL calls positive.
pub(crate) fn bits(value: u64) -> Value {
    Value::Int(value as i64)
}

pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have text keys and finite numbers")
}

pub(crate) fn from_json<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|cause| StoreError::unreadable(what, cause))
}
