//! What nodes fire by themselves follows the job's misfire rule, as an outsider reckons it, and says that it may have run twice only where
//! that can be.

use std::collections::BTreeMap;

use belfry_core::job::MisfirePolicy;
use jiff::{SignedDuration, Timestamp};

use super::{CAUGHT_UP_WITHIN, Case, Fault, Firer, LOOK_AHEAD, Trouble};
use crate::client::Run;
use crate::witness::Line;

/// A fire that is later was missed.
const ON_TIME: SignedDuration = SignedDuration::from_secs(5);
/// From the decision that it runs to its line.
const STARTED_WITHIN: SignedDuration = SignedDuration::from_millis(1500);

pub(super) fn fired_by_the_rules(case: &Case<'_>, faults: &mut Vec<Fault>) {
    marked_with_cause(case, faults);
    if case.firer != Firer::Server {
        none_left_out(case, faults);
    }
    if let Firer::Node { misfire, .. } | Firer::Home { misfire } = case.firer
        && case.late_after.is_some()
    {
        let against = case.starts().filter(|line| is_against(misfire, line, case));
        let what = |line: &Line| format!("{} of {} on {} at {}", line.planned, case.job, line.node, line.at);
        faults.extend(against.map(|line| Fault::MissedAndStarted(what(line))));
    }
}

fn is_against(misfire: MisfirePolicy, line: &Line, case: &Case<'_>) -> bool {
    let decided = line.at - STARTED_WITHIN;
    let on_time = decided <= line.planned + ON_TIME;
    // It may have been decided before what held it up.
    let held_up_later = |trouble: &Trouble| trouble.from >= line.planned && trouble.from <= line.planned + ON_TIME;
    if on_time || case.holdups().any(held_up_later) {
        return false;
    }
    match misfire {
        MisfirePolicy::Skip => true,
        MisfirePolicy::Latest => case.due.iter().any(|due| *due > line.planned && *due <= decided),
        MisfirePolicy::All => false,
    }
}

/// It lasted until a fire was missed, and the rule is not to run all of them.
pub(super) fn passes_over(trouble: &Trouble, planned: Timestamp, misfire: MisfirePolicy) -> bool {
    let held_up = trouble.from <= planned + LOOK_AHEAD && trouble.to >= planned + ON_TIME;
    misfire != MisfirePolicy::All && held_up
}

/// Who is not the home any more may cancel what another one runs; a node that fires alone cancels for nobody but who paused the job.
fn none_left_out(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut records: BTreeMap<Timestamp, Vec<&Run>> = BTreeMap::new();
    for record in case.records {
        records.entry(record.planned).or_default().push(record);
    }
    let is_left_out = |record: &&Run| record.state == "cancelled" && !record.why().contains("was paused");
    for (planned, records) in records.iter().filter(|(_, records)| records.iter().all(is_left_out)) {
        faults.push(Fault::CancelledWithoutCause(format!("{planned} of {}: {}", case.job, records[0].why())));
    }
}

fn marked_with_cause(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for record in case.records.iter().filter(|record| record.may_have_run_twice()) {
        let around =
            |trouble: &&Trouble| trouble.meets(record.planned - CAUGHT_UP_WITHIN, record.planned + CAUGHT_UP_WITHIN);
        if !matches!(case.firer, Firer::Home { .. }) || !case.troubles.iter().any(|trouble| around(&trouble)) {
            let on = record.node_name.as_deref().unwrap_or("no node");
            faults.push(Fault::MarkedWithoutCause(format!("{} of {} on {on}", record.planned, case.job)));
        }
    }
}
