//! Promises about forgetting.

use std::time::Duration;

use belfry_core::JobId;
use belfry_core::job::Retention;
use belfry_core::run::{Run, RunState, Trigger};
use belfry_core::units::Span;

use super::sample::{ann, at, document, job, job_id, run};
use crate::{OutputChunk, RetentionRules, RunFilter, Store, Stream};

const DAY: i64 = 86_400;

pub async fn runs_go_by_age_unless_their_job_says_otherwise(store: Store) {
    let own = Retention { age: Some(Span::from_secs(100 * DAY as u64)), runs: None };
    for (number, retention) in [(1, Retention::default()), (2, own)] {
        let mut document = document("default", &format!("j{number}"));
        document.retention = retention;
        job(&store, number, document).await;
        store.record_runs(&days(job_id(number), 40)).await.unwrap();
    }
    let gone = run(job_id(1), 0, RunState::Succeeded).id;
    let chunk = OutputChunk {
        run: gone,
        attempt: 1,
        seq: 0,
        stream: Stream::Stdout,
        offset: 0,
        at: at(0),
        bytes: vec![1],
        dropped_bytes: 0,
    };
    store.append_output(&[chunk]).await.unwrap();
    prune(&store, RetentionRules { age: Some(Duration::from_secs(10 * DAY as u64)), runs: None }).await;
    assert_eq!(left(&store, job_id(1)).await, 10);
    assert_eq!(left(&store, job_id(2)).await, 40);
    assert!(store.read_output(gone, 1, 0, 9).await.unwrap().is_empty(), "output goes with its run");
    let counted: u64 = store.run_counts(None, at(0), at(50 * DAY)).await.unwrap().iter().map(|day| day.runs).sum();
    assert_eq!(counted, 80, "what happened is still counted");
}

pub async fn runs_go_by_count_and_the_newest_stay(store: Store) {
    for (number, runs) in [(1, None), (2, Some(3)), (3, Some(0))] {
        let mut document = document("default", &format!("j{number}"));
        document.retention.runs = runs;
        job(&store, number, document).await;
        store.record_runs(&days(job_id(number), 40)).await.unwrap();
    }
    store.record_runs(&days(job_id(9), 40)).await.unwrap();
    store.remove_job(job_id(2), None, at(1), &ann()).await.unwrap();
    prune(&store, RetentionRules { age: None, runs: Some(7) }).await;
    assert_eq!(
        [left(&store, job_id(1)).await, left(&store, job_id(2)).await, left(&store, job_id(3)).await],
        [7, 3, 0]
    );
    assert_eq!(left(&store, job_id(9)).await, 7, "also of a job that the store does not know");
    assert_eq!(store.last_run_of_job(job_id(2)).await.unwrap().unwrap().planned, at(39 * DAY));
    prune(&store, RetentionRules { age: None, runs: None }).await;
    assert_eq!(left(&store, job_id(1)).await, 7);
}

pub async fn what_has_not_ended_stays(store: Store) {
    let states = [RunState::Claimed, RunState::Dispatched, RunState::Running, RunState::Waiting, RunState::Failed];
    let runs: Vec<Run> = states.into_iter().enumerate().map(|(i, state)| run(job_id(1), i as i64, state)).collect();
    store.record_runs(&runs).await.unwrap();
    prune(&store, RetentionRules { age: Some(Duration::from_secs(1)), runs: Some(0) }).await;
    assert_eq!(left(&store, job_id(1)).await, 4);
    assert_eq!(store.delete_runs_before(at(50 * DAY), None, at(1), &ann()).await.unwrap(), 0);
    assert_eq!(left(&store, job_id(1)).await, 4);
}

pub async fn runs_before_an_instant_go_on_demand(store: Store) {
    let mut runs = days(job_id(1), 700);
    for (i, run) in runs.iter_mut().enumerate() {
        run.namespace = if i % 2 == 0 { "shop" } else { "bank" }.to_owned();
        run.trigger = Trigger::Manual { by: "ann".into(), key: i.to_string() };
    }
    store.record_runs(&runs).await.unwrap();
    let shop = ["shop".to_owned()];
    assert_eq!(store.delete_runs_before(at(600 * DAY), Some(&shop), at(1), &ann()).await.unwrap(), 300);
    assert_eq!(left(&store, job_id(1)).await, 400);
    assert_eq!(store.delete_runs_before(at(600 * DAY), None, at(1), &ann()).await.unwrap(), 300);
    assert_eq!(left(&store, job_id(1)).await, 100);
    assert_eq!(store.run_by_key(job_id(1), "3").await.unwrap(), None);
    store.record_runs(&runs[3..4]).await.unwrap();
    assert!(store.run_by_key(job_id(1), "3").await.unwrap().is_some(), "a forgotten key can be used again");
}

pub async fn pruning_goes_in_bounded_batches(store: Store) {
    for number in 0..130 {
        store.record_runs(&days(job_id(number), 5)).await.unwrap();
    }
    let rules = RetentionRules { age: None, runs: Some(2) };
    let mut from = None;
    let mut deleted = 0;
    loop {
        let batch = store.prune_runs(at(50 * DAY), rules, from, 40).await.unwrap();
        assert!(batch.deleted <= 40);
        deleted += batch.deleted;
        from = batch.next;
        if from.is_none() {
            break;
        }
    }
    assert_eq!(deleted, 130 * 3);
}

async fn prune(store: &Store, rules: RetentionRules) {
    let mut from = None;
    loop {
        from = store.prune_runs(at(40 * DAY), rules, from, 1_000).await.unwrap().next;
        if from.is_none() {
            return;
        }
    }
}

/// One run a day.
fn days(job: JobId, count: i64) -> Vec<Run> {
    (0..count).map(|day| run(job, day * DAY, RunState::Succeeded)).collect()
}

async fn left(store: &Store, job: JobId) -> usize {
    let filter = RunFilter { job: Some(crate::JobRef::Id(job)), limit: 10_000, ..Default::default() };
    store.list_runs(&filter).await.unwrap().items.len()
}
