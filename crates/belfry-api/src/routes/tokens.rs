//! Tokens for programs: everyone makes and removes their own, with at most their own grants; admins also see and remove others', and
//! make tokens of services.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use belfry_core::job::check_name;
use belfry_core::role::{Grants, Role};
use belfry_core::units::Span;
use belfry_store::{NewToken, SecretHash, Token, TokenOwner};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::session::check_grants;
use crate::auth::{Credential, Permit, common_grants, new_token, random_bits};
use crate::errors::{Answer, ApiError};
use crate::input::{JsonBody, PathValues};
use crate::moment::Moment;
use crate::page::List;
use crate::state::ApiState;

const LABEL_BYTES_MAX: usize = 128;

#[derive(Serialize, ToSchema)]
pub struct TokenView {
    id: String,
    /// The user or service that acts when it is used.
    owner: String,
    service: bool,
    label: String,
    #[schema(value_type = BTreeMap<String, String>)]
    grants: Grants,
    created_at: Moment,
    expires_at: Option<Moment>,
    /// To the minute.
    last_used_at: Option<Moment>,
}

impl From<Token> for TokenView {
    fn from(token: Token) -> Self {
        Self {
            id: token.id,
            service: matches!(token.owner, TokenOwner::Service(_)),
            owner: token.owner.name().to_owned(),
            label: token.label,
            grants: token.grants,
            created_at: token.created_at.into(),
            expires_at: token.expires_at.map(Moment),
            last_used_at: token.last_used_at.map(Moment),
        }
    }
}

fn is_admin(permit: &Permit) -> bool {
    permit.caller.grants.allow_everywhere(Role::Admin)
}

async fn seen_by(state: &ApiState, permit: &Permit) -> Answer<Vec<Token>> {
    if is_admin(permit) {
        return Ok(state.store.list_tokens(None).await?);
    }
    let own = permit.caller.as_owner();
    let of_the_name = state.store.list_tokens(Some(own.name())).await?;
    Ok(of_the_name.into_iter().filter(|token| token.owner == own).collect())
}

/// Lists one's own tokens; an admin's list holds all.
#[utoipa::path(get, path = "/api/v1/tokens", tag = "tokens", responses((status = 200, body = List<TokenView>)))]
pub async fn list_tokens(State(state): State<ApiState>, permit: Permit) -> Answer<Json<List<TokenView>>> {
    let tokens = seen_by(&state, &permit).await?;
    Ok(Json(List { items: tokens.into_iter().map(TokenView::from).collect(), next: None, missing: None }))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// What it is for.
    label: String,
    /// At most one's own; one's own when left out.
    #[schema(value_type = Option<BTreeMap<String, String>>)]
    grants: Option<BTreeMap<String, Role>>,
    /// How long it is good, such as 90d; for ever when left out.
    #[schema(value_type = Option<String>)]
    expires_in: Option<Span>,
    /// For admins: the token is of this service, not of a user.
    service: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct NewTokenView {
    #[serde(flatten)]
    token: TokenView,
    /// Shown only now.
    secret: String,
}

/// Makes a token.
#[utoipa::path(post, path = "/api/v1/tokens", tag = "tokens", request_body = TokenRequest, responses((status = 201, body = NewTokenView)))]
pub async fn create_token(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(request): JsonBody<TokenRequest>,
) -> Answer<(StatusCode, Json<NewTokenView>)> {
    if request.label.trim().is_empty() || request.label.len() > LABEL_BYTES_MAX {
        return Err(ApiError::invalid("label", format!("say what the token is for, in 1 to {LABEL_BYTES_MAX} bytes")));
    }
    let own = permit.caller.grants.clone();
    let grants = match &request.grants {
        None => own,
        Some(wanted) => {
            let wanted = check_grants(wanted)?;
            if !own.include(&wanted) {
                return Err(ApiError::forbidden("a token can have at most the grants of who makes it").at("grants"));
            }
            wanted
        }
    };
    let owner = match request.service {
        None => permit.caller.as_owner(),
        Some(_) if !is_admin(&permit) => {
            return Err(ApiError::forbidden("tokens of services are made by admins").at("service"));
        }
        Some(service) => {
            check_name("service", &service)?;
            TokenOwner::Service(service)
        }
    };
    let now = state.now();
    let lives = request.expires_in.map(|span| SignedDuration::try_from(span.get()).unwrap_or(SignedDuration::MAX));
    let expires_at = lives.map(|lives| now.checked_add(lives).unwrap_or(belfry_core::Timestamp::MAX));
    // Else a token that was lost for an hour would be good for ever.
    let until = permit.caller.token_ends;
    if until.is_some_and(|until| expires_at.is_none_or(|expires_at| expires_at > until)) {
        let message =
            "a token makes only tokens that expire when it does, or before; sign in with the password for others";
        return Err(ApiError::forbidden(message).at("expires_in"));
    }
    let secret = new_token();
    let id = belfry_core::JobId::new(now, random_bits()).to_string();
    let new = NewToken { id, owner, label: request.label, secret: SecretHash::of(&secret), grants, expires_at };
    let token = state.store.create_token(new, now, &permit.actor()).await?;
    Ok((StatusCode::CREATED, Json(NewTokenView { token: token.into(), secret })))
}

/// Removes a token: it is worth nothing from now on.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", tag = "tokens", responses((status = 204)))]
pub async fn remove_token(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
) -> Answer<StatusCode> {
    let seen = seen_by(&state, &permit).await?;
    let token = seen.iter().find(|token| token.id == id).ok_or_else(|| ApiError::not_found("token", &id))?;
    let in_force = match &token.owner {
        TokenOwner::Service(_) => token.grants.clone(),
        TokenOwner::User(name) => {
            let owner = state.store.user(name).await?;
            owner.map_or_else(Grants::default, |owner| common_grants(&token.grants, &owner.grants))
        }
    };
    if matches!(permit.caller.credential, Credential::Token(_)) && !permit.caller.grants.include(&in_force) {
        let message =
            "a token removes only tokens that may do no more than itself; sign in with the password for others";
        return Err(ApiError::forbidden(message));
    }
    state.store.remove_token(&id, state.now(), &permit.actor()).await?;
    Ok(StatusCode::NO_CONTENT)
}
