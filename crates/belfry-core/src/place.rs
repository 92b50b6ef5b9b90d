//! Which node a run goes to: a pure function of the job, the nodes and what they do, which also says why not the others.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::job::{Placement, Select};
use crate::{Incarnation, NodeId, RunId};

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
    /// Smooth weighted round robin's running sum; kept by the caller between calls.
    pub credit: i64,
}

/// Why a node was not chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyNot {
    NotConnected,
    Draining,
    Excluded,
    ExcludedByJob,
    HostNotSelected,
    LabelsDiffer,
    ClockOff,
    NoFreeSlot,
    NoWeight,
    /// For ever: a refusal is remembered.
    RefusedIt,
}

impl WhyNot {
    pub fn in_words(self) -> &'static str {
        match self {
            WhyNot::NotConnected => "not connected",
            WhyNot::Draining => "draining",
            WhyNot::Excluded => "excluded",
            WhyNot::ExcludedByJob => "excluded by the job's select.exclude",
            WhyNot::HostNotSelected => "not in the job's select.hosts",
            WhyNot::LabelsDiffer => "labels differ from the job's select.labels",
            WhyNot::ClockOff => "its clock is off",
            WhyNot::NoFreeSlot => "no free slot",
            WhyNot::NoWeight => "its weight is 0",
            WhyNot::RefusedIt => "it refused the run",
        }
    }
}

/// The choice, or why each node was unfit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placed {
    /// Index into the candidates.
    On(usize),
    Nowhere(Vec<(String, WhyNot)>),
}

impl Placed {
    /// One sentence for a record, at most a few nodes long.
    pub fn why_nowhere(unfit: &[(String, WhyNot)]) -> String {
        const NAMED_MAX: usize = 5;
        if unfit.is_empty() {
            return "no node has joined".to_owned();
        }
        let mut parts: Vec<String> =
            unfit.iter().take(NAMED_MAX).map(|(name, why)| format!("{name}: {}", why.in_words())).collect();
        if unfit.len() > NAMED_MAX {
            parts.push(format!("and {} more", unfit.len() - NAMED_MAX));
        }
        format!("no node could take it ({})", parts.join("; "))
    }
}

/// Chooses among the fit nodes; one with a free slot before one where the run would wait for a slot.
/// Only `weighted` changes the candidates: their credit.
pub fn place(
    select: &Select,
    rule: Placement,
    run: RunId,
    wanted: Option<NodeId>,
    refused_by: &[(NodeId, Incarnation)],
    candidates: &mut [&mut Candidate],
) -> Placed {
    let why_not = |node: &Candidate| {
        let refused = refused_by.contains(&(node.id, node.incarnation));
        if refused { Some(WhyNot::RefusedIt) } else { why_unfit(select, wanted, node) }
    };
    let unfit: Vec<Option<WhyNot>> = candidates.iter().map(|node| why_not(node)).collect();
    let mut fit: Vec<usize> = (0..candidates.len()).filter(|i| unfit[*i].is_none()).collect();
    if fit.iter().any(|i| candidates[*i].load < candidates[*i].slots) {
        fit.retain(|i| candidates[*i].load < candidates[*i].slots);
    }
    if fit.is_empty() {
        let reasons = candidates.iter().zip(unfit).filter_map(|(node, why)| Some((node.name.clone(), why?)));
        return Placed::Nowhere(reasons.collect());
    }
    let chosen = match rule {
        // A sticky job without a last node is placed as any other.
        Placement::Weighted | Placement::Sticky => smooth_weighted(&fit, candidates),
        Placement::Least => fit.iter().copied().min_by_key(|i| {
            let node = &candidates[*i];
            (u64::from(node.load) * 1_000_000 / u64::from(node.weight.max(1)), node.id)
        }),
        Placement::Random => by_score(&fit, candidates, |node| score(run.as_u128(), node)),
        Placement::Hash => by_score(&fit, candidates, |node| score(run.as_u128() >> 80, node)),
    };
    Placed::On(chosen.expect("fit is not empty"))
}

fn why_unfit(select: &Select, wanted: Option<NodeId>, node: &Candidate) -> Option<WhyNot> {
    let is = |name: &String| *name == node.name || *name == node.id.to_string();
    if !node.connected {
        Some(WhyNot::NotConnected)
    } else if node.excluded {
        Some(WhyNot::Excluded)
    } else if node.draining {
        Some(WhyNot::Draining)
    } else if wanted.is_some_and(|wanted| wanted != node.id)
        || (!select.hosts.is_empty() && !select.hosts.iter().any(is))
    {
        Some(WhyNot::HostNotSelected)
    } else if select.exclude.iter().any(is) {
        Some(WhyNot::ExcludedByJob)
    } else if select.labels.iter().any(|(key, value)| node.labels.get(key) != Some(value)) {
        Some(WhyNot::LabelsDiffer)
    } else if node.clock_off {
        Some(WhyNot::ClockOff)
    } else if node.weight == 0 {
        Some(WhyNot::NoWeight)
    } else if node.load >= node.slots.saturating_add(node.backlog) {
        Some(WhyNot::NoFreeSlot)
    } else {
        None
    }
}

/// Each node earns its weight, the richest is chosen and pays the sum: proportional, and never the same node in a row when
/// another is due.
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

fn by_score(fit: &[usize], candidates: &[&mut Candidate], score: impl Fn(&Candidate) -> f64) -> Option<usize> {
    fit.iter().copied().max_by(|a, b| score(candidates[*a]).total_cmp(&score(candidates[*b])))
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
mod tests {
    use super::*;

    fn node(n: u32) -> Candidate {
        Candidate {
            id: NodeId::from_u128(u128::from(n)),
            name: format!("n{n}"),
            incarnation: Incarnation(1),
            labels: BTreeMap::from([("zone".to_owned(), if n.is_multiple_of(2) { "a" } else { "b" }.to_owned())]),
            weight: n,
            slots: 10,
            backlog: 10,
            load: 0,
            connected: true,
            draining: false,
            excluded: false,
            clock_off: false,
            credit: 0,
        }
    }

    fn at(select: &Select, rule: Placement, run: RunId, nodes: &mut [Candidate]) -> Placed {
        place(select, rule, run, None, &[], &mut nodes.iter_mut().collect::<Vec<_>>())
    }

    fn share(rule: Placement) -> Vec<f64> {
        let mut nodes: Vec<_> = (1..=10).map(node).collect();
        let mut counts = vec![0u32; nodes.len()];
        const RUNS: u32 = 55_000;
        for n in 0..RUNS {
            let run = RunId::from_u128(u128::from(n) << 80 | u128::from(n));
            match at(&Select::default(), rule, run, &mut nodes) {
                Placed::On(i) => counts[i] += 1,
                Placed::Nowhere(why) => panic!("{why:?}"),
            }
        }
        counts
            .iter()
            .zip(1..)
            .map(|(count, weight)| f64::from(*count) * 55.0 / f64::from(RUNS) / f64::from(weight))
            .collect()
    }

    #[test]
    fn runs_are_spread_in_proportion_to_weight() {
        for part in share(Placement::Weighted) {
            assert!((part - 1.0).abs() < 0.001, "{part}");
        }
        for rule in [Placement::Random, Placement::Hash] {
            for part in share(rule) {
                assert!((part - 1.0).abs() < 0.1, "{rule:?}: {part}");
            }
        }
    }

    #[test]
    fn least_takes_the_one_with_the_least_work_for_its_weight() {
        let mut nodes = vec![node(1), node(4)];
        nodes[0].load = 1;
        nodes[1].load = 3;
        assert_eq!(at(&Select::default(), Placement::Least, RunId::from_u128(1), &mut nodes), Placed::On(1));
        nodes[1].load = 5;
        assert_eq!(at(&Select::default(), Placement::Least, RunId::from_u128(1), &mut nodes), Placed::On(0));
    }

    #[test]
    fn a_free_slot_comes_before_waiting_for_one() {
        let mut nodes = vec![node(1), node(9)];
        nodes[1].load = 10;
        assert_eq!(at(&Select::default(), Placement::Weighted, RunId::from_u128(1), &mut nodes), Placed::On(0));
        nodes[0].load = 20;
        assert_eq!(at(&Select::default(), Placement::Weighted, RunId::from_u128(1), &mut nodes), Placed::On(1));
    }

    #[test]
    fn every_unfit_node_has_its_reason() {
        let mut nodes: Vec<_> = (1..=9).map(node).collect();
        nodes[0].connected = false;
        nodes[1].draining = true;
        nodes[2].excluded = true;
        nodes[3].clock_off = true;
        nodes[4].weight = 0;
        nodes[5].load = 20;
        let select = Select {
            hosts: (1..=8).map(|n| format!("n{n}")).collect(),
            labels: BTreeMap::new(),
            exclude: vec!["n7".into(), "n8".into()],
        };
        let Placed::Nowhere(why) = at(&select, Placement::Weighted, RunId::from_u128(1), &mut nodes) else { panic!() };
        use WhyNot::*;
        let reasons: Vec<_> = why.iter().map(|(_, why)| *why).collect();
        assert_eq!(
            reasons,
            [
                NotConnected,
                Draining,
                Excluded,
                ClockOff,
                NoWeight,
                NoFreeSlot,
                ExcludedByJob,
                ExcludedByJob,
                HostNotSelected
            ]
        );
        assert!(Placed::why_nowhere(&why).contains("n1: not connected; n2: draining"));
        assert_eq!(Placed::why_nowhere(&[]), "no node has joined");
        let labels = Select { labels: BTreeMap::from([("zone".into(), "c".into())]), ..Select::default() };
        assert!(
            matches!(at(&labels, Placement::Weighted, RunId::from_u128(1), &mut [node(1)]), Placed::Nowhere(w) if w[0].1 == LabelsDiffer)
        );
    }
}
