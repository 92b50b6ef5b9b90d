//! The console: the files of `console/dist`, which are part of the program; at `/` a page that says how to build them when they are not.
//! A browser runs and loads only what comes from here.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use rust_embed::RustEmbed;

use crate::errors::{Answer, ApiError};
use crate::input::PathValues;

/// No script or style in a page itself, nothing from elsewhere, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
/// Its name says what is in it.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
const ASK_AGAIN: &str = "no-cache";
const PAGE: &str = "index.html";
/// As bundlers write a digest into a name.
const DIGEST_CHARS_MIN: usize = 8;

#[derive(RustEmbed)]
#[folder = "../../console/dist"]
#[allow_missing = true]
struct Dist;

/// Shows the console.
#[utoipa::path(get, path = "/", tag = "console", responses((status = 200, content_type = "text/html", body = String)))]
pub async fn page(headers: HeaderMap) -> Response {
    file(PAGE, &headers).unwrap_or_else(|| {
        let headers = [
            (header::CONTENT_TYPE, "text/html; charset=utf-8"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, ASK_AGAIN),
        ];
        (headers, include_str!("placeholder.html")).into_response()
    })
}

/// Sends a part of the console.
#[utoipa::path(get, path = "/assets/{file}", tag = "console", responses((status = 200, body = String)))]
pub async fn asset(PathValues(name): PathValues<String>, headers: HeaderMap) -> Answer<Response> {
    file(&format!("assets/{name}"), &headers).ok_or_else(|| ApiError::not_found("file", format!("assets/{name}")))
}

/// Sends the console's icon.
#[utoipa::path(get, path = "/favicon.svg", tag = "console", responses((status = 200, content_type = "image/svg+xml", body = String)))]
pub async fn icon(headers: HeaderMap) -> Answer<Response> {
    file("favicon.svg", &headers).ok_or_else(|| ApiError::not_found("file", "favicon.svg"))
}

/// The names of the files that are there.
pub fn files() -> impl Iterator<Item = String> {
    Dist::iter().map(|name| name.into_owned()).filter(|name| !name.ends_with(PACKED))
}

/// The same file for those who take it packed.
const PACKED: &str = ".gz";

/// A file is found by its exact name among those that are there: no name leads out of them.
fn file(name: &str, asked: &HeaderMap) -> Option<Response> {
    let kind = content_type(name)?;
    let plain = Dist::get(name)?;
    let packed = takes_gzip(asked).then(|| Dist::get(&format!("{name}{PACKED}"))).flatten();
    let is_packed = packed.is_some();
    let mut response = packed.unwrap_or(plain).data.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    let kept = if is_hashed(name) { FOR_EVER } else { ASK_AGAIN };
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(kept));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if is_packed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Some(response)
}

/// None: of no kind that a console has.
fn content_type(name: &str) -> Option<&'static str> {
    Some(match name.rsplit_once('.')?.1 {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        "json" => "application/json",
        "txt" => "text/plain; charset=utf-8",
        _ => return None,
    })
}

/// `index-BfK3x9_a.js`: another content would have another name.
fn is_hashed(name: &str) -> bool {
    let in_assets = name.strip_prefix("assets/").and_then(|name| name.rsplit_once('.'));
    let is_digest = |text: &str| {
        text.len() >= DIGEST_CHARS_MIN && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    // A digest may have a dash of its own.
    in_assets
        .is_some_and(|(stem, _)| stem.char_indices().any(|(at, c)| c == '-' && at > 0 && is_digest(&stem[at + 1..])))
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    let values = asked.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|text| text.split(',')).any(|part| {
        let mut words = part.split(';').map(str::trim);
        let is_gzip = words.next().is_some_and(|word| word.eq_ignore_ascii_case("gzip"));
        let is_refused = words.any(|word| matches!(word, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
        is_gzip && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_with_a_digest_are_kept_for_ever() {
        for (name, expected) in [
            ("assets/index-BfK3x9_a.js", true),
            ("assets/index-D-4kz_Qw.css", true),
            ("assets/index.js", false),
            ("assets/a-b.js", false),
            ("index-BfK3x9_a.html", false),
            ("index.html", false),
        ] {
            assert_eq!(is_hashed(name), expected, "{name}");
        }
    }

    #[test]
    fn gzip_goes_to_those_who_take_it() {
        for (value, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.8", true),
            ("gzip;q=0", false),
            ("identity", false),
            ("x-gzip", false),
        ] {
            let asked = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(takes_gzip(&asked), expected, "{value}");
        }
    }
}
