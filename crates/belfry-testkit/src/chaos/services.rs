//! Services under faults, as a witness outside of the system sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::client::Client;
use crate::holding::{Holding, Holdings};
use crate::until::{now, until_within};

/// More than there are nodes, so that most faults of a node hit one.
const SERVICES: usize = 6;
const LONGEST_TOLD: usize = 5;
const BEGIN_PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Services {
    names: Vec<String>,
    witness: Holdings,
}

#[derive(Clone, Debug)]
struct Instance {
    service: String,
    run: String,
    node: String,
    fence: u64,
    from: Timestamp,
    to: Option<Timestamp>,
}

/// A time in which nobody could have started anything.
pub(super) struct Standstill {
    pub(super) from: Timestamp,
    pub(super) healed: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) starts: usize,
    /// Starts on another node than the one before.
    pub(super) moves: usize,
    /// Two at once, a fence that did not grow, one that does not run.
    pub(super) broken: Vec<String>,
    /// Between an end and the next start; where nothing could start, from the heal on.
    pub(super) absences: Vec<Duration>,
    /// The same, in words.
    pub(super) longest: BTreeMap<Duration, String>,
}

impl Services {
    pub(super) async fn add(client: &Client) -> Self {
        let witness = Holdings::listen().await;
        let names: Vec<String> = (0..SERVICES).map(|n| format!("service{n}")).collect();
        for name in &names {
            let hold = witness.hold(&format!("$BELFRY_RUN_ID $BELFRY_FENCE $BELFRY_NODE {name}"));
            let document = json!({
                "name": name,
                "action": {"service": {"command": format!("{hold} && exec sleep 100000"), "stop_grace": "1s"}},
            });
            client.post("/jobs", document).await;
        }
        Self { names, witness }
    }

    /// True if all of them run.
    pub(super) async fn until_all_run(&self) -> bool {
        until_within(BEGIN_PATIENCE, async || self.names.iter().all(|name| self.runs(name)).then_some(()))
            .await
            .is_some()
    }

    fn runs(&self, name: &str) -> bool {
        self.of(name).iter().any(|instance| instance.to.is_none())
    }

    /// On which any of them runs.
    pub(super) fn nodes(&self) -> BTreeSet<String> {
        let lives = |instance: &Instance| instance.to.is_none();
        self.instances().into_iter().filter(lives).map(|instance| instance.node).collect()
    }

    fn of(&self, name: &str) -> Vec<Instance> {
        self.instances().into_iter().filter(|instance| instance.service == name).collect()
    }

    fn instances(&self) -> Vec<Instance> {
        self.witness.all().iter().filter_map(Instance::of).collect()
    }

    pub(super) async fn pause(&self, client: &Client) {
        for name in &self.names {
            client.post(&format!("/jobs/default/{name}/pause"), json!({})).await;
        }
    }

    /// What was seen up to now.
    pub(super) fn judge(&self, standstills: &[Standstill]) -> Seen {
        let mut seen = Seen::default();
        self.names.iter().for_each(|name| seen.judge(name, &self.of(name), standstills));
        seen
    }
}

impl Instance {
    fn of(holding: &Holding) -> Option<Self> {
        let [run, fence, node, service] = &holding.words[..] else { return None };
        let (service, run, node) = (service.clone(), run.clone(), node.clone());
        Some(Self { service, run, node, fence: fence.parse().ok()?, from: holding.from, to: holding.to })
    }
}

impl Seen {
    fn judge(&mut self, name: &str, instances: &[Instance], standstills: &[Standstill]) {
        self.starts += instances.len();
        self.moves += instances.windows(2).filter(|pair| pair[0].node != pair[1].node).count();
        for (n, one) in instances.iter().enumerate() {
            let beside = instances[n + 1..].iter().find(|later| one.to.is_none_or(|to| later.from < to));
            if let Some(later) = beside {
                let end = one.to.unwrap_or_else(now).min(later.to.unwrap_or_else(now));
                let both = end.duration_since(later.from);
                self.broken.push(format!("{name} ran twice for {both:#}: {} and {}", one.run, later.run));
            }
            let Some((to, next)) = one.to.zip(instances.get(n + 1)) else { continue };
            if next.fence <= one.fence {
                self.broken.push(format!("{name}: the fence of {} is not above that of {}", next.run, one.run));
            }
            let could_start = |at: Timestamp, still: &Standstill| {
                if still.from < next.from && still.healed > at { still.healed } else { at }
            };
            let from = standstills.iter().fold(to, could_start);
            let absent = next.from.duration_since(from).max(SignedDuration::ZERO);
            let absent = Duration::try_from(absent).unwrap_or_default();
            self.absences.push(absent);
            self.longest.insert(absent, format!("{name} from {to} ({}) to {} ({})", one.run, next.from, next.run));
            if self.longest.len() > LONGEST_TOLD {
                self.longest.pop_first();
            }
        }
        if instances.iter().all(|instance| instance.to.is_some()) {
            self.broken.push(format!("{name} does not run at the end"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn instance(node: &str, from: i64, to: Option<i64>, fence: u64) -> Instance {
        let (service, run, node) = ("s".to_owned(), format!("r{from}"), node.to_owned());
        Instance { service, run, node, fence, from: at(from), to: to.map(at) }
    }

    fn judged(instances: &[(i64, Option<i64>, u64)], standstills: &[Standstill]) -> Seen {
        let one = |(from, to, fence): &(i64, Option<i64>, u64)| instance("a0", *from, *to, *fence);
        let mut seen = Seen::default();
        seen.judge("s", &instances.iter().map(one).collect::<Vec<_>>(), standstills);
        seen
    }

    #[test]
    fn a_start_on_another_node_than_the_one_before_is_a_move() {
        let mut seen = Seen::default();
        let nodes = ["a0", "a0", "a1", "a0", "a2", "a2"];
        let instances = (1..).zip(nodes).map(|(n, node)| instance(node, 10 * n, Some(10 * n + 5), n as u64));
        seen.judge("s", &instances.collect::<Vec<_>>(), &[]);
        // Another service on another node is none.
        seen.judge("t", &[instance("a3", 1, None, 1)], &[]);
        assert_eq!((seen.starts, seen.moves), (7, 3));
    }

    #[test]
    fn two_at_once_a_fence_that_stands_still_and_one_that_is_gone_are_seen() {
        let good = judged(&[(1, Some(5), 1), (8, None, 2)], &[]);
        assert!(good.broken.is_empty(), "{:?}", good.broken);
        assert_eq!((good.starts, good.absences), (2, vec![Duration::from_secs(3)]));
        for wrong in [
            [(1, Some(5), 1), (4, None, 2)],
            [(1, None, 1), (4, None, 2)],
            [(1, Some(5), 2), (6, None, 2)],
            [(1, Some(5), 1), (6, Some(7), 2)],
        ] {
            assert_eq!(judged(&wrong, &[]).broken.len(), 1, "{wrong:?}");
        }
    }

    #[test]
    fn where_nothing_could_start_absence_counts_from_the_heal() {
        let standstill = Standstill { from: at(4), healed: at(18) };
        let seen = judged(&[(1, Some(5), 1), (20, None, 2)], &[standstill]);
        assert_eq!(seen.absences, [Duration::from_secs(2)]);
    }
}
