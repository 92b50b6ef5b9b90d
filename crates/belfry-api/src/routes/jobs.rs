//! Jobs: created, listed, read, replaced, patched, removed, and every revision they had.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use belfry_core::run::RunState;
use belfry_core::{Job, JobDocument, JobId, RunId, Timestamp};
use belfry_store::{JobCursor, JobFilter, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::auth::{Permit, random_bits};
use crate::errors::{Answer, ApiError};
use crate::input::{IfMatch, JsonBody, PathValues, QueryValues, etag};
use crate::job_schema::{JobDocumentSchema, JobPatchSchema};
use crate::merge_patch::merge;
use crate::moment::Moment;
use crate::page::{List, read_cursor, read_limit};
use crate::state::ApiState;

/// An edit without `If-Match` that meets another edit is made again on what is current then, so often.
const EDIT_TRIES_MAX: usize = 5;
/// How many of a job's newest runs come with it.
const RECENT_RUNS: usize = 10;

#[derive(Serialize, ToSchema)]
pub struct JobView {
    #[schema(value_type = String)]
    pub id: JobId,
    /// Grows at each edit; the answer's `ETag`.
    pub revision: u64,
    pub namespace: String,
    pub name: String,
    #[schema(value_type = JobDocumentSchema)]
    pub document: JobDocument,
    /// What it runs, in one line.
    pub command: String,
    pub enabled: bool,
    pub created_at: Moment,
    pub updated_at: Moment,
    /// The next planned instant; null for a paused job and one that is only run by hand.
    pub next_fire: Option<Moment>,
    /// The node that fires it by itself at the moment; only with `run_on: home`.
    pub home: Option<String>,
    /// Its newest runs, newest first.
    pub recent: Vec<RecentRun>,
}

#[derive(Serialize, ToSchema)]
pub struct RecentRun {
    #[schema(value_type = String)]
    pub id: RunId,
    #[schema(value_type = String)]
    pub state: RunState,
}

impl JobView {
    fn of(job: Job, recent: Vec<(RunId, RunState)>, state: &ApiState) -> Self {
        let next_fire = next_fire(&job, state.now());
        Self {
            id: job.id,
            revision: job.revision,
            namespace: job.document.namespace.clone(),
            name: job.document.name.clone(),
            command: job.document.action.summary(),
            enabled: job.document.enabled,
            created_at: job.created_at.into(),
            updated_at: job.updated_at.into(),
            next_fire: next_fire.map(Moment),
            home: state.control.home_of(job.id),
            recent: recent.into_iter().map(|(id, state)| RecentRun { id, state }).collect(),
            document: job.document,
        }
    }
}

pub(super) fn next_fire(job: &Job, now: Timestamp) -> Option<Timestamp> {
    if !job.document.enabled {
        return None;
    }
    job.schedule().ok()?.next_after(now.max(job.counts_from))
}

type JobAnswer = ([(header::HeaderName, header::HeaderValue); 1], Json<JobView>);

pub(super) async fn show(state: &ApiState, job: Job) -> Answer<JobAnswer> {
    let recent = state.store.recent_states(&[job.id], RECENT_RUNS).await?.remove(&job.id).unwrap_or_default();
    let revision = job.revision;
    Ok(([(header::ETAG, etag(revision))], Json(JobView::of(job, recent, state))))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct JobsQuery {
    /// A part of name, description or command, in any case.
    q: Option<String>,
    /// Only this namespace.
    namespace: Option<String>,
    /// `key=value`, several separated by commas; all must hold.
    label: Option<String>,
    /// `enabled` or `paused`.
    state: Option<String>,
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists jobs by namespace and name.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", params(JobsQuery), responses((status = 200, body = List<JobView>)))]
pub async fn list_jobs(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<JobsQuery>,
) -> Answer<Json<List<JobView>>> {
    let mut filter = JobFilter {
        namespaces: narrowed(permit.namespaces(), query.namespace),
        q: query.q.filter(|text| !text.is_empty()),
        labels: read_labels(query.label.as_deref())?,
        enabled: read_enabled(query.state.as_deref())?,
        cursor: None,
        limit: read_limit(query.limit)?,
    };
    let place: Option<(String, String)> = read_cursor(query.cursor.as_deref())?;
    filter.cursor = place.map(|(namespace, name)| JobCursor { namespace, name });
    let page = state.store.list_jobs(&filter).await?;
    let ids: Vec<JobId> = page.items.iter().map(|job| job.id).collect();
    let mut recent = state.store.recent_states(&ids, RECENT_RUNS).await?;
    let page = belfry_store::Page { items: page.items, next: page.next.map(|place| (place.namespace, place.name)) };
    Ok(Json(List::of(page, |job| {
        let runs = recent.remove(&job.id).unwrap_or_default();
        JobView::of(job, runs, &state)
    })))
}

/// What may be seen, and of that only what was asked for.
pub(super) fn narrowed(seen: Option<Vec<String>>, wanted: Option<String>) -> Option<Vec<String>> {
    match (seen, wanted) {
        (seen, None) => seen,
        (None, Some(wanted)) => Some(vec![wanted]),
        (Some(seen), Some(wanted)) => Some(seen.into_iter().filter(|namespace| *namespace == wanted).collect()),
    }
}

fn read_labels(text: Option<&str>) -> Answer<Vec<(String, String)>> {
    let pairs = text.into_iter().flat_map(|text| text.split(',')).filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| match pair.split_once('=') {
            Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
            None => Err(ApiError::bad_request("invalid", "label", format!("`{pair}` is not a label; write key=value"))),
        })
        .collect()
}

fn read_enabled(text: Option<&str>) -> Answer<Option<bool>> {
    match text {
        None => Ok(None),
        Some("enabled") => Ok(Some(true)),
        Some("paused") => Ok(Some(false)),
        Some(other) => {
            Err(ApiError::bad_request("invalid", "state", format!("`{other}` is not accepted; enabled or paused is")))
        }
    }
}

/// Creates a job.
#[utoipa::path(post, path = "/api/v1/jobs", tag = "jobs", request_body = JobDocumentSchema, responses((status = 201, body = JobView)))]
pub async fn create_job(
    State(state): State<ApiState>,
    permit: Permit,
    JsonBody(body): JsonBody<Value>,
) -> Answer<(StatusCode, HeaderMap, Json<JobView>)> {
    let document = read_document(&state, body)?;
    permit.within(&document.namespace)?;
    let now = state.now();
    let job = state.store.create_job(document, JobId::new(now, random_bits()), now, &permit.actor()).await?;
    state.control.jobs_changed().await;
    let ([(name, value)], body) = show(&state, job).await?;
    let place = format!("/api/v1/jobs/{}/{}", body.0.namespace, body.0.name);
    let place = header::HeaderValue::from_str(&place).map_err(|bad| ApiError::internal(&bad))?;
    Ok((StatusCode::CREATED, HeaderMap::from_iter([(name, value), (header::LOCATION, place)]), body))
}

/// A document as it will be saved: read, completed with the cluster's zone, and judged.
pub(super) fn read_document(state: &ApiState, value: Value) -> Answer<JobDocument> {
    let mut document = JobDocument::from_value(value)?;
    document.timezone.get_or_insert_with(|| state.settings.default_timezone.clone());
    document.validate(state.now())?;
    Ok(document)
}

pub(super) async fn load(state: &ApiState, namespace: &str, name: &str) -> Answer<Job> {
    let job = state.store.job(namespace, name).await?;
    job.ok_or_else(|| ApiError::not_found("job", format!("{namespace}/{name}")))
}

/// Reads one job.
#[utoipa::path(get, path = "/api/v1/jobs/{ns}/{name}", tag = "jobs", responses((status = 200, body = JobView)))]
pub async fn get_job(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
) -> Answer<JobAnswer> {
    let job = load(&state, &ns, &name).await?;
    show(&state, job).await
}

/// Replaces a job; another `name` or `namespace` in the document renames it.
#[utoipa::path(put, path = "/api/v1/jobs/{ns}/{name}", tag = "jobs", request_body = JobDocumentSchema,
    params(("If-Match" = Option<String>, Header, description = "the revision that the edit is meant for")), responses((status = 200, body = JobView)))]
pub async fn replace_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    if_match: IfMatch,
    JsonBody(body): JsonBody<Value>,
) -> Answer<JobAnswer> {
    let document = read_document(&state, body)?;
    permit.within(&document.namespace)?;
    let job = edit(&state, &permit, &ns, &name, if_match, |_| Ok(document.clone())).await?;
    show(&state, job).await
}

/// Changes the fields that are given (JSON merge patch: null removes a field).
#[utoipa::path(patch, path = "/api/v1/jobs/{ns}/{name}", tag = "jobs", request_body = JobPatchSchema,
    params(("If-Match" = Option<String>, Header, description = "the revision that the edit is meant for")), responses((status = 200, body = JobView)))]
pub async fn patch_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    if_match: IfMatch,
    JsonBody(patch): JsonBody<Value>,
) -> Answer<JobAnswer> {
    if !patch.is_object() {
        return Err(ApiError::invalid("", "a patch is an object with the fields to change"));
    }
    let patched = |job: &Job| {
        let mut value = serde_json::to_value(&job.document).map_err(|bad| ApiError::internal(&bad))?;
        merge(&mut value, &patch);
        let document = read_document(&state, value)?;
        permit.within(&document.namespace)?;
        Ok(document)
    };
    let job = edit(&state, &permit, &ns, &name, if_match, patched).await?;
    show(&state, job).await
}

/// Loads, changes and saves; an edit that changes nothing makes no revision.
pub(super) async fn edit(
    state: &ApiState,
    permit: &Permit,
    namespace: &str,
    name: &str,
    IfMatch(expected): IfMatch,
    change: impl Fn(&Job) -> Answer<JobDocument>,
) -> Answer<Job> {
    for tried in 1.. {
        let job = load(state, namespace, name).await?;
        if expected.is_some_and(|expected| expected != job.revision) {
            return Err(ApiError::stale_revision(job.revision));
        }
        let document = change(&job)?;
        if document == job.document {
            return Ok(job);
        }
        match state.store.update_job(job.id, job.revision, document, state.now(), &permit.actor()).await {
            Ok(job) => {
                state.control.jobs_changed().await;
                return Ok(job);
            }
            Err(StoreError::Conflict { .. }) if expected.is_none() && tried < EDIT_TRIES_MAX => {}
            Err(error) => return Err(error.into()),
        }
    }
    unreachable!("the last try returns")
}

/// Removes a job; its runs and revisions stay.
#[utoipa::path(delete, path = "/api/v1/jobs/{ns}/{name}", tag = "jobs",
    params(("If-Match" = Option<String>, Header, description = "the revision that the removal is meant for")), responses((status = 204)))]
pub async fn remove_job(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues((ns, name)): PathValues<(String, String)>,
    IfMatch(expected): IfMatch,
) -> Answer<StatusCode> {
    let job = load(&state, &ns, &name).await?;
    state.store.remove_job(job.id, expected, state.now(), &permit.actor()).await?;
    state.control.jobs_changed().await;
    Ok(StatusCode::NO_CONTENT)
}
