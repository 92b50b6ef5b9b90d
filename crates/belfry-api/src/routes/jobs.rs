//! Jobs: created, listed, read, replaced, patched, removed, and every revision they had.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use belfry_core::job::RunOn;
use belfry_core::{Job, JobDocument, JobId, Timestamp};
use belfry_store::{JobCursor, JobFilter, Page, StoreError};
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use super::job_view::{Doings, JobView};
use super::scripts::check_stored;
use crate::auth::{Permit, random_bits};
use crate::errors::{Answer, ApiError};
use crate::input::{IfMatch, JsonBody, PathValues, QueryValues, etag};
use crate::job_schema::{JobDocumentSchema, JobPatchSchema};
use crate::merge_patch::merge;
use crate::page::{List, read_cursor, read_limit};
use crate::state::ApiState;

/// An edit without `If-Match` that meets another edit is made again on what is current then, so often.
const EDIT_TRIES_MAX: usize = 5;
/// How many of a job's newest runs come with it.
const RECENT_RUNS_DEFAULT: usize = 10;
const RECENT_RUNS_MAX: u32 = 60;
/// Jobs that are looked at together when only some of them may be wanted.
const LOOKED_AT_ONCE: usize = 500;

pub(super) fn next_fire(job: &Job, now: Timestamp) -> Option<Timestamp> {
    if !job.document.enabled {
        return None;
    }
    job.schedule().ok()?.next_after(now.max(job.counts_from))
}

type JobAnswer = ([(header::HeaderName, header::HeaderValue); 1], Json<JobView>);

pub(super) async fn show(state: &ApiState, job: Job) -> Answer<JobAnswer> {
    show_with(state, job, RECENT_RUNS_DEFAULT).await
}

async fn show_with(state: &ApiState, job: Job, recent: usize) -> Answer<JobAnswer> {
    let mut doings = Doings::of(state, &[job.id], recent).await?;
    let revision = job.revision;
    Ok(([(header::ETAG, etag(revision))], Json(JobView::of(job, &mut doings, state))))
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
    /// `enabled`; `paused`; `failing`: its newest run that was started did not succeed; `running`: a run of it is going.
    state: Option<String>,
    /// A node's name: jobs whose last run was there, or whose home it is.
    node: Option<String>,
    /// How many of its newest runs come with each: 0 to 60, 10 when left out.
    recent: Option<u32>,
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
        limit: read_limit(query.limit)?,
        node_name: query.node,
        ..read_state(query.state.as_deref())?
    };
    let place: Option<(String, String)> = read_cursor(query.cursor.as_deref())?;
    filter.cursor = place.map(|(namespace, name)| JobCursor { namespace, name });
    let recent = read_recent(query.recent)?;
    let page = match filter.node_name.clone() {
        None => state.store.list_jobs(&filter).await?,
        Some(node) => page_of_node(&state, filter, &node).await?,
    };
    let ids: Vec<JobId> = page.items.iter().map(|job| job.id).collect();
    let mut doings = Doings::of(&state, &ids, recent).await?;
    let page = Page { items: page.items, next: page.next.map(|place| (place.namespace, place.name)) };
    Ok(Json(List::of(page, |job| JobView::of(job, &mut doings, &state))))
}

/// The store knows where a job ran last; only the servers know where the homes are.
async fn page_of_node(state: &ApiState, mut filter: JobFilter, node: &str) -> Answer<Page<Job, JobCursor>> {
    let limit = std::mem::replace(&mut filter.limit, LOOKED_AT_ONCE);
    let mut items: Vec<Job> = Vec::new();
    loop {
        let page = state.store.list_jobs(&filter).await?;
        let (at_home, elsewhere): (Vec<Job>, Vec<Job>) =
            page.items.into_iter().partition(|job| job.document.run_on == RunOn::Home);
        let ids: Vec<JobId> = at_home.iter().map(|job| job.id).collect();
        let standings = state.store.standings(&ids).await?;
        let was_there = |job: &Job| {
            let last = standings.get(&job.id).and_then(|standing| standing.last.as_ref()?.node_name.as_deref());
            last == Some(node) || state.control.home_of(job.id).as_deref() == Some(node)
        };
        items.extend(elsewhere);
        items.extend(at_home.into_iter().filter(was_there));
        filter.cursor = page.next;
        if items.len() > limit || filter.cursor.is_none() {
            break;
        }
    }
    items.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
    let next = (items.len() > limit).then(|| &items[limit - 1]).map(|job| {
        let (namespace, name) = place_of(job);
        JobCursor { namespace: namespace.to_owned(), name: name.to_owned() }
    });
    items.truncate(limit);
    Ok(Page { items, next })
}

fn place_of(job: &Job) -> (&str, &str) {
    (&job.document.namespace, &job.document.name)
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

fn read_state(text: Option<&str>) -> Answer<JobFilter> {
    let any = JobFilter::default();
    match text {
        None => Ok(any),
        Some("enabled") => Ok(JobFilter { enabled: Some(true), ..any }),
        Some("paused") => Ok(JobFilter { enabled: Some(false), ..any }),
        Some("failing") => Ok(JobFilter { failing: true, ..any }),
        Some("running") => Ok(JobFilter { running: true, ..any }),
        Some(other) => {
            let message = format!("`{other}` is not accepted; enabled, paused, failing or running is");
            Err(ApiError::bad_request("invalid", "state", message))
        }
    }
}

fn read_recent(recent: Option<u32>) -> Answer<usize> {
    match recent {
        None => Ok(RECENT_RUNS_DEFAULT),
        Some(recent @ 0..=RECENT_RUNS_MAX) => Ok(recent as usize),
        Some(other) => {
            let message = format!("`{other}` is out of range; 0 to {RECENT_RUNS_MAX} are accepted");
            Err(ApiError::bad_request("invalid", "recent", message))
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
    check_stored(&state, &document).await?;
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

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct JobQuery {
    /// How many of its newest runs come with it: 0 to 60, 10 when left out.
    recent: Option<u32>,
}

/// Reads one job.
#[utoipa::path(get, path = "/api/v1/jobs/{ns}/{name}", tag = "jobs", params(JobQuery), responses((status = 200, body = JobView)))]
pub async fn get_job(
    State(state): State<ApiState>,
    PathValues((ns, name)): PathValues<(String, String)>,
    QueryValues(query): QueryValues<JobQuery>,
) -> Answer<JobAnswer> {
    let recent = read_recent(query.recent)?;
    let job = load(&state, &ns, &name).await?;
    show_with(&state, job, recent).await
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
        check_stored(state, &document).await?;
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
