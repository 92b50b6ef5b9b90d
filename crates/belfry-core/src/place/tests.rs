use std::collections::HashMap;

use super::*;
use crate::id::Slot;
use crate::units::Span;

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
        spool_full: false,
        disk_low: false,
        room: None,
        credit: 0,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The run of this job at this second.
fn asked(rule: Placement, job: u128, second: i64) -> Asked<'static> {
    static ANY: Select = Select { hosts: Vec::new(), labels: BTreeMap::new(), exclude: Vec::new() };
    let job = JobId::from_u128(job);
    Asked {
        job,
        run: RunId::of(job, at(second), Slot::Only),
        planned: at(second),
        select: &ANY,
        needs: Amounts::NONE,
        rule,
        wanted: None,
        refused_by: &[],
        last: None,
        named_max: NAMED_IN_RECORDS,
        takes_slot: true,
    }
}

fn decide(asked: &Asked<'_>, nodes: &mut [Candidate]) -> (Option<usize>, Decision) {
    place(asked, &mut nodes.iter_mut().collect::<Vec<_>>())
}

fn chosen(asked: &Asked<'_>, nodes: &mut [Candidate]) -> Option<u32> {
    decide(asked, nodes).0.map(|i| nodes[i].weight)
}

/// How much of its share each of ten nodes of weight 1 to 10 gets; 1 is exactly its share.
fn shares(rule: Placement, runs: u32) -> Vec<f64> {
    let mut nodes: Vec<_> = (1..=10).map(node).collect();
    let mut counts = vec![0u32; nodes.len()];
    for n in 0..runs {
        counts[decide(&asked(rule, u128::from(n), i64::from(n)), &mut nodes).0.unwrap()] += 1;
    }
    shares_of(&counts)
}

fn shares_of(counts: &[u32]) -> Vec<f64> {
    let runs: u32 = counts.iter().sum();
    counts
        .iter()
        .zip(1..)
        .map(|(count, weight)| f64::from(*count) * 55.0 / f64::from(runs) / f64::from(weight))
        .collect()
}

#[test]
fn runs_are_spread_in_proportion_to_weight() {
    for part in shares(Placement::Weighted, 55_000) {
        assert!((part - 1.0).abs() < 0.001, "{part}");
    }
    for rule in [Placement::Random, Placement::Hash] {
        for part in shares(rule, 55_000) {
            assert!((part - 1.0).abs() < 0.1, "{rule:?}: {part}");
        }
    }
}

/// Three servers go round apart from each other; each has some of the shards, and a job that fires rarely comes to whichever has it.
#[test]
fn servers_that_place_apart_stay_in_proportion_within_two_percent() {
    const JOBS: u128 = 500;
    const FIRES: i64 = 20;
    let mut servers: Vec<Vec<Candidate>> = (0..3).map(|_| (1..=10).map(node).collect()).collect();
    let mut counts = vec![0u32; 10];
    for second in 0..FIRES {
        for job in 0..JOBS {
            let asked = asked(Placement::Weighted, job, second * 86_400);
            // One of the servers is started again every few days and goes round from the beginning.
            let server = usize::from(asked.job.shard().0) % 3;
            if job == 0 && second % 5 == 0 {
                servers[server] = (1..=10).map(node).collect();
            }
            counts[decide(&asked, &mut servers[server]).0.unwrap()] += 1;
        }
    }
    for part in shares_of(&counts) {
        assert!((part - 1.0).abs() < 0.02, "{part}: {counts:?}");
    }
}

/// Jobs that may go to a few nodes only do not unsettle the others for long.
#[test]
fn selections_that_overlap_leave_every_selection_its_proportion() {
    let mut nodes: Vec<_> = (1..=10).map(node).collect();
    let few = Select { hosts: vec!["n1".into(), "n10".into()], ..Select::default() };
    let mut counts: HashMap<(bool, u32), u32> = HashMap::new();
    for n in 0..30_000 {
        let all = asked(Placement::Weighted, n, 0);
        let is_few = n % 3 == 0;
        let asked = if is_few { Asked { select: &few, ..all } } else { all };
        *counts.entry((is_few, chosen(&asked, &mut nodes).unwrap())).or_default() += 1;
    }
    assert!(
        nodes.iter().all(|node| node.credit.abs() < 200),
        "{:?}",
        nodes.iter().map(|n| n.credit).collect::<Vec<_>>()
    );
    assert!(counts[&(true, 1)] > 0 && counts[&(true, 10)] > counts[&(true, 1)]);
    assert!((2..=9).all(|weight| counts[&(false, weight)] > 0));
}

#[test]
fn a_job_placed_by_hash_keeps_its_node_and_jobs_of_one_instant_are_spread() {
    let mut nodes: Vec<_> = (1..=10).map(node).collect();
    let home = |job| chosen(&asked(Placement::Hash, job, 0), &mut (1..=10).map(node).collect::<Vec<_>>());
    for job in 0..100 {
        for second in 1..20 {
            assert_eq!(chosen(&asked(Placement::Hash, job, second), &mut nodes), home(job), "job {job}");
        }
    }
    let used: std::collections::BTreeSet<_> = (0..100).map(home).collect();
    assert!(used.len() > 7, "{used:?}");
    // A node that leaves moves only what it had.
    nodes[9].connected = false;
    for job in (0..100).filter(|job| home(*job) != Some(10)) {
        assert_eq!(chosen(&asked(Placement::Hash, job, 0), &mut nodes), home(job));
    }
}

#[test]
fn a_sticky_job_stays_for_its_time_as_long_as_its_node_can_take_it() {
    let mut nodes: Vec<_> = (1..=4).map(node).collect();
    let sticky = Placement::Sticky(Span::from_secs(600));
    let last = |second| Some(LastNode { node: NodeId::from_u128(2), planned: at(second) });
    let first = asked(sticky, 1, 0);
    let (node, decision) = decide(&first, &mut nodes);
    assert_eq!((node, decision.by), (Some(3), By::Anew), "without a last node, by weight");
    for second in [1, 600] {
        let (node, decision) = decide(&Asked { last: last(0), ..asked(sticky, 1, second) }, &mut nodes);
        assert_eq!((node, decision.by), (Some(1), By::LastNode), "{second}");
    }
    assert_eq!(decide(&Asked { last: last(0), ..asked(sticky, 1, 601) }, &mut nodes).1.by, By::Anew);
    // Full while others are free, or unfit.
    nodes[1].load = 10;
    let (node, decision) = decide(&Asked { last: last(0), ..asked(sticky, 1, 1) }, &mut nodes);
    assert!(node != Some(1) && decision.by == By::Anew && decision.unfit[0].why == WhyNot::SlotsTaken);
    nodes[1] = Candidate { draining: true, ..nodes[1].clone() };
    assert_ne!(decide(&Asked { last: last(0), ..asked(sticky, 1, 1) }, &mut nodes).0, Some(1));
    // Other rules have no memory.
    nodes[1] = self::node(2);
    assert_ne!(decide(&Asked { last: last(0), ..asked(Placement::Weighted, 1, 1) }, &mut nodes).1.by, By::LastNode);
}

#[test]
fn least_takes_the_one_with_the_least_work_for_its_weight() {
    let mut nodes = vec![node(1), node(4)];
    nodes[0].load = 1;
    nodes[1].load = 3;
    assert_eq!(chosen(&asked(Placement::Least, 1, 0), &mut nodes), Some(4));
    nodes[1].load = 5;
    assert_eq!(chosen(&asked(Placement::Least, 1, 0), &mut nodes), Some(1));
}

#[test]
fn a_free_slot_comes_before_waiting_for_one() {
    let mut nodes = vec![node(1), node(9)];
    nodes[1].load = 10;
    assert_eq!(chosen(&asked(Placement::Weighted, 1, 0), &mut nodes), Some(1));
    nodes[0].load = 20;
    assert_eq!(chosen(&asked(Placement::Weighted, 1, 0), &mut nodes), Some(9));
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
        hosts: (1..=8).map(|n| format!("n{n}")).chain(["elsewhere".to_owned()]).collect(),
        labels: BTreeMap::new(),
        exclude: vec!["n7".into(), "n8".into()],
    };
    let (nowhere, decision) = decide(&Asked { select: &select, ..asked(Placement::Weighted, 1, 0) }, &mut nodes);
    assert_eq!((nowhere, decision.fit), (None, 0));
    assert_eq!(
        decision.why_nowhere(),
        "no node can take it (n1: not connected; n2: draining; n3: excluded; n4: its clock is off; n5: its weight is 0; \
         n6: no free slot; n7, n8: excluded by the job's select.exclude; n9: not in the job's select.hosts; \
         elsewhere: in select.hosts, and no node of that name has joined)"
    );
    let labels = Select { labels: BTreeMap::from([("zone".into(), "c".into())]), ..Select::default() };
    let (nowhere, decision) = decide(&Asked { select: &labels, ..asked(Placement::Weighted, 1, 0) }, &mut [node(1)]);
    assert!(nowhere.is_none() && decision.unfit[0].why == WhyNot::LabelsDiffer);
    let wanted = Asked { wanted: Some(NodeId::from_u128(9)), ..asked(Placement::Weighted, 1, 0) };
    assert_eq!(decide(&wanted, &mut [node(1)]).1.unfit[0].why, WhyNot::AnotherAskedFor);
    assert_eq!(decide(&asked(Placement::Weighted, 1, 0), &mut []).1.why_nowhere(), "no node has joined");
}

#[test]
fn what_is_kept_of_a_decision_does_not_grow_with_the_nodes() {
    let mut nodes: Vec<_> = (1..=1000).map(node).collect();
    for (n, node) in nodes.iter_mut().enumerate() {
        node.name = "x".repeat(500);
        match n % 5 {
            0 => node.draining = true,
            1 => node.connected = false,
            2 => node.excluded = true,
            3 => node.clock_off = true,
            _ => {}
        }
    }
    let (_, decision) = decide(&asked(Placement::Least, 1, 0), &mut nodes);
    assert_eq!((decision.fit, decision.unfit.len()), (200, 4));
    assert!(decision.unfit.iter().all(|unfit| unfit.count == 200 && unfit.some.len() == 3));
    assert!(decision.unfit[0].in_words().ends_with(" and 197 more: draining"));
    let text = serde_json::to_string(&decision).unwrap();
    assert!(text.len() < 1500, "{}", text.len());
    assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision);
    let (_, plain) = decide(&asked(Placement::Weighted, 1, 0), &mut [node(1)]);
    assert_eq!(serde_json::to_string(&plain).unwrap(), r#"{"by":"weighted","f":1}"#);
}

#[test]
fn a_run_goes_where_its_needs_are_free_and_every_other_node_says_what_it_has() {
    const GIB: u64 = 1 << 30;
    let with = |n: u32, total: u64, free: u64| {
        let amounts = |gib: u64| Amounts { memory: gib * GIB, milli_cpus: 4000, disk: 100 * GIB };
        Candidate { room: Some(Room { total: amounts(total), free: amounts(free) }), ..node(n) }
    };
    let mut nodes = vec![with(1, 8, 3), with(2, 8, 1), with(3, 1, 1), node(4), with(5, 8, 8)];
    nodes[4].disk_low = true;
    let needs = Amounts { memory: 2 * GIB, ..Amounts::NONE };
    let wants = Asked { needs, ..asked(Placement::Weighted, 1, 0) };
    let (chosen, decision) = decide(&wants, &mut nodes);
    assert_eq!((chosen, decision.fit), (Some(0), 1));
    nodes.remove(0);
    let (nowhere, decision) = decide(&wants, &mut nodes);
    assert_eq!(nowhere, None);
    assert_eq!(
        decision.why_nowhere(),
        "no node can take it (n2 (needs 2GiB memory, has 1GiB free): too little is free for the job's needs; \
         n3 (needs 2GiB memory, has 1GiB in all): it never has what the job's needs ask for; \
         n4: it has not said what it has free for the job's needs; n5: less free disk than its floor (--disk-floor))"
    );
    let text = serde_json::to_string(&decision).unwrap();
    assert_eq!(serde_json::from_str::<Decision>(&text).unwrap(), decision);
    assert_eq!(chosen_without_needs(&mut nodes), Some(4), "a job without needs goes anywhere but below the floor");
}

fn chosen_without_needs(nodes: &mut [Candidate]) -> Option<u32> {
    chosen(&asked(Placement::Weighted, 1, 0), nodes)
}
