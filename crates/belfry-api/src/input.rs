//! What comes in: bodies, query values, path ids and `If-Match`, read so that every refusal has the one form and names its place.

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::{Answer, ApiError};

/// A body of one job, user, token …
pub const BODY_BYTES_MAX: usize = 1 << 20;
/// A body of many job documents.
pub const APPLY_BYTES_MAX: usize = 16 << 20;

/// A JSON body of at most `MAX` bytes.
pub struct JsonBody<T, const MAX: usize = BODY_BYTES_MAX>(pub T);

impl<S: Send + Sync, T: DeserializeOwned, const MAX: usize> FromRequest<S> for JsonBody<T, MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        check_content_type(request.headers())?;
        let bytes = read_body(request, MAX).await?;
        Ok(Self(read_fields(read_json(&bytes)?)?))
    }
}

/// As [`JsonBody`], for a request that may come without a body at all.
pub struct MaybeJsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Default> FromRequest<S> for MaybeJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Answer<Self> {
        let content_type = check_content_type(request.headers());
        let bytes = read_body(request, BODY_BYTES_MAX).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        content_type?;
        Ok(Self(read_fields(read_json(&bytes)?)?))
    }
}

fn check_content_type(headers: &HeaderMap) -> Answer<()> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    let message = format!("the body must come as `Content-Type: application/json`, not `{given}`");
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message).at("Content-Type"))
}

pub(crate) async fn read_body(request: Request, max: usize) -> Answer<Bytes> {
    let too_large = || {
        let message = format!("the body is larger than {max} bytes; send less at once");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
    };
    let announced =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|bytes| bytes > max as u64) {
        return Err(too_large());
    }
    let body: Body = request.into_body();
    to_bytes(body, max).await.map_err(|error| {
        let over =
            std::error::Error::source(&error).is_some_and(|cause| cause.is::<http_body_util::LengthLimitError>());
        if over { too_large() } else { ApiError::bad_request("bad_body", "", "the body broke off before its end") }
    })
}

fn read_json(bytes: &[u8]) -> Answer<Value> {
    serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the body is not JSON: {error}");
        ApiError::bad_request("bad_json", "", message)
    })
}

/// Reads a value field by field; the refusal names the field.
pub fn read_fields<T: DeserializeOwned>(value: Value) -> Answer<T> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let message = error.inner().to_string();
        ApiError::invalid(field_of(&path, &message), message)
    })
}

/// An unknown or missing field is named in the message only; the path leads to its parent.
fn field_of(path: &str, message: &str) -> String {
    let parent = if path == "." { "" } else { path };
    let named =
        ["unknown field `", "missing field `"].iter().find_map(|lead| message.strip_prefix(lead)?.split('`').next());
    match named {
        None => parent.to_owned(),
        Some(name) if parent.is_empty() => name.to_owned(),
        Some(name) if parent == name || parent.ends_with(&format!(".{name}")) => parent.to_owned(),
        Some(name) => format!("{parent}.{name}"),
    }
}

/// The values of the query; names that no route knows are refused before, by the gate.
pub struct QueryValues<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryValues<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        axum::extract::Query::try_from_uri(&parts.uri).map(|axum::extract::Query(values)| Self(values)).map_err(
            |rejection| {
                let text = rejection.body_text();
                let said = text.split_once(": ").map_or(text.as_str(), |(_, rest)| rest);
                let (name, message) = said.split_once(": ").unwrap_or(("", said));
                let name = match said.split_once('`') {
                    Some((lead, rest)) if lead.ends_with("field ") => rest.split('`').next().unwrap_or_default(),
                    _ => name,
                };
                ApiError::bad_request("invalid", name, message)
            },
        )
    }
}

/// Parts of the path.
pub struct PathValues<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathValues<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Answer<Self> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(values)) => Ok(Self(values)),
            Err(rejection) => Err(ApiError::bad_request("invalid", "id", rejection.body_text())),
        }
    }
}

/// Which revision an edit is meant for; without the header, or with `*`, whichever is current.
pub struct IfMatch(pub Option<u64>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let text = value.to_str().unwrap_or_default().trim();
        if text == "*" {
            return Ok(Self(None));
        }
        let digits = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
        digits.parse().map(|revision| Self(Some(revision))).map_err(|_| {
            ApiError::bad_request(
                "invalid",
                "If-Match",
                format!("`{text}` is not a revision; send the ETag of the answer, such as \"3\", or *"),
            )
        })
    }
}

pub fn etag(revision: u64) -> HeaderValue {
    HeaderValue::from_str(&format!("\"{revision}\"")).expect("digits and quotes are header text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_field_is_named_with_its_path() {
        for (path, message, field) in [
            (".", "missing field `name`", "name"),
            ("retry", "unknown field `tries`, expected one of …", "retry.tries"),
            ("tries", "unknown field `tries`, expected one of …", "tries"),
            ("jitter", "`5` is not a duration", "jitter"),
            (".", "invalid type: map", ""),
        ] {
            assert_eq!(field_of(path, message), field, "{path} {message}");
        }
    }
}
