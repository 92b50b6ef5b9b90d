//! The coordinator on real etcd servers: the conformance suite, printed as backend × members × case, and what only a real
//! server can show: lost answers, members that die, full databases, users and TLS.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belfry_coord::conformance::{CaseReport, conformance, conformance_over_a_network};
use belfry_coord::{Commit, CoordError, Coordinator, EtcdCoordinator, Guard, Hints, Write};
use belfry_core::Version;
use belfry_testkit::{Etcd, EtcdOptions, Proxy, until};

const PATIENCE: Duration = Duration::from_secs(30);

/// The url with a path that no other call gets: a keyspace without keys.
fn fresh(url: &str) -> String {
    static PREFIXES: AtomicU32 = AtomicU32::new(0);
    let prefix = PREFIXES.fetch_add(1, Ordering::Relaxed);
    match url.split_once('?') {
        Some((url, query)) => format!("{url}/test-{prefix}?{query}"),
        None => format!("{url}/test-{prefix}"),
    }
}

async fn connect(url: &str) -> EtcdCoordinator {
    EtcdCoordinator::connect(url).await.unwrap_or_else(|error| panic!("connect: {error}"))
}

fn put(key: &str, value: impl Into<Vec<u8>>) -> Write {
    Write::Put(key.to_owned(), value.into().into())
}

async fn apply(coordinator: &EtcdCoordinator, guards: Vec<Guard>, writes: Vec<Write>) -> Version {
    match coordinator.commit(guards, writes).await {
        Ok(Commit::Applied(version)) => version,
        other => panic!("{other:?}"),
    }
}

async fn value(coordinator: &EtcdCoordinator, key: &str) -> Option<String> {
    let found = coordinator.get(key).await.unwrap();
    found.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}

async fn a_hint(hints: &mut Hints) {
    tokio::time::timeout(PATIENCE, hints.changed()).await.expect("a hint");
}

async fn made(url: &str) -> Arc<dyn Coordinator> {
    Arc::new(connect(&fresh(url)).await)
}

fn all_hold(backend: &str, members: usize, reports: &[CaseReport]) {
    for report in reports {
        println!("{backend:<14} {members} {report}");
    }
    let failed = reports.iter().filter(|report| report.verdict.is_err()).count();
    assert_eq!(failed, 0, "{failed} of {} cases failed on {backend} with {members} members", reports.len());
}

#[tokio::test]
async fn one_member_conforms() {
    let etcd = Etcd::start(1);
    let url = etcd.url();
    all_hold("etcd", 1, &conformance(|| made(&url)).await);
}

#[tokio::test]
async fn three_members_conform() {
    let etcd = Etcd::start(3);
    let url = etcd.url();
    all_hold("etcd", 3, &conformance(|| made(&url)).await);
}

#[tokio::test]
async fn one_member_behind_a_proxy_conforms() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::before(&etcd.endpoints()[0]);
    let url = etcd.url_of(&[proxy.address()]);
    let lose = |claim: &str| proxy.lose_answer_to(claim.as_bytes());
    all_hold("etcd (proxy)", 1, &conformance_over_a_network(|| made(&url), &lose).await);
    assert!(proxy.answers_lost() > 5, "{} answers were lost", proxy.answers_lost());
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_unknown_and_is_found_applied() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::before(&etcd.endpoints()[0]);
    let coordinator = connect(&etcd.url_of(&[proxy.address()])).await;
    let first = apply(&coordinator, vec![], vec![put("seat", "one")]).await;
    proxy.lose_answer_to(b"/k/seat");
    let lost = coordinator.commit(vec![Guard::At("seat".into(), first)], vec![put("seat", "two")]).await;
    assert!(matches!(lost, Err(CoordError::Unknown)), "{lost:?}");
    assert_eq!(proxy.answers_lost(), 1);
    assert_eq!(value(&coordinator, "seat").await.as_deref(), Some("two"));
    // It was sent once: a second time would have met the guard.
    let entry = coordinator.get("seat").await.unwrap().unwrap();
    assert_eq!(entry.version, Version(first.0 + 1));
}

#[tokio::test]
async fn nothing_listens_means_away_and_not_unknown() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::before(&etcd.endpoints()[0]);
    let coordinator = connect(&etcd.url_of(&[proxy.address()])).await;
    apply(&coordinator, vec![], vec![put("a", "1")]).await;
    proxy.cut();
    // The first may find the connection that was cut under it; after that nobody can be reached at all.
    let _cut = coordinator.commit(vec![], vec![put("a", "2")]).await;
    let away = coordinator.commit(vec![], vec![put("b", "3")]).await;
    assert!(matches!(&away, Err(CoordError::Away(why)) if why.contains(&proxy.address())), "{away:?}");
    assert!(matches!(coordinator.get("a").await, Err(CoordError::Away(_))));
    proxy.heal();
    assert_eq!(value(&coordinator, "b").await, None);
    apply(&coordinator, vec![], vec![put("a", "4")]).await;
}

#[tokio::test]
async fn a_stalled_commit_is_unknown_within_its_time() {
    let etcd = Etcd::start(1);
    let proxy = Proxy::before(&etcd.endpoints()[0]);
    let coordinator = connect(&etcd.url_of(&[proxy.address()])).await;
    apply(&coordinator, vec![], vec![put("a", "1")]).await;
    proxy.stall();
    let limit = Duration::from_secs(7);
    let stalled = tokio::time::timeout(limit, coordinator.commit(vec![], vec![put("a", "2")])).await;
    assert!(matches!(stalled, Ok(Err(CoordError::Unknown))), "{stalled:?}");
    proxy.heal();
    until("the member answers again", async || coordinator.get("a").await.ok()).await;
}

#[tokio::test]
async fn user_and_password_are_used_and_never_shown() {
    let user = Some(("belfry".to_owned(), "s3cret".to_owned()));
    let mut etcd = Etcd::start_with(1, EtcdOptions { user, ..EtcdOptions::default() });
    let coordinator = connect(&etcd.url()).await;
    let mut hints = coordinator.watch("").await.unwrap();
    apply(&coordinator, vec![], vec![put("a", "1")]).await;
    a_hint(&mut hints).await;
    assert!(!format!("{coordinator:?}").contains("s3cret"));

    let address = etcd.endpoints()[0].clone();
    let wrong = EtcdCoordinator::connect(&format!("etcd://belfry:other-s3cret@{address}")).await.unwrap_err();
    assert!(matches!(wrong, CoordError::Broken(_)), "{wrong:?}");
    assert!(wrong.to_string().contains("check user and password"), "{wrong}");
    assert!(!format!("{wrong} {wrong:?}").contains("s3cret"), "{wrong:?}");
    let nobody = EtcdCoordinator::connect(&format!("etcd://{address}")).await.unwrap_err();
    assert!(nobody.to_string().contains("user:password@"), "{nobody}");

    // Tokens live in the server's memory: after its restart ours is not known any more.
    etcd.restart(0);
    until("a commit with a new token", async || coordinator.commit(vec![], vec![put("a", "2")]).await.ok()).await;
    a_hint(&mut hints).await;
    assert_eq!(value(&coordinator, "a").await.as_deref(), Some("2"));
}

#[tokio::test]
async fn a_user_that_etcd_does_not_want_is_refused_with_what_to_do() {
    let etcd = Etcd::start(1);
    let address = etcd.endpoints()[0].clone();
    let error = EtcdCoordinator::connect(&format!("etcd://joe:s3cret@{address}")).await.unwrap_err();
    assert!(matches!(error, CoordError::Broken(_)), "{error:?}");
    assert!(error.to_string().contains("leave user and password out"), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}

#[tokio::test]
async fn tls_with_a_certificate_of_our_own() {
    let etcd = Etcd::start_with(1, EtcdOptions { tls: true, ..EtcdOptions::default() });
    let coordinator = connect(&etcd.url()).await;
    apply(&coordinator, vec![], vec![put("a", "1")]).await;
    assert_eq!(value(&coordinator, "a").await.as_deref(), Some("1"));
    // The same with the scheme, without a certificate of a client: this server wants one.
    let address = etcd.endpoints()[0].clone();
    let nobody = EtcdCoordinator::connect(&format!("etcds://{address}?ca={}", etcd.ca_file().display())).await;
    assert!(matches!(nobody, Err(CoordError::Away(_))), "{nobody:?}");
    let plain = EtcdCoordinator::connect(&format!("etcd://{address}")).await;
    assert!(matches!(plain, Err(CoordError::Away(_))), "{plain:?}");
}

/// A commit per round, each with a key of its own. What was not applied although it was told so, or the other way round,
/// shows at the end.
#[tokio::test]
async fn commits_go_on_while_members_die_and_errors_are_truthful() {
    let mut etcd = Etcd::start(3);
    let coordinator = connect(&etcd.url()).await;
    let (mut applied, mut refused, mut unknown) = (vec![], vec![], vec![]);
    let mut round = 0;
    for member in 0..3 {
        let mut applied_without_it = 0;
        etcd.kill(member);
        while applied_without_it < 30 {
            let key = format!("round/{round:04}");
            round += 1;
            assert!(round < 2_000, "no commit goes on without member {member}");
            match coordinator.commit(vec![Guard::Absent(key.clone())], vec![put(&key, "x")]).await {
                Ok(Commit::Applied(_)) => {
                    applied_without_it += 1;
                    applied.push(key);
                }
                Ok(Commit::Conflict { key }) => panic!("somebody else has written `{key}`: a commit was sent twice"),
                Err(CoordError::Unknown) => unknown.push(key),
                Err(error) => {
                    assert!(error.is_transient(), "{error}");
                    refused.push(key);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
        etcd.restart(member);
    }
    let listed = coordinator.list("round/").await.unwrap();
    let found: Vec<&str> = listed.iter().map(|entry| entry.key.as_str()).collect();
    println!("{} applied, {} refused, {} unknown", applied.len(), refused.len(), unknown.len());
    assert!(applied.iter().all(|key| found.contains(&key.as_str())), "an applied commit is gone");
    assert!(!refused.iter().any(|key| found.contains(&key.as_str())), "a refused commit was applied");
    let possible = |key: &&str| applied.iter().chain(&unknown).any(|known| known == key);
    assert!(found.iter().all(possible), "something was written that nobody wrote");
}

#[tokio::test]
async fn a_paused_member_is_noticed_and_left() {
    let etcd = Etcd::start(3);
    let coordinator = connect(&etcd.url()).await;
    let mut hints = coordinator.watch("jobs/").await.unwrap();
    // Everything goes to the first member that answered.
    etcd.suspend(0);
    let paused = coordinator.commit(vec![], vec![put("jobs/a", "1")]).await;
    assert!(matches!(paused, Err(CoordError::Unknown)), "{paused:?}");
    until("a commit elsewhere", async || coordinator.commit(vec![], vec![put("jobs/a", "2")]).await.ok()).await;
    a_hint(&mut hints).await;
    etcd.resume(0);
}

/// Heartbeats have less patience than a request; their next one must not go to the same silent member.
#[tokio::test]
async fn a_paused_member_is_left_by_whoever_gives_up_waiting_for_it() {
    let etcd = Etcd::start(3);
    let leader = etcd.leader().expect("a leader");
    // Asked first, and missed by nobody: the others need no election.
    let paused = (leader + 1) % 3;
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(paused);
    let coordinator = connect(&etcd.url_of(&endpoints)).await;
    apply(&coordinator, vec![], vec![put("jobs/a", "1")]).await;
    etcd.suspend(paused);
    let given_up = coordinator.commit(vec![], vec![put("jobs/a", "2")]);
    let given_up = tokio::time::timeout(Duration::from_millis(500), given_up).await;
    assert!(given_up.is_err(), "{given_up:?}");
    apply(&coordinator, vec![], vec![put("jobs/a", "3")]).await;
    etcd.resume(paused);
}

/// Less than the limit of a request: nobody waits for a member when another one answers.
#[tokio::test]
async fn a_read_is_answered_by_another_member_while_one_is_silent() {
    let etcd = Etcd::start(3);
    let leader = etcd.leader().expect("a leader");
    let paused = (leader + 1) % 3;
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left(paused);
    let coordinator = connect(&etcd.url_of(&endpoints)).await;
    apply(&coordinator, vec![], vec![put("jobs/a", "1")]).await;
    etcd.suspend(paused);
    let read = tokio::time::timeout(Duration::from_secs(4), coordinator.list("jobs/")).await;
    assert_eq!(read.expect("an answer of another member").unwrap().len(), 1);
    apply(&coordinator, vec![], vec![put("jobs/a", "2")]).await;
    etcd.resume(paused);
}

/// Its leader is silent too, and what it was handed stays with it: others have elected another one long before it says so.
#[tokio::test]
async fn a_commit_that_a_member_keeps_for_a_silent_leader_is_given_up_soon() {
    let etcd = Etcd::start(3);
    let leader = etcd.leader().expect("a leader");
    let mut endpoints = etcd.endpoints();
    endpoints.rotate_left((leader + 1) % 3);
    let coordinator = connect(&etcd.url_of(&endpoints)).await;
    apply(&coordinator, vec![], vec![put("jobs/a", "1")]).await;
    etcd.suspend(leader);
    let kept = coordinator.commit(vec![Guard::Absent("jobs/b".into())], vec![put("jobs/b", "1")]);
    let kept = tokio::time::timeout(Duration::from_secs(4), kept).await.expect("an end of waiting");
    // Or it was handed over again to the new leader in time.
    assert!(matches!(kept, Err(CoordError::Unknown) | Ok(Commit::Applied(_))), "{kept:?}");
    until("a commit by the others", async || coordinator.commit(vec![], vec![put("jobs/a", "2")]).await.ok()).await;
    etcd.resume(leader);
}

#[tokio::test]
async fn a_watch_gives_hints_after_the_server_was_restarted() {
    let mut etcd = Etcd::start(1);
    let url = etcd.url();
    let (coordinator, other) = tokio::join!(connect(&url), connect(&url));
    let mut hints = coordinator.watch("jobs/").await.unwrap();
    etcd.restart(0);
    // One because something may have happened meanwhile, then one for each change.
    a_hint(&mut hints).await;
    until("a commit", async || other.commit(vec![], vec![put("jobs/a", "1")]).await.ok()).await;
    a_hint(&mut hints).await;
}

#[tokio::test]
async fn a_list_of_many_large_values_is_complete_and_of_one_revision() {
    const KEYS: usize = 120;
    let etcd = Etcd::start(1);
    let url = etcd.url();
    let (coordinator, other) = tokio::join!(connect(&url), connect(&url));
    let key = |n: usize| format!("large/{n:03}");
    // All keys are always of one round: each commit writes the marks, and the first of them tells the round.
    let large = |n: usize| put(&key(n), vec![b'x'; if n.is_multiple_of(2) { 100 } else { 200 * 1024 }]);
    for n in 0..KEYS {
        apply(&coordinator, vec![], vec![large(n), put("large/a", "0"), put("large/z", "0")]).await;
    }
    let write = async {
        for round in 1..=60 {
            let round = round.to_string();
            apply(&other, vec![], vec![put("large/a", round.as_str()), put("large/z", round.as_str())]).await;
        }
    };
    let list = async {
        for _ in 0..3 {
            let listed = coordinator.list("large/").await.unwrap();
            assert_eq!(listed.len(), KEYS + 2);
            assert!(listed.is_sorted_by(|one, two| one.key < two.key));
            let mark = |key: &str| listed.iter().find(|entry| entry.key == key).unwrap().value.clone();
            assert_eq!(mark("large/a"), mark("large/z"), "pages of two revisions");
        }
    };
    tokio::join!(write, list);
}

#[tokio::test]
async fn tidy_keeps_rewrites_of_one_key_from_filling_etcd() {
    let etcd = Etcd::start_with(1, EtcdOptions { quota_bytes: Some(16 << 20), ..EtcdOptions::default() });
    let coordinator = connect(&etcd.url()).await;
    for round in 0..4_000 {
        if round % 200 == 0 {
            coordinator.tidy().await.unwrap();
        }
        apply(&coordinator, vec![], vec![put("one", vec![b'x'; 8 * 1024])]).await;
    }
    let quota = coordinator.quota().await.unwrap();
    assert!(!quota.alarm && quota.file_bytes < 16 << 20 && quota.used_bytes <= quota.file_bytes, "{quota:?}");
}

#[tokio::test]
async fn a_full_etcd_is_told_as_full_and_what_it_refused_is_not_there() {
    let etcd = Etcd::start_with(1, EtcdOptions { quota_bytes: Some(16 << 20), ..EtcdOptions::default() });
    let coordinator = connect(&etcd.url()).await;
    let mut outcomes = vec![];
    // Several at once, so that some are on their way when the database becomes full.
    while outcomes.iter().filter(|(_, outcome)| matches!(outcome, Err(CoordError::Full(_)))).count() < 20 {
        assert!(outcomes.len() < 4_000, "it takes more than its quota");
        let keys: Vec<String> = (0..8).map(|n| format!("k/{:05}", outcomes.len() + n)).collect();
        let commits = keys.iter().map(|key| coordinator.commit(vec![], vec![put(key, vec![b'x'; 32 * 1024])]));
        let done = futures_util::future::join_all(commits).await;
        outcomes.extend(keys.into_iter().zip(done));
    }
    let listed = coordinator.list("k/").await.unwrap();
    let unknown = outcomes.iter().filter(|(_, outcome)| matches!(outcome, Err(CoordError::Unknown)));
    let unknown: Vec<_> = unknown.map(|(key, _)| listed.iter().any(|entry| &entry.key == key)).collect();
    println!("{} unknown, {} of them applied", unknown.len(), unknown.iter().filter(|applied| **applied).count());
    for (key, outcome) in &outcomes {
        let found = listed.iter().any(|entry| &entry.key == key);
        match outcome {
            Ok(_) => assert!(found, "`{key}` was applied and is gone"),
            Err(CoordError::Unknown) => {}
            Err(CoordError::Full(why)) => {
                assert!(!found, "`{key}` was refused and is there");
                assert!(why.contains("etcdctl alarm disarm"), "{why}");
            }
            Err(other) => panic!("`{key}`: {other}"),
        }
    }
    assert!(coordinator.quota().await.unwrap().alarm);
    // Deleting still works, or nobody could ever make room.
    apply(&coordinator, vec![], vec![Write::Delete("k/00000".into())]).await;
}

#[tokio::test]
async fn deleting_what_is_absent_has_a_new_version_too() {
    let etcd = Etcd::start(1);
    let coordinator = connect(&etcd.url()).await;
    let first = apply(&coordinator, vec![], vec![Write::Delete("a".into())]).await;
    let second = apply(&coordinator, vec![], vec![Write::Delete("a".into())]).await;
    assert!(second > first);
    assert_eq!(coordinator.list("").await.unwrap(), vec![]);
    let zero = coordinator.commit(vec![Guard::At("a".into(), Version(0))], vec![put("a", "1")]).await.unwrap();
    assert_eq!(zero, Commit::Conflict { key: "a".into() });
}
