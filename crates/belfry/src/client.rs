//! Talking to a server over HTTP: one request, one answer, errors in the server's own words. What the answers mean is the
//! commands' business.

mod answers;
mod find;
mod saved;
mod stream;

pub use answers::*;
pub use find::{Found, Source, default_data_dir, find_server};
pub use saved::{SavedLogin, SavedLogins, saved_logins_path};
pub use stream::{EventStream, ServerEvent};

use std::path::PathBuf;
use std::time::Duration;

use reqwest::{Method, StatusCode, Url, header};
use serde_json::Value;

use crate::exit::Exit;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// What the API gives in one page at most.
const PAGE_ITEMS_MAX: usize = 500;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no server found ({tried}); start one with `belfry up`, or give --url")]
    NoServer { tried: String },
    #[error("{url} is not an address of a server; write it as http://127.0.0.1:8787")]
    BadUrl { url: String },
    #[error("--ca {}: {why}", path.display())]
    BadCa { path: PathBuf, why: String },
    #[error(
        "{url} is not trusted: {why}; if it has a certificate of its own CA, give that with --ca FILE (`ca.pem` in the server's data folder)"
    )]
    NotTrusted { url: String, why: String },
    #[error("{url} does not answer: {why}; is it running? Start one with `belfry up`, or give another --url")]
    Unreachable { url: String, why: String },
    #[error("{url} wants a login: {message}; try `belfry login`, or give a token with BELFRY_TOKEN")]
    NotLoggedIn { url: String, message: String },
    #[error("{message}")]
    NotFound { message: String },
    #[error("{}{message}", place(field))]
    Refused { status: StatusCode, field: Option<String>, message: String },
    #[error("{url} gave an answer that is not Belfry's: {why}")]
    Strange { url: String, why: String },
}

fn place(field: &Option<String>) -> String {
    field.as_ref().map_or_else(String::new, |field| format!("{field}: "))
}

impl ClientError {
    pub fn exit(&self) -> Exit {
        match self {
            ClientError::NoServer { .. }
            | ClientError::Unreachable { .. }
            | ClientError::NotTrusted { .. }
            | ClientError::NotLoggedIn { .. } => Exit::NoServer,
            ClientError::BadUrl { .. } | ClientError::BadCa { .. } => Exit::Usage,
            ClientError::NotFound { .. } => Exit::NotFound,
            ClientError::Refused { status: StatusCode::UNAUTHORIZED, .. } => Exit::NoServer,
            ClientError::Refused { .. } | ClientError::Strange { .. } => Exit::Failed,
        }
    }

    /// Whether the same request may be answered in a moment.
    pub fn is_transient(&self) -> bool {
        match self {
            ClientError::Unreachable { .. } => true,
            ClientError::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            ClientError::NoServer { .. }
            | ClientError::BadUrl { .. }
            | ClientError::BadCa { .. }
            | ClientError::NotTrusted { .. }
            | ClientError::NotLoggedIn { .. }
            | ClientError::NotFound { .. }
            | ClientError::Strange { .. } => false,
        }
    }
}

/// The parts of a path after `/api/v1`; each is escaped.
pub type Path<'a> = &'a [&'a str];
pub type Query = Vec<(&'static str, String)>;

#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: Url,
    credential: Credential,
}

#[derive(Clone, Debug)]
pub enum Credential {
    None,
    Token(String),
    /// A session from `POST /login`, as `name=secret`.
    Cookie(String),
}

impl Client {
    /// `ca`: trusted instead of the system's, PEM.
    pub fn new(url: &str, ca: Option<&str>, credential: Credential) -> Result<Self, ClientError> {
        let bad = || ClientError::BadUrl { url: url.to_owned() };
        let base = Url::parse(url).map_err(|_| bad())?;
        if !matches!(base.scheme(), "http" | "https") || !base.has_host() {
            return Err(bad());
        }
        let mut http = reqwest::Client::builder();
        match ca.map(|pem| reqwest::Certificate::from_pem(pem.as_bytes())) {
            Some(Ok(ca)) => http = http.tls_certs_only([ca]),
            Some(Err(cause)) => {
                return Err(ClientError::NotTrusted {
                    url: url.to_owned(),
                    why: format!("the CA cannot be read: {cause}"),
                });
            }
            // Nothing is read from the system when it is not needed.
            None if base.scheme() == "http" => http = http.tls_certs_only([]),
            None => {}
        }
        let http = http
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("belfry/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|e| ClientError::Unreachable { url: url.to_owned(), why: in_full(&e) })?;
        Ok(Self { http, base, credential })
    }

    pub fn with(&self, credential: Credential) -> Self {
        Self { credential, ..self.clone() }
    }

    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    pub async fn get(&self, path: Path<'_>, query: &Query) -> Result<Value, ClientError> {
        self.ask(Method::GET, path, query, None).await
    }

    pub async fn post(&self, path: Path<'_>, body: Value) -> Result<Value, ClientError> {
        self.ask(Method::POST, path, &Vec::new(), Some(body)).await
    }

    pub async fn patch(&self, path: Path<'_>, body: Value) -> Result<Value, ClientError> {
        self.ask(Method::PATCH, path, &Vec::new(), Some(body)).await
    }

    pub async fn put(&self, path: Path<'_>, body: Value) -> Result<Value, ClientError> {
        self.ask(Method::PUT, path, &Vec::new(), Some(body)).await
    }

    /// Only if it is at this revision; else [`ClientError::Refused`] with 412.
    pub async fn put_at(&self, path: Path<'_>, revision: u64, body: Value) -> Result<Value, ClientError> {
        let request = self.request(Method::PUT, path, &Vec::new()).header(header::IF_MATCH, format!("\"{revision}\""));
        self.answer(request, Some(body)).await
    }

    pub async fn delete(&self, path: Path<'_>, query: &Query) -> Result<Value, ClientError> {
        self.ask(Method::DELETE, path, query, None).await
    }

    /// Follows a list until it ends or `limit` items are there; the answer has the form of one page.
    pub async fn list(&self, path: Path<'_>, query: &Query, limit: usize) -> Result<Value, ClientError> {
        let mut items = Vec::new();
        let mut next = Value::Null;
        loop {
            let mut page = query.clone();
            page.push(("limit", (limit - items.len()).min(PAGE_ITEMS_MAX).to_string()));
            if let Some(cursor) = next.as_str() {
                page.push(("cursor", cursor.to_owned()));
            }
            let mut answer = self.get(path, &page).await?;
            match answer["items"].take() {
                Value::Array(more) => items.extend(more),
                other => return Err(self.strange(format!("a list was expected, not {other}"))),
            }
            next = answer["next"].take();
            if next.is_null() || items.len() >= limit {
                return Ok(serde_json::json!({ "items": items, "next": next }));
            }
        }
    }

    /// Opens a stream of server-sent events, behind the event that was seen last.
    pub async fn events(&self, path: Path<'_>, last_event_id: Option<&str>) -> Result<EventStream, ClientError> {
        let mut request = self.request(Method::GET, path, &Vec::new()).header(header::ACCEPT, "text/event-stream");
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        Ok(EventStream::new(self.send(request).await?))
    }

    /// `GET` of something outside `/api/v1`; the status, the `Date` header and the body as text.
    pub async fn probe(&self, path: &str) -> Result<(StatusCode, Option<String>, String), ClientError> {
        let mut url = self.base.clone();
        url.set_path(path);
        let response = self.http.get(url).timeout(ANSWER_TIMEOUT).send().await.map_err(|e| self.unreachable(&e))?;
        let status = response.status();
        let date = response.headers().get(header::DATE).and_then(|date| date.to_str().ok()).map(str::to_owned);
        let body = response.text().await.map_err(|e| self.unreachable(&e))?;
        Ok((status, date, body))
    }

    /// Logs in and answers the session's cookie.
    pub async fn session(&self, user: &str, password: &str) -> Result<Credential, ClientError> {
        let body = serde_json::json!({ "user": user, "password": password });
        let request = self.request(Method::POST, &["login"], &Vec::new()).json(&body).timeout(ANSWER_TIMEOUT);
        let response = self.send(request).await.map_err(|error| match error {
            // Advice to log in would be no help here.
            ClientError::NotLoggedIn { message, .. } => {
                ClientError::Refused { status: StatusCode::UNAUTHORIZED, field: None, message }
            }
            other => other,
        })?;
        let cookies = response.headers().get_all(header::SET_COOKIE).iter().filter_map(|cookie| cookie.to_str().ok());
        let cookie = cookies.filter_map(|cookie| cookie.split(';').next()).find(|cookie| cookie.starts_with("belfry"));
        cookie
            .map(|cookie| Credential::Cookie(cookie.to_owned()))
            .ok_or_else(|| self.strange("a login without a session".to_owned()))
    }

    async fn ask(
        &self,
        method: Method,
        path: Path<'_>,
        query: &Query,
        body: Option<Value>,
    ) -> Result<Value, ClientError> {
        self.answer(self.request(method, path, query), body).await
    }

    async fn answer(&self, request: reqwest::RequestBuilder, body: Option<Value>) -> Result<Value, ClientError> {
        let mut request = request.header(header::ACCEPT, "application/json").timeout(ANSWER_TIMEOUT);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = self.send(request).await?;
        let bytes = response.bytes().await.map_err(|e| self.unreachable(&e))?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|e| self.strange(e.to_string()))
    }

    fn request(&self, method: Method, path: Path<'_>, query: &Query) -> reqwest::RequestBuilder {
        let mut url = self.base.clone();
        url.path_segments_mut().expect("an http URL has a path").pop_if_empty().extend(["api", "v1"]).extend(path);
        let request = self.http.request(method, url).query(query);
        match &self.credential {
            Credential::None => request,
            Credential::Token(token) => request.bearer_auth(token),
            Credential::Cookie(cookie) => request.header(header::COOKIE, cookie).header("x-belfry", "1"),
        }
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<reqwest::Response, ClientError> {
        let response = request.send().await.map_err(|e| self.unreachable(&e))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body: Value = response.json().await.unwrap_or_default();
        Err(self.refusal(status, &body["error"]))
    }

    fn refusal(&self, status: StatusCode, error: &Value) -> ClientError {
        let text = |key: &str| error[key].as_str().map(str::to_owned);
        let Some(message) = text("message") else { return self.strange(format!("status {status}")) };
        match status {
            StatusCode::UNAUTHORIZED => ClientError::NotLoggedIn { url: self.url().to_owned(), message },
            StatusCode::NOT_FOUND => ClientError::NotFound { message },
            _ => ClientError::Refused { status, field: text("field"), message },
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        let why = in_full(error);
        if why.contains("certificate") {
            return ClientError::NotTrusted { url: self.url().to_owned(), why };
        }
        ClientError::Unreachable { url: self.url().to_owned(), why }
    }

    fn strange(&self, why: String) -> ClientError {
        ClientError::Strange { url: self.url().to_owned(), why }
    }
}

/// The last cause says what happened; the ones above repeat the address.
pub fn in_full(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_checked_before_it_is_used() {
        for url in ["", "localhost:8787", "ftp://a", "http://"] {
            assert!(matches!(Client::new(url, None, Credential::None), Err(ClientError::BadUrl { .. })), "{url}");
        }
    }

    #[test]
    fn parts_of_a_path_are_escaped_and_a_prefix_is_kept() {
        let client = Client::new("http://h:1/belfry/", None, Credential::None).unwrap();
        let request = client.request(Method::GET, &["nodes", "a/b c"], &vec![("q", "x y".to_owned())]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://h:1/belfry/api/v1/nodes/a%2Fb%20c?q=x+y");
    }

    #[test]
    fn a_refusal_keeps_the_words_of_the_server() {
        let client = Client::new("http://h:1", None, Credential::None).unwrap();
        let error = serde_json::json!({ "code": "invalid", "message": "it never fires", "field": "schedule" });
        assert_eq!(client.refusal(StatusCode::UNPROCESSABLE_ENTITY, &error).to_string(), "schedule: it never fires");
        assert_eq!(client.refusal(StatusCode::NOT_FOUND, &error).exit(), Exit::NotFound);
        assert_eq!(client.refusal(StatusCode::UNAUTHORIZED, &error).exit(), Exit::NoServer);
        assert_eq!(client.refusal(StatusCode::BAD_GATEWAY, &Value::Null).exit(), Exit::Failed);
    }
}
