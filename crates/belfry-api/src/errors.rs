//! The one form of every refusal: `{"error": {"code", "message", "field"?, "revision"?}}`. A code is a word that programs may
//! match on; a message is for people and says what to do next.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belfry_control::ControlError;
use belfry_core::{Refusal, ShardId};
use belfry_store::StoreError;
use serde::Serialize;
use utoipa::ToSchema;

/// How long a client should wait before it asks again when something is away.
const RETRY_AFTER_SECONDS: u64 = 2;

#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    retry_after_seconds: Option<u64>,
    elsewhere: Option<Elsewhere>,
}

/// Marks an answer: another server can say more, see `forward`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elsewhere {
    /// The owner of this shard.
    Owner(ShardId),
    /// Whoever knows a run that the store has not heard of yet.
    Anybody,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorAnswer {
    error: ErrorBody,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    /// A stable word, such as `not_found`, `invalid`, `name_taken`, `stale_revision`.
    code: &'static str,
    /// For people: what is wrong and what would be accepted.
    message: String,
    /// The field, query parameter or header that is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// With `stale_revision`: the revision that is current.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
}

pub type Answer<T> = Result<T, ApiError>;

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        let body = ErrorBody { code, message: message.into(), field: None, revision: None };
        Self { status, body, retry_after_seconds: None, elsewhere: None }
    }

    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.body.field = Some(field.into()).filter(|field: &String| !field.is_empty());
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    pub fn status(&self) -> StatusCode {
        self.status
    }

    pub fn field(&self) -> Option<&str> {
        self.body.field.as_deref()
    }

    /// The request cannot be read.
    pub fn bad_request(code: &'static str, field: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message).at(field)
    }

    /// The request can be read but says something that is not accepted.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message).at(field)
    }

    pub fn not_found(what: &str, name: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {what} `{name}`, or you may not see it"))
    }

    /// A run that was claimed a moment ago is known to its owner alone.
    pub fn no_such_run(id: impl std::fmt::Display) -> Self {
        Self { elsewhere: Some(Elsewhere::Anybody), ..Self::not_found("run", id) }
    }

    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "sign in at /api/v1/login, or send `Authorization: Bearer` with a token that is still good",
        )
    }

    pub fn name_taken(name: &str) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "name_taken",
            format!("the name `{name}` is taken; choose another or change that one"),
        )
        .at("name")
    }

    pub fn stale_revision(revision: u64) -> Self {
        let mut error = Self::new(
            StatusCode::PRECONDITION_FAILED,
            "stale_revision",
            format!(
                "it was changed in the meantime and is now at revision {revision}; read it again and repeat the change"
            ),
        )
        .at("If-Match");
        error.body.revision = Some(revision);
        error
    }

    pub fn away(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message).retry_after(RETRY_AFTER_SECONDS)
    }

    /// Logged in full here, once; the caller learns only that it happened.
    pub fn internal(error: &(dyn std::error::Error + 'static)) -> Self {
        tracing::error!(error = %in_full(error), "a request failed");
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Belfry failed here; the server's log says why")
    }
}

impl std::fmt::Display for ApiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.body.message)
    }
}

/// An error with its causes, each once.
fn in_full(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::NotFound => Self::new(StatusCode::NOT_FOUND, "not_found", "it does not exist, or no longer"),
            StoreError::NameTaken { name } => Self::name_taken(name),
            StoreError::Conflict { revision } => Self::stale_revision(*revision),
            StoreError::LastAdmin => Self::new(
                StatusCode::CONFLICT,
                "last_admin",
                "at least one enabled user must stay admin everywhere; make another one first",
            ),
            StoreError::InUse { by } => Self::new(
                StatusCode::CONFLICT,
                "in_use",
                format!("it is used by {}; change or remove these first", by.join(", ")),
            ),
            _ if error.outcome_unknown() => Self::away(
                "outcome_unknown",
                "the store did not answer in time; the change may have happened: look before you repeat it",
            ),
            _ if error.took_too_long() => Self::away(
                "too_slow",
                "the store did not answer this in time, though it answers others; ask for less of it, or try again later",
            ),
            _ if error.is_transient() => Self::away(
                "store_away",
                format!("the store is missing, nothing was changed; try again soon ({})", in_full(&error)),
            ),
            _ => Self::internal(&error),
        }
    }
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::NoSuchJob(id) => Self::not_found("job", id),
            ControlError::NoSuchRun(id) => Self::no_such_run(id),
            ControlError::NotOwned(shard) => {
                let refusal = Self::away("no_owner", error.to_string());
                Self { elsewhere: Some(Elsewhere::Owner(shard)), ..refusal }
            }
            ControlError::WhichNode | ControlError::CannotMoveThere => Self::invalid("node", error.to_string()),
            ControlError::IsService | ControlError::NotAService => Self::invalid("action", error.to_string()),
            ControlError::NotRunning => Self::away("not_running", error.to_string()),
            ControlError::NowhereToMove => Self::new(StatusCode::CONFLICT, "nowhere_to_move", error.to_string()),
            ControlError::NotKept(why) => Self::invalid("values", why),
            ControlError::StateChanged(version) => Self::stale_revision(version.0),
            ControlError::NoHome => Self::away("no_home", error.to_string()),
            ControlError::NodeAway(_) => Self::away("node_away", error.to_string()),
            ControlError::CoordinatorAway | ControlError::NoRoom | ControlError::NoRoomForState => {
                Self::away("coordinator_away", error.to_string())
            }
            ControlError::StoreAway(cause) => cause.into(),
            ControlError::TooMuchUnrecorded => Self::away("store_away", error.to_string()),
            ControlError::Stopping => {
                Self::away("stopping", "this server is stopping; ask another one, or again when it is back")
            }
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        Self::invalid(refusal.field, refusal.message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let revision = self.body.revision;
        let mut response = (self.status, Json(ErrorAnswer { error: self.body })).into_response();
        if let Some(elsewhere) = self.elsewhere {
            response.extensions_mut().insert(elsewhere);
        }
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(revision) = revision {
            headers.insert(header::ETAG, crate::input::etag(revision));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// For a handler that panicked: the same form, without what the panic said.
pub(crate) fn panicked(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panic = said.unwrap_or("without words"), "a request handler panicked");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "Belfry failed here; the server's log says why")
        .into_response()
}
