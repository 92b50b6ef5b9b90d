//! Why something happened, did not, or will: what was decided about a job and an instant, by which rule, and why not otherwise. It
//! gathers what store and owner know; the sentences are in `words`.

mod words;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use belfry_control::{ControlError, Outlook};
use belfry_core::explain::{AtInstant, Standing};
use belfry_core::job::{DEFAULT_NAMESPACE, JobDocument};
use belfry_core::place::{By, Decision, Unfit, WhyNot};
use belfry_core::run::{Run, Trigger};
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_store::{JobLife, JobRef, Revision, RunFilter};
use jiff::SignedDuration;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::fires::{FireNote, local_time, note};
use super::runs::{freshest, load_by_id, open_runs, read_id};
use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::forward::FORWARDED_BY;
use crate::input::QueryValues;
use crate::moment::Moment;
use crate::page::read_time;
use crate::state::ApiState;

/// How many removed jobs of one name are looked through.
const LIVES_MAX: usize = 16;
const RUNS_MAX: usize = 20;
const REVISIONS_PER_PAGE: usize = 50;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct ExplainQuery {
    /// `namespace/name`, or a name in the namespace `default`. Either this or `run`.
    job: Option<String>,
    /// The id of a run: its job at its planned instant, whatever the job is called by now.
    run: Option<String>,
    /// With `job`, the instant; when left out that of the job's last run, else of its next fire.
    at: Option<String>,
}

/// What was decided about a job and an instant, and why.
#[derive(Serialize, ToSchema)]
pub struct Explanation {
    job: String,
    at: Moment,
    /// `due`, `not_a_fire`, `paused`, `not_counted_yet` (the schedule was changed or resumed later), `no_schedule` (nothing in it
    /// follows a clock), `no_job` (there was none of this name then) or `wrapped` (a host's own cron ran it through `dcron`).
    verdict: &'static str,
    /// Everything below, for people.
    sentences: Vec<String>,
    definition: Option<DefinitionView>,
    fire: Option<InstantView>,
    /// The runs that were planned in that second; the one that was asked for first.
    runs: Vec<ExplainedRun>,
    /// What would be decided now; of an instant that is still to come, or that nobody has claimed.
    outlook: Option<OutlookView>,
}

/// The definition that held at the instant.
#[derive(Serialize, ToSchema)]
pub struct DefinitionView {
    revision: u64,
    since: Moment,
    author: String,
    /// When another revision replaced it.
    replaced_at: Option<Moment>,
    job_created_at: Moment,
    job_removed_at: Option<Moment>,
    enabled: bool,
    /// Fires up to here were never due.
    counts_from: Moment,
}

#[derive(Serialize, ToSchema)]
pub struct InstantView {
    /// The expressions that fire at it.
    expressions: Vec<String>,
    timezone: String,
    /// The same instant on the clock of the job's zone.
    local: String,
    note: Option<FireNote>,
    /// With jitter.
    start_at: Moment,
    previous: Option<Moment>,
    next: Option<Moment>,
}

#[derive(Serialize, ToSchema)]
pub struct ExplainedRun {
    #[schema(value_type = String)]
    id: RunId,
    planned: Moment,
    state: &'static str,
    reason: Option<String>,
    /// `schedule`, `manual` or `rerun`.
    trigger: &'static str,
    revision: u64,
    #[schema(value_type = Option<String>)]
    node: Option<NodeId>,
    node_name: Option<String>,
    /// From the planned instant; negative: ahead of it.
    claimed_after_ms: i64,
    /// Each from the step before.
    dispatched_after_ms: Option<i64>,
    started_after_ms: Option<i64>,
    ended_after_ms: Option<i64>,
    /// Null: nothing was decided about its place, or the record of it is lost.
    placement: Option<PlacementView>,
}

#[derive(Serialize, ToSchema)]
pub struct PlacementView {
    /// `weighted`, `least`, `random`, `hash`, `last_node` (sticky) or `anew` (sticky, without a last node that could take it).
    #[schema(value_type = String)]
    by: By,
    /// Nodes that could take it.
    fit: u32,
    /// Some of those that could and were not chosen.
    others: Vec<String>,
    unfit: Vec<UnfitView>,
    /// Hosts that the job selects and that no node is called.
    missing: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub struct UnfitView {
    /// A stable word, such as `draining`.
    #[schema(value_type = String)]
    why: WhyNot,
    message: &'static str,
    count: u32,
    /// Some of them.
    nodes: Vec<String>,
    /// What each of these has, where that matters: `needs 2GiB memory, has 1GiB free`.
    has: Vec<String>,
}

#[derive(Serialize, ToSchema)]
pub struct OutlookView {
    /// The node that would be chosen now.
    node: Option<String>,
    /// It will be that one as long as the nodes stay as they are.
    certain: bool,
    placement: PlacementView,
    /// Runs of the job that are going, and that wait behind them.
    going: usize,
    waiting: usize,
    /// `run` or `skip`: what becomes of a fire that passed and is not claimed yet.
    missed: Option<&'static str>,
}

/// All that is known of a job and an instant.
struct Facts {
    name: String,
    now: Timestamp,
    at: Timestamp,
    /// None: of a wrapped command, or of a job that the caller may not see.
    life: Option<JobLife>,
    held: Option<Held>,
    /// The one that was asked for first, then the one that is planned for the instant by the schedule.
    runs: Vec<Run>,
    owner: Owner,
}

struct Held {
    revision: Revision,
    replaced_at: Option<Timestamp>,
    counts_from: Timestamp,
    instant: AtInstant,
}

enum Owner {
    /// It would have nothing to add.
    NotAsked,
    Says(Box<Outlook>),
    HasNotTheJob,
    CannotBeAsked,
}

/// Explains what was decided about a job at an instant, or what would be.
#[utoipa::path(get, path = "/api/v1/explain", tag = "schedules", params(ExplainQuery), responses((status = 200, body = Explanation)))]
pub async fn explain(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<ExplainQuery>,
    headers: HeaderMap,
) -> Answer<Json<Explanation>> {
    let subject = match (&query.job, &query.run) {
        (Some(job), None) => Subject::of_job(&state, &permit, job, query.at.as_deref()).await?,
        (None, Some(run)) if query.at.is_none() => Subject::of_run(&state, &permit, run).await?,
        (None, Some(_)) => {
            return Err(ApiError::bad_request("invalid", "at", "a run has its own instant; `at` goes with `job`"));
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::bad_request("invalid", "run", "ask with `job` or with `run`, not with both"));
        }
        (None, None) => {
            let message = "say what is to be explained: job=NAMESPACE/NAME, or run=ID";
            return Err(ApiError::bad_request("invalid", "job", message));
        }
    };
    let Subject { name, at, job, life, run, sees_job } = subject;
    let held = match &life {
        Some(life) => held_at(&state, life, at).await?,
        None => None,
    };
    // It may have been elsewhere then; its revisions go with the job.
    let may_see = |held: &Held| sees_job || permit.on(&held.revision.document.namespace, "job", &name).is_ok();
    let (life, held) = match held {
        Some(held) if !may_see(&held) => (None, None),
        held => (life, held),
    };
    let runs = runs_at(&state, &permit, job, at, run).await?;
    let is_settled = at <= state.now() && runs.iter().any(|run| run.planned == at && run.state.is_ended());
    let lives = life.is_some_and(|life| life.removed_at.is_none());
    let owner = if !lives || !sees_job || is_settled {
        Owner::NotAsked
    } else {
        match state.control.explain(job, at).await {
            Ok(Some(outlook)) => Owner::Says(Box::new(outlook)),
            Ok(None) => Owner::HasNotTheJob,
            // Nobody else is left to be asked: what the store has must do.
            Err(ControlError::NotOwned(_)) if headers.contains_key(FORWARDED_BY) => Owner::CannotBeAsked,
            Err(cause) => return Err(cause.into()),
        }
    };
    Ok(Json(Explanation::of(Facts { name, now: state.now(), at, life, held, runs, owner })))
}

/// What was asked about.
struct Subject {
    name: String,
    at: Timestamp,
    job: JobId,
    life: Option<JobLife>,
    run: Option<Run>,
    /// The caller may see the job as it is now, which may be elsewhere than its runs were.
    sees_job: bool,
}

impl Subject {
    async fn of_job(state: &ApiState, permit: &Permit, job: &str, at: Option<&str>) -> Answer<Self> {
        let (namespace, name) = job.split_once('/').unwrap_or((DEFAULT_NAMESPACE, job));
        let full_name = format!("{namespace}/{name}");
        permit.on(namespace, "job", &full_name)?;
        let lives = state.store.job_lives(namespace, name, LIVES_MAX).await?;
        let newest = lives.first().ok_or_else(|| ApiError::not_found("job", &full_name))?;
        let at = match read_time("at", at)? {
            Some(at) => at,
            None => instant_of_interest(state, permit, newest).await?,
        };
        let lived = |life: &&JobLife| life.created_at <= at && life.removed_at.is_none_or(|removed| at < removed);
        let life = *lives.iter().find(lived).unwrap_or(newest);
        Ok(Self { name: full_name, at, job: life.id, life: Some(life), run: None, sees_job: true })
    }

    async fn of_run(state: &ApiState, permit: &Permit, run: &str) -> Answer<Self> {
        let run = load_by_id(state, permit, read_id("run", run)?).await?;
        let name = format!("{}/{}", run.namespace, run.job_name);
        let known = state.store.job_life(run.job).await?;
        let sees_job = known.as_ref().is_some_and(|(_, namespace)| permit.on(namespace, "job", &name).is_ok());
        let life = known.map(|(life, _)| life);
        Ok(Self { name, at: run.planned, job: run.job, life, run: Some(run), sees_job })
    }
}

/// Of the last run; of a job that never ran, of its next fire.
async fn instant_of_interest(state: &ApiState, permit: &Permit, life: &JobLife) -> Answer<Timestamp> {
    let last = RunFilter { limit: 1, ..runs_of(permit, life.id) };
    let stored = state.store.list_runs(&last).await?.items.first().map(|run| run.planned);
    let open = open_runs(state, &last).into_iter().map(|run| run.planned).max();
    if let Some(last) = stored.max(open) {
        return Ok(last);
    }
    let next = match state.store.job_by_id(life.id).await? {
        Some(job) => job.schedule()?.next_after(state.now()),
        None => None,
    };
    Ok(next.unwrap_or_else(|| state.now()))
}

async fn held_at(state: &ApiState, life: &JobLife, at: Timestamp) -> Answer<Option<Held>> {
    if life.removed_at.is_some_and(|removed| removed <= at) {
        return Ok(None);
    }
    let Some((revision, replaced_at)) = state.store.job_revision_at(life.id, at).await? else { return Ok(None) };
    let counts_from = counts_from(state, life, &revision, at).await?;
    let instant = revision.document.at_instant(life.created_at, counts_from, at)?;
    Ok(Some(Held { revision, replaced_at, counts_from, instant }))
}

/// From where the schedule of this revision counted: the last change of it up to there, or the job's creation.
async fn counts_from(state: &ApiState, life: &JobLife, held: &Revision, at: Timestamp) -> Answer<Timestamp> {
    if let Some(job) = state.store.job_by_id(life.id).await?.filter(|job| job.counts_from <= at) {
        return Ok(job.counts_from);
    }
    let mut newer: (JobDocument, Timestamp) = (held.document.clone(), held.at);
    let mut cursor = Some(held.revision);
    while let Some(before) = cursor {
        let page = state.store.job_revisions(life.id, Some(before), REVISIONS_PER_PAGE).await?;
        for older in page.items {
            if older.document.schedule_differs(&newer.0) {
                return Ok(newer.1);
            }
            newer = (older.document, older.at);
        }
        cursor = page.next;
    }
    Ok(life.created_at)
}

/// Those that the caller may see: a job may have come from another namespace, and its runs stay where they were.
fn runs_of(permit: &Permit, job: JobId) -> RunFilter {
    RunFilter { job: Some(JobRef::Id(job)), namespaces: permit.namespaces(), ..RunFilter::default() }
}

/// Manual runs are planned to the millisecond; whoever asks knows the second.
async fn runs_at(state: &ApiState, permit: &Permit, job: JobId, at: Timestamp, asked: Option<Run>) -> Answer<Vec<Run>> {
    let from = Timestamp::from_second(at.as_second()).unwrap_or(at);
    let to = from.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX);
    let filter = RunFilter { from: Some(from), to: Some(to), limit: RUNS_MAX, ..runs_of(permit, job) };
    // Before the store is asked: an end is shown here only when the store has it.
    let open = open_runs(state, &filter);
    let stored = state.store.list_runs(&filter).await?.items;
    let first = asked.as_ref().map(|run| run.id);
    let mut runs: Vec<Run> = stored.into_iter().map(|run| freshest(state, run)).collect();
    for run in open.into_iter().chain(asked) {
        if !runs.iter().any(|known| known.id == run.id) {
            runs.push(run);
        }
    }
    runs.sort_by_key(|run| (Some(run.id) != first, run.planned != at || run.trigger != Trigger::Schedule, run.id));
    runs.truncate(RUNS_MAX);
    Ok(runs)
}

impl Facts {
    /// Of a command that is no job.
    fn is_wrapped(&self) -> bool {
        self.runs.first().is_some_and(|run| matches!(run.trigger, Trigger::Wrapped { .. }))
    }

    /// The run of the instant by the schedule.
    fn scheduled(&self) -> Option<&Run> {
        self.runs.iter().find(|run| run.planned == self.at && run.trigger == Trigger::Schedule)
    }
}

impl Explanation {
    fn of(facts: Facts) -> Self {
        let verdict = match facts.held.as_ref().map(|held| held.instant.standing) {
            // `@after` follows no clock: that it fired shows in its run.
            Some(_) if facts.scheduled().is_some() => "due",
            Some(Standing::Due) => "due",
            Some(Standing::NotAFire) => "not_a_fire",
            Some(Standing::Paused) => "paused",
            Some(Standing::NotCountedYet(_)) => "not_counted_yet",
            Some(Standing::NoSchedule) => "no_schedule",
            None if facts.is_wrapped() => "wrapped",
            None => "no_job",
        };
        let sentences = words::sentences(&facts);
        let shows_outlook = verdict == "due" && !facts.scheduled().is_some_and(|run| run.state.is_ended());
        let outlook = match &facts.owner {
            Owner::Says(outlook) if shows_outlook => Some(OutlookView::of(outlook)),
            Owner::Says(_) | Owner::NotAsked | Owner::HasNotTheJob | Owner::CannotBeAsked => None,
        };
        Self {
            job: facts.name,
            at: facts.at.into(),
            verdict,
            sentences,
            definition: facts.held.as_ref().zip(facts.life).map(|(held, life)| DefinitionView::of(held, &life)),
            fire: facts.held.as_ref().map(|held| InstantView::of(held, facts.at)),
            runs: facts.runs.iter().map(ExplainedRun::of).collect(),
            outlook,
        }
    }
}

impl DefinitionView {
    fn of(held: &Held, life: &JobLife) -> Self {
        Self {
            revision: held.revision.revision,
            since: held.revision.at.into(),
            author: held.revision.author.clone(),
            replaced_at: held.replaced_at.map(Moment),
            job_created_at: life.created_at.into(),
            job_removed_at: life.removed_at.map(Moment),
            enabled: held.revision.document.enabled,
            counts_from: held.counts_from.into(),
        }
    }
}

impl InstantView {
    fn of(held: &Held, at: Timestamp) -> Self {
        let zone = zone_of(&held.revision.document);
        Self {
            expressions: held.instant.expressions.clone(),
            timezone: zone.to_owned(),
            local: local_time(zone, at),
            note: held.instant.note.map(note),
            start_at: held.instant.start_at.into(),
            previous: held.instant.previous.map(Moment),
            next: held.instant.next.map(Moment),
        }
    }
}

fn zone_of(document: &JobDocument) -> &str {
    document.timezone.as_deref().unwrap_or("UTC")
}

impl ExplainedRun {
    fn of(run: &Run) -> Self {
        let since = |from: Option<Timestamp>, to: Option<Timestamp>| {
            Some(to?.as_millisecond() - from.unwrap_or(run.claimed_at).as_millisecond())
        };
        Self {
            id: run.id,
            planned: run.planned.into(),
            state: run.state.as_str(),
            reason: run.reason.clone(),
            trigger: run.trigger.as_str(),
            revision: run.revision,
            node: run.node,
            node_name: run.node_name.clone(),
            claimed_after_ms: run.claimed_at.as_millisecond() - run.planned.as_millisecond(),
            dispatched_after_ms: since(Some(run.claimed_at), run.dispatched_at),
            started_after_ms: since(run.dispatched_at, run.started_at),
            ended_after_ms: since(run.started_at.or(run.dispatched_at), run.ended_at),
            placement: run.placement.as_deref().map(PlacementView::of),
        }
    }
}

impl PlacementView {
    fn of(decision: &Decision) -> Self {
        let unfit = |unfit: &Unfit| UnfitView {
            why: unfit.why,
            message: unfit.why.in_words(),
            count: unfit.count,
            nodes: unfit.some.clone(),
            has: unfit.has.clone(),
        };
        Self {
            by: decision.by,
            fit: decision.fit,
            others: decision.others.clone(),
            unfit: decision.unfit.iter().map(unfit).collect(),
            missing: decision.missing.clone(),
        }
    }
}

impl OutlookView {
    fn of(outlook: &Outlook) -> Self {
        Self {
            node: outlook.node.clone(),
            certain: outlook.node.is_some() && words::is_certain(&outlook.decision),
            placement: PlacementView::of(&outlook.decision),
            going: outlook.going,
            waiting: outlook.waiting,
            missed: outlook.missed.as_ref().map(|due| match due {
                belfry_core::due::Due::Run => "run",
                belfry_core::due::Due::Skip { .. } => "skip",
            }),
        }
    }
}
