//! Promises about runs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use belfry_core::id::Slot;
use belfry_core::place::{By, Decision, Unfit, WhyNot};
use belfry_core::run::{Run, RunState, Trigger};
use belfry_core::{NodeId, RunId, Timestamp};

use super::sample::{at, job_id, run};
use crate::{JobRef, RecentRun, RunFilter, Store};

pub async fn a_run_comes_back_as_it_was_recorded(store: Store) {
    let mut recorded = run(job_id(1), 1, RunState::Failed);
    recorded.reason = Some("exit 75, \u{0}odd \u{1F514}".replace('\u{0}', ""));
    recorded.exit_code = Some(75);
    recorded.signal = Some(9);
    recorded.placement = Some(Arc::new(Decision {
        by: By::LastNode,
        fit: 3,
        others: vec!["n1".into(), "n\u{1F514}".into()],
        unfit: vec![Unfit { why: WhyNot::Draining, count: 7, some: vec!["n3".into()], has: vec!["x".into()] }],
        missing: Vec::new(),
    }));
    let mut claimed = run(job_id(1), 2, RunState::Claimed);
    (claimed.node, claimed.node_name, claimed.incarnation) = (None, None, None);
    (claimed.dispatched_at, claimed.started_at) = (None, None);
    let mut rerun = run(job_id(1), 3, RunState::Running);
    rerun.trigger = Trigger::Rerun { by: "ann".into(), key: "k".repeat(500), of: recorded.id };
    let waiting = run(job_id(2), 4, RunState::Waiting);
    let mut wrapped = run(job_id(3), 5, RunState::Failed);
    wrapped.trigger = Trigger::Wrapped { instance: "2026-11-15_0230".into() };
    for run in [&recorded, &claimed, &rerun, &waiting, &wrapped] {
        store.record_runs(std::slice::from_ref(run)).await.unwrap();
        assert_eq!(store.run(run.id).await.unwrap().as_ref(), Some(run));
    }
    assert_eq!(store.last_run_of_job(job_id(1)).await.unwrap().as_ref(), Some(&rerun));
    assert_eq!(store.last_ended_run_of_job(job_id(1)).await.unwrap().as_ref(), Some(&recorded));
    let jobs = [job_id(1), job_id(2), job_id(3), job_id(4)];
    let newest = store.newest_runs(&jobs, 2).await.unwrap();
    assert_eq!(
        newest,
        HashMap::from([(jobs[0], vec![rerun, claimed]), (jobs[1], vec![waiting]), (jobs[2], vec![wrapped])])
    );
    let ended = store.ended_runs_since(&jobs, recorded.planned).await.unwrap();
    assert_eq!(ended, HashMap::from([(jobs[0], 1), (jobs[2], 1)]));
    assert_eq!(store.run(RunId::from_u128(1)).await.unwrap(), None);
}

/// Whoever sent it: what a database would refuse keeps it, and all that is recorded with it, out of history.
pub async fn what_a_database_would_refuse_is_recorded_all_the_same(store: Store) {
    let mut odd = run(job_id(1), 1, RunState::Failed);
    odd.trigger = Trigger::Manual { by: "x".repeat(300), key: "a\0b".into() };
    odd.node_name = Some("\u{1F514}".repeat(300));
    odd.job_name = "j".repeat(129);
    odd.reason = Some("said \0".into());
    odd.script = Some("s\0".into());
    odd.revision = u64::MAX;
    let plain = run(job_id(2), 1, RunState::Succeeded);
    store.record_runs(&[odd.clone(), plain.clone()]).await.unwrap();
    let kept = store.run(odd.id).await.unwrap().unwrap();
    assert_eq!(kept.trigger, Trigger::Manual { by: "x".repeat(128), key: "a\u{FFFD}b".into() });
    assert_eq!(kept.node_name, Some("\u{1F514}".repeat(128)));
    assert_eq!((kept.job_name.len(), kept.reason.as_deref()), (128, Some("said \u{FFFD}")));
    assert_eq!((kept.script.as_deref(), kept.revision), (Some("s\u{FFFD}"), u64::MAX));
    assert_eq!(store.run_by_key(odd.job, "a\0b").await.unwrap().map(|run| run.id), Some(odd.id));
    assert_eq!(store.run(plain.id).await.unwrap(), Some(plain));
}

pub async fn a_record_never_goes_back(store: Store) {
    let forward = [
        RunState::Claimed,
        RunState::Dispatched,
        RunState::Running,
        RunState::Waiting,
        RunState::Lost,
        RunState::Failed,
    ];
    let steps: Vec<Run> = forward.into_iter().map(|state| run(job_id(1), 1, state)).collect();
    for (i, step) in steps.iter().enumerate() {
        store.record_runs(std::slice::from_ref(step)).await.unwrap();
        for older in &steps[..=i] {
            store.record_runs(std::slice::from_ref(older)).await.unwrap();
            assert_eq!(store.run(step.id).await.unwrap().unwrap().state, step.state, "{} came again", older.state);
        }
    }
    let mut next_attempt = run(job_id(2), 1, RunState::Dispatched);
    next_attempt.attempt = 2;
    store.record_runs(&[next_attempt]).await.unwrap();
    let first_attempt = run(job_id(2), 1, RunState::Running);
    store.record_runs(std::slice::from_ref(&first_attempt)).await.unwrap();
    assert_eq!(store.run(first_attempt.id).await.unwrap().unwrap().attempt, 2);
}

pub async fn a_run_that_waits_shows_what_it_waits_for_now(store: Store) {
    let waits = |why: Option<&str>| Run { reason: why.map(str::to_owned), ..run(job_id(1), 1, RunState::Claimed) };
    let id = waits(None).id;
    for why in [Some("n1 is draining"), Some("n1 is away"), None] {
        store.record_runs(&[waits(why)]).await.unwrap();
    }
    assert_eq!(store.run(id).await.unwrap(), Some(waits(Some("n1 is away"))));
    store.record_runs(&[run(job_id(1), 1, RunState::Dispatched)]).await.unwrap();
    store.record_runs(&[waits(Some("too late"))]).await.unwrap();
    assert_eq!(store.run(id).await.unwrap().unwrap().state, RunState::Dispatched);
}

/// Who takes a run over does not know why its node was chosen; who decided has said it before.
pub async fn what_was_decided_about_a_place_stays(store: Store) {
    let why = Arc::new(Decision { by: By::Hash, fit: 1, others: vec![], unfit: vec![], missing: vec![] });
    let decided = Run { placement: Some(why.clone()), ..run(job_id(1), 1, RunState::Running) };
    store.record_runs(&[decided]).await.unwrap();
    store.record_runs(&[run(job_id(1), 1, RunState::Succeeded)]).await.unwrap();
    let known = store.run(run(job_id(1), 1, RunState::Succeeded).id).await.unwrap().unwrap();
    assert_eq!((known.state, known.placement), (RunState::Succeeded, Some(why)));
}

pub async fn the_last_node_of_each_job_is_found(store: Store) {
    let on = |job: u128, second, node: Option<u128>| Run {
        node: node.map(NodeId::from_u128),
        ..run(job_id(job), second, RunState::Succeeded)
    };
    let runs = [on(1, 1, Some(7)), on(1, 2, Some(8)), on(1, 3, None), on(2, 1, None), on(3, 9, Some(7))];
    store.record_runs(&runs).await.unwrap();
    let jobs: Vec<_> = (1..=120).map(job_id).collect();
    let expected =
        HashMap::from([(job_id(1), (NodeId::from_u128(8), at(2))), (job_id(3), (NodeId::from_u128(7), at(9)))]);
    assert_eq!(store.last_nodes(&jobs).await.unwrap(), expected);
    assert!(store.last_nodes(&[]).await.unwrap().is_empty());
}

pub async fn a_late_result_corrects_lost_and_nothing_else(store: Store) {
    let lost = run(job_id(1), 1, RunState::Lost);
    store.record_runs(std::slice::from_ref(&lost)).await.unwrap();
    assert_eq!(store.ended_among(&[lost.id]).await.unwrap(), [(lost.id, RunState::Lost)]);
    store.record_runs(&[run(job_id(1), 1, RunState::Succeeded)]).await.unwrap();
    let corrected = store.run(lost.id).await.unwrap().unwrap();
    assert_eq!((corrected.state, corrected.late), (RunState::Succeeded, true));
    for other in [RunState::Failed, RunState::Killed, RunState::Lost, RunState::Running] {
        store.record_runs(&[run(job_id(1), 1, other)]).await.unwrap();
        assert_eq!(store.run(lost.id).await.unwrap().unwrap(), corrected);
    }
    assert_eq!(counted(&store).await, HashMap::from([((at(0), RunState::Succeeded), 1)]));
}

pub async fn a_batch_keeps_the_furthest_record_of_each_run(store: Store) {
    let states = [RunState::Claimed, RunState::Succeeded, RunState::Running];
    let batch: Vec<Run> = (0..150).flat_map(|n| states.map(|state| run(job_id(1), n, state))).collect();
    store.record_runs(&batch).await.unwrap();
    store.record_runs(&[]).await.unwrap();
    let ids: Vec<RunId> = (0..200).map(|n| RunId::of(job_id(1), at(n), Slot::Only)).collect();
    let ended = store.ended_among(&ids).await.unwrap();
    assert_eq!(ended.len(), 150);
    assert!(ended.iter().all(|(_, state)| *state == RunState::Succeeded));
}

pub async fn a_key_belongs_to_its_first_run(store: Store) {
    let manual = |second| {
        let mut run = run(job_id(1), second, RunState::Claimed);
        run.trigger = Trigger::Manual { by: "ann".into(), key: "deploy-7".into() };
        run
    };
    store.record_runs(&[manual(1)]).await.unwrap();
    store.record_runs(&[manual(2)]).await.unwrap();
    assert_eq!(store.run_by_key(job_id(1), "deploy-7").await.unwrap(), Some(manual(1)));
    assert_eq!(store.run_by_key(job_id(1), "deploy-8").await.unwrap(), None);
    assert_eq!(store.run_by_key(job_id(2), "deploy-7").await.unwrap(), None);
    assert!(store.run(manual(2).id).await.unwrap().is_some(), "history is never refused");
}

pub async fn pages_visit_each_run_once_while_runs_are_inserted(store: Store) {
    store.record_runs(&(0..300).map(some_run).collect::<Vec<_>>()).await.unwrap();
    let node = Some(NodeId::from_u128(1));
    let failed = vec![RunState::Failed, RunState::Lost];
    let filters = [
        RunFilter::default(),
        RunFilter { job: Some(JobRef::Id(job_id(2))), ..Default::default() },
        RunFilter { states: failed.clone(), ..Default::default() },
        RunFilter { node, states: failed, ..Default::default() },
        RunFilter { node, ..Default::default() },
        RunFilter { namespaces: Some(vec!["ns0".into(), "ns1".into()]), ..Default::default() },
    ];
    for (round, mut filter) in filters.into_iter().enumerate() {
        let everything = RunFilter { limit: 100_000, ..filter.clone() };
        let before: BTreeSet<RunId> =
            store.list_runs(&everything).await.unwrap().items.iter().map(|run| run.id).collect();
        let mut seen = Vec::new();
        filter.limit = 9;
        loop {
            let page = store.list_runs(&filter).await.unwrap();
            assert!(page.items.len() <= 9);
            seen.extend(page.items.iter().map(|run| run.id));
            let fresh = 1_000 + round as i64 * 1_000 + seen.len() as i64;
            store.record_runs(&[some_run(fresh), some_run(-fresh)]).await.unwrap();
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        assert!(seen.is_sorted_by(|newer, older| newer > older), "newest first, none twice");
        assert!(seen.into_iter().collect::<BTreeSet<_>>().is_superset(&before), "filter {round} missed runs");
    }
}

pub async fn filters_find_exactly_what_matches(store: Store) {
    let runs: Vec<Run> = (0..400).map(some_run).collect();
    store.record_runs(&runs).await.unwrap();
    let all = vec![None, Some(())];
    for (job, node, state, namespace, time) in all.iter().flat_map(|a| {
        let all = all.clone();
        (0..16).map(move |bits| (*a, all[bits & 1], all[bits >> 1 & 1], all[bits >> 2 & 1], all[bits >> 3 & 1]))
    }) {
        let states = state.map_or(vec![], |()| vec![RunState::Failed, RunState::Lost, RunState::Failed]);
        let filter = RunFilter {
            job: job.map(|()| JobRef::Id(job_id(2))),
            node: node.map(|()| NodeId::from_u128(1)),
            states: states.clone(),
            namespaces: namespace.map(|()| vec!["ns0".to_owned(), "ns2".to_owned(), "nowhere".to_owned()]),
            from: time.map(|()| at(50)),
            to: time.map(|()| at(300)),
            cursor: None,
            limit: 1_000,
        };
        let matches = |run: &&Run| {
            (job.is_none() || run.job == job_id(2))
                && (node.is_none() || run.node == Some(NodeId::from_u128(1)))
                && (states.is_empty() || states.contains(&run.state))
                && (namespace.is_none() || run.namespace == "ns0" || run.namespace == "ns2")
                && (time.is_none() || (at(50)..at(300)).contains(&run.planned))
        };
        let mut expected: Vec<&Run> = runs.iter().filter(matches).collect();
        expected.sort_by_key(|run| std::cmp::Reverse(run.id));
        let found = store.list_runs(&filter).await.unwrap();
        assert_eq!(found.items.iter().collect::<Vec<_>>(), expected, "{filter:?}");
        assert_eq!(found.next, None);
    }
    let nothing = RunFilter { namespaces: Some(vec![]), limit: 9, ..Default::default() };
    assert!(store.list_runs(&nothing).await.unwrap().items.is_empty());
    let many =
        RunFilter { namespaces: Some((0..50).map(|n| format!("ns{n}")).collect()), limit: 1_000, ..Default::default() };
    assert_eq!(store.list_runs(&many).await.unwrap().items.len(), 400);
}

pub async fn counts_equal_a_recount(store: Store) {
    let mut dice = 12345u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (dice >> 33) % sides
    };
    for _ in 0..60 {
        let batch: Vec<Run> = (0..roll(90))
            .map(|_| {
                let mut run = some_run(roll(150) as i64 * 3_600);
                run.state = RunState::ALL[roll(11) as usize];
                run.attempt = roll(3) as u32;
                run
            })
            .collect();
        store.record_runs(&batch).await.unwrap();
    }
    let runs = store.list_runs(&RunFilter { limit: 100_000, ..Default::default() }).await.unwrap().items;
    let mut recount = HashMap::new();
    for run in runs.iter().filter(|run| run.state.is_ended()) {
        let day = run.planned.as_millisecond() / 86_400_000 * 86_400_000;
        *recount.entry((Timestamp::from_millisecond(day).unwrap(), run.state)).or_insert(0) += 1;
    }
    assert_eq!(counted(&store).await, recount);
    let overview = store.overview(Some(&["ns1".to_owned()]), at(0), at(86_400 * 10)).await.unwrap();
    let in_ns1 =
        |open: bool| runs.iter().filter(|run| run.namespace == "ns1" && run.state.is_ended() != open).count() as u64;
    assert_eq!(overview.open.iter().map(|(_, n)| n).sum::<u64>(), in_ns1(true));
    assert_eq!(overview.days.iter().map(|day| day.runs).sum::<u64>(), in_ns1(false));
    let facts = store.store_facts().await.unwrap();
    assert!(facts.database_bytes > 0);
}

/// As after a takeover, when the old owner's recorder and the new one's bring the same ends.
pub async fn an_end_that_several_bring_at_once_counts_once(store: Store) {
    for round in 0..20 {
        let runs: Vec<Run> = (0..10).map(|second| run(job_id(1), round * 10 + second, RunState::Succeeded)).collect();
        let (one, two, three) =
            tokio::join!(store.record_runs(&runs), store.record_runs(&runs[5..]), store.record_runs(&runs[..7]));
        one.and(two).and(three).unwrap();
        let counted: u64 = counted(&store).await.into_values().sum();
        assert_eq!(counted, (round as u64 + 1) * 10);
    }
}

pub async fn recent_runs_are_the_newest_of_each_job(store: Store) {
    let runs: Vec<Run> = (0..200).map(some_run).collect();
    store.record_runs(&runs).await.unwrap();
    let jobs: Vec<_> = (0..70).map(job_id).collect();
    let recent = store.recent_runs(&jobs, 5).await.unwrap();
    assert_eq!(recent.len(), 4);
    let as_recent = |run: &Run| RecentRun {
        id: run.id,
        state: run.state,
        planned: run.planned,
        started_at: run.started_at,
        ended_at: run.ended_at,
    };
    for (job, states) in recent {
        let mut expected: Vec<_> = runs.iter().filter(|run| run.job == job).map(as_recent).collect();
        expected.sort_by_key(|run| std::cmp::Reverse(run.id));
        assert_eq!(states, expected[..5]);
    }
    assert!(store.recent_runs(&jobs, 0).await.unwrap().is_empty());
    let mut running: Vec<&Run> = runs.iter().filter(|run| run.state == RunState::Running).collect();
    running.sort_by_key(|run| run.id);
    let pairs: Vec<_> = running.iter().rev().map(|run| (run.job, run.id)).collect();
    assert_eq!(store.running().await.unwrap(), pairs);
    let early = store.oldest_in(RunState::Running, Some(&["ns3".to_owned()]), Some(at(100)), 3).await.unwrap();
    running.retain(|run| run.namespace == "ns3" && run.planned < at(100));
    assert_eq!(early.iter().collect::<Vec<_>>(), running[..3]);
    let open = store.open_runs(None, 1_000).await.unwrap().items;
    assert_eq!(open.len(), runs.iter().filter(|run| !run.state.is_ended()).count());
}

/// Jobs, nodes, states and namespaces that vary with the second.
fn some_run(second: i64) -> Run {
    let n = second.unsigned_abs();
    let state =
        [RunState::Succeeded, RunState::Failed, RunState::Lost, RunState::Running, RunState::Skipped][(n % 5) as usize];
    let mut run = run(job_id(u128::from(n % 4)), second, state);
    run.node = (!n.is_multiple_of(7)).then(|| NodeId::from_u128(u128::from(n % 3)));
    run.namespace = format!("ns{}", n % 4);
    run
}

async fn counted(store: &Store) -> HashMap<(Timestamp, RunState), u64> {
    let days = store.run_counts(None, at(-86_400 * 100), at(86_400 * 100)).await.unwrap();
    days.into_iter().map(|day| ((day.day, day.state), day.runs)).collect()
}
