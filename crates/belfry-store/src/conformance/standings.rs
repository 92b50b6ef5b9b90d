//! Promises about how jobs have been doing.

use std::collections::HashMap;

use belfry_core::run::{Run, RunState};
use belfry_core::usual::Usual;
use belfry_core::{JobId, wrapped};
use belfry_sql::sql;

use super::sample::{ann, at, document, job, job_id, run};
use crate::{LastRun, RetentionRules, RunFilter, Standing, Store, schema};

async fn standing(store: &Store, job: JobId) -> Standing {
    store.standings(&[job]).await.unwrap().remove(&job).expect("it has had an end")
}

/// Ends in any order, several times, in batches of any size, `lost` that is corrected among them.
pub async fn standings_equal_a_recount(store: Store) {
    let mut dice = 4711u64;
    let mut roll = move |sides: u64| {
        dice = dice.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (dice >> 33) % sides
    };
    for _ in 0..60 {
        let batch: Vec<Run> = (0..roll(90))
            .map(|_| {
                let mut run = run(job_id(u128::from(roll(7))), roll(60) as i64, RunState::ALL[roll(11) as usize]);
                run.attempt = 1;
                run.exit_code = Some(roll(3) as i32);
                run
            })
            .collect();
        store.record_runs(&batch).await.unwrap();
    }
    let runs = store.list_runs(&RunFilter { limit: 100_000, ..Default::default() }).await.unwrap().items;
    let jobs: Vec<JobId> = (0..9).map(job_id).collect();
    let kept = store.standings(&jobs).await.unwrap();
    let mut expected = HashMap::new();
    for job in jobs {
        let ended: Vec<&Run> = runs.iter().filter(|run| run.job == job && run.state.is_ended()).collect();
        let Some(newest) = ended.first() else { continue };
        let good = ended.iter().filter(|run| run.state == RunState::Succeeded).count() as u32;
        let since = ended.iter().take_while(|run| run.state != RunState::Succeeded);
        let standing = Standing {
            runs: ended.len() as u64,
            failed_in_a_row: since.filter(|run| run.state.is_failure()).count() as u64,
            last_missed: ended.iter().find(|run| run.state == RunState::Skipped).map(|run| run.id),
            last: Some(LastRun {
                id: newest.id,
                state: newest.state,
                planned: newest.planned,
                started_at: newest.started_at,
                ended_at: newest.ended_at,
                exit_code: newest.exit_code,
                node_name: newest.node_name.clone(),
            }),
            usual: (good > 0).then_some(Usual { p50_ms: 1_000, p95_ms: 1_000, runs: good }),
        };
        expected.insert(job, standing);
    }
    assert_eq!(expected.len(), 7, "every job has had an end");
    assert_eq!(kept, expected);
}

pub async fn an_end_counts_once_in_its_jobs_standing_whoever_brings_it(store: Store) {
    for round in 0..10i64 {
        let ends: Vec<Run> = (0..10).map(|second| run(job_id(1), round * 10 + second, RunState::Failed)).collect();
        let (one, two, three) =
            tokio::join!(store.record_runs(&ends), store.record_runs(&ends[5..]), store.record_runs(&ends[..7]));
        one.and(two).and(three).unwrap();
        let kept = standing(&store, job_id(1)).await;
        assert_eq!((kept.runs, kept.failed_in_a_row), ((round as u64 + 1) * 10, (round as u64 + 1) * 10));
    }
}

pub async fn a_late_result_corrects_the_standing_that_lost_had_made(store: Store) {
    let record = async |second, state| store.record_runs(&[run(job_id(1), second, state)]).await.unwrap();
    let failed = async || standing(&store, job_id(1)).await.failed_in_a_row;
    record(1, RunState::Succeeded).await;
    record(2, RunState::Lost).await;
    record(3, RunState::Failed).await;
    assert_eq!(failed().await, 2);
    record(2, RunState::Failed).await;
    assert_eq!(failed().await, 2, "it failed instead of being lost");
    record(4, RunState::Lost).await;
    record(4, RunState::Skipped).await;
    assert_eq!(failed().await, 2, "it was not started at all");
    record(5, RunState::Lost).await;
    record(5, RunState::Succeeded).await;
    let kept = standing(&store, job_id(1)).await;
    assert_eq!((kept.failed_in_a_row, kept.runs), (0, 5));
    assert_eq!(kept.last.map(|last| last.state), Some(RunState::Succeeded));
    // A success that comes after the failures of later runs.
    record(8, RunState::Failed).await;
    record(9, RunState::TimedOut).await;
    record(7, RunState::Failed).await;
    assert_eq!(failed().await, 3);
    record(7, RunState::Failed).await;
    store.record_runs(&[run(job_id(1), 6, RunState::Succeeded), run(job_id(1), 10, RunState::Killed)]).await.unwrap();
    assert_eq!(failed().await, 4, "those after the sixth");
}

pub async fn usual_comes_from_the_newest_hundred_successes(store: Store) {
    let took = |second: i64, took: i64| Run {
        ended_at: Some(at(second + took)),
        ..run(job_id(1), second, RunState::Succeeded)
    };
    let slow: Vec<Run> = (0..150).map(|second| took(second, 100_000)).collect();
    store.record_runs(&slow).await.unwrap();
    assert_eq!(
        standing(&store, job_id(1)).await.usual,
        Some(Usual { p50_ms: 100_000_000, p95_ms: 100_000_000, runs: 100 })
    );
    let quick: Vec<Run> = (150..245).map(|second| took(second, 2)).collect();
    for some in quick.chunks(40) {
        store.record_runs(some).await.unwrap();
        store.record_runs(some).await.unwrap();
    }
    assert_eq!(standing(&store, job_id(1)).await.usual, Some(Usual { p50_ms: 2_000, p95_ms: 2_000, runs: 100 }));
    store.record_runs(&[took(300, 100_000)]).await.unwrap();
    let usual = standing(&store, job_id(1)).await.usual;
    assert_eq!(usual, Some(Usual { p50_ms: 2_000, p95_ms: 2_000, runs: 100 }), "five of a hundred were slow");
}

/// As by the migration on a store that is older than they are.
pub async fn standings_are_built_from_the_history_that_is_there(store: Store) {
    let states = [RunState::Succeeded, RunState::Failed, RunState::Lost, RunState::Running, RunState::Cancelled];
    let of = |n: i64| run(job_id((n % 3) as u128), n, states[(n * n % 5) as usize]);
    store.record_runs(&(0..90).map(of).collect::<Vec<_>>()).await.unwrap();
    let jobs: Vec<JobId> = (0..5).map(job_id).collect();
    let kept = store.standings(&jobs).await.unwrap();
    assert_eq!(kept.len(), 3);
    let migrations = schema::migrations(store.dialect()).iter();
    let build = migrations.filter(|migration| migration.name == "0029_job_standings");
    let build = build.flat_map(|migration| migration.statements.last()).copied();
    let again = std::iter::once("DELETE FROM job_standings").chain(build).map(|text| sql!(text).anything()).collect();
    store.write(again).await.unwrap();
    assert_eq!(store.standings(&jobs).await.unwrap(), kept);
}

pub async fn standings_outlive_what_retention_forgets_but_not_their_jobs(store: Store) {
    let known = job(&store, 1, document("default", "a")).await;
    store
        .record_runs(&(0..30).map(|second| run(known.id, second, RunState::Failed)).collect::<Vec<_>>())
        .await
        .unwrap();
    let before = standing(&store, known.id).await;
    store.prune_runs(at(99), RetentionRules { age: None, runs: Some(1) }, None, 1_000).await.unwrap();
    assert_eq!(standing(&store, known.id).await, before);
    assert_eq!((before.runs, before.failed_in_a_row), (30, 30));
    let mut wrapped = run(job_id(2), 1, RunState::Failed);
    wrapped.namespace = wrapped::NAMESPACE.to_owned();
    store.record_runs(&[wrapped]).await.unwrap();
    assert!(store.standings(&[job_id(2)]).await.unwrap().is_empty(), "a wrapped command is no job");
    store.remove_job(known.id, None, at(100), &ann()).await.unwrap();
    assert!(store.standings(&[known.id]).await.unwrap().is_empty());
}
