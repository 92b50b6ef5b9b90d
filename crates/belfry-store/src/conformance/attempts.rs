//! Promises about attempts.

use belfry_core::attempt::Attempt;
use belfry_core::run::{Ended, Held, Outcome, OutputFacts, RunState, Usage};
use belfry_core::state::Saves;

use super::sample::{ann, at, job_id, run};
use crate::Store;

pub async fn an_attempt_comes_back_as_it_was_recorded(store: Store) {
    let run = run(job_id(1), 1, RunState::Running);
    let failed = ended(&run, Outcome::Failed);
    let mut second = Attempt { attempt: 2, abandoned: true, signal: Some(9), ..failed.clone() };
    (second.node, second.node_name, second.incarnation, second.fence) = (None, None, None, None);
    (second.dispatched_at, second.started_at, second.reason, second.exit_code) = (None, None, None, None);
    store.record_attempts(&[second.clone(), failed.clone()]).await.unwrap();
    store.record_attempts(&[]).await.unwrap();
    assert_eq!(store.attempts(run.id).await.unwrap(), [failed, second]);
    assert!(store.attempts(super::sample::run(job_id(1), 2, RunState::Running).id).await.unwrap().is_empty());
}

pub async fn an_attempt_is_final_except_lost(store: Store) {
    let run = run(job_id(1), 1, RunState::Running);
    let lost = Attempt::lost(&run, at(9), "silent".into());
    store.record_attempts(&[lost.clone(), lost.clone()]).await.unwrap();
    assert_eq!(store.attempts(run.id).await.unwrap(), std::slice::from_ref(&lost));
    // Whoever brings the result need not know more than the node said.
    let mut told = ended(&run, Outcome::Succeeded);
    (told.fence, told.node, told.dispatched_at) = (None, None, None);
    store.record_attempts(&[lost.clone(), told.clone(), told.clone()]).await.unwrap();
    let corrected = store.attempts(run.id).await.unwrap().remove(0);
    assert_eq!((corrected.state, corrected.late, corrected.fence), (RunState::Succeeded, true, Some(run.fence)));
    assert_eq!((corrected.node, corrected.ended_at), (run.node, told.ended_at));
    for other in [lost, ended(&run, Outcome::Failed)] {
        store.record_attempts(&[other]).await.unwrap();
        assert_eq!(store.attempts(run.id).await.unwrap(), std::slice::from_ref(&corrected));
    }
}

pub async fn attempts_go_with_their_runs(store: Store) {
    let runs: Vec<_> = (0..20).map(|second| run(job_id(1), second, RunState::Failed)).collect();
    store.record_runs(&runs).await.unwrap();
    let attempts: Vec<Attempt> = runs.iter().map(|run| ended(run, Outcome::Failed)).collect();
    store.record_attempts(&attempts).await.unwrap();
    let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
    let mut found = store.attempts_among(&ids).await.unwrap();
    found.sort_by_key(|attempt| attempt.run);
    assert_eq!(found, attempts);
    store.delete_runs_before(at(15), None, at(100), &ann()).await.unwrap();
    assert_eq!(store.attempts_among(&ids).await.unwrap().len(), 5);
}

fn ended(run: &belfry_core::run::Run, outcome: Outcome) -> Attempt {
    let ended = Ended {
        attempt: 1,
        outcome,
        reason: Some("exit code 75".into()),
        started_at: Some(at(2)),
        ended_at: at(3),
        exit_code: Some(75),
        signal: None,
        abandoned: false,
        usage: Usage { cpu_ms: 3, max_rss_bytes: 1 << 33, left_behind: 1, held: Held::from_bits(0b11_01_10) },
        output: OutputFacts { bytes: 10, dropped_bytes: 2 },
        saves: Some(Box::new(Saves { sequence: 3, changes: [("A".to_owned(), "1=2".to_owned())].into() })),
        script: Some("sha256 ab".into()),
        overdue_at: Some(at(2)),
    };
    Attempt::ended(run, &ended)
}
