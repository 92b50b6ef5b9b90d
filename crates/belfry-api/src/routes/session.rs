//! Signing in and out, who one is, and one's own password.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse};
use belfry_core::role::{Grants, Role};
use belfry_store::{Actor, SecretHash, StoreError, UserChange};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::auth::{Credential, Permit, SESSION_COOKIE, check_new_password, new_secret};
use crate::errors::{Answer, ApiError};
use crate::input::JsonBody;
use crate::state::ApiState;

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoginRequest {
    user: String,
    password: String,
}

#[derive(Serialize, ToSchema)]
pub struct WhoAmI {
    /// A user, or the service that a token belongs to.
    name: String,
    /// Namespace (`*` for all of them, and for what belongs to none) to role.
    #[schema(value_type = BTreeMap<String, String>)]
    grants: Grants,
    /// `password` or `token`.
    signed_in_with: &'static str,
    /// The cluster's zone.
    default_timezone: String,
    version: String,
}

impl WhoAmI {
    fn of(state: &ApiState, name: String, grants: Grants, signed_in_with: &'static str) -> Self {
        let settings = &state.settings;
        Self {
            name,
            grants,
            signed_in_with,
            default_timezone: settings.default_timezone.clone(),
            version: settings.version.clone(),
        }
    }
}

/// Signs in; the answer sets a cookie that pages cannot read and other sites cannot use.
#[utoipa::path(post, path = "/api/v1/login", tag = "session", request_body = LoginRequest, responses((status = 200, body = WhoAmI)))]
pub async fn login(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(request): JsonBody<LoginRequest>,
) -> Answer<impl IntoResponse> {
    let (address, now) = (permit.caller.address, state.now());
    if let Some(seconds) = state.throttle.try_again_in(&request.user, address, now) {
        let message = format!("too many wrong passwords; try again in {seconds} s");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", message).retry_after(seconds));
    }
    // Databases do not even look for a name with that character.
    let known = if request.user.contains('\0') { None } else { state.store.user(&request.user).await? };
    let user = known.filter(|user| !user.disabled);
    let right =
        state.passwords.is_right(&request.password, user.as_ref().map(|user| user.password_hash.clone())).await?;
    let Some(user) = user.filter(|_| right) else { return Err(wrong()) };
    let secret = new_secret();
    let lives = SignedDuration::from_secs(state.settings.session_seconds);
    let expires = now.checked_add(lives).unwrap_or(now);
    let actor = Actor { name: user.name.clone(), origin: address.map(|address| address.to_string()) };
    match state.store.create_session(SecretHash::of(&secret), &user.name, now, expires, &actor).await {
        Ok(()) => state.throttle.succeeded(&request.user, address),
        // Disabled or removed since it was read.
        Err(StoreError::NotFound) => return Err(wrong()),
        Err(error) => return Err(error.into()),
    }
    let cookie = cookie(&state, &secret, state.settings.session_seconds)?;
    Ok((AppendHeaders([(header::SET_COOKIE, cookie)]), Json(WhoAmI::of(&state, user.name, user.grants, "password"))))
}

/// The same for a wrong password, an unknown user and a disabled one.
fn wrong() -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, "wrong_password", "user or password is wrong")
}

fn cookie(state: &ApiState, secret: &str, seconds: i64) -> Answer<HeaderValue> {
    let secure = if state.settings.secure_cookie { "; Secure" } else { "" };
    let text = format!("{SESSION_COOKIE}={secret}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}");
    HeaderValue::from_str(&text).map_err(|bad| ApiError::internal(&bad))
}

/// Signs out: the session is worth nothing from now on.
#[utoipa::path(post, path = "/api/v1/logout", tag = "session", responses((status = 204)))]
pub async fn logout(State(state): State<ApiState>, permit: Permit) -> Answer<impl IntoResponse> {
    if let Credential::Session(secret) = &permit.caller.credential {
        state.store.remove_session(SecretHash::of(secret), state.now(), &permit.actor()).await?;
    }
    Ok((StatusCode::NO_CONTENT, AppendHeaders([(header::SET_COOKIE, cookie(&state, "", 0)?)])))
}

/// Says who is calling and what they may do.
#[utoipa::path(get, path = "/api/v1/whoami", tag = "session", responses((status = 200, body = WhoAmI)))]
pub async fn whoami(State(state): State<ApiState>, permit: Permit) -> Json<WhoAmI> {
    let signed_in_with = match permit.caller.credential {
        Credential::Token(_) => "token",
        Credential::Session(_) | Credential::None => "password",
    };
    Json(WhoAmI::of(&state, permit.caller.name, permit.caller.grants, signed_in_with))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PasswordRequest {
    current: String,
    new: String,
}

/// Changes one's own password; every session of the user ends, this one too.
#[utoipa::path(post, path = "/api/v1/password", tag = "session", request_body = PasswordRequest, responses((status = 204)))]
pub async fn change_password(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(request): JsonBody<PasswordRequest>,
) -> Answer<StatusCode> {
    let Credential::Session(_) = permit.caller.credential else {
        return Err(ApiError::new(
            StatusCode::CONFLICT,
            "no_session",
            "a password is changed by its user, signed in with it; a token cannot",
        ));
    };
    check_new_password("new", &request.new)?;
    let name = &permit.caller.name;
    if let Some(seconds) = state.throttle.try_again_in(name, permit.caller.address, state.now()) {
        let message = format!("too many wrong passwords; try again in {seconds} s");
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", message).retry_after(seconds));
    }
    let hash = state.store.user(name).await?.map(|user| user.password_hash);
    if !state.passwords.is_right(&request.current, hash).await? {
        return Err(ApiError::invalid("current", "this is not the current password"));
    }
    state.throttle.succeeded(name, permit.caller.address);
    let change = UserChange { password_hash: Some(state.passwords.hash(&request.new).await?), ..UserChange::default() };
    state.store.update_user(name, change, state.now(), &permit.actor()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Grants as a request gives them: every namespace a name or `*`, at least one.
pub(super) fn check_grants(grants: &BTreeMap<String, Role>) -> Answer<Grants> {
    if grants.is_empty() {
        return Err(ApiError::invalid(
            "grants",
            "at least one is needed, such as {\"default\": \"viewer\"} or {\"*\": \"admin\"}",
        ));
    }
    for namespace in grants.keys().filter(|namespace| *namespace != belfry_core::role::EVERYWHERE) {
        belfry_core::job::check_name("grants", namespace)?;
    }
    Ok(Grants(grants.clone()))
}
