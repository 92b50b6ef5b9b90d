//! What is known of everything that may need attention. Each question is a small range of an index, or is answered from memory.

use std::collections::{BTreeMap, HashMap, HashSet};

use belfry_control::Health;
use belfry_core::attention::{Fact, Failure, LATE_AFTER_MS};
use belfry_core::run::{Run, RunState};
use belfry_core::usual::Usual;
use belfry_core::{Job, JobId, RunId, Timestamp};
use belfry_store::{RunFilter, Troubled};
use jiff::SignedDuration;

use crate::errors::Answer;
use crate::state::ApiState;

/// `lost` and `missed` are of the last day.
const LOOKED_BACK: SignedDuration = SignedDuration::from_hours(24);
/// Of each kind; what is beyond would not be shown.
const JOBS_MAX: usize = 101;
const LOST_MAX: usize = 1_000;
const RUNNING_MAX: usize = 500;
const NOT_STARTED_MAX: usize = 200;

pub struct Gathered {
    pub facts: Vec<Fact>,
    /// Failing jobs that are not among the facts.
    pub more_failing: u64,
    pub running: Vec<(Run, Option<Usual>)>,
    /// `running` is all there is.
    pub all_running: bool,
}

/// `namespaces` None: the caller may see all of the cluster.
pub async fn gather(state: &ApiState, namespaces: Option<&[String]>, now: Timestamp) -> Answer<Gathered> {
    let mut facts = if namespaces.is_none() { of_the_cluster(state) } else { Vec::new() };
    let (failing, all_failing) = state.store.failing(namespaces, JOBS_MAX).await?;
    let more_failing = all_failing.saturating_sub(failing.len() as u64);
    facts.extend(failing.into_iter().filter_map(fails));
    let day_ago = now.saturating_sub(LOOKED_BACK).unwrap_or(now);
    facts.extend(state.store.missed_since(day_ago, namespaces, JOBS_MAX).await?.into_iter().filter_map(missed));
    facts.extend(lost(state, namespaces, day_ago).await?);

    let going = open_in(state, RunState::Running, namespaces, None, RUNNING_MAX).await?;
    let all_running = going.len() < RUNNING_MAX;
    let running = with_usual(state, going).await?;
    let mut services = state.store.services().await?;
    services.retain(|job| namespaces.is_none_or(|seen| seen.contains(&job.document.namespace)));
    facts.extend(stopped(state, &services, &running).await?);
    let services: HashSet<JobId> = services.iter().map(|job| job.id).collect();
    facts.extend(running.iter().map(|(run, usual)| {
        let is_service = services.contains(&run.job);
        Fact::Open { run: Box::new(run.clone()), usual: *usual, jitter_ms: 0, is_service }
    }));
    facts.extend(not_started(state, namespaces, &services, now).await?);
    Ok(Gathered { facts, more_failing, running, all_running })
}

fn of_the_cluster(state: &ApiState) -> Vec<Fact> {
    let mut facts = Vec::new();
    let cluster = state.control.cluster();
    if let Health::Away { since, message } = cluster.coordinator {
        facts.push(Fact::CoordinatorAway { since, message });
    }
    if let Health::Away { since, message } = cluster.store {
        facts.push(Fact::StoreAway { since, message });
    }
    for server in cluster.servers {
        let whose = if server.api.is_empty() { server.id.to_string() } else { server.api };
        facts.extend(server.clock_off_ms.map(|off_ms| Fact::ClockOff { whose, is_node: false, off_ms }));
    }
    let skew_max_ms = state.control.max_clock_skew().as_millis() as u64;
    for node in state.control.nodes() {
        let off_ms = node.clock_offset_ms.filter(|off| node.connected && off.unsigned_abs() > skew_max_ms);
        facts.extend(off_ms.map(|off_ms| Fact::ClockOff { whose: node.name.clone(), is_node: true, off_ms }));
        if !node.connected {
            let expected = node.draining || node.excluded;
            facts.push(Fact::Node { name: node.name, expected, heard_at: node.last_heartbeat });
        }
    }
    facts
}

fn fails(job: Troubled) -> Option<Fact> {
    let last = job.standing.last?;
    let last = Failure {
        run: last.id,
        state: last.state,
        exit_code: last.exit_code,
        node: last.node_name,
        ended_at: last.ended_at,
    };
    Some(Fact::Failing { job: (job.namespace, job.name), last, count: job.standing.failed_in_a_row })
}

fn missed(job: Troubled) -> Option<Fact> {
    let run = job.standing.last_missed?;
    Some(Fact::Missed { job: (job.namespace, job.name), run, planned: run.time() })
}

/// One fact a job, with its newest loss.
async fn lost(state: &ApiState, namespaces: Option<&[String]>, from: Timestamp) -> Answer<Vec<Fact>> {
    let filter = RunFilter {
        states: vec![RunState::Lost],
        namespaces: namespaces.map(<[String]>::to_vec),
        from: Some(from),
        limit: LOST_MAX,
        ..RunFilter::default()
    };
    let mut by_job: BTreeMap<(String, String), (Run, u64)> = BTreeMap::new();
    // Newest first.
    for run in state.store.list_runs(&filter).await?.items {
        let name = (run.namespace.clone(), run.job_name.clone());
        by_job.entry(name).or_insert((run, 0)).1 += 1;
    }
    let fact = |(job, (run, count)): (_, (Run, u64))| {
        let at = run.ended_at.unwrap_or(run.planned);
        Fact::Lost { job, run: run.id, node: run.node_name, at, count }
    };
    Ok(by_job.into_iter().map(fact).collect())
}

/// Runs in a state as the store knows them, and as this server knows better.
async fn open_in(
    state: &ApiState,
    wanted: RunState,
    namespaces: Option<&[String]>,
    before: Option<Timestamp>,
    limit: usize,
) -> Answer<Vec<Run>> {
    let is_seen = |run: &Run| {
        namespaces.is_none_or(|seen| seen.contains(&run.namespace)) && before.is_none_or(|before| run.planned < before)
    };
    // Before the store: an end is shown here only when the store has it, so one of the two looks finds what is open.
    let here = state.control.open_runs(is_seen);
    let known = state.store.oldest_in(wanted, namespaces, before, limit).await?;
    let mut runs: HashMap<RunId, Run> = known.into_iter().map(|run| (run.id, run)).collect();
    for run in here {
        if run.state == wanted {
            runs.insert(run.id, run);
        } else {
            runs.remove(&run.id);
        }
    }
    let mut runs: Vec<Run> = runs.into_values().collect();
    runs.sort_unstable_by_key(|run| run.id);
    runs.truncate(limit);
    Ok(runs)
}

async fn with_usual(state: &ApiState, runs: Vec<Run>) -> Answer<Vec<(Run, Option<Usual>)>> {
    let standings = state.store.standings(&jobs_of(&runs)).await?;
    let usual = |run: &Run| standings.get(&run.job).and_then(|standing| standing.usual);
    Ok(runs.into_iter().map(|run| (usual(&run), run)).map(|(usual, run)| (run, usual)).collect())
}

/// Services that are wanted and of which nothing runs.
async fn stopped(state: &ApiState, services: &[Job], running: &[(Run, Option<Usual>)]) -> Answer<Vec<Fact>> {
    let up: HashSet<JobId> = running.iter().map(|(run, _)| run.job).collect();
    let mut down: Vec<&Job> = services.iter().filter(|job| job.document.enabled && !up.contains(&job.id)).collect();
    // What runs was read up to a number; of these few it is asked for by name.
    let newest = state.store.recent_runs(&down.iter().map(|job| job.id).collect::<Vec<_>>(), 2).await?;
    let is_up =
        |job: &Job| newest.get(&job.id).is_some_and(|runs| runs.iter().any(|run| run.state == RunState::Running));
    down.retain(|job| !is_up(job));
    let standings = state.store.standings(&down.iter().map(|job| job.id).collect::<Vec<_>>()).await?;
    let fact = |job: &Job| {
        let standing = standings.get(&job.id);
        let ended_at = standing.and_then(|standing| standing.last.as_ref()?.ended_at);
        Fact::ServiceStopped {
            job: (job.document.namespace.clone(), job.document.name.clone()),
            // One that was saved or resumed a moment ago is only about to start.
            since: ended_at.map_or(job.updated_at, |ended_at| ended_at.max(job.updated_at)),
            failed_in_a_row: standing.map_or(0, |standing| standing.failed_in_a_row),
        }
    };
    Ok(down.into_iter().map(fact).collect())
}

/// Runs that were due a while ago.
async fn not_started(
    state: &ApiState,
    namespaces: Option<&[String]>,
    services: &HashSet<JobId>,
    now: Timestamp,
) -> Answer<Vec<Fact>> {
    let before = now.saturating_sub(SignedDuration::from_millis(LATE_AFTER_MS)).unwrap_or(now);
    let mut runs = open_in(state, RunState::Claimed, namespaces, Some(before), NOT_STARTED_MAX).await?;
    runs.extend(open_in(state, RunState::Dispatched, namespaces, Some(before), NOT_STARTED_MAX).await?);
    let jobs = state.store.living_jobs(&jobs_of(&runs)).await?;
    let fact = |run: Run| {
        let jitter = jobs.get(&run.job).and_then(|job| job.document.jitter);
        let jitter_ms = jitter.map_or(0, |jitter| jitter.get().as_millis() as i64);
        let is_service = services.contains(&run.job);
        Fact::Open { run: Box::new(run), usual: None, jitter_ms, is_service }
    };
    Ok(runs.into_iter().map(fact).collect())
}

fn jobs_of(runs: &[Run]) -> Vec<JobId> {
    let jobs: HashSet<JobId> = runs.iter().map(|run| run.job).collect();
    jobs.into_iter().collect()
}
