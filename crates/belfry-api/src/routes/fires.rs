//! When jobs fire: the planned instants of a saved job, and the preview of a schedule that is still being written.

use axum::Json;
use axum::extract::State;
use belfry_core::Timestamp;
use belfry_core::id::name_seed;
use belfry_core::job::{DEFAULT_NAMESPACE, Expressions};
use belfry_core::schedule::{ClockNote, DstRule, Schedule, ScheduleSpec, Window, time_zone};
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::jobs::load;
use crate::errors::{Answer, ApiError};
use crate::input::{JsonBody, PathValues, QueryValues};
use crate::moment::Moment;
use crate::page::{List, cursor_at, read_cursor, read_limit, read_time};
use crate::state::ApiState;

const PREVIEW_COUNT_DEFAULT: u32 = 10;
const PREVIEW_COUNT_MAX: u32 = 100;

/// One planned instant.
#[derive(Serialize, ToSchema)]
pub struct FireView {
    at: Moment,
    /// The same instant on the clock of the job's zone.
    local: String,
    /// What a clock change did to it.
    note: Option<FireNote>,
}

#[derive(Serialize, ToSchema)]
pub struct FireNote {
    /// `moved_from_gap`, `first_pass` or `second_pass`.
    kind: &'static str,
    pub(super) message: String,
}

impl FireView {
    fn of(schedule: &Schedule, zone: &TimeZone, at: Timestamp) -> Self {
        Self { at: at.into(), local: on_clock_of(zone, at), note: schedule.note_for(at).map(note) }
    }
}

fn on_clock_of(zone: &TimeZone, at: Timestamp) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// On the clock of a zone that a saved job names.
pub(super) fn local_time(zone: &str, at: Timestamp) -> String {
    on_clock_of(&time_zone(zone).unwrap_or(TimeZone::UTC), at)
}

pub(super) fn note(note: ClockNote) -> FireNote {
    let (kind, message) = match note {
        ClockNote::MovedFromGap { local } => {
            ("moved_from_gap", format!("{local} does not exist on that day; it fires when the clock has jumped"))
        }
        ClockNote::FirstPass => ("first_pass", "this local time comes twice on that day; this is the first".to_owned()),
        ClockNote::SecondPass => {
            ("second_pass", "this local time comes twice on that day; this is the second".to_owned())
        }
    };
    FireNote { kind, message }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct FiresQuery {
    /// After this instant; now when left out.
    from: Option<String>,
    /// Up to this instant.
    to: Option<String>,
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists the planned instants of a job; a paused job has none.
#[utoipa::path(get, path = "/api/v1/jobs/{ns}/{name}/fires", tag = "schedules", params(FiresQuery), responses((status = 200, body = List<FireView>)))]
pub async fn list_fires(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
    QueryValues(query): QueryValues<FiresQuery>,
) -> Answer<Json<List<FireView>>> {
    let job = load(&state, &ns, &name).await?;
    let limit = read_limit(query.limit)?;
    let from = read_time("from", query.from.as_deref())?.unwrap_or_else(|| state.now());
    let to = read_time("to", query.to.as_deref())?.unwrap_or(Timestamp::MAX);
    let place: Option<Timestamp> = read_cursor(query.cursor.as_deref())?;
    if !job.document.enabled {
        return Ok(Json(List { items: Vec::new(), next: None, missing: None }));
    }
    let schedule = job.schedule()?;
    let zone = zone(job.document.timezone.as_deref().unwrap_or("UTC"))?;
    let after = place.unwrap_or(from).max(job.counts_from);
    let mut fires = instants(&schedule, after).take_while(|at| *at <= to);
    let items: Vec<Timestamp> = fires.by_ref().take(limit).collect();
    let next = fires.next().and(items.last()).map(cursor_at);
    let items = items.into_iter().map(|at| FireView::of(&schedule, &zone, at)).collect();
    Ok(Json(List { items, next, missing: None }))
}

fn instants(schedule: &Schedule, after: Timestamp) -> impl Iterator<Item = Timestamp> {
    std::iter::successors(schedule.next_after(after), |at| schedule.next_after(*at))
}

fn zone(name: &str) -> Answer<TimeZone> {
    time_zone(name).map_err(|unknown| ApiError::invalid("timezone", unknown.to_string()))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewRequest {
    /// One expression or a list of them.
    #[schema(value_type = Vec<String>)]
    schedule: Expressions,
    /// The cluster's zone when left out.
    timezone: Option<String>,
    #[serde(default)]
    #[schema(value_type = Object)]
    dst: DstRule,
    #[serde(default)]
    #[schema(value_type = Object)]
    window: Window,
    /// The job that it is for: `H` depends on its name.
    namespace: Option<String>,
    name: Option<String>,
    /// Fires after this instant; now when left out.
    #[schema(value_type = Option<String>)]
    from: Option<Timestamp>,
    /// 1 to 100, 10 when left out.
    count: Option<u32>,
}

#[derive(Serialize, ToSchema)]
pub struct PreviewAnswer {
    timezone: String,
    fires: Vec<FireView>,
    /// `@after`: how long after the end of a run the next one starts.
    delay_after_end: Option<String>,
    at_boot: bool,
}

/// Shows when a schedule would fire, or refuses it as saving a job would.
#[utoipa::path(post, path = "/api/v1/schedule/preview", tag = "schedules", request_body = PreviewRequest, responses((status = 200, body = PreviewAnswer)))]
pub async fn preview(
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<PreviewRequest>,
) -> Answer<Json<PreviewAnswer>> {
    let count = match request.count.unwrap_or(PREVIEW_COUNT_DEFAULT) {
        count @ 1..=PREVIEW_COUNT_MAX => count as usize,
        other => {
            return Err(ApiError::invalid(
                "count",
                format!("`{other}` is out of range; 1 to {PREVIEW_COUNT_MAX} are accepted"),
            ));
        }
    };
    if request.schedule.is_empty() {
        return Err(ApiError::invalid(
            "schedule",
            "there is nothing to preview; give an expression such as \"0 4 * * *\"",
        ));
    }
    let timezone = request.timezone.unwrap_or_else(|| state.settings.default_timezone.clone());
    let zone = zone(&timezone)?;
    let now = state.now();
    let from = request.from.unwrap_or(now);
    let spec = ScheduleSpec {
        expressions: &request.schedule.0,
        timezone: &timezone,
        dst: request.dst,
        window: request.window,
        seed: name_seed(
            request.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE),
            request.name.as_deref().unwrap_or_default(),
        ),
        anchor: from,
    };
    let schedule = Schedule::compile_for_saving(&spec, from).map_err(|refused| {
        let field = match (refused.field, refused.index) {
            ("timezone" | "window", _) => refused.field.to_owned(),
            (_, Some(index)) => format!("schedule[{index}]"),
            (_, None) => "schedule".to_owned(),
        };
        ApiError::invalid(field, refused.to_string())
    })?;
    let fires = instants(&schedule, from).take(count).map(|at| FireView::of(&schedule, &zone, at)).collect();
    let delay_after_end = schedule.delay_after_end().map(|delay| belfry_core::units::Span::from(delay).to_string());
    Ok(Json(PreviewAnswer { timezone, fires, delay_after_end, at_boot: schedule.at_boot() }))
}
