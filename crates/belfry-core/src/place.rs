//! Which node a run goes to: a pure function of the job, the nodes and what they do, which also says why not the others.

mod decision;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::job::{Placement, Select};
use crate::room::{Amounts, Room};
use crate::{Incarnation, JobId, NodeId, RunId};

pub use decision::{By, Decision, Unfit, WhyNot};

/// A node as placement sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub id: NodeId,
    pub name: String,
    pub incarnation: Incarnation,
    pub labels: BTreeMap<String, String>,
    pub weight: u32,
    /// How many runs it executes at once, and how many more it keeps ready behind them.
    pub slots: u32,
    pub backlog: u32,
    /// Runs it has: executing, or waiting for their instant or a slot.
    pub load: u32,
    pub connected: bool,
    pub draining: bool,
    pub excluded: bool,
    /// Its clock differs by more than the allowed skew.
    pub clock_off: bool,
    /// It has said that its disk has no room for more results.
    pub spool_full: bool,
    /// It has said that it has less free disk than its floor.
    pub disk_low: bool,
    /// What runs with `needs` can have of it, less what is on its way there. None: it has not said.
    pub room: Option<Room>,
    /// Smooth weighted round robin's running sum; kept by the caller between calls.
    pub credit: i64,
}

/// A run that wants a node.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub job: JobId,
    pub run: RunId,
    pub planned: Timestamp,
    pub select: &'a Select,
    pub needs: Amounts,
    pub rule: Placement,
    /// A manual run may name its node.
    pub wanted: Option<NodeId>,
    pub refused_by: &'a [(NodeId, Incarnation)],
    /// Where the job was placed last.
    pub last: Option<LastNode>,
    /// How many nodes the decision names for each reason; the others are counted.
    pub named_max: usize,
    /// A service runs beside them.
    pub takes_slot: bool,
}

/// The node that a job was last placed on, for the run of this instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastNode {
    pub node: NodeId,
    pub planned: Timestamp,
}

/// What a decision that is kept with its run names for each reason.
pub const NAMED_IN_RECORDS: usize = 3;

/// The index of the chosen candidate, if any is fit, and why. One with a free slot comes before one where the run would wait for a slot.
/// Only the rules that go round (`weighted`, and `sticky` when it chooses anew) change the candidates: their credit.
pub fn place(asked: &Asked<'_>, candidates: &mut [&mut Candidate]) -> (Option<usize>, Decision) {
    let mut verdicts: Vec<Option<WhyNot>> = candidates.iter().map(|node| why_unfit(asked, node)).collect();
    let has_free_slot = |node: &Candidate| node.load < node.slots || !asked.takes_slot;
    let some_free = candidates.iter().zip(&verdicts).any(|(node, verdict)| verdict.is_none() && has_free_slot(node));
    if some_free {
        for (node, verdict) in candidates.iter().zip(&mut verdicts) {
            if verdict.is_none() && !has_free_slot(node) {
                *verdict = Some(WhyNot::SlotsTaken);
            }
        }
    }
    let fit: Vec<usize> = (0..candidates.len()).filter(|i| verdicts[*i].is_none()).collect();
    let last = last_that_holds(asked).and_then(|last| fit.iter().copied().find(|i| candidates[*i].id == last));
    let (chosen, by) = match asked.rule {
        Placement::Weighted => (smooth_weighted(&fit, candidates), By::Weighted),
        Placement::Sticky(_) if last.is_some() => (last, By::LastNode),
        Placement::Sticky(_) => (smooth_weighted(&fit, candidates), By::Anew),
        Placement::Least => (least_loaded(&fit, candidates), By::Least),
        Placement::Random => (by_score(&fit, candidates, asked.run.as_u128()), By::Random),
        Placement::Hash => (by_score(&fit, candidates, asked.job.as_u128()), By::Hash),
    };
    (chosen, Decision::of(by, asked, candidates, &verdicts, chosen))
}

/// The node that a sticky job stays on: the one of its last run, unless that is too long ago.
fn last_that_holds(asked: &Asked<'_>) -> Option<NodeId> {
    let Placement::Sticky(holds) = asked.rule else { return None };
    let last = asked.last?;
    let until = last.planned.saturating_add(holds.get()).unwrap_or(Timestamp::MAX);
    (asked.planned <= until).then_some(last.node)
}

fn why_unfit(asked: &Asked<'_>, node: &Candidate) -> Option<WhyNot> {
    if !node.connected {
        Some(WhyNot::NotConnected)
    } else if asked.refused_by.contains(&(node.id, node.incarnation)) {
        Some(WhyNot::RefusedIt)
    } else if asked.wanted.is_some_and(|wanted| wanted != node.id) {
        Some(WhyNot::AnotherAskedFor)
    } else if let Some(why) = why_not_selected(asked.select, node) {
        Some(why)
    } else if let Some(why @ WhyNot::TooSmall) = why_no_room(asked.needs, node) {
        Some(why)
    } else if node.clock_off {
        Some(WhyNot::ClockOff)
    } else if node.spool_full {
        Some(WhyNot::SpoolFull)
    } else if node.disk_low {
        Some(WhyNot::DiskLow)
    } else if node.weight == 0 {
        Some(WhyNot::NoWeight)
    } else if asked.takes_slot && node.load >= node.slots.saturating_add(node.backlog) {
        Some(WhyNot::NoFreeSlot)
    } else {
        why_no_room(asked.needs, node)
    }
}

fn why_no_room(needs: Amounts, node: &Candidate) -> Option<WhyNot> {
    match &node.room {
        _ if needs.is_none() => None,
        None => Some(WhyNot::RoomUnknown),
        Some(room) => room.short_of(needs).map(|short| match short.for_ever {
            true => WhyNot::TooSmall,
            false => WhyNot::TooLittleFree,
        }),
    }
}

/// Whether it could have so much if nothing else went on there, as far as it is known.
pub fn could_have(needs: Amounts, node: &Candidate) -> bool {
    !matches!(why_no_room(needs, node), Some(WhyNot::TooSmall))
}

/// None: the job is meant to run on the node, whatever that does at the moment.
pub fn why_not_selected(select: &Select, node: &Candidate) -> Option<WhyNot> {
    let is = |name: &String| *name == node.name || *name == node.id.to_string();
    if node.excluded {
        Some(WhyNot::Excluded)
    } else if node.draining {
        Some(WhyNot::Draining)
    } else if !select.hosts.is_empty() && !select.hosts.iter().any(is) {
        Some(WhyNot::HostNotSelected)
    } else if select.exclude.iter().any(is) {
        Some(WhyNot::ExcludedByJob)
    } else if select.labels.iter().any(|(key, value)| node.labels.get(key) != Some(value)) {
        Some(WhyNot::LabelsDiffer)
    } else {
        None
    }
}

/// Each node earns its weight, the richest is chosen and pays the sum: proportional, and never the same node in a row when
/// another is due. Servers that go round apart from each other are each off by less than a round, and so is their sum.
fn smooth_weighted(fit: &[usize], candidates: &mut [&mut Candidate]) -> Option<usize> {
    let mut total = 0;
    for i in fit {
        let node = &mut candidates[*i];
        node.credit += i64::from(node.weight);
        total += i64::from(node.weight);
    }
    let chosen = fit.iter().copied().max_by_key(|i| (candidates[*i].credit, std::cmp::Reverse(candidates[*i].id)))?;
    candidates[chosen].credit -= total;
    Some(chosen)
}

fn least_loaded(fit: &[usize], candidates: &[&mut Candidate]) -> Option<usize> {
    fit.iter().copied().min_by_key(|i| {
        let node = &candidates[*i];
        (u64::from(node.load) * 1_000_000 / u64::from(node.weight.max(1)), node.id)
    })
}

fn by_score(fit: &[usize], candidates: &[&mut Candidate], key: u128) -> Option<usize> {
    fit.iter().copied().max_by(|a, b| score(key, candidates[*a]).total_cmp(&score(key, candidates[*b])))
}

/// Weighted rendezvous hashing: proportional to weight, and a node that leaves moves only what it had.
fn score(key: u128, node: &Candidate) -> f64 {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&key.to_be_bytes());
    bytes[16..].copy_from_slice(&node.id.as_u128().to_be_bytes());
    let unit = (xxhash_rust::xxh3::xxh3_64(&bytes) >> 11) as f64 / (1u64 << 53) as f64;
    -f64::from(node.weight) / unit.max(f64::MIN_POSITIVE).ln()
}

#[cfg(test)]
mod tests;
