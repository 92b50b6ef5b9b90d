//! A job as lists and its own page show it: its document, when it fires next, and how it has been doing.

use std::collections::{BTreeSet, HashMap, HashSet};

use belfry_core::job::{Timeout, TimeoutAction};
use belfry_core::run::RunState;
use belfry_core::units::Span;
use belfry_core::usual::Usual;
use belfry_core::{Job, JobDocument, JobId, RunId, Timestamp};
use belfry_store::{LastRun, RecentRun, Standing};
use serde::Serialize;
use utoipa::ToSchema;

use super::jobs::next_fire;
use crate::errors::Answer;
use crate::job_schema::JobDocumentSchema;
use crate::moment::Moment;
use crate::state::ApiState;

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
    /// How long a run may take, and what happens then: the job's own `timeout`, else the cluster's default; null: for ever.
    pub timeout: Option<EffectiveTimeout>,
    /// The next planned instant; null for a paused job and one that is only run by hand.
    pub next_fire: Option<Moment>,
    /// The node that fires it by itself at the moment; only with `run_on: home`.
    pub home: Option<String>,
    /// Runs that have ended, ever; those that are no longer kept are counted too.
    runs: u64,
    /// The newest run that has ended.
    last_run: Option<LastRunView>,
    /// Runs since its newest success that were started and did not succeed.
    failed_in_a_row: u64,
    /// How long its newest successes took, at most 100 of them; null before the first.
    usual: Option<UsualView>,
    /// Its runs that are going, oldest first.
    #[schema(value_type = Vec<String>)]
    running: BTreeSet<RunId>,
    /// Its newest runs, newest first.
    pub recent: Vec<RecentRunView>,
}

#[derive(Serialize, ToSchema)]
pub struct EffectiveTimeout {
    #[schema(value_type = String)]
    after: Span,
    /// `kill` or `report`.
    #[schema(value_type = String)]
    action: TimeoutAction,
    /// TERM to KILL.
    #[schema(value_type = String)]
    grace: Span,
    /// Who says so: `job` or `cluster`.
    from: &'static str,
}

impl EffectiveTimeout {
    fn of(document: &JobDocument, state: &ApiState) -> Option<Self> {
        let default = state.control.default_timeout().filter(|_| document.takes_default_timeout());
        let (Timeout { after, action, grace }, from) =
            document.timeout.map(|own| (own, "job")).or(default.map(|default| (default, "cluster")))?;
        Some(Self { after, action, grace, from })
    }
}

#[derive(Serialize, ToSchema)]
pub struct LastRunView {
    #[schema(value_type = String)]
    id: RunId,
    #[schema(value_type = String)]
    state: RunState,
    planned: Moment,
    started_at: Option<Moment>,
    ended_at: Option<Moment>,
    /// From the start to the end.
    duration_ms: Option<i64>,
    node_name: Option<String>,
    exit_code: Option<i32>,
}

impl From<LastRun> for LastRunView {
    fn from(run: LastRun) -> Self {
        Self {
            id: run.id,
            state: run.state,
            planned: run.planned.into(),
            started_at: run.started_at.map(Moment),
            ended_at: run.ended_at.map(Moment),
            duration_ms: duration_ms(run.started_at, run.ended_at),
            node_name: run.node_name,
            exit_code: run.exit_code,
        }
    }
}

/// How long runs usually take.
#[derive(Clone, Copy, Serialize, ToSchema)]
pub struct UsualView {
    /// Half of them took at most so long.
    p50_ms: u64,
    /// 95 of 100 took at most so long.
    p95_ms: u64,
    /// How many say so.
    runs: u32,
}

impl From<Usual> for UsualView {
    fn from(Usual { p50_ms, p95_ms, runs }: Usual) -> Self {
        Self { p50_ms, p95_ms, runs }
    }
}

#[derive(Serialize, ToSchema)]
pub struct RecentRunView {
    #[schema(value_type = String)]
    pub id: RunId,
    #[schema(value_type = String)]
    pub state: RunState,
    planned: Moment,
    /// From the start to the end; null while it has not ended, and when it never began.
    duration_ms: Option<i64>,
}

impl From<RecentRun> for RecentRunView {
    fn from(run: RecentRun) -> Self {
        let ended_at = run.ended_at.filter(|_| run.state.is_ended());
        let duration_ms = duration_ms(run.started_at, ended_at);
        Self { id: run.id, state: run.state, planned: run.planned.into(), duration_ms }
    }
}

fn duration_ms(from: Option<Timestamp>, to: Option<Timestamp>) -> Option<i64> {
    Some(to?.as_millisecond() - from?.as_millisecond())
}

/// How some jobs have been doing.
pub struct Doings {
    standings: HashMap<JobId, Standing>,
    running: HashMap<JobId, BTreeSet<RunId>>,
    recent: HashMap<JobId, Vec<RecentRun>>,
}

impl Doings {
    pub async fn of(state: &ApiState, jobs: &[JobId], recent: usize) -> Answer<Self> {
        Ok(Self {
            standings: state.store.standings(jobs).await?,
            running: running(state, jobs).await?,
            recent: state.store.recent_runs(jobs, recent).await?,
        })
    }
}

/// What the store knows to be going, and what this server knows better.
async fn running(state: &ApiState, jobs: &[JobId]) -> Answer<HashMap<JobId, BTreeSet<RunId>>> {
    let jobs: HashSet<JobId> = jobs.iter().copied().collect();
    let here = state.control.open_runs(|run| jobs.contains(&run.job));
    let mut running: HashMap<JobId, BTreeSet<RunId>> = HashMap::new();
    for (job, run) in state.store.running().await?.into_iter().filter(|(job, _)| jobs.contains(job)) {
        running.entry(job).or_default().insert(run);
    }
    for run in here {
        let of_job = running.entry(run.job).or_default();
        if run.state == RunState::Running {
            of_job.insert(run.id)
        } else {
            of_job.remove(&run.id)
        };
    }
    Ok(running)
}

impl JobView {
    pub fn of(job: Job, doings: &mut Doings, state: &ApiState) -> Self {
        let standing = doings.standings.remove(&job.id);
        let (runs, failed_in_a_row) = standing.as_ref().map_or((0, 0), |kept| (kept.runs, kept.failed_in_a_row));
        let (last, usual) = standing.map_or((None, None), |kept| (kept.last, kept.usual));
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
            timeout: EffectiveTimeout::of(&job.document, state),
            next_fire: next_fire.map(Moment),
            home: state.control.home_of(job.id),
            runs,
            last_run: last.map(LastRunView::from),
            failed_in_a_row,
            usual: usual.map(UsualView::from),
            running: doings.running.remove(&job.id).unwrap_or_default(),
            recent: doings.recent.remove(&job.id).unwrap_or_default().into_iter().map(RecentRunView::from).collect(),
            document: job.document,
        }
    }
}
