//! What webhooks were told: the deliveries of a run, and the secret that they are signed with.

use axum::Json;
use axum::extract::State;
use belfry_control::WebhookSecrets;
use belfry_core::webhook::Delivery;
use serde::Serialize;
use utoipa::ToSchema;

use crate::auth::Permit;
use crate::errors::Answer;
use crate::input::PathValues;
use crate::moment::Moment;
use crate::page::List;
use crate::state::ApiState;

#[derive(Serialize, ToSchema)]
pub struct DeliveryView {
    /// The same at every repetition; the receiver gets it as `Belfry-Delivery`.
    id: String,
    attempt: u32,
    /// What was told: the end of the run, or `overdue`.
    news: &'static str,
    /// `waiting` (for its first or next try), `delivered` or `given_up`.
    state: &'static str,
    /// Scheme, host and port.
    receiver: String,
    tries: u32,
    last_try_at: Option<Moment>,
    /// What the receiver answered last; null: nothing.
    last_status: Option<u16>,
    /// Why the last try was in vain.
    last_error: Option<String>,
    next_try_at: Option<Moment>,
    delivered_at: Option<Moment>,
}

impl From<Delivery> for DeliveryView {
    fn from(delivery: Delivery) -> Self {
        Self {
            id: delivery.id.to_string(),
            attempt: delivery.id.attempt,
            news: delivery.id.news.as_str(),
            state: delivery.fate().as_str(),
            receiver: delivery.receiver,
            tries: delivery.tries,
            last_try_at: delivery.last_try_at.map(Moment),
            last_status: delivery.last_status,
            last_error: delivery.last_error,
            next_try_at: delivery.next_try_at.map(Moment),
            delivered_at: delivery.delivered_at.map(Moment),
        }
    }
}

/// Lists what a webhook was told of a run, or will be.
#[utoipa::path(get, path = "/api/v1/runs/{id}/deliveries", tag = "runs", responses((status = 200, body = List<DeliveryView>)))]
pub async fn list_deliveries(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
) -> Answer<Json<List<DeliveryView>>> {
    let run = super::runs::load(&state, &permit, &id).await?;
    let items = state.store.deliveries(run.id).await?.into_iter().map(DeliveryView::from).collect();
    Ok(Json(List { items, next: None, missing: None }))
}

#[derive(Serialize, ToSchema)]
pub struct SecretAnswer {
    /// The key of the HMAC-SHA-256 in `Belfry-Signature`.
    secret: String,
    /// Until then deliveries are signed with the secret before it as well.
    old_good_until: Option<Moment>,
}

impl SecretAnswer {
    fn of(secrets: &WebhookSecrets, state: &ApiState) -> Json<Self> {
        let old_good_until = secrets.old_good_until().filter(|until| *until > state.now()).map(Moment);
        Json(Self { secret: secrets.current().to_owned(), old_good_until })
    }
}

/// Reads the secret that deliveries to webhooks are signed with.
#[utoipa::path(get, path = "/api/v1/webhook-secret", tag = "cluster", responses((status = 200, body = SecretAnswer)))]
pub async fn get_secret(State(state): State<ApiState>, _permit: Permit) -> Answer<Json<SecretAnswer>> {
    let secrets = WebhookSecrets::of_cluster(&state.store, state.now()).await?;
    Ok(SecretAnswer::of(&secrets, &state))
}

/// Replaces the secret. For a day deliveries are signed with both.
#[utoipa::path(post, path = "/api/v1/webhook-secret", tag = "cluster", responses((status = 200, body = SecretAnswer)))]
pub async fn rotate_secret(State(state): State<ApiState>, permit: Permit) -> Answer<Json<SecretAnswer>> {
    let secrets = WebhookSecrets::rotate(&state.store, state.now(), &permit.actor()).await?;
    Ok(SecretAnswer::of(&secrets, &state))
}
