//! Lists: `{"items": [...], "next": cursor | null}`. A cursor is opaque text that names a place, never a count of rows.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use belfry_core::Timestamp;

use crate::errors::{Answer, ApiError};

const LIMIT_DEFAULT: usize = 50;
const LIMIT_MAX: u32 = 500;

#[derive(Serialize, ToSchema)]
pub struct List<T> {
    pub items: Vec<T>,
    /// Send it back as `cursor` for the next page; null on the last one.
    pub next: Option<String>,
    /// What is away, so that this is only what the server that answers knows without it: `store`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<&'static str>,
}

impl<T> List<T> {
    pub fn of<S, C: Serialize>(page: belfry_store::Page<S, C>, show: impl FnMut(S) -> T) -> Self {
        let (items, next) = (page.items.into_iter().map(show).collect(), page.next.map(|place| cursor_at(&place)));
        Self { items, next, missing: None }
    }
}

pub fn cursor_at(place: &impl Serialize) -> String {
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(place).expect("a place is plain data"))
}

pub fn read_cursor<C: DeserializeOwned>(text: Option<&str>) -> Answer<Option<C>> {
    let Some(text) = text else { return Ok(None) };
    let place = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    place.map(Some).ok_or_else(|| {
        ApiError::bad_request(
            "invalid",
            "cursor",
            format!("`{text}` is not a cursor of this list; send back the `next` of a page as it is"),
        )
    })
}

pub fn read_limit(limit: Option<u32>) -> Answer<usize> {
    match limit {
        None => Ok(LIMIT_DEFAULT),
        Some(limit @ 1..=LIMIT_MAX) => Ok(limit as usize),
        Some(other) => Err(ApiError::bad_request(
            "invalid",
            "limit",
            format!("`{other}` is out of range; 1 to {LIMIT_MAX} are accepted"),
        )),
    }
}

/// An instant in a query.
pub fn read_time(name: &str, text: Option<&str>) -> Answer<Option<Timestamp>> {
    let Some(text) = text else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let message = format!(
            "`{text}` is not a time; write RFC 3339 such as 2026-11-15T04:00:00Z (a `+` in a URL is written %2B)"
        );
        ApiError::bad_request("invalid", name, message)
    })
}
