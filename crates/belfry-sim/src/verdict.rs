//! The last look: every fire that was due against its record and against what was really started.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belfry_core::id::Slot;
use belfry_core::job::{JobDocument, Overlap};
use belfry_core::run::{Marks, RunState};
use belfry_core::{RunId, Timestamp};
use belfry_sql::{Database, InlineSqlite, sql};

use crate::faults::HEALED_AT;
use crate::local::Nodes;
use crate::machine::AgentMachine;
use crate::witness::{Start, Verdict, Wrong};
use crate::workload::{LAST_DUE, Workload, instant};
use crate::world::World;

/// What passed before every shard was owned for the first time was not due.
pub const OWNED_FROM: Duration = Duration::from_secs(15);
/// In the reason of a run that ends as the attempt before did.
const NOT_MADE: &str = "could not be made";
/// In the reason of what a later run of its job cancelled; and before the number of an attempt, if that was between two.
const REPLACED: &str = "(overlap is replace)";
const WAITED_FOR: &str = "while it waited for attempt ";
/// Beyond TTL + 5 s after the heal a fire starts within this.
const START_WITHIN: Duration = Duration::from_millis(1500);
/// Nodes wait for an instant, which they know a second before, on a clock that may go 4 % fast.
pub const START_EARLY_MAX: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub struct Record {
    state: RunState,
    reason: String,
    attempt: u32,
    pub may_have_run_twice: bool,
    pub was_cut_off: bool,
}

pub struct Tally {
    pub fires: usize,
    pub states: BTreeMap<String, u64>,
}

pub async fn judge(
    world: &World,
    workload: &Workload,
    database: &InlineSqlite,
    agents: &[Arc<AgentMachine>],
    starts_in_time: bool,
    early_max: Duration,
) -> anyhow::Result<(Tally, Vec<Wrong>)> {
    let records = records(database).await?;
    let witness = world.witness();
    let mut wrong = witness.wrong.clone();
    let mut starts: HashMap<RunId, Vec<&Start>> = HashMap::new();
    for start in &witness.starts {
        starts.entry(start.run).or_default().push(start);
    }
    let mut say = |verdict, what| wrong.push(Wrong { verdict, what });
    let mut fires = 0;
    let mut last_fences: HashMap<&str, u64> = HashMap::new();
    let waiting = workload.jobs.iter().filter(|job| job.document.overlap != Overlap::Allow);
    let waiting: HashSet<String> = waiting.map(|job| job.document.full_name()).collect();
    for start in witness.starts.iter().filter(|start| waiting.contains(&start.job)) {
        let before = last_fences.entry(&start.job).or_default();
        if start.fence <= *before {
            say(Verdict::FenceNotGrowing, format!("{} after {before}: {start:?}", start.fence));
        }
        *before = start.fence;
    }
    let mut holders: HashMap<(&str, u64), &Start> = HashMap::new();
    for start in &witness.starts {
        let holder = holders.entry((&start.job, start.fence)).or_insert(start);
        if (holder.run, holder.attempt) != (start.run, start.attempt) {
            say(Verdict::FenceNotGrowing, format!("{holder:?} and {start:?} have the same"));
        }
    }
    for job in &workload.jobs {
        let name = &job.document.name;
        let attempts_max = job.document.retry.as_ref().map_or(1, |retry| retry.attempts);
        for planned in job.due_between(Duration::ZERO, LAST_DUE) {
            let run = RunId::of(job.id, planned, Slot::Only);
            let mut starts = starts.remove(&run).unwrap_or_default();
            starts.sort_by_key(|start| start.attempt);
            let is_due = planned > instant(OWNED_FROM);
            fires += usize::from(is_due);
            if starts.len() > attempts_max as usize {
                say(Verdict::Doubled, format!("{name} at {planned} was started {} times: {starts:?}", starts.len()));
            }
            let mut before = 0;
            let not_before = planned.saturating_sub(early_max + START_EARLY_MAX).unwrap_or(Timestamp::MIN);
            for start in &starts {
                if instant(start.at) < not_before {
                    say(Verdict::Early, format!("{name} at {planned} ({run}) was started before: {start:?}"));
                }
                if start.fence <= before {
                    say(Verdict::FenceNotGrowing, format!("{name}: {} after {before}: {start:?}", start.fence));
                }
                before = start.fence;
            }
            match records.get(&run) {
                None if is_due => say(Verdict::Unaccounted, format!("{name} at {planned} ({run}) has no record")),
                None if !starts.is_empty() => say(Verdict::Unaccounted, format!("no record of {starts:?}")),
                None => {}
                Some(record) => {
                    if let Err((verdict, why)) = is_true(record, &starts, &job.document) {
                        say(verdict, format!("{name} at {planned} ({run}): {why}"));
                    }
                    if record.attempt < attempts_max && should_go_on(record, &job.document) {
                        let what = format!("{name} at {planned} ({run}): {record:?} is its last attempt: {starts:?}");
                        say(Verdict::Undone, what);
                    }
                }
            }
            let has_no_excuse = starts_in_time && job.document.overlap == Overlap::Allow;
            if planned > instant(HEALED_AT + world.ttl + Duration::from_secs(5)) && has_no_excuse {
                let by = planned.saturating_add(START_WITHIN).unwrap_or(Timestamp::MAX);
                if !starts.iter().any(|start| instant(start.at) <= by) {
                    let state = records.get(&run).map(|record| (record.state, record.reason.as_str()));
                    say(
                        Verdict::Late,
                        format!("{name} at {planned} ({run}) did not start in time: {state:?} {starts:?}"),
                    );
                }
            }
        }
    }
    for start in starts.into_values().flatten() {
        say(Verdict::Zombie, format!("started though it was never due: {start:?}"));
    }
    let ids = agents.iter().map(|agent| agent.node).collect();
    Nodes { witness: &witness, records: &records, ids, starts_in_time }.judge(workload, &mut say);
    for (run, record) in witness.open_runs() {
        say(Verdict::LeftOpen, format!("{run} is still open at the end: {record}"));
    }
    for end in agents.iter().flat_map(|agent| agent.disk.ends_ever_written()) {
        let Some(key) = &end.key else { continue };
        let Ok(run) = key.run.parse::<RunId>() else { continue };
        // A later attempt has its own end.
        let Some(record) = records.get(&run).filter(|record| record.attempt == key.attempt) else { continue };
        // Of a later attempt that was not made the record says so beside what the one before it came to.
        let given_up = record.state == RunState::Lost && record.reason.contains(NOT_MADE);
        let between = given_up || (key.attempt > 1 && end.outcome == RunState::Skipped.as_str());
        let cancelled_after = record.state == RunState::Cancelled && record.cancelled_attempt() > key.attempt;
        if record.state.as_str() != end.outcome && !between && !cancelled_after {
            let what =
                format!("{run} is recorded as {} ({}), its node wrote {}", record.state, record.reason, end.outcome);
            say(Verdict::Untrue, what);
        }
    }
    let mut states = BTreeMap::new();
    for record in records.values() {
        *states.entry(record.state.as_str().to_owned()).or_default() += 1;
    }
    Ok((Tally { fires, states }, wrong))
}

/// Whether another attempt had to follow.
fn should_go_on(record: &Record, document: &JobDocument) -> bool {
    let Some(retry) = &document.retry else { return false };
    // The last one came to nothing, or there was no node for as long as a fire may be late.
    let last_not_made = format!("attempt {} {NOT_MADE}", retry.attempts);
    let no_node = record.reason.contains("misfire.within") || record.reason.contains("no free slot");
    // What is being replaced by a later run is not started again, however it ends.
    document.overlap != Overlap::Replace
        && retry.on.iter().any(|on| on == record.state.as_str())
        && !record.reason.contains(&last_not_made)
        && !(record.reason.contains(NOT_MADE) && no_node)
}

pub fn is_true(record: &Record, starts: &[&Start], document: &JobDocument) -> Result<(), (Verdict, String)> {
    let said = format!("{} ({})", record.state, record.reason);
    match record.state {
        RunState::Claimed | RunState::Dispatched | RunState::Running | RunState::Waiting => {
            Err((Verdict::Unaccounted, format!("has no end, only {said}")))
        }
        // Nobody removes, pauses or kills anything here.
        RunState::Cancelled if document.overlap != Overlap::Replace || !record.reason.contains(REPLACED) => {
            Err((Verdict::Untrue, format!("nothing could cancel it, and it is recorded as {said}: {starts:?}")))
        }
        RunState::Cancelled if starts.iter().any(|start| start.attempt >= record.cancelled_attempt()) => {
            Err((Verdict::Untrue, format!("was started, and is recorded as {said}: {starts:?}")))
        }
        RunState::Skipped if !starts.is_empty() => {
            Err((Verdict::Untrue, format!("was started, and is recorded as {said}: {starts:?}")))
        }
        RunState::Succeeded | RunState::Failed | RunState::TimedOut | RunState::Killed if starts.is_empty() => {
            Err((Verdict::Untrue, format!("was never started, and is recorded as {said}")))
        }
        RunState::Skipped
        | RunState::Cancelled
        | RunState::Lost
        | RunState::Succeeded
        | RunState::Failed
        | RunState::TimedOut
        | RunState::Killed => Ok(()),
    }
}

impl Record {
    /// Its node was told so before its instant.
    pub fn is_not_its_home(&self) -> bool {
        self.state == RunState::Cancelled && self.reason.contains("its job was removed from this node")
    }

    /// Which attempt was not started any more: what has retries can be cancelled between two.
    fn cancelled_attempt(&self) -> u32 {
        let waited_for = self.reason.split_once(WAITED_FOR).and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
        waited_for.unwrap_or(self.attempt.max(1))
    }
}

async fn records(database: &InlineSqlite) -> anyhow::Result<HashMap<RunId, Record>> {
    let rows = database.read(sql!("SELECT id, state, reason, attempt, marks FROM runs")).await?;
    let record = |row: &belfry_sql::Row| {
        let state = RunState::parse(row.text(1)).ok_or_else(|| anyhow::anyhow!("state {}", row.text(1)))?;
        let reason = row.opt_text(2).unwrap_or_default().to_owned();
        let Marks { cut_off: was_cut_off, may_have_run_twice, .. } = Marks::from_bits(row.int(4) as u8);
        let attempt = row.int(3) as u32;
        Ok((row.text(0).parse()?, Record { state, reason, attempt, may_have_run_twice, was_cut_off }))
    };
    rows.iter().map(record).collect()
}
