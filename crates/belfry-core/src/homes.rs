//! Which node is the home of a job (`run_on: home`): a pure function of the jobs, the nodes and the homes as they are. A home stays
//! where it is unless its node is gone or not meant any more, or the nodes are out of balance; and one that lives is first asked
//! to let go.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::job::{Placement, Select};
use crate::place::{Candidate, could_have, why_not_selected};
use crate::room::Amounts;
use crate::{JobId, NodeId};

/// Moves for the sake of balance in one pass.
pub const BALANCING_MOVES_MAX: usize = 4;

/// What the coordinator keeps of a job's home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    /// None: nobody fires it at the moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// It has been asked to let go, and fires nothing more once it hears of it.
    #[serde(default, skip_serializing_if = "is_no")]
    pub leaving: bool,
    /// The fires after this instant are the home's, in milliseconds.
    pub from_ms: i64,
    /// The job was once taken from a node that was held dead: what that home ran after this instant may have run twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contested_from_ms: Option<i64>,
    /// Up to this term homes were held dead; the ones since have let go when they were asked. None: written by an older Belfry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub contested_to: Option<u64>,
}

impl Home {
    /// Of a fire that `node` made under `term`, where the home is this one, with `own_term`, now: another node may have made it too.
    pub fn may_have_run_twice(&self, own_term: u64, node: NodeId, term: u64, planned_ms: i64) -> bool {
        let was_held_dead = match self.contested_to {
            Some(last) => term <= last,
            None => self.node != Some(node) && own_term > term,
        };
        was_held_dead && self.contested_from_ms.is_some_and(|from| planned_ms > from)
    }
}

fn is_no(value: &bool) -> bool {
    !*value
}

/// A job that wants a home.
#[derive(Clone, Debug)]
pub struct Homeless {
    pub job: JobId,
    pub select: Select,
    /// A home must have so much in all; its runs wait there until it is free.
    pub needs: Amounts,
    pub placement: Placement,
}

/// A node as it is for homes.
#[derive(Clone, Debug)]
pub struct Dwelling {
    pub node: Candidate,
    /// Its heartbeat goes on. One that is only cut off is held dead after a TTL, and then its homes are given away.
    pub alive: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Nobody has it, or whoever had it is gone.
    Assign { job: JobId, node: NodeId },
    /// Its node lives and is to let go; when it has said so, the job is assigned.
    Release { job: JobId },
}

/// What to change now. The same facts give the same moves.
pub fn plan(jobs: &[Homeless], nodes: &[Dwelling], homes: &HashMap<JobId, Home>) -> Vec<Move> {
    let mut counts: BTreeMap<NodeId, u64> = nodes.iter().filter(|it| it.alive).map(|it| (it.node.id, 0)).collect();
    let settled = |job: &Homeless| homes.get(&job.job).filter(|home| !home.leaving).and_then(|home| home.node);
    for node in jobs.iter().filter_map(settled) {
        counts.entry(node).and_modify(|count| *count += 1);
    }
    let mut moves = Vec::new();
    let mut placed: Vec<(&Homeless, NodeId)> = Vec::new();
    for job in jobs {
        let home = homes.get(&job.job);
        let lives_at =
            home.and_then(|home| home.node).and_then(|id| nodes.iter().find(|it| it.node.id == id && it.alive));
        match (home, lives_at) {
            (Some(home), Some(_)) if home.leaving => {}
            (_, Some(it)) if is_fit(job, it) => placed.push((job, it.node.id)),
            (_, Some(it)) => {
                counts.entry(it.node.id).and_modify(|count| *count -= 1);
                moves.push(Move::Release { job: job.job });
            }
            (_, None) => {
                if let Some(node) = emptiest(job, nodes, &counts) {
                    *counts.entry(node).or_default() += 1;
                    moves.push(Move::Assign { job: job.job, node });
                }
            }
        }
    }
    balance(&placed, nodes, &mut counts, &mut moves);
    moves
}

/// A job moves if its node has more than the other would have with it, for its weight.
fn balance(
    placed: &[(&Homeless, NodeId)],
    nodes: &[Dwelling],
    counts: &mut BTreeMap<NodeId, u64>,
    moves: &mut Vec<Move>,
) {
    let weight = |id: NodeId| nodes.iter().find(|it| it.node.id == id).map_or(1, |it| u64::from(it.node.weight.max(1)));
    let mut left = BALANCING_MOVES_MAX;
    for (job, from) in placed {
        if left == 0 {
            return;
        }
        if matches!(job.placement, Placement::Sticky(_)) {
            continue;
        }
        let Some(to) = emptiest(job, nodes, counts).filter(|to| to != from) else { continue };
        if counts[from] * weight(to) > (counts[&to] + 1) * weight(*from) {
            counts.entry(*from).and_modify(|count| *count -= 1);
            counts.entry(to).and_modify(|count| *count += 1);
            moves.push(Move::Release { job: job.job });
            left -= 1;
        }
    }
}

fn is_fit(job: &Homeless, it: &Dwelling) -> bool {
    it.alive
        && it.node.weight > 0
        && why_not_selected(&job.select, &it.node).is_none()
        && could_have(job.needs, &it.node)
}

/// The node that would have least for its weight with one more; one whose clock is off gets none.
fn emptiest(job: &Homeless, nodes: &[Dwelling], counts: &BTreeMap<NodeId, u64>) -> Option<NodeId> {
    let fit = nodes.iter().filter(|it| is_fit(job, it) && !it.node.clock_off);
    let filled = |it: &&Dwelling| {
        let with_it = counts.get(&it.node.id).copied().unwrap_or(0) + 1;
        (with_it * 1_000_000 / u64::from(it.node.weight), it.node.id)
    };
    fit.min_by_key(filled).map(|it| it.node.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;

    fn node(number: u128, weight: u32) -> Dwelling {
        let node = Candidate {
            id: NodeId::from_u128(number),
            name: format!("n{number}"),
            incarnation: Incarnation(1),
            labels: BTreeMap::new(),
            weight,
            slots: 1,
            backlog: 0,
            load: 0,
            connected: true,
            draining: false,
            excluded: false,
            clock_off: false,
            spool_full: false,
            disk_low: false,
            room: None,
            credit: 0,
        };
        Dwelling { node, alive: true }
    }

    fn jobs(count: u128) -> Vec<Homeless> {
        let job = |n| Homeless {
            job: JobId::from_u128(n),
            select: Select::default(),
            needs: Amounts::NONE,
            placement: Placement::Weighted,
        };
        (1..=count).map(job).collect()
    }

    /// Carries moves out as the leader and the nodes do, until there are none. Says how many moves each pass had.
    fn settle(jobs: &[Homeless], nodes: &[Dwelling], homes: &mut HashMap<JobId, Home>) -> Vec<usize> {
        let mut passes = Vec::new();
        for _ in 0..1000 {
            let moves = plan(jobs, nodes, homes);
            if moves.is_empty() {
                return passes;
            }
            passes.push(moves.len());
            for step in moves {
                match step {
                    Move::Assign { job, node } => {
                        homes.insert(job, Home { node: Some(node), ..Home::default() });
                    }
                    Move::Release { job } => {
                        homes.insert(job, Home::default());
                    }
                }
            }
        }
        panic!("it never settles: {passes:?}");
    }

    fn per_node(homes: &HashMap<JobId, Home>) -> BTreeMap<u128, usize> {
        let mut counts = BTreeMap::new();
        for node in homes.values().filter_map(|home| home.node) {
            *counts.entry(node.as_u128()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn homes_are_shared_by_weight_and_balanced_within_one_after_a_node_joins() {
        let jobs = jobs(100);
        let mut homes = HashMap::new();
        settle(&jobs, &[node(1, 1), node(2, 1)], &mut homes);
        assert_eq!(per_node(&homes), BTreeMap::from([(1, 50), (2, 50)]));
        let passes = settle(&jobs, &[node(1, 1), node(2, 1), node(3, 1)], &mut homes);
        let counts = per_node(&homes);
        assert!(counts.values().all(|count| (33..=34).contains(count)), "{counts:?}");
        assert!(passes.iter().all(|moves| *moves <= 2 * BALANCING_MOVES_MAX), "a few at a time: {passes:?}");
        let mut homes = HashMap::new();
        settle(&jobs, &[node(1, 1), node(2, 3)], &mut homes);
        assert_eq!(per_node(&homes), BTreeMap::from([(1, 25), (2, 75)]));
    }

    #[test]
    fn a_dead_nodes_homes_are_given_away_and_nothing_else_moves() {
        let jobs = jobs(9);
        let mut homes = HashMap::new();
        let mut nodes = [node(1, 1), node(2, 1), node(3, 1)];
        settle(&jobs, &nodes, &mut homes);
        let before = homes.clone();
        nodes[2].alive = false;
        settle(&jobs, &nodes, &mut homes);
        let moved = |job: &&JobId| before[job].node != homes[job].node;
        assert_eq!(homes.keys().filter(moved).count(), 3, "only what the dead node had");
        assert!(homes.values().all(|home| home.node != Some(NodeId::from_u128(3))));
    }

    #[test]
    fn a_home_that_lives_is_asked_before_it_is_moved() {
        let jobs = jobs(1);
        let mut nodes = [node(1, 1), node(2, 1)];
        let job = jobs[0].job;
        let here = Home { node: Some(NodeId::from_u128(1)), ..Home::default() };
        let homes = HashMap::from([(job, here)]);
        assert!(plan(&jobs, &nodes, &homes).is_empty());
        nodes[0].node.draining = true;
        assert_eq!(plan(&jobs, &nodes, &homes), [Move::Release { job }]);
        let leaving = HashMap::from([(job, Home { leaving: true, ..here })]);
        assert!(plan(&jobs, &nodes, &leaving).is_empty(), "until it has said that it let go");
        nodes[0].alive = false;
        assert_eq!(plan(&jobs, &nodes, &leaving), [Move::Assign { job, node: NodeId::from_u128(2) }]);
        nodes[1].node.excluded = true;
        assert!(plan(&jobs, &nodes, &leaving).is_empty(), "there is nobody");
    }

    #[test]
    fn what_a_home_that_was_held_dead_ran_may_have_run_twice_and_nothing_else() {
        let [first, other] = [1, 2].map(NodeId::from_u128);
        let home = Home { node: Some(other), contested_from_ms: Some(1000), contested_to: Some(5), ..Home::default() };
        assert!(home.may_have_run_twice(9, first, 5, 2000));
        assert!(!home.may_have_run_twice(9, first, 5, 1000), "it was known before it was taken from it");
        assert!(!home.may_have_run_twice(9, other, 9, 2000));
        let back_again = Home { node: Some(first), ..home };
        assert!(back_again.may_have_run_twice(12, first, 5, 2000), "although it is the home again");
        assert!(!back_again.may_have_run_twice(12, other, 9, 2000), "it let go when it was asked, long after");
        let written_before = Home { contested_to: None, ..home };
        assert!(written_before.may_have_run_twice(9, first, 5, 2000));
    }

    #[test]
    fn a_home_has_in_all_what_the_job_needs_and_need_not_have_it_free() {
        let has = |memory| Amounts { memory, ..Amounts::NONE };
        let with = |number, total| {
            let mut it = node(number, 1);
            it.node.room = Some(crate::room::Room { total: has(total), free: has(0) });
            it
        };
        let mut jobs = jobs(4);
        jobs.iter_mut().for_each(|job| job.needs = has(8));
        let mut homes = HashMap::new();
        settle(&jobs, &[with(1, 7), with(2, 8)], &mut homes);
        assert_eq!(per_node(&homes), BTreeMap::from([(2, 4)]));
        assert!(plan(&jobs, &[with(1, 7)], &HashMap::new()).is_empty(), "there is nobody");
    }

    #[test]
    fn a_sticky_home_is_not_moved_for_balance() {
        let mut jobs = jobs(8);
        jobs.iter_mut().for_each(|job| job.placement = Placement::Sticky(crate::job::STICKY_DEFAULT));
        let mut homes = HashMap::new();
        settle(&jobs, &[node(1, 1)], &mut homes);
        assert!(plan(&jobs, &[node(1, 1), node(2, 1)], &homes).is_empty());
    }
}
