//! The page at `/` until the console is there: where one is, and what to type.

use axum::http::header;
use axum::response::IntoResponse;

/// No script, no style, nothing from elsewhere, no frame around it.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Says that this is Belfry and how to go on.
#[utoipa::path(get, path = "/", tag = "console", responses((status = 200, content_type = "text/html", body = String)))]
pub async fn page() -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, POLICY)];
    (headers, include_str!("placeholder.html"))
}
