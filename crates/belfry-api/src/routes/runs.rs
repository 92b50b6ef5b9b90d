//! Runs: the history, one run, killing it, running it again, and forgetting old ones.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use belfry_control::{KillAnswer, ManualRun};
use belfry_core::attempt::Attempt;
use belfry_core::job::{DEFAULT_NAMESPACE, RunOn};
use belfry_core::run::{Run, RunState, Trigger};
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_store::{JobRef, Page, RunFilter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::auth::Permit;
use crate::deeds;
use crate::errors::{Answer, ApiError};
use crate::input::{MaybeJsonBody, PathValues, QueryValues};
use crate::moment::Moment;
use crate::page::{List, read_cursor, read_limit, read_time};
use crate::state::ApiState;

#[derive(Clone, Serialize, ToSchema)]
pub struct RunView {
    #[schema(value_type = String)]
    pub id: RunId,
    #[schema(value_type = String)]
    job: JobId,
    namespace: String,
    job_name: String,
    revision: u64,
    /// What was run, in one line.
    pub command: Option<String>,
    #[schema(value_type = String)]
    pub state: RunState,
    /// Why it was skipped, cancelled, lost, failed or killed.
    reason: Option<String>,
    /// `schedule`, `manual`, `rerun` or `wrapped`: a host's own cron through `dcron`.
    trigger: &'static str,
    triggered_by: Option<String>,
    /// Of a wrapped command: what tells it from the other runs of its name.
    instance: Option<String>,
    #[schema(value_type = Option<String>)]
    rerun_of: Option<RunId>,
    /// Starts so far, the current one included. The facts below are of this attempt.
    pub attempt: u32,
    /// While it waits for its next attempt.
    next_attempt_at: Option<Moment>,
    /// All of them, the first one first. Only where one run is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempts: Option<Vec<AttemptView>>,
    #[schema(value_type = Option<String>)]
    node: Option<NodeId>,
    node_name: Option<String>,
    fence: u64,
    planned: Moment,
    claimed_at: Moment,
    dispatched_at: Option<Moment>,
    started_at: Option<Moment>,
    ended_at: Option<Moment>,
    /// From the planned instant to the start of the first attempt.
    lag_ms: Option<i64>,
    /// From the start to the end.
    duration_ms: Option<i64>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    /// The result came in after the run had been given up as lost.
    late: bool,
    /// Since when it takes longer than its job wants, where that is only told (`timeout.action: report`).
    overdue_at: Option<Moment>,
    /// `local`: its node fired it by itself; `cut_off`: it had no contact with the servers then; `may_have_run_twice`: the job's home
    /// had moved, and its new home may have run the same fire.
    marks: Vec<&'static str>,
    cpu_ms: u64,
    max_rss_bytes: u64,
    /// What held each limit of the job: `memory by cgroup v2` bounds the whole tree, `… by rlimit` each process alone.
    limits_held: Vec<String>,
    /// Background processes that outlived the command.
    left_behind: u32,
    output_bytes: u64,
    output_dropped_bytes: u64,
    /// The script that was executed: name and version of a stored one, and its digest.
    script: Option<String>,
}

impl RunView {
    pub fn of(run: Run, command: Option<String>) -> Self {
        let between =
            |from: Option<Timestamp>, to: Option<Timestamp>| Some(to?.as_millisecond() - from?.as_millisecond());
        let trigger = run.trigger.as_str();
        let (triggered_by, rerun_of, instance) = match run.trigger {
            Trigger::Schedule => (None, None, None),
            Trigger::Manual { by, .. } => (Some(by), None, None),
            Trigger::Rerun { by, of, .. } => (Some(by), Some(of), None),
            Trigger::Wrapped { instance } => (None, None, Some(instance)),
        };
        Self {
            id: run.id,
            job: run.job,
            namespace: run.namespace,
            job_name: run.job_name,
            revision: run.revision,
            command,
            state: run.state,
            reason: run.reason,
            trigger,
            triggered_by,
            instance,
            rerun_of,
            attempt: run.attempt,
            next_attempt_at: run.next_attempt_at.map(Moment),
            attempts: None,
            node: run.node,
            node_name: run.node_name,
            fence: run.fence.0,
            planned: run.planned.into(),
            claimed_at: run.claimed_at.into(),
            dispatched_at: run.dispatched_at.map(Moment),
            started_at: run.started_at.map(Moment),
            ended_at: run.ended_at.map(Moment),
            lag_ms: between(Some(run.planned), run.started_at).filter(|_| run.attempt <= 1),
            duration_ms: between(run.started_at, run.ended_at),
            exit_code: run.exit_code,
            signal: run.signal,
            late: run.late,
            overdue_at: run.overdue_at.map(Moment),
            marks: run.marks.words(),
            cpu_ms: run.usage.cpu_ms,
            max_rss_bytes: run.usage.max_rss_bytes,
            limits_held: run.usage.held.words(),
            left_behind: run.usage.left_behind,
            output_bytes: run.output.bytes,
            output_dropped_bytes: run.output.dropped_bytes,
            script: run.script,
        }
    }
}

/// Of what the store and this server know of a run, what is further on. The same step is fresher here: what it waits for changes.
pub(super) fn freshest(state: &ApiState, run: Run) -> Run {
    if run.state.is_ended() {
        return run;
    }
    state.control.open_run(run.id).filter(|open| open.progress() >= run.progress()).unwrap_or(run)
}

pub(super) async fn view(state: &ApiState, run: Run) -> Answer<RunView> {
    let command = command_of(state, run.job, run.revision).await?;
    Ok(RunView::of(run, command))
}

/// None also while the store is away: a run is shown without it rather than not at all.
async fn command_of(state: &ApiState, job: JobId, revision: u64) -> Answer<Option<String>> {
    match state.store.job_revision(job, revision).await {
        Ok(known) => Ok(known.map(|revision| revision.document.action.summary())),
        Err(away) if away.is_transient() => Ok(None),
        Err(cause) => Err(cause.into()),
    }
}

/// As [`command_of`], of a page.
async fn commands_of(state: &ApiState, runs: &[Run]) -> Answer<HashMap<(JobId, u64), String>> {
    let mut wanted: Vec<(JobId, u64)> = runs.iter().map(|run| (run.job, run.revision)).collect();
    wanted.sort_unstable();
    wanted.dedup();
    match state.store.job_revisions_of(&wanted).await {
        Ok(known) => Ok(known.into_iter().map(|(of, document)| (of, document.action.summary())).collect()),
        Err(away) if away.is_transient() => Ok(HashMap::new()),
        Err(cause) => Err(cause.into()),
    }
}

/// The run, if the route may be used on it.
pub(super) async fn load(state: &ApiState, permit: &Permit, id: &str) -> Answer<Run> {
    load_by_id(state, permit, read_id("id", id)?).await
}

pub(super) fn read_id(field: &str, id: &str) -> Answer<RunId> {
    id.parse().map_err(|bad: belfry_core::id::NotAnId| ApiError::bad_request("invalid", field, bad.to_string()))
}

pub(super) async fn load_by_id(state: &ApiState, permit: &Permit, id: RunId) -> Answer<Run> {
    // Looked at before the store: an end is shown here only when the store has it, so one of the two looks finds the run.
    let open = state.control.open_run(id).filter(|run| !run.state.is_ended());
    let run = match state.store.run(id).await {
        Ok(Some(run)) => freshest(state, run),
        Ok(None) => open.ok_or_else(|| ApiError::no_such_run(id))?,
        Err(away) if away.is_transient() => open.ok_or(away)?,
        Err(cause) => return Err(cause.into()),
    };
    permit.on(&run.namespace, "run", id)?;
    Ok(run)
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct RunsQuery {
    /// `namespace/name`, or a name in the namespace `default`.
    job: Option<String>,
    namespace: Option<String>,
    /// One state or several, separated by commas.
    state: Option<String>,
    /// The id of a node, also of a removed one, or its name.
    node: Option<String>,
    /// Planned at or after.
    from: Option<String>,
    /// Planned before.
    to: Option<String>,
    cursor: Option<String>,
    /// 1 to 500, 50 when left out.
    limit: Option<u32>,
}

/// Lists runs, the newest planned instant first.
#[utoipa::path(get, path = "/api/v1/runs", tag = "runs", params(RunsQuery), responses((status = 200, body = List<RunView>)))]
pub async fn list_runs(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<RunsQuery>,
) -> Answer<Json<List<RunView>>> {
    let filter = RunFilter {
        job: query.job.as_deref().map(read_job).transpose()?,
        namespaces: super::jobs::narrowed(permit.namespaces(), query.namespace),
        states: read_states(query.state.as_deref())?,
        node: query.node.as_deref().map(|node| read_node(&state, node)).transpose()?,
        from: read_time("from", query.from.as_deref())?,
        to: read_time("to", query.to.as_deref())?,
        cursor: read_cursor(query.cursor.as_deref())?,
        limit: read_limit(query.limit)?,
    };
    let open = open_runs(&state, &filter);
    let (page, missing) = match state.store.list_runs(&filter).await {
        Ok(page) => (page, None),
        // Those that this server owns and that have not ended; of a later page nothing is known.
        Err(away) if away.is_transient() && !away.took_too_long() && filter.cursor.is_none() => {
            (Page { items: Vec::new(), next: None }, Some("store"))
        }
        Err(cause) => return Err(cause.into()),
    };
    let mut page = with_open(open, filter.limit, page);
    if missing.is_some() {
        page.next = None;
    }
    let next = page.next.map(|place| crate::page::cursor_at(&place));
    let commands = commands_of(&state, &page.items).await?;
    let shown = |run: Run| {
        let command = commands.get(&(run.job, run.revision)).cloned();
        RunView::of(freshest(&state, run), command)
    };
    let items = page.items.into_iter().map(shown).collect();
    Ok(Json(List { items, next, missing }))
}

/// The first page also has the runs that were claimed a moment ago and have not reached the store: whoever starts a run finds it.
/// To be asked before the store is, see `load`.
pub(super) fn open_runs(state: &ApiState, filter: &RunFilter) -> Vec<Run> {
    if filter.cursor.is_some() {
        return Vec::new();
    }
    let is_of = |run: &Run| match &filter.job {
        None => true,
        Some(JobRef::Id(job)) => run.job == *job,
        Some(JobRef::Name { namespace, name }) => (&run.namespace, &run.job_name) == (namespace, name),
    };
    state.control.open_runs(|run| {
        !run.state.is_ended()
            && is_of(run)
            && filter.namespaces.as_ref().is_none_or(|allowed| allowed.contains(&run.namespace))
            && (filter.states.is_empty() || filter.states.contains(&run.state))
            && filter.node.is_none_or(|node| run.node == Some(node))
            && filter.from.is_none_or(|from| run.planned >= from)
            && filter.to.is_none_or(|to| run.planned < to)
    })
}

fn with_open(mut open: Vec<Run>, limit: usize, page: Page<Run, RunId>) -> Page<Run, RunId> {
    let Page { mut items, mut next } = page;
    let oldest = items.last().map(|run| run.id).filter(|_| next.is_some());
    open.retain(|run| oldest.is_none_or(|oldest| run.id > oldest) && !items.iter().any(|known| known.id == run.id));
    items.append(&mut open);
    items.sort_unstable_by_key(|run| std::cmp::Reverse(run.id));
    if items.len() > limit {
        items.truncate(limit);
        next = items.last().map(|run| run.id);
    }
    Page { items, next }
}

fn read_job(text: &str) -> Answer<JobRef> {
    let (namespace, name) = text.split_once('/').unwrap_or((DEFAULT_NAMESPACE, text));
    if name.is_empty() || namespace.is_empty() {
        return Err(ApiError::bad_request("invalid", "job", format!("`{text}` is not a job; write namespace/name")));
    }
    Ok(JobRef::Name { namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Also the id of one that was removed: its runs are there still.
fn read_node(state: &ApiState, text: &str) -> Answer<NodeId> {
    match (super::nodes::find(state, text), text.parse()) {
        (Ok(node), _) => Ok(node.id),
        (Err(_), Ok(id)) => Ok(id),
        (Err(unknown), Err(_)) => Err(unknown),
    }
}

fn read_states(text: Option<&str>) -> Answer<Vec<RunState>> {
    let words = text.into_iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
    words
        .map(|word| {
            RunState::parse(word).ok_or_else(|| {
                let known = RunState::ALL.map(RunState::as_str).join(", ");
                ApiError::bad_request("invalid", "state", format!("`{word}` is not a state; {known} are"))
            })
        })
        .collect()
}

/// One start of the work in a run.
#[derive(Clone, Serialize, ToSchema)]
pub struct AttemptView {
    attempt: u32,
    /// How it ended, or how far it is.
    #[schema(value_type = String)]
    state: RunState,
    reason: Option<String>,
    revision: u64,
    #[schema(value_type = Option<String>)]
    node: Option<NodeId>,
    node_name: Option<String>,
    fence: Option<u64>,
    dispatched_at: Option<Moment>,
    started_at: Option<Moment>,
    ended_at: Option<Moment>,
    /// From the start to the end.
    duration_ms: Option<i64>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    /// The result came in after the attempt had been given up as lost.
    late: bool,
    /// Since when it took longer than its job wants, where that is only told.
    overdue_at: Option<Moment>,
    /// Its node ended it, or did not start it, because it was cut off from the servers or stopped.
    abandoned: bool,
    cpu_ms: u64,
    max_rss_bytes: u64,
    output_bytes: u64,
    output_dropped_bytes: u64,
    /// As in the run.
    script: Option<String>,
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        let duration = |from: Timestamp| attempt.ended_at.as_millisecond() - from.as_millisecond();
        Self {
            attempt: attempt.attempt,
            state: attempt.state,
            reason: attempt.reason,
            revision: attempt.revision,
            node: attempt.node,
            node_name: attempt.node_name,
            fence: attempt.fence.map(|fence| fence.0),
            dispatched_at: attempt.dispatched_at.map(Moment),
            started_at: attempt.started_at.map(Moment),
            ended_at: Some(Moment(attempt.ended_at)),
            duration_ms: attempt.started_at.map(duration),
            exit_code: attempt.exit_code,
            signal: attempt.signal,
            late: attempt.late,
            overdue_at: attempt.overdue_at.map(Moment),
            abandoned: attempt.abandoned,
            cpu_ms: attempt.usage.cpu_ms,
            max_rss_bytes: attempt.usage.max_rss_bytes,
            output_bytes: attempt.output.bytes,
            output_dropped_bytes: attempt.output.dropped_bytes,
            script: attempt.script,
        }
    }
}

impl AttemptView {
    /// The run's own attempt, as far as the run tells.
    fn current(run: &RunView) -> Self {
        Self {
            attempt: run.attempt,
            state: run.state,
            reason: run.reason.clone(),
            revision: run.revision,
            node: run.node,
            node_name: run.node_name.clone(),
            fence: Some(run.fence),
            dispatched_at: run.dispatched_at,
            started_at: run.started_at,
            ended_at: run.ended_at,
            duration_ms: run.duration_ms,
            exit_code: run.exit_code,
            signal: run.signal,
            late: run.late,
            overdue_at: run.overdue_at,
            abandoned: false,
            cpu_ms: run.cpu_ms,
            max_rss_bytes: run.max_rss_bytes,
            output_bytes: run.output_bytes,
            output_dropped_bytes: run.output_dropped_bytes,
            script: run.script.clone(),
        }
    }
}

/// Reads one run, with all of its attempts.
#[utoipa::path(get, path = "/api/v1/runs/{id}", tag = "runs", responses((status = 200, body = RunView)))]
pub async fn get_run(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
) -> Answer<Json<RunView>> {
    let run = load(&state, &permit, &id).await?;
    let id = run.id;
    let mut view = view(&state, run).await?;
    let ended = match state.store.attempts(id).await {
        Ok(ended) => ended,
        // It is open, else it would not have been found: the attempt that is going is known.
        Err(away) if away.is_transient() => Vec::new(),
        Err(cause) => return Err(cause.into()),
    };
    let ended = ended.into_iter().filter(|attempt| attempt.attempt <= view.attempt);
    let mut attempts: Vec<AttemptView> = ended.map(AttemptView::from).collect();
    if view.attempt > 0 && attempts.last().is_none_or(|last| last.attempt < view.attempt) {
        attempts.push(AttemptView::current(&view));
    }
    view.attempts = Some(attempts);
    Ok(Json(view))
}

#[derive(Serialize, ToSchema)]
pub struct KillView {
    /// `told` (its node was told; the record will say how it ended), `cancelled` (it does not run, and will not) or
    /// `already_ended`.
    #[schema(value_type = String)]
    outcome: KillAnswer,
}

/// Kills a run: TERM, then KILL after the job's grace.
#[utoipa::path(post, path = "/api/v1/runs/{id}/kill", tag = "runs", responses((status = 200, body = KillView)))]
pub async fn kill_run(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
) -> Answer<Json<KillView>> {
    let run = load(&state, &permit, &id).await?;
    let outcome = if run.state.is_ended() {
        KillAnswer::AlreadyEnded
    } else {
        state.control.kill_run(run.id, &permit.caller.name).await?
    };
    if outcome != KillAnswer::AlreadyEnded {
        deeds::record(&state, &permit, "run.kill", &run.namespace, &run.id.to_string()).await;
    }
    Ok(Json(KillView { outcome }))
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RerunRequest {
    /// A repeated request with the same key is the same run.
    idempotency_key: Option<String>,
    /// Run even if the job's `overlap` would not.
    #[serde(default)]
    force: bool,
}

/// Runs the job of a run again, as the job is now; a job of each node on the node of that run.
#[utoipa::path(post, path = "/api/v1/runs/{id}/rerun", tag = "runs", request_body = RerunRequest, responses((status = 201, body = RunView)))]
pub async fn rerun(
    State(state): State<ApiState>,
    permit: Permit,
    PathValues(id): PathValues<String>,
    MaybeJsonBody(request): MaybeJsonBody<RerunRequest>,
) -> Answer<(StatusCode, Json<RunView>)> {
    let of = load(&state, &permit, &id).await?;
    super::job_actions::check_key(request.idempotency_key.as_deref())?;
    let no_job = || ApiError::not_found("job", format!("{}/{}", of.namespace, of.job_name));
    let job = state.store.job_by_id(of.job).await?.ok_or_else(no_job)?.document;
    // It may have gone to another namespace since, and runs with what it may do there.
    permit.on(&job.namespace, "job", job.full_name())?;
    let wanted = ManualRun {
        idempotency_key: request.idempotency_key,
        node: of.node.filter(|_| job.run_on == RunOn::Each),
        force: request.force,
        rerun_of: Some(of.id),
        ..ManualRun::new(of.job, &permit.caller.name)
    };
    let run = state.control.run_now(wanted).await?;
    deeds::record(&state, &permit, "run.rerun", &job.namespace, &of.id.to_string()).await;
    Ok((StatusCode::CREATED, Json(view(&state, run).await?)))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ForgetQuery {
    /// Runs that were planned before this instant and have ended.
    before: Option<String>,
    /// Only of this namespace.
    namespace: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct Forgotten {
    deleted: u64,
}

/// Deletes the records and output of old runs.
#[utoipa::path(delete, path = "/api/v1/runs", tag = "runs", params(ForgetQuery), responses((status = 200, body = Forgotten)))]
pub async fn forget_runs(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<ForgetQuery>,
) -> Answer<Json<Forgotten>> {
    let before = read_time("before", query.before.as_deref())?.ok_or_else(|| {
        ApiError::bad_request(
            "invalid",
            "before",
            "say before which instant runs are deleted, as before=2026-11-15T00:00:00Z",
        )
    })?;
    let namespaces = super::jobs::narrowed(permit.namespaces(), query.namespace);
    let deleted = state.store.delete_runs_before(before, namespaces.as_deref(), state.now(), &permit.actor()).await?;
    Ok(Json(Forgotten { deleted }))
}
