//! Addresses of database servers: what is understood of them, and what may be shown. A password never leaves here but to the server.

use std::path::PathBuf;

use crate::SqlError;

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// A parameter that is not understood may be a mistyped request for encryption: refused, and its value not shown.
pub(crate) fn check(url: &str, schemes: &[&str], parameters: &[&str]) -> Result<(), SqlError> {
    if !schemes.contains(&scheme(url)) {
        return Err(SqlError::Broken(format!("its URL must begin with {}://", schemes[0])));
    }
    let (_, query) = url.split_once('?').unwrap_or_default();
    let names = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next().unwrap_or(pair));
    match names.into_iter().find(|name| !parameters.contains(name)) {
        None => Ok(()),
        Some(unknown) => Err(SqlError::Broken(format!(
            "its URL has a parameter `{unknown}` that is not known; known are {}",
            parameters.join(", ")
        ))),
    }
}

/// Where it is, without who uses it.
pub(crate) fn shown(
    kind: &str,
    host: &str,
    port: u16,
    socket: Option<&PathBuf>,
    database: Option<&str>,
) -> Result<String, SqlError> {
    let host = socket.map_or_else(|| format!("{host}:{port}"), |socket| socket.display().to_string());
    match database {
        Some(database) => Ok(format!("{kind} at {host}, database {database}")),
        None => Err(SqlError::Broken(format!("the URL of {kind} at {host} names no database; it ends with /NAME"))),
    }
}

/// Of an address that cannot be read nothing is shown but the reason.
pub(crate) fn unreadable(kind: &str, cause: &sqlx::Error) -> SqlError {
    SqlError::Broken(format!("the URL of {kind} cannot be read: {cause}"))
}

#[cfg(test)]
mod tests {
    use crate::{MySql, Postgres};

    #[tokio::test]
    async fn what_cannot_be_used_is_refused_without_showing_the_password() {
        for (url, says) in [
            ("postgres://joe:s3cret@db/belfry?sslmod=require", "`sslmod`"),
            ("postgres://joe:s3cret@db:5433", "names no database"),
            ("postgres://joe:s3cret@db:99999/belfry", "cannot be read"),
            ("mysql://joe:s3cret@db/belfry?ssl-mode=perhaps", "cannot be read"),
            ("mysql://joe:s3cret@db/belfry?tls=1", "`tls`"),
            ("postgres:joe:s3cret@db/belfry", "must begin"),
            ("belfry.db", "must begin"),
        ] {
            let error = match url.starts_with("mysql") {
                true => MySql::connect(url).await.unwrap_err(),
                false => Postgres::connect(url).await.unwrap_err(),
            };
            let text = format!("{error} {error:?}");
            assert!(text.contains(says) && !error.is_transient(), "{url}: {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }
}
