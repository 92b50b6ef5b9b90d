//! Promises about jobs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use belfry_core::job::{Action, Expressions, RunOn, Service};
use belfry_core::run::{Run, RunState};
use belfry_core::{JobDocument, JobId};
use tokio::task::JoinSet;

use super::sample::{ann, at, document, job, job_id, run};
use crate::{AuditFilter, Change, JobChange, JobFilter, JobLife, JobRef, RunFilter, Store, StoreError};

pub async fn a_name_is_held_by_one_living_job(store: Store) {
    job(&store, 1, document("shop", "a")).await;
    let again = store.create_job(document("shop", "a"), job_id(2), at(1), &ann()).await;
    assert!(matches!(again, Err(StoreError::NameTaken { name }) if name == "shop/a"));
    let b = job(&store, 3, document("shop", "b")).await;
    job(&store, 4, document("bank", "a")).await;
    let rename = store.update_job(b.id, 1, document("shop", "a"), at(1), &ann()).await;
    assert!(matches!(rename, Err(StoreError::NameTaken { .. })));
    let mut racing = JoinSet::new();
    for number in 10..18 {
        let store = store.clone();
        racing.spawn(
            async move { store.create_job(document("shop", "race"), job_id(number), at(1), &ann()).await.is_ok() },
        );
    }
    assert_eq!(racing.join_all().await.into_iter().filter(|won| *won).count(), 1);
}

pub async fn the_definition_of_an_instant_is_found(store: Store) {
    let first = job(&store, 1, document("default", "a")).await;
    let edited = document("default", "a");
    for (revision, second) in [(1, 10), (2, 20)] {
        store.update_job(first.id, revision, edited.clone(), at(second), &ann()).await.unwrap();
    }
    let held = async |second| {
        let found = store.job_revision_at(first.id, at(second)).await.unwrap();
        found.map(|(held, replaced)| (held.revision, replaced))
    };
    assert_eq!(held(-1).await, None);
    assert_eq!(held(0).await, Some((1, Some(at(10)))));
    assert_eq!(held(10).await, Some((2, Some(at(20)))));
    assert_eq!(held(99).await, Some((3, None)));
    store.remove_job(first.id, None, at(30), &ann()).await.unwrap();
    let second = store.create_job(document("default", "a"), job_id(2), at(40), &ann()).await.unwrap();
    let lives = [
        JobLife { id: second.id, created_at: at(40), removed_at: None },
        JobLife { id: first.id, created_at: at(0), removed_at: Some(at(30)) },
    ];
    assert_eq!(store.job_lives("default", "a", 9).await.unwrap(), lives);
    assert_eq!(store.job_lives("default", "a", 1).await.unwrap(), lives[..1]);
    assert_eq!(store.job_lives("default", "b", 9).await.unwrap(), []);
}

pub async fn a_removed_job_frees_its_name_and_keeps_its_history(store: Store) {
    let old = job(&store, 1, document("default", "a")).await;
    store.record_runs(&[run(old.id, 1, belfry_core::run::RunState::Succeeded)]).await.unwrap();
    let stale = store.remove_job(old.id, Some(9), at(2), &ann()).await;
    assert!(matches!(stale, Err(StoreError::Conflict { revision: 1 })));
    store.remove_job(old.id, Some(1), at(2), &ann()).await.unwrap();
    assert!(store.job("default", "a").await.unwrap().is_none());
    assert!(store.job_by_id(old.id).await.unwrap().is_none());
    assert!(matches!(store.remove_job(old.id, None, at(2), &ann()).await, Err(StoreError::NotFound)));
    let new = job(&store, 2, document("default", "a")).await;
    store.record_runs(&[run(new.id, 3, belfry_core::run::RunState::Failed)]).await.unwrap();
    store.remove_job(new.id, None, at(4), &ann()).await.unwrap();
    job(&store, 3, document("default", "a")).await;
    let by_name = JobRef::Name { namespace: "default".into(), name: "a".into() };
    let page = store.list_runs(&RunFilter { job: Some(by_name), limit: 10, ..Default::default() }).await.unwrap();
    assert_eq!(page.items.iter().map(|run| run.job).collect::<Vec<_>>(), [new.id, old.id]);
    assert_eq!(store.job_revisions(old.id, None, 10).await.unwrap().items.len(), 1);
}

pub async fn of_two_editors_exactly_one_wins(store: Store) {
    let a = job(&store, 1, document("default", "a")).await;
    for revision in 1..20 {
        let edit = |text: &str| {
            let mut document = document("default", "a");
            document.description = text.to_owned();
            document
        };
        let (one, ann) = (store.clone(), ann());
        let (left, right) = tokio::join!(
            one.update_job(a.id, revision, edit("left"), at(1), &ann),
            store.update_job(a.id, revision, edit("right"), at(1), &ann)
        );
        let (won, lost) = if left.is_ok() { (left, right) } else { (right, left) };
        let won = won.unwrap();
        assert!(matches!(lost, Err(StoreError::Conflict { revision: now }) if now == revision + 1), "{lost:?}");
        assert_eq!(store.job_by_id(a.id).await.unwrap().unwrap(), won);
    }
    let revisions = store.job_revisions(a.id, None, 100).await.unwrap().items;
    assert_eq!(revisions.iter().map(|r| r.revision).collect::<Vec<_>>(), (1..=20).rev().collect::<Vec<_>>());
    assert_eq!(store.job_revision(a.id, 1).await.unwrap().unwrap().document, document("default", "a"));
    let b = job(&store, 2, document("default", "b")).await;
    for last in [1, 3, 20, 300] {
        let mut wanted: Vec<(JobId, u64)> = (1..=last).map(|number| (a.id, number)).collect();
        wanted.push((b.id, 1));
        let found = store.job_revisions_of(&wanted).await.unwrap();
        assert_eq!(found.len() as u64, last.min(20) + 1);
        assert_eq!((&found[&(a.id, 1)], &found[&(b.id, 1)]), (&document("default", "a"), &document("default", "b")));
    }
}

pub async fn a_schedule_counts_from_its_change_only(store: Store) {
    let a = job(&store, 1, document("default", "a")).await;
    let mut changed = document("default", "a");
    changed.description = "same fires".into();
    let described = store.update_job(a.id, 1, changed.clone(), at(5), &ann()).await.unwrap();
    assert_eq!((described.counts_from, described.updated_at), (at(0), at(5)));
    changed.schedule = Expressions(vec!["0 4 * * *".into()]);
    let moved = store.update_job(a.id, 2, changed, at(6), &ann()).await.unwrap();
    assert_eq!((moved.counts_from, moved.created_at), (at(6), at(0)));
    assert_eq!(store.job("default", "a").await.unwrap().unwrap(), moved);
}

/// By this instant servers and nodes tell whether the fires of a job have changed.
pub async fn changes_in_one_moment_count_from_different_instants(store: Store) {
    let paused = JobDocument { enabled: false, ..document("default", "a") };
    let a = job(&store, 1, paused).await;
    let resumed = store.update_job(a.id, 1, document("default", "a"), a.counts_from, &ann()).await.unwrap();
    assert!(resumed.counts_from > a.counts_from);
    assert_eq!(store.job("default", "a").await.unwrap().unwrap(), resumed);
}

pub async fn apply_changes_all_or_nothing(store: Store) {
    let a = job(&store, 1, document("default", "a")).await;
    let b = job(&store, 2, document("default", "b")).await;
    let (_, seq) = store.job_changes_since(0).await.unwrap();
    let changes = |stale: u64| {
        vec![
            Change::Create { id: job_id(3), document: document("default", "c") },
            Change::Update { id: a.id, expected_revision: 1, document: document("default", "a2") },
            Change::Remove { id: b.id, expected_revision: Some(stale) },
        ]
    };
    let refused = store.apply(changes(7), at(1), &ann()).await.unwrap_err();
    assert_eq!(refused.index, 2);
    assert!(matches!(refused.cause, StoreError::Conflict { revision: 1 }));
    assert_eq!(store.job_changes_since(seq).await.unwrap(), (vec![], seq));
    assert_eq!(store.job_by_id(a.id).await.unwrap().unwrap(), a);
    assert_eq!(store.list_audit(&AuditFilter { limit: 10, ..Default::default() }).await.unwrap().items.len(), 2);
    store.apply(changes(1), at(1), &ann()).await.unwrap();
    let names: Vec<String> = listed(&store).await;
    assert_eq!(names, ["default/a2", "default/c"]);
    assert_eq!(store.job_changes_since(seq).await.unwrap().0.len(), 3);
}

pub async fn apply_reuses_a_name_that_it_frees(store: Store) {
    let a = job(&store, 1, document("default", "a")).await;
    let changes = vec![
        Change::Create { id: job_id(2), document: document("default", "a") },
        Change::Remove { id: a.id, expected_revision: None },
    ];
    store.apply(changes, at(1), &ann()).await.unwrap();
    assert_eq!(store.job("default", "a").await.unwrap().unwrap().id, job_id(2));
    let twice = vec![
        Change::Create { id: job_id(3), document: document("default", "x") },
        Change::Create { id: job_id(4), document: document("default", "x") },
    ];
    assert_eq!(store.apply(twice, at(1), &ann()).await.unwrap_err().index, 1);
    let many =
        (100..400).map(|n| Change::Create { id: job_id(n), document: document("many", &format!("j{n}")) }).collect();
    assert_eq!(store.apply(many, at(1), &ann()).await.unwrap().len(), 300);
}

pub async fn followers_miss_no_change_under_concurrency(store: Store) {
    let mut writers = JoinSet::new();
    for writer in 0..8u128 {
        let store = store.clone();
        writers.spawn(async move {
            for n in 0..12 {
                let made = job(&store, 1 + writer * 100 + n, document("default", &format!("w{writer}-{n}"))).await;
                let mut next = made.document.clone();
                next.description = "edited".into();
                store.update_job(made.id, 1, next, at(1), &ann()).await.unwrap();
                if n % 3 == 0 {
                    store.remove_job(made.id, None, at(2), &ann()).await.unwrap();
                }
            }
        });
    }
    let mut seen: HashMap<JobId, u64> = HashMap::new();
    let mut seq = 0;
    let mut written = false;
    loop {
        let (changes, next) = store.job_changes_since(seq).await.unwrap();
        assert!(next >= seq);
        seq = next;
        let caught_up = changes.is_empty();
        for change in changes {
            match change {
                JobChange::Upsert(job) => seen.insert(job.id, job.revision),
                JobChange::Removed(id) => seen.remove(&id),
            };
        }
        if written && caught_up {
            break;
        }
        while writers.try_join_next().is_some() {}
        written = writers.is_empty();
        tokio::task::yield_now().await;
    }
    let mut living = HashMap::new();
    store.load_jobs(|jobs| living.extend(jobs.into_iter().map(|job| (job.id, job.revision)))).await.unwrap();
    assert_eq!(living.len(), 8 * 8);
    assert_eq!(seen, living);
}

pub async fn every_edit_has_its_audit_row_and_secrets_have_none(store: Store) {
    let a = job(&store, 1, document("shop", "a")).await;
    let mut secret = document("shop", "a");
    secret.run_as.env = BTreeMap::from([("PASSWORD".to_owned(), "hunter2".to_owned())]);
    store.update_job(a.id, 1, secret, at(1), &ann()).await.unwrap();
    store.update_job(a.id, 1, document("shop", "a"), at(1), &ann()).await.unwrap_err();
    store.remove_job(a.id, None, at(2), &ann()).await.unwrap();
    let audit = store.list_audit(&AuditFilter { limit: 10, ..Default::default() }).await.unwrap().items;
    let actions: Vec<_> = audit.iter().map(|entry| entry.action.as_str()).collect();
    assert_eq!(actions, ["job.remove", "job.update", "job.create"]);
    assert_eq!(audit[1].detail, serde_json::json!({"revision": 2, "changed": ["as"]}));
    assert_eq!((audit[1].actor.as_str(), audit[1].origin.as_deref(), audit[1].at), ("ann", Some("192.0.2.7"), at(1)));
    assert!(!format!("{audit:?}").contains("hunter2"));
    let other = AuditFilter { namespaces: Some(vec!["bank".into()]), limit: 10, ..Default::default() };
    assert!(store.list_audit(&other).await.unwrap().items.is_empty());
    let page = store.list_audit(&AuditFilter { limit: 2, ..Default::default() }).await.unwrap();
    let rest = store.list_audit(&AuditFilter { limit: 2, cursor: page.next, ..Default::default() }).await.unwrap();
    assert_eq!([page.items, rest.items].concat(), audit);
}

pub async fn pages_of_jobs_visit_each_once_while_jobs_are_created(store: Store) {
    let namespaces = ["a", "b", "c"];
    let make = |n: u128| Change::Create {
        id: job_id(n + 1),
        document: document(namespaces[n as usize % 3], &format!("job{:03}", n * 7 % 100)),
    };
    store.apply((0..100).map(make).collect(), at(0), &ann()).await.unwrap();
    let before: BTreeSet<String> = listed(&store).await.into_iter().collect();
    for allowed in [None, Some(vec!["c".to_owned(), "a".to_owned()])] {
        let mut filter = JobFilter { namespaces: allowed.clone(), limit: 7, ..Default::default() };
        let mut seen = Vec::new();
        loop {
            let page = store.list_jobs(&filter).await.unwrap();
            seen.extend(page.items.iter().map(|job| job.document.full_name()));
            let number = 1_000 + seen.len() as u128 + if allowed.is_some() { 1_000 } else { 0 };
            job(&store, number, document("b", &format!("new{number}"))).await;
            filter.cursor = page.next;
            if filter.cursor.is_none() {
                break;
            }
        }
        assert!(seen.is_sorted(), "{seen:?}");
        let met: BTreeSet<String> = seen.iter().cloned().collect();
        assert_eq!(met.len(), seen.len(), "none twice");
        let wanted: BTreeSet<String> =
            before.iter().filter(|name| allowed.is_none() || !name.starts_with("b/")).cloned().collect();
        assert!(met.is_superset(&wanted));
    }
}

pub async fn lists_filter_by_namespace_text_label_and_state(store: Store) {
    let mut backup = document("shop", "backup");
    backup.labels = BTreeMap::from([("team".to_owned(), "db".to_owned()), ("zone".to_owned(), "a".to_owned())]);
    backup.description = "Nightly 100% dump".into();
    let mut paused = document("shop", "paused");
    paused.enabled = false;
    paused.labels = BTreeMap::from([("team".to_owned(), "db".to_owned())]);
    let backup = job(&store, 1, backup).await;
    job(&store, 2, paused).await;
    job(&store, 3, document("bank", "x")).await;
    let found = async |filter: JobFilter| -> Vec<String> {
        let page = store.list_jobs(&JobFilter { limit: 10, ..filter }).await.unwrap();
        page.items.into_iter().map(|job| job.document.name).collect()
    };
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(found(JobFilter { q: Some("NIGHTLY".into()), ..Default::default() }).await, ["backup"]);
    assert_eq!(found(JobFilter { q: Some("100%".into()), ..Default::default() }).await, ["backup"]);
    assert_eq!(found(JobFilter { q: Some("1_0".into()), ..Default::default() }).await, [""; 0]);
    assert_eq!(found(JobFilter { q: Some("shop/p".into()), ..Default::default() }).await, ["paused"]);
    assert_eq!(found(JobFilter { enabled: Some(true), ..Default::default() }).await, ["x", "backup"]);
    assert_eq!(
        found(JobFilter { labels: vec![label("team", "db")], ..Default::default() }).await,
        ["backup", "paused"]
    );
    assert_eq!(
        found(JobFilter { labels: vec![label("team", "db"), label("zone", "a")], ..Default::default() }).await,
        ["backup"]
    );
    assert_eq!(found(JobFilter { namespaces: Some(vec![]), ..Default::default() }).await, [""; 0]);
    assert_eq!(found(JobFilter { namespaces: Some(vec!["bank".into()]), ..Default::default() }).await, ["x"]);
    store.update_job(backup.id, 1, document("shop", "backup"), at(1), &ann()).await.unwrap();
    assert_eq!(found(JobFilter { labels: vec![label("team", "db")], ..Default::default() }).await, ["paused"]);
    let counted = async |only: Option<&[String]>| -> Vec<(String, u64, u64)> {
        let counts = store.namespaces(only).await.unwrap().into_iter();
        counts.map(|count| (count.namespace, count.jobs, count.jobs_enabled)).collect()
    };
    assert_eq!(counted(None).await, [("bank".to_owned(), 1, 1), ("shop".to_owned(), 2, 1)]);
    assert_eq!(counted(Some(&["shop".into(), "none".into()])).await, [("shop".to_owned(), 2, 1)]);
    store.remove_job(backup.id, None, at(2), &ann()).await.unwrap();
    assert_eq!(counted(None).await, [("bank".to_owned(), 1, 1), ("shop".to_owned(), 1, 0)]);
}

pub async fn lists_filter_by_how_jobs_do(store: Store) {
    for (number, name) in [(1, "fails"), (2, "recovers"), (3, "runs"), (4, "new")] {
        job(&store, number, document("default", name)).await;
    }
    let mut at_home = document("default", "at-home");
    at_home.run_on = RunOn::Home;
    job(&store, 5, at_home).await;
    let service = Service { command: None, argv: vec!["true".into()], stop_grace: None, restart_delay: None };
    job(&store, 6, JobDocument::new("service", Action::Service(service))).await;
    let ended = |number, second, state, node: &str| Run {
        node_name: Some(node.to_owned()),
        ..run(job_id(number), second, state)
    };
    let runs = [
        ended(1, 1, RunState::Succeeded, "n1"),
        ended(1, 2, RunState::Failed, "n2"),
        ended(1, 3, RunState::Skipped, "n2"),
        ended(2, 1, RunState::Lost, "n1"),
        ended(2, 2, RunState::Succeeded, "n1"),
        ended(3, 1, RunState::Running, "n1"),
        ended(6, 1, RunState::Killed, "n1"),
    ];
    store.record_runs(&runs).await.unwrap();
    let found = async |filter: JobFilter| -> Vec<String> {
        let page = store.list_jobs(&JobFilter { limit: 10, ..filter }).await.unwrap();
        page.items.into_iter().map(|job| job.document.name).collect()
    };
    let on = |node: &str| JobFilter { node_name: Some(node.to_owned()), ..Default::default() };
    assert_eq!(found(JobFilter { failing: true, ..Default::default() }).await, ["fails"]);
    assert_eq!(found(JobFilter { running: true, ..Default::default() }).await, ["runs"]);
    assert_eq!(found(on("n2")).await, ["at-home", "fails"]);
    assert_eq!(found(on("n1")).await, ["at-home", "recovers", "service"]);
    let (failing, all) = store.failing(None, 9).await.unwrap();
    assert_eq!((failing.len(), all, failing[0].name.as_str()), (1, 1, "fails"));
    assert_eq!(failing[0].standing.last.as_ref().map(|last| last.id), Some(runs[2].id));
    assert!(store.failing(Some(&["other".to_owned()]), 9).await.unwrap().0.is_empty());
    let missed = async |from| {
        let missed = store.missed_since(from, Some(&["default".to_owned()]), 9).await.unwrap();
        missed.into_iter().map(|job| (job.name, job.standing.last_missed)).collect::<Vec<_>>()
    };
    assert_eq!(missed(at(3)).await, [("fails".to_owned(), Some(runs[2].id))]);
    assert_eq!(missed(at(4)).await, []);
    let usual: Vec<JobId> = store.all_usual().await.unwrap().into_iter().map(|(job, _)| job).collect();
    assert_eq!(usual, [job_id(1), job_id(2)]);
    let known = store.living_jobs(&[job_id(1), job_id(5), job_id(77)]).await.unwrap();
    assert_eq!(known.len(), 2);
}

pub async fn a_cold_start_loads_every_living_job(store: Store) {
    let many =
        (0..6_000).map(|n| Change::Create { id: job_id(n), document: document("many", &format!("j{n}")) }).collect();
    store.apply(many, at(0), &ann()).await.unwrap();
    store.remove_job(job_id(3), None, at(1), &ann()).await.unwrap();
    let mut raw = Vec::new();
    let seq = store.load_raw_jobs(|page| raw.extend(page)).await.unwrap();
    assert_eq!((raw.len(), seq), (5_999, 6_001));
    assert_eq!(store.job_changes_since(seq).await.unwrap().0, vec![]);
    let some = &raw[77];
    assert_eq!(some.parse().unwrap(), store.job_by_id(some.id).await.unwrap().unwrap());
}

async fn listed(store: &Store) -> Vec<String> {
    let page = store.list_jobs(&JobFilter { limit: 1_000, ..Default::default() }).await.unwrap();
    page.items.iter().map(|job| job.document.full_name()).collect()
}
