//! Users: made, changed and removed by admins only. There is no registration.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use belfry_core::job::check_name;
use belfry_core::role::{Grants, Role};
use belfry_store::{NewUser, User, UserChange};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::session::check_grants;
use crate::auth::{Permit, check_new_password};
use crate::errors::{Answer, ApiError};
use crate::input::{JsonBody, PathValues};
use crate::moment::Moment;
use crate::page::List;
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct UserView {
    name: String,
    /// Namespace (`*` for all of them) to role.
    #[schema(value_type = BTreeMap<String, String>)]
    grants: Grants,
    /// May not sign in, nor use tokens.
    disabled: bool,
    created_at: Moment,
    updated_at: Moment,
}

impl From<User> for UserView {
    fn from(user: User) -> Self {
        let User { name, grants, disabled, created_at, updated_at, password_hash: _ } = user;
        Self { name, grants, disabled, created_at: created_at.into(), updated_at: updated_at.into() }
    }
}

/// Lists users by name.
#[utoipa::path(get, path = "/api/v1/users", tag = "users", responses((status = 200, body = List<UserView>)))]
pub async fn list_users(State(state): State<ApiState>) -> Answer<Json<List<UserView>>> {
    let users = state.store.list_users().await?;
    Ok(Json(List { items: users.into_iter().map(UserView::from).collect(), next: None, missing: None }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserRequest {
    name: String,
    password: String,
    #[schema(value_type = BTreeMap<String, String>)]
    grants: BTreeMap<String, Role>,
}

/// Creates a user.
#[utoipa::path(post, path = "/api/v1/users", tag = "users", request_body = UserRequest, responses((status = 201, body = UserView)))]
pub async fn create_user(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(request): JsonBody<UserRequest>,
) -> Answer<(StatusCode, Json<UserView>)> {
    check_name("name", &request.name)?;
    check_new_password("password", &request.password)?;
    let grants = check_grants(&request.grants)?;
    let password_hash = state.passwords.hash(&request.password).await?;
    let new = NewUser { name: request.name, password_hash, grants };
    let user = state.store.create_user(new, state.now(), &permit.actor()).await?;
    Ok((StatusCode::CREATED, Json(user.into())))
}

/// Reads one user.
#[utoipa::path(get, path = "/api/v1/users/{name}", tag = "users", responses((status = 200, body = UserView)))]
pub async fn get_user(State(state): State<ApiState>, PathValues(name): PathValues<String>) -> Answer<Json<UserView>> {
    let user = state.store.user(&name).await?.ok_or_else(|| ApiError::not_found("user", &name))?;
    Ok(Json(user.into()))
}

/// What is left out stays as it is.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct UserPatch {
    password: Option<String>,
    /// Replaces all grants.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    grants: Option<BTreeMap<String, Role>>,
    disabled: Option<bool>,
}

/// Changes a user; a new password, or disabling, ends the user's sessions.
#[utoipa::path(patch, path = "/api/v1/users/{name}", tag = "users", request_body = UserPatch, responses((status = 200, body = UserView)))]
pub async fn patch_user(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(name): PathValues<String>,
    JsonBody(patch): JsonBody<UserPatch>,
) -> Answer<Json<UserView>> {
    let grants = patch.grants.as_ref().map(check_grants).transpose()?;
    let password_hash = match &patch.password {
        None => None,
        Some(password) => {
            check_new_password("password", password)?;
            Some(state.passwords.hash(password).await?)
        }
    };
    let change = UserChange { password_hash, grants, disabled: patch.disabled };
    let user = state.store.update_user(&name, change, state.now(), &permit.actor()).await?;
    Ok(Json(user.into()))
}

/// Removes a user with all sessions and tokens.
#[utoipa::path(delete, path = "/api/v1/users/{name}", tag = "users", responses((status = 204)))]
pub async fn remove_user(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(name): PathValues<String>,
) -> Answer<StatusCode> {
    state.store.remove_user(&name, state.now(), &permit.actor()).await?;
    Ok(StatusCode::NO_CONTENT)
}
