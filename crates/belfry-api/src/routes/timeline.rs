//! Runs and fires around now as lanes, one for each job or node: what was, as bars, and what is to come, as instants. Which lanes are
//! shown is decided by the newest runs of the time; each lane then has its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use belfry_core::forecast::{Planned, instants};
use belfry_core::run::{Run, RunState};
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_store::{JobRef, RunFilter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::forecast::{check_span, hours_after};
use super::jobs::narrowed;
use super::runs::freshest;
use crate::auth::Permit;
use crate::errors::{Answer, ApiError};
use crate::input::QueryValues;
use crate::moment::Moment;
use crate::page::read_time;
use crate::plans::Plan;
use crate::state::ApiState;

const HOURS_BACK_DEFAULT: i64 = 3;
const HOURS_DEFAULT: i64 = 6;
const HOURS_MAX: i64 = 24;
const LANES_MAX: usize = 40;
const BARS_MAX: usize = 200;
/// So many of the newest runs say which lanes are the busiest, and so many which have trouble.
const SAMPLE_MAX: usize = 2_000;
const TROUBLE_MAX: usize = 500;
/// More fires than this make no lane busier.
const FIRES_WEIGHED_MAX: usize = 20;

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct TimelineQuery {
    /// Runs planned at or after; three hours ago when left out.
    from: Option<String>,
    /// Planned before, at most 24 hours later; six when left out.
    to: Option<String>,
    /// `job` (when left out) or `node`.
    by: Option<String>,
    /// Only this namespace.
    namespace: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub struct TimelineAnswer {
    from: Moment,
    to: Moment,
    /// At most 40: those with trouble first, then the busiest.
    lanes: Vec<LaneView>,
    /// Lanes that are not shown.
    left_out: u64,
}

#[derive(Serialize, ToSchema)]
pub struct LaneView {
    /// `namespace/name` of the job, or the name of the node.
    label: String,
    namespace: Option<String>,
    job: Option<String>,
    node: Option<String>,
    /// The newest of the time, at most 200, the first planned first.
    runs: Vec<BarView>,
    /// What is planned after now, at most 200; only of jobs.
    fires: Vec<Moment>,
}

#[derive(Serialize, ToSchema)]
pub struct BarView {
    #[schema(value_type = String)]
    id: RunId,
    #[schema(value_type = String)]
    state: RunState,
    started_at: Option<Moment>,
    ended_at: Option<Moment>,
    planned: Moment,
}

impl From<Run> for BarView {
    fn from(run: Run) -> Self {
        let ended_at = run.ended_at.filter(|_| run.state.is_ended());
        let (started_at, ended_at) = (run.started_at.map(Moment), ended_at.map(Moment));
        Self { id: run.id, state: run.state, started_at, ended_at, planned: run.planned.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Job,
    Node,
}

/// What a lane is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Of {
    Job { namespace: String, name: String, id: JobId },
    Node { name: String, id: NodeId },
}

impl Of {
    fn lane(run: &Run, by: By) -> Option<Of> {
        match by {
            By::Job => Some(Of::Job { namespace: run.namespace.clone(), name: run.job_name.clone(), id: run.job }),
            By::Node => Some(Of::Node { name: run.node_name.clone()?, id: run.node? }),
        }
    }
}

#[derive(Default)]
struct Lane {
    failures: usize,
    /// Runs, and fires as far as they are weighed.
    busy: usize,
    runs: BTreeMap<RunId, Run>,
    plan: Option<Planned<Arc<Plan>>>,
}

/// Shows runs and fires around now, by job or by node.
#[utoipa::path(get, path = "/api/v1/timeline", tag = "runs", params(TimelineQuery), responses((status = 200, body = TimelineAnswer)))]
pub async fn get_timeline(
    State(state): State<ApiState>,
    permit: Permit,
    QueryValues(query): QueryValues<TimelineQuery>,
) -> Answer<Json<TimelineAnswer>> {
    let now = state.now();
    let from = read_time("from", query.from.as_deref())?.unwrap_or_else(|| hours_after(now, -HOURS_BACK_DEFAULT));
    let to = read_time("to", query.to.as_deref())?.unwrap_or_else(|| hours_after(from, HOURS_DEFAULT));
    check_span(from, to, HOURS_MAX)?;
    let by = read_by(query.by.as_deref())?;
    let namespaces = narrowed(permit.namespaces(), query.namespace);
    let all = RunFilter {
        namespaces: namespaces.clone(),
        from: Some(from),
        to: Some(to),
        limit: SAMPLE_MAX,
        ..RunFilter::default()
    };
    let (mut lanes, is_whole) = sampled(&state, &all, by).await?;
    if by == By::Job {
        let plans = state.plans.of(&state.store, namespaces.as_deref()).await?;
        let weighed = tokio::task::spawn_blocking(move || weighed(plans, now.max(from), to)).await;
        for (of, plan, fires) in weighed.map_err(|cause| ApiError::internal(&cause))? {
            let lane = lanes.entry(of).or_default();
            lane.busy += fires;
            lane.plan = Some(plan);
        }
    }
    let (chosen, left_out) = chosen(lanes);
    let mut shown = Vec::with_capacity(chosen.len());
    for (of, mut lane) in chosen {
        if !is_whole {
            complete(&state, &all, &of, &mut lane).await?;
        }
        shown.push(view(of, lane, now.max(from), to));
    }
    Ok(Json(TimelineAnswer { from: from.into(), to: to.into(), lanes: shown, left_out }))
}

fn read_by(by: Option<&str>) -> Answer<By> {
    match by {
        None | Some("job") => Ok(By::Job),
        Some("node") => Ok(By::Node),
        Some(other) => {
            Err(ApiError::bad_request("invalid", "by", format!("`{other}` is not accepted; job or node is")))
        }
    }
}

/// Lanes of the newest runs of the time, of those that did not succeed, and of those that go on; and whether that is all.
async fn sampled(state: &ApiState, all: &RunFilter, by: By) -> Answer<(HashMap<Of, Lane>, bool)> {
    let is_seen = |run: &Run| all.namespaces.as_ref().is_none_or(|seen| seen.contains(&run.namespace));
    let is_in_time = |run: &Run| all.to.is_none_or(|to| run.planned < to);
    let here = state.control.open_runs(|run| is_seen(run) && is_in_time(run) && !run.state.is_ended());
    let newest = state.store.list_runs(all).await?;
    let is_whole = newest.next.is_none();
    let mut runs = newest.items;
    if !is_whole {
        let states = RunState::ALL.into_iter().filter(|state| state.is_failure()).collect();
        runs.extend(state.store.list_runs(&RunFilter { states, limit: TROUBLE_MAX, ..all.clone() }).await?.items);
    }
    // What began before and goes on.
    runs.extend(state.store.oldest_in(RunState::Running, all.namespaces.as_deref(), all.from, BARS_MAX).await?);
    let mut lanes: HashMap<Of, Lane> = HashMap::new();
    for run in here.into_iter().chain(runs) {
        let Some(of) = Of::lane(&run, by) else { continue };
        let lane = lanes.entry(of).or_default();
        let run = freshest(state, run);
        if lane.runs.insert(run.id, run.clone()).is_none() {
            lane.failures += usize::from(run.state.is_failure());
            lane.busy += 1;
        }
    }
    Ok((lanes, is_whole))
}

/// Jobs that fire in this time, and how much that makes their lanes busier.
fn weighed(plans: Vec<Planned<Arc<Plan>>>, after: Timestamp, to: Timestamp) -> Vec<(Of, Planned<Arc<Plan>>, usize)> {
    let weigh = |plan: Planned<Arc<Plan>>| {
        let fires = fires_of(&plan, after, to).take(FIRES_WEIGHED_MAX).count();
        let job = &plan.job;
        let of = Of::Job { namespace: job.namespace.clone(), name: job.name.clone(), id: job.id };
        (fires > 0).then_some((of, plan, fires))
    };
    plans.into_iter().filter_map(weigh).collect()
}

fn fires_of(plan: &Planned<Arc<Plan>>, after: Timestamp, to: Timestamp) -> impl Iterator<Item = Timestamp> {
    instants(&plan.schedule, after.max(plan.counts_from), to)
}

/// Those with trouble first, then the busiest; and how many are left out.
fn chosen(lanes: HashMap<Of, Lane>) -> (Vec<(Of, Lane)>, u64) {
    let mut lanes: Vec<(Of, Lane)> = lanes.into_iter().collect();
    lanes.sort_by(|(a, one), (b, other)| {
        let rank = |lane: &Lane| Reverse((lane.failures, lane.busy));
        rank(one).cmp(&rank(other)).then_with(|| a.cmp(b))
    });
    let left_out = lanes.len().saturating_sub(LANES_MAX) as u64;
    lanes.truncate(LANES_MAX);
    (lanes, left_out)
}

/// The sample had not all of its runs.
async fn complete(state: &ApiState, all: &RunFilter, of: &Of, lane: &mut Lane) -> Answer<()> {
    let own = RunFilter { limit: BARS_MAX, ..all.clone() };
    let own = match of {
        Of::Job { id, .. } => RunFilter { job: Some(JobRef::Id(*id)), ..own },
        Of::Node { id, .. } => RunFilter { node: Some(*id), ..own },
    };
    for run in state.store.list_runs(&own).await?.items {
        lane.runs.insert(run.id, freshest(state, run));
    }
    Ok(())
}

fn view(of: Of, lane: Lane, after: Timestamp, to: Timestamp) -> LaneView {
    let too_many = lane.runs.len().saturating_sub(BARS_MAX);
    let runs = lane.runs.into_values().skip(too_many).map(BarView::from).collect();
    let fires = lane.plan.iter().flat_map(|plan| fires_of(plan, after, to).take(BARS_MAX)).map(Moment).collect();
    match of {
        Of::Job { namespace, name, .. } => LaneView {
            label: format!("{namespace}/{name}"),
            namespace: Some(namespace),
            job: Some(name),
            node: None,
            runs,
            fires,
        },
        Of::Node { name, .. } => {
            LaneView { label: name.clone(), namespace: None, job: None, node: Some(name), runs, fires }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_with_trouble_come_first_then_the_busiest_and_the_rest_is_counted() {
        let lane = |name: u128, failures, busy| {
            let of = Of::Node { name: format!("n{name:02}"), id: NodeId::from_u128(name) };
            (of, Lane { failures, busy, ..Lane::default() })
        };
        let quiet = (10..60).map(|n| lane(n, 0, 1));
        let lanes = [lane(1, 0, 90), lane(2, 1, 1), lane(3, 2, 2)].into_iter().chain(quiet).collect();
        let (chosen, left_out) = chosen(lanes);
        let names: Vec<&str> = chosen
            .iter()
            .map(|(of, _)| match of {
                Of::Node { name, .. } | Of::Job { name, .. } => name.as_str(),
            })
            .collect();
        assert_eq!((names.len(), left_out), (40, 13));
        assert_eq!(names[..5], ["n03", "n02", "n01", "n10", "n11"]);
    }
}
