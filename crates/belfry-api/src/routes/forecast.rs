//! What is to come, minute by minute, of what the caller may see.

use axum::Json;
use axum::extract::State;
use belfry_core::Timestamp;
use belfry_core::forecast::{self, STEP_MS};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::jobs::narrowed;
use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::QueryValues;
use crate::moment::Moment;
use crate::page::read_time;
use crate::state::ApiState;

const HOURS_DEFAULT: i64 = 24;
const HOURS_MAX: i64 = 48;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ForecastQuery {
    /// From the beginning of this minute; now when left out.
    from: Option<String>,
    /// Before this instant, at most 48 hours later; 24 when left out.
    to: Option<String>,
    /// Only this namespace.
    namespace: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct ForecastAnswer {
    from: Moment,
    to: Moment,
    step_ms: i64,
    /// Fires of each minute.
    fires: Vec<u32>,
    /// The most runs at once in each minute, if each takes as long as half of its job's runs do at most.
    concurrency: Vec<u32>,
    /// Minutes with fires that have the most runs at once, at most 10.
    busiest: Vec<BusyMinute>,
    /// Jobs that are not counted, because they fire too often.
    left_out: u64,
}

#[derive(Serialize, ToSchema)]
pub struct BusyMinute {
    at: Moment,
    fires: u32,
    concurrency: u32,
    /// Some that fire in it, at most 10; those that usually take longest first.
    jobs: Vec<JobName>,
}

#[derive(Serialize, ToSchema)]
pub struct JobName {
    namespace: String,
    name: String,
}

/// Shows how many fires and runs at once there will be, minute by minute.
#[utoipa::path(get, path = "/api/v1/forecast", tag = "schedules", params(ForecastQuery), responses((status = 200, body = ForecastAnswer)))]
pub async fn get_forecast(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<ForecastQuery>,
) -> Answer<Json<ForecastAnswer>> {
    let from = read_time("from", query.from.as_deref())?.unwrap_or_else(|| state.now());
    let from = on_minute(from, 0);
    let to = read_time("to", query.to.as_deref())?;
    let to = on_minute(to.unwrap_or_else(|| hours_after(from, HOURS_DEFAULT)), STEP_MS - 1);
    check_span(from, to, HOURS_MAX)?;
    let namespaces = narrowed(permit.namespaces(), query.namespace);
    let plans = state.plans.of(&state.store, namespaces.as_deref()).await?;
    let found = tokio::task::spawn_blocking(move || forecast::forecast(&plans, from, to)).await;
    let found = found.map_err(|cause| ApiError::internal(&cause))?;
    let minute = |minute: forecast::Minute<std::sync::Arc<crate::plans::Plan>>| BusyMinute {
        at: minute.at.into(),
        fires: minute.fires,
        concurrency: minute.concurrency,
        jobs: minute
            .jobs
            .iter()
            .map(|plan| JobName { namespace: plan.namespace.clone(), name: plan.name.clone() })
            .collect(),
    };
    Ok(Json(ForecastAnswer {
        from: from.into(),
        to: to.into(),
        step_ms: STEP_MS,
        fires: found.fires,
        concurrency: found.concurrency,
        busiest: found.busiest.into_iter().map(minute).collect(),
        left_out: found.left_out,
    }))
}

pub(super) fn hours_after(at: Timestamp, hours: i64) -> Timestamp {
    at.saturating_add(SignedDuration::from_hours(hours)).unwrap_or(Timestamp::MAX)
}

/// The beginning of the minute, after so many more milliseconds.
fn on_minute(at: Timestamp, more_ms: i64) -> Timestamp {
    let ms = at.as_millisecond().saturating_add(more_ms);
    Timestamp::from_millisecond(ms - ms.rem_euclid(STEP_MS)).unwrap_or(at)
}

pub(super) fn check_span(from: Timestamp, to: Timestamp, hours_max: i64) -> Answer<()> {
    if from < to && to <= hours_after(from, hours_max) {
        return Ok(());
    }
    let message = format!("{to} is not accepted; it must be after {from}, and at most {hours_max} hours");
    Err(ApiError::bad_request("invalid", "to", message))
}
