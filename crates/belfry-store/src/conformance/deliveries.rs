//! Promises about what webhooks are told.

use belfry_core::JobDocument;
use belfry_core::job::{Webhook, WebhookFormat};
use belfry_core::run::{Run, RunState};
use belfry_core::webhook::{Delivery, Fate, News};

use super::sample::{ann, at, document, job, run};
use crate::{Store, Tried};

fn told(name: &str, url: &str, on: &[&str]) -> JobDocument {
    let on = on.iter().map(|on| (*on).to_owned()).collect();
    let webhook = Some(Webhook { url: url.to_owned(), on, format: WebhookFormat::Form });
    JobDocument { webhook, ..document("default", name) }
}

async fn of(store: &Store, run: &Run) -> Vec<Delivery> {
    store.deliveries(run.id).await.unwrap()
}

pub async fn an_end_and_its_delivery_are_recorded_together(store: Store) {
    let hooked = job(&store, 1, told("a", "https://Hooks.example/x", &[])).await;
    let mut failed = run(hooked.id, 1, RunState::Running);
    store.record_runs(std::slice::from_ref(&failed)).await.unwrap();
    assert_eq!(of(&store, &failed).await, []);
    failed = Run { reason: Some("exit code 3".into()), exit_code: Some(3), ..run(hooked.id, 1, RunState::Failed) };
    store.record_runs(std::slice::from_ref(&failed)).await.unwrap();
    let made = of(&store, &failed).await;
    let [one] = made.as_slice() else { panic!("{made:?}") };
    assert_eq!((one.id.run, one.id.attempt, one.id.news), (failed.id, 1, News::Ended(RunState::Failed)));
    assert_eq!((one.job, one.job_name.as_str(), one.namespace.as_str()), (hooked.id, "a", "default"));
    assert_eq!((one.revision, one.reason.as_deref(), one.exit_code), (1, Some("exit code 3"), Some(3)));
    assert_eq!((one.planned, one.started_at, one.ended_at), (failed.planned, failed.started_at, failed.ended_at));
    assert_eq!((one.node_name.as_deref(), one.late, one.tries), (Some("n5"), false, 0));
    assert_eq!((one.receiver.as_str(), one.fate()), ("https://hooks.example:443", Fate::Waiting));
    assert_eq!(one.next_try_at, failed.ended_at);
    store.tried(one.id, at(9), &Tried::Delivered { status: 204 }).await.unwrap();
    let delivered = of(&store, &failed).await;
    // The same end again is no news.
    store.record_runs(&[failed.clone(), failed.clone()]).await.unwrap();
    assert_eq!(of(&store, &failed).await, delivered);
    assert_eq!(store.webhook_of(hooked.id).await.unwrap(), hooked.document.webhook);
}

pub async fn only_the_ends_that_a_job_names_are_told(store: Store) {
    let silent = job(&store, 1, document("default", "a")).await;
    let all = job(&store, 2, told("b", "https://x", &[])).await;
    let few = job(&store, 3, told("c", "https://x", &["failed", "skipped"])).await;
    let ends: Vec<RunState> = RunState::ALL.into_iter().filter(|state| state.is_ended()).collect();
    let mut kept = Vec::new();
    for job in [&silent, &all, &few] {
        let runs: Vec<Run> = (0..).zip(&ends).map(|(second, state)| run(job.id, second, *state)).collect();
        store.record_runs(&runs).await.unwrap();
        let mut states = Vec::new();
        for run in &runs {
            states.extend(of(&store, run).await.iter().map(|delivery| delivery.id.news.as_str()));
        }
        kept.push(states);
    }
    let usual = vec!["succeeded", "failed", "timed_out", "killed", "lost"];
    assert_eq!(kept, [vec![], usual, vec!["failed", "skipped"]]);
    // What a job says counts from when it says so; the run of a job that is gone was told before.
    store.update_job(few.id, 1, document("default", "c"), at(50), &ann()).await.unwrap();
    let later = run(few.id, 60, RunState::Failed);
    store.record_runs(std::slice::from_ref(&later)).await.unwrap();
    assert_eq!((of(&store, &later).await, store.webhook_of(few.id).await.unwrap()), (vec![], None));
    store.remove_job(all.id, None, at(70), &ann()).await.unwrap();
    let last = run(all.id, 71, RunState::Killed);
    store.record_runs(std::slice::from_ref(&last)).await.unwrap();
    assert_eq!(of(&store, &last).await.len(), 1);
    assert!(store.webhook_of(all.id).await.unwrap().is_some());
}

pub async fn an_end_that_several_bring_at_once_is_told_once(store: Store) {
    let hooked = job(&store, 1, told("a", "https://x", &[])).await;
    let runs: Vec<Run> = (0..40).map(|second| run(hooked.id, second, RunState::Succeeded)).collect();
    let (a, b, c) = tokio::join!(store.record_runs(&runs), store.record_runs(&runs), store.record_runs(&runs));
    a.and(b).and(c).unwrap();
    for run in &runs {
        assert_eq!(of(&store, run).await.len(), 1);
    }
}

pub async fn lost_that_is_corrected_is_told_again(store: Store) {
    let hooked = job(&store, 1, told("a", "https://x", &[])).await;
    let lost = Run { reason: Some("silent".into()), exit_code: None, ..run(hooked.id, 1, RunState::Lost) };
    store.record_runs(std::slice::from_ref(&lost)).await.unwrap();
    store.record_runs(&[run(hooked.id, 1, RunState::Succeeded)]).await.unwrap();
    store.record_runs(std::slice::from_ref(&lost)).await.unwrap();
    let made = of(&store, &lost).await;
    let words: Vec<_> = made.iter().map(|made| (made.id.to_string(), made.reason.as_deref(), made.late)).collect();
    let id = lost.id;
    let expected = [(format!("{id}-1-lost"), Some("silent"), false), (format!("{id}-1-succeeded"), None, true)];
    assert_eq!(words, expected);
}

pub async fn a_run_that_takes_too_long_is_told_once_beside_its_end(store: Store) {
    let hooked = job(&store, 1, told("a", "https://x", &["timed_out"])).await;
    let deaf = job(&store, 2, told("b", "https://x", &["failed"])).await;
    for job in [&hooked, &deaf] {
        let running = Run { attempt: 1, ..run(job.id, 1, RunState::Running) };
        store.record_runs(std::slice::from_ref(&running)).await.unwrap();
        let overdue = Run { overdue_at: Some(at(31)), ..running.clone() };
        store.record_runs(&[running.clone(), overdue.clone()]).await.unwrap();
        assert_eq!(store.run(running.id).await.unwrap(), Some(overdue.clone()));
        // Whoever does not know it takes nothing back.
        store.record_runs(&[running]).await.unwrap();
        store.record_runs(&[Run { overdue_at: Some(at(40)), ..overdue.clone() }]).await.unwrap();
        assert_eq!(store.run(overdue.id).await.unwrap(), Some(overdue.clone()));
        let ended = Run { overdue_at: Some(at(31)), ..run(job.id, 1, RunState::Succeeded) };
        store.record_runs(std::slice::from_ref(&ended)).await.unwrap();
        assert_eq!(store.run(overdue.id).await.unwrap(), Some(ended.clone()));
        let made = of(&store, &ended).await;
        let news: Vec<_> = made.iter().map(|made| (made.id.news, made.next_try_at, made.ended_at)).collect();
        let expected = if job.id == hooked.id { vec![(News::Overdue, Some(at(31)), None)] } else { vec![] };
        assert_eq!(news, expected);
    }
}

pub async fn what_waits_for_one_receiver_hides_nothing_from_another(store: Store) {
    let hanging = job(&store, 1, told("a", "https://hangs", &[])).await;
    let other = job(&store, 2, told("b", "https://works", &[])).await;
    assert_eq!(store.due_deliveries(at(1000), 3, |_| false).await.unwrap(), []);
    let mut runs: Vec<Run> = (0..300).map(|second| run(hanging.id, second, RunState::Failed)).collect();
    runs.push(run(other.id, 400, RunState::Failed));
    store.record_runs(&runs).await.unwrap();
    let due = store.due_deliveries(at(1000), 3, |_| false).await.unwrap();
    let due: Vec<_> = due.iter().map(|due| due.id.run).collect();
    assert_eq!(due, [runs[0].id, runs[1].id, runs[2].id, runs[300].id]);
    let due = store.due_deliveries(at(1000), 3, |receiver| receiver == "https://hangs:443").await.unwrap();
    assert_eq!(due.iter().map(|due| due.id.run).collect::<Vec<_>>(), [runs[300].id]);
    // Not before its time.
    assert_eq!(store.due_deliveries(at(2), 3, |_| false).await.unwrap().len(), 2);
    assert_eq!(store.due_deliveries(at(0), 3, |_| false).await.unwrap(), []);
}

pub async fn a_try_moves_a_delivery_on_and_its_end_is_final(store: Store) {
    let hooked = job(&store, 1, told("a", "https://x", &[])).await;
    let runs = [run(hooked.id, 1, RunState::Failed), run(hooked.id, 2, RunState::Killed)];
    store.record_runs(&runs).await.unwrap();
    let ids = [of(&store, &runs[0]).await[0].id, of(&store, &runs[1]).await[0].id];
    let in_vain = |next| Tried::InVain { status: Some(500), error: "it said 500".into(), next_try_at: next };
    store.tried(ids[0], at(10), &in_vain(Some(at(15)))).await.unwrap();
    let due = store.due_deliveries(at(14), 9, |_| false).await.unwrap();
    assert_eq!(due.iter().map(|due| due.id).collect::<Vec<_>>(), [ids[1]]);
    store.tried(ids[0], at(15), &Tried::Delivered { status: 200 }).await.unwrap();
    store.tried(ids[1], at(16), &in_vain(None)).await.unwrap();
    assert_eq!(store.due_deliveries(at(1000), 9, |_| false).await.unwrap(), []);
    let (first, second) = (of(&store, &runs[0]).await.remove(0), of(&store, &runs[1]).await.remove(0));
    assert_eq!((first.fate(), first.tries, first.first_try_at), (Fate::Delivered, 2, Some(at(10))));
    assert_eq!((first.last_try_at, first.last_status, first.last_error.as_deref()), (Some(at(15)), Some(200), None));
    assert_eq!((second.fate(), second.tries, second.last_status), (Fate::GivenUp, 1, Some(500)));
    assert_eq!((second.last_error.as_deref(), second.delivered_at), (Some("it said 500"), None));
    // Another leader that was still at it changes nothing.
    for (id, known, run) in [(ids[0], first, &runs[0]), (ids[1], second, &runs[1])] {
        store.tried(id, at(20), &in_vain(Some(at(30)))).await.unwrap();
        store.tried(id, at(20), &Tried::Delivered { status: 201 }).await.unwrap();
        assert_eq!(of(&store, run).await, [known]);
    }
}

pub async fn deliveries_go_with_their_runs_but_not_while_they_wait(store: Store) {
    let hooked = job(&store, 1, told("a", "https://x", &[])).await;
    let runs = [run(hooked.id, 1, RunState::Failed), run(hooked.id, 2, RunState::Failed)];
    store.record_runs(&runs).await.unwrap();
    let ids = [of(&store, &runs[0]).await[0].id, of(&store, &runs[1]).await[0].id];
    store.tried(ids[0], at(10), &Tried::Delivered { status: 200 }).await.unwrap();
    store.delete_runs_before(at(50), None, at(100), &ann()).await.unwrap();
    assert_eq!((of(&store, &runs[0]).await.len(), of(&store, &runs[1]).await.len()), (0, 1));
    store.tried(ids[1], at(11), &Tried::Delivered { status: 200 }).await.unwrap();
    assert_eq!(of(&store, &runs[1]).await, []);
}
