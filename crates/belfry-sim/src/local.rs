//! What nodes fire by themselves, against their records and what was really started: on each node all that was due there, also while it
//! was cut off; on homes at least once, and twice only where a record says so.

use std::collections::HashMap;
use std::time::Duration;

use belfry_core::id::Slot;
use belfry_core::job::{Overlap, RunOn};
use belfry_core::{NodeId, RunId, Timestamp};

use crate::verdict::{OWNED_FROM, Record, START_EARLY_MAX, is_true};
use crate::witness::{Start, Verdict, Witness};
use crate::workload::{LAST_DUE, SimJob, Workload, instant};

/// A node whose clock has stepped goes on by one that may be 4 % slow.
const START_WITHIN: Duration = Duration::from_secs(4);
/// The smallest steps of clocks are believed, also by those who ask others for the time, with an answer that may take two seconds.
const BELIEVED_OFF: Duration = Duration::from_millis(2500);
/// Servers learn of a home that has moved by looks 10 s apart, which may read what was true 10 s before. Until then the former home, when it is
/// back, goes on, and what it says of that is not marked.
const MOVE_IS_KNOWN_WITHIN: Duration = Duration::from_secs(25);

pub struct Nodes<'a> {
    pub witness: &'a Witness,
    pub records: &'a HashMap<RunId, Record>,
    pub ids: Vec<NodeId>,
    /// Nothing waits for a slot.
    pub starts_in_time: bool,
}

/// What became of a fire on one node.
struct Fired<'a> {
    node: NodeId,
    run: RunId,
    start: Option<&'a Start>,
    record: Option<&'a Record>,
}

impl Nodes<'_> {
    pub fn judge(&self, workload: &Workload, say: &mut impl FnMut(Verdict, String)) {
        let starts = self.witness.local_starts.iter().map(|start| (start.run, start));
        let mut starts: HashMap<RunId, &Start> = starts.collect();
        for job in &workload.local {
            for planned in job.due_between(Duration::ZERO, LAST_DUE) {
                let fired = self.ids.iter().map(|&node| {
                    let run = RunId::of(job.id, planned, Slot::Node(node));
                    Fired { node, run, start: starts.remove(&run), record: self.records.get(&run) }
                });
                let fired: Vec<Fired<'_>> = fired.collect();
                fired.iter().for_each(|one| self.judge_one(job, planned, one, say));
                if job.document.run_on == RunOn::Home {
                    self.judge_home(job, planned, &fired, say);
                }
            }
        }
        for start in starts.into_values() {
            say(Verdict::Zombie, format!("started though it was never due: {start:?}"));
        }
    }

    fn judge_one(&self, job: &SimJob, planned: Timestamp, one: &Fired<'_>, say: &mut impl FnMut(Verdict, String)) {
        let what = format!("{} at {planned} on {} ({})", job.document.name, one.node, one.run);
        let is_due = job.document.run_on == RunOn::Each && planned > instant(OWNED_FROM);
        match one.record {
            None if is_due || one.start.is_some() => {
                say(Verdict::Unaccounted, format!("{what} has no record; {:?}", one.start));
            }
            None => {}
            // A home that was held dead hears that it is none any more.
            Some(record) if record.is_not_its_home() && one.start.is_none() && job.document.run_on == RunOn::Home => {}
            Some(record) => {
                if let Err((verdict, why)) = is_true(record, one.start.as_slice(), &job.document) {
                    say(verdict, format!("{what}: {why}"));
                }
            }
        }
        if self.witness.is_astray(one.node) {
            return;
        }
        let started = one.start.map(|start| instant(start.at));
        let not_before = planned.saturating_sub(BELIEVED_OFF + START_EARLY_MAX).unwrap_or(Timestamp::MIN);
        if started.is_some_and(|at| at < not_before) {
            say(Verdict::Early, format!("{what} was started before: {:?}", one.start));
        }
        let by = planned.saturating_add(START_WITHIN).unwrap_or(Timestamp::MAX);
        let has_no_excuse = self.starts_in_time
            && is_due
            && job.document.overlap == Overlap::Allow
            && self.witness.was_well(one.node, (not_before, by));
        if has_no_excuse && started.is_none_or(|at| at > by) {
            say(Verdict::Late, format!("{what} did not start in time: {:?} {:?}", one.record, one.start));
        }
    }

    /// The fire may be another node's than it was when it was due.
    fn judge_home(&self, job: &SimJob, planned: Timestamp, fired: &[Fired<'_>], say: &mut impl FnMut(Verdict, String)) {
        let what = format!("{} at {planned}", job.document.name);
        let starts: Vec<&Start> = fired.iter().filter_map(|one| one.start).collect();
        let says_so =
            fired.iter().filter_map(|one| one.record).any(|record| record.may_have_run_twice || record.was_cut_off);
        let moved_lately = |start: &&Start| self.witness.has_moved(job.id, start.at, MOVE_IS_KNOWN_WITHIN);
        if starts.len() > 1 && !says_so && !starts.iter().any(moved_lately) {
            say(Verdict::Doubled, format!("{what} was started by two homes, and no record says so: {starts:?}"));
        }
        let is_known = fired.iter().any(|one| one.record.is_some());
        if planned > instant(OWNED_FROM) && !is_known {
            say(Verdict::Unaccounted, format!("{what} has no record of any home"));
        }
    }
}
