//! ZooKeeper as coordinator, on real servers: the conformance suite on one member, on three, and through a proxy; and what no
//! other backend has: lost answers, passwords, dead members, sessions that end, and the lock of the old wrapper.
#![expect(clippy::disallowed_methods, reason = "tests spawn as they like")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use belfry_coord::conformance::{CaseReport, conformance, conformance_over_a_network};
use belfry_coord::{Commit, CoordError, Coordinator, Guard, OldLock, OldTake, Write, ZooKeeperCoordinator};
use belfry_core::Version;
use belfry_testkit::{Proxy, ZooKeeper, until};
use tokio::time::Instant;
use zookeeper_client::{Acls, Client, CreateMode};

/// Only a hint that is missing meets it.
const HINT_WITHIN: Duration = Duration::from_secs(15);

/// A chroot that nobody used before.
fn new_chroot() -> String {
    static CHROOTS: AtomicU32 = AtomicU32::new(0);
    format!("/test/of/{}", CHROOTS.fetch_add(1, Ordering::Relaxed))
}

async fn open(url: &str, chroot: &str) -> ZooKeeperCoordinator {
    ZooKeeperCoordinator::open(&format!("{url}{chroot}")).await.unwrap()
}

fn through(proxy: &Proxy) -> String {
    format!("zookeeper://{}", proxy.address())
}

async fn made(url: &str) -> Arc<dyn Coordinator> {
    Arc::new(open(url, &new_chroot()).await)
}

fn all_hold(members: &str, reports: &[CaseReport]) {
    for report in reports {
        println!("zookeeper  {members:<18} {report}");
    }
    let failed = reports.iter().filter(|report| report.verdict.is_err()).count();
    assert_eq!(failed, 0, "{failed} of {} cases failed on {members}", reports.len());
}

fn put(key: &str, value: &str) -> Write {
    Write::Put(key.into(), value.to_owned().into())
}

fn at(key: &str, version: Version) -> Guard {
    Guard::At(key.into(), version)
}

fn absent(key: &str) -> Guard {
    Guard::Absent(key.into())
}

fn applied(commit: Result<Commit, CoordError>) -> Version {
    match commit {
        Ok(Commit::Applied(version)) => version,
        other => panic!("{other:?} instead of a commit"),
    }
}

async fn value(coordinator: &ZooKeeperCoordinator, key: &str) -> Option<String> {
    let entry = coordinator.get(key).await.unwrap();
    entry.map(|entry| String::from_utf8(entry.value.to_vec()).unwrap())
}

#[tokio::test]
async fn one_member_conforms() {
    let server = ZooKeeper::start(1);
    let url = server.url();
    all_hold("1 member", &conformance(|| made(&url)).await);
}

#[tokio::test]
async fn three_members_conform() {
    let server = ZooKeeper::start(3);
    let url = server.url();
    all_hold("3 members", &conformance(|| made(&url)).await);
}

#[tokio::test]
async fn a_member_behind_a_proxy_conforms() {
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    let url = through(&proxy);
    let lose = |claim: &str| proxy.lose_answer_to(claim.as_bytes());
    all_hold("1 member, proxy", &conformance_over_a_network(|| made(&url), &lose).await);
    assert!(proxy.answers_lost() > 5, "{} answers were lost", proxy.answers_lost());
}

#[tokio::test]
async fn a_lost_answer_is_unknown_and_the_commit_is_found_applied() {
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    let coordinator = open(&through(&proxy), &new_chroot()).await;
    let first = applied(coordinator.commit(vec![absent("seat")], vec![put("seat", "before")]).await);

    proxy.lose_answer_to(b"only-in-this-commit");
    let lost = coordinator.commit(vec![at("seat", first)], vec![put("seat", "only-in-this-commit")]).await;
    assert!(matches!(&lost, Err(error) if error.outcome_unknown()), "{lost:?} for a lost answer");
    assert_eq!(proxy.answers_lost(), 1);

    let found = coordinator.get("seat").await.unwrap().unwrap();
    assert_eq!((&found.value[..], found.version > first), (&b"only-in-this-commit"[..], true));
    let again = coordinator.commit(vec![at("seat", first)], vec![put("seat", "twice")]).await;
    assert!(matches!(again, Ok(Commit::Conflict { .. })), "{again:?}");
    applied(coordinator.commit(vec![at("seat", found.version)], vec![put("seat", "after")]).await);
}

/// The connection breaks before the commit is sent: nothing can have happened, and the answer says so.
#[tokio::test]
async fn without_a_server_a_commit_is_refused_in_time_and_not_in_doubt() {
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    let coordinator = open(&through(&proxy), &new_chroot()).await;
    applied(coordinator.commit(vec![], vec![put("a", "1")]).await);
    proxy.cut();
    until("the cut is noticed", async || coordinator.get("a").await.err()).await;
    let refused = coordinator.commit(vec![], vec![put("a", "2")]).await;
    assert!(matches!(&refused, Err(error) if error.is_transient() && !error.outcome_unknown()), "{refused:?}");
    proxy.heal();
    until("it is back", async || coordinator.get("a").await.ok()).await;
    assert_eq!(value(&coordinator, "a").await.as_deref(), Some("1"));
}

#[tokio::test]
async fn with_a_password_nobody_else_reads_or_writes() {
    let server = ZooKeeper::start(1);
    let (hosts, chroot) = (server.endpoints().join(","), new_chroot());
    let ours = open(&format!("zookeeper://bel:pass%3Aword@{hosts}"), &chroot).await;
    applied(ours.commit(vec![], vec![put("nodes/1", "secret"), put("top", "secret")]).await);
    assert_eq!(value(&ours, "nodes/1").await.as_deref(), Some("secret"));

    let urls = [format!("zookeeper://{hosts}{chroot}"), format!("zookeeper://bel:other@{hosts}{chroot}")];
    for url in &urls {
        let error = ZooKeeperCoordinator::open(url).await.unwrap_err();
        assert!(!error.is_transient() && error.to_string().contains("does not allow"), "{error}");
        assert!(!error.to_string().contains("other"), "{error}");
    }
    let stranger = zookeeper_client::Client::connect(&hosts).await.unwrap();
    let below = |name: &str| format!("{chroot}{name}");
    for name in ["", "/nodes%2F", "/nodes%2F/1", "/nodes%2F/%removals", "/top", "/top/top"] {
        let read = stranger.get_data(&below(name)).await.map(drop);
        assert_eq!(read, Err(zookeeper_client::Error::NoAuth), "read {name}");
        let written = stranger.set_data(&below(name), b"x", None).await.map(drop);
        assert_eq!(written, Err(zookeeper_client::Error::NoAuth), "write {name}");
    }
    assert_eq!(stranger.list_children(&below("/nodes%2F")).await, Err(zookeeper_client::Error::NoAuth));
    assert_eq!(stranger.delete(&below("/nodes%2F/1"), None).await, Err(zookeeper_client::Error::NoAuth));
    let same = open(&format!("zookeeper://bel:pass%3Aword@{hosts}"), &chroot).await;
    assert_eq!(value(&same, "top").await.as_deref(), Some("secret"));
    assert!(!format!("{same:?}").contains("word"), "{same:?}");
}

#[tokio::test]
async fn a_chroot_that_is_open_to_all_is_refused_with_a_password() {
    let server = ZooKeeper::start(1);
    let chroot = new_chroot();
    drop(open(&server.url(), &chroot).await);
    let url = format!("zookeeper://bel:word@{}{chroot}", server.endpoints().join(","));
    let error = ZooKeeperCoordinator::open(&url).await.unwrap_err();
    assert!(error.to_string().contains("setAcl") && !error.is_transient(), "{error}");
}

/// Counts up under a guard while a member dies, and believes only what it was told: in the end the number is exact, give or
/// take nothing, because every doubt was settled by looking.
async fn count_while(server: &mut ZooKeeper, disturb: impl FnOnce(&mut ZooKeeper)) {
    let coordinator = open(&server.url(), &new_chroot()).await;
    let mut last = applied(coordinator.commit(vec![], vec![put("count", "0")]).await);
    let mut disturb = Some(disturb);
    for number in 1..=200_u32 {
        if number == 50
            && let Some(disturb) = disturb.take()
        {
            disturb(server);
        }
        let wanted = number.to_string();
        last = until("the count goes on", async || {
            match coordinator.commit(vec![at("count", last)], vec![put("count", &wanted)]).await {
                Ok(Commit::Applied(version)) => return Some(version),
                Err(error) if error.is_transient() && !error.outcome_unknown() => return None,
                Err(error) if error.outcome_unknown() => {}
                // Only a try that was in doubt can have moved it.
                Ok(Commit::Conflict { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let entry = coordinator.get("count").await.ok()??;
            (entry.value == wanted.as_bytes()).then_some(entry.version)
        })
        .await;
    }
    let entry = coordinator.get("count").await.unwrap().unwrap();
    assert_eq!((&entry.value[..], entry.version), (&b"200"[..], last));
}

#[tokio::test]
async fn commits_go_on_when_the_leader_dies() {
    let mut server = ZooKeeper::start(3);
    let leader = server.leader().unwrap();
    count_while(&mut server, |server| server.kill(leader)).await;
}

#[tokio::test]
async fn commits_go_on_when_a_follower_dies() {
    let mut server = ZooKeeper::start(3);
    let follower = (server.leader().unwrap() + 1) % 3;
    count_while(&mut server, |server| server.kill(follower)).await;
}

/// Nobody who asks waits as long as a round through silent members takes, as heartbeats do not; the round goes on all the same.
#[tokio::test]
async fn who_asks_with_little_patience_finds_the_member_that_serves() {
    let server = ZooKeeper::start(1);
    let silent = [Proxy::before(&server.endpoints()[0]), Proxy::before(&server.endpoints()[0])];
    let way = Proxy::before(&server.endpoints()[0]);
    let hosts = format!("{},{},{}", silent[0].address(), silent[1].address(), way.address());
    let coordinator = open(&format!("zookeeper://{hosts}"), &new_chroot()).await;
    applied(coordinator.commit(vec![], vec![put("a", "1")]).await);
    silent.iter().for_each(Proxy::stall);
    way.cut();
    let ask = async || tokio::time::timeout(Duration::from_millis(300), coordinator.get("a")).await.ok()?.ok();
    until("nobody serves", async || ask().await.is_none().then_some(())).await;
    way.heal();
    until("it is found", async || ask().await).await;
}

#[tokio::test]
async fn a_hint_comes_after_the_server_was_restarted() {
    let mut server = ZooKeeper::start(1);
    let chroot = new_chroot();
    let (watching, other) = (open(&server.url(), &chroot).await, open(&server.url(), &chroot).await);
    applied(other.commit(vec![], vec![put("nodes/1", "1")]).await);
    let mut hints = watching.watch("nodes/").await.unwrap();
    server.kill(0);
    server.restart(0);
    until("commits are possible", async || other.commit(vec![], vec![put("nodes/1", "2")]).await.ok()).await;
    tokio::time::timeout(HINT_WITHIN, hints.changed()).await.expect("a hint");
}

#[tokio::test]
async fn a_hint_is_of_its_prefix() {
    let server = ZooKeeper::start(1);
    let chroot = new_chroot();
    let (watching, other) = (open(&server.url(), &chroot).await, open(&server.url(), &chroot).await);
    let mut hints = watching.watch("changed/jobs").await.unwrap();
    for n in 0..3 {
        applied(other.commit(vec![], vec![put("nodes/1", &n.to_string()), put("leader", "")]).await);
        let spurious = tokio::time::timeout(Duration::from_millis(700), hints.changed()).await;
        assert!(spurious.is_err(), "a hint for a commit elsewhere");
    }
    applied(other.commit(vec![], vec![put("changed/jobs", "1")]).await);
    tokio::time::timeout(HINT_WITHIN, hints.changed()).await.expect("a hint");
}

/// The session is over at the server before the client hears from it again.
#[tokio::test]
async fn the_end_of_a_session_is_survived() {
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    let chroot = new_chroot();
    let direct = open(&server.url(), &chroot).await;
    let coordinator = open(&through(&proxy), &chroot).await;
    let first = applied(coordinator.commit(vec![], vec![put("nodes/1", "1")]).await);
    let mut hints = coordinator.watch("nodes/").await.unwrap();

    proxy.stall();
    let away = coordinator.commit(vec![], vec![put("nodes/2", "")]).await;
    assert!(matches!(&away, Err(error) if error.is_transient()), "{away:?} while nothing gets through");
    // Longer than any session that this client asks for; there is no fact to wait for on a dead line.
    tokio::time::sleep(Duration::from_secs(9)).await;
    let second = applied(direct.commit(vec![at("nodes/1", first)], vec![put("nodes/1", "2")]).await);
    proxy.heal();

    until("it is back", async || coordinator.get("nodes/1").await.ok()).await;
    tokio::time::timeout(HINT_WITHIN, hints.changed()).await.expect("a hint");
    let late = coordinator.commit(vec![at("nodes/1", first)], vec![put("nodes/1", "3")]).await;
    assert!(matches!(late, Ok(Commit::Conflict { .. })), "{late:?}");
    applied(coordinator.commit(vec![at("nodes/1", second)], vec![put("nodes/1", "3")]).await);
}

/// A key is deleted, made and set by many at once. Whoever is told that its guard held has used up that version: two who are
/// told so for the same one would mean that a key made again passed for its former self.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_version_of_a_key_is_used_up_twice() {
    const TASKS: u32 = 8;
    const EACH: u32 = 150;
    let server = ZooKeeper::start(1);
    let chroot = new_chroot();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let coordinator = open(&server.url(), &chroot).await;
        tasks.spawn(async move {
            let mut used = vec![];
            for turn in 0..EACH {
                let write = |version: Option<Version>| match version {
                    Some(_) if (task + turn) % 3 != 0 => Write::Delete("a/key".into()),
                    Some(_) | None => put("a/key", &format!("{task}/{turn}")),
                };
                let found = coordinator.get("a/key").await.unwrap().map(|entry| entry.version);
                let guard = found.map_or(absent("a/key"), |version| at("a/key", version));
                if let Commit::Applied(_) = coordinator.commit(vec![guard], vec![write(found)]).await.unwrap() {
                    used.extend(found);
                }
            }
            used
        });
    }
    let mut times: BTreeMap<Version, u32> = BTreeMap::new();
    while let Some(used) = tasks.join_next().await {
        used.unwrap().into_iter().for_each(|version| *times.entry(version).or_default() += 1);
    }
    assert!(times.len() > 50, "only {} versions were used up", times.len());
    let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "used up more than once: {twice:?}");
}

/// A commit is held up on its way at ever later moments, and meanwhile its key is deleted and made again, with the same data
/// version as ZooKeeper counts. A round counts when the commit was held after it had read its key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_made_again_does_not_pass_for_its_former_self() {
    const ROUNDS: u32 = 100;
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    let chroot = new_chroot();
    let direct = open(&server.url(), &chroot).await;
    let held_up = Arc::new(open(&through(&proxy), &chroot).await);
    for round in 0..ROUNDS {
        let key = format!("a/{round}");
        let first = applied(direct.commit(vec![absent(&key)], vec![put(&key, "first")]).await);
        let late = tokio::spawn({
            let (held_up, key) = (held_up.clone(), key.clone());
            async move { held_up.commit(vec![at(&key, first)], vec![put(&key, "late")]).await }
        });
        let stall_at = Instant::now() + Duration::from_micros(20) * round;
        while Instant::now() < stall_at {
            std::hint::spin_loop();
        }
        proxy.stall();
        let deleted = direct.commit(vec![at(&key, first)], vec![Write::Delete(key.clone())]).await;
        let deleted = matches!(deleted, Ok(Commit::Applied(_)));
        if deleted {
            applied(direct.commit(vec![absent(&key)], vec![put(&key, "again")]).await);
        }
        proxy.heal();
        let late = late.await.unwrap().unwrap();
        assert_eq!(matches!(late, Commit::Applied(_)), !deleted, "round {round}: deleted {deleted}, then {late:?}");
        let left = if deleted { "again" } else { "late" };
        assert_eq!(value(&direct, &key).await.as_deref(), Some(left), "round {round}");
    }
}

/// A follower is stopped, the key moves on without it, and the next commit goes through that follower as it wakes up: what it
/// reads first is old.
#[tokio::test]
async fn a_member_that_lags_behind_gives_no_false_conflict() {
    let server = ZooKeeper::start(3);
    let leader = server.leader().unwrap();
    let follower = (leader + 1) % 3;
    let chroot = new_chroot();
    let ahead = open(&format!("zookeeper://{}", server.endpoints()[leader]), &chroot).await;
    let behind = open(&format!("zookeeper://{}", server.endpoints()[follower]), &chroot).await;
    let mut through_follower = 0;
    for round in 0..20 {
        // A key for each round: a commit that a slow machine leaves in doubt disturbs no other round.
        let seat = format!("seat/{round}");
        let mut last = applied(behind.commit(vec![absent(&seat)], vec![put(&seat, "")]).await);
        server.suspend(follower);
        for turn in 0..20 {
            let ballast = put("ballast", &"x".repeat(20_000));
            last = applied(ahead.commit(vec![at(&seat, last)], vec![put(&seat, &turn.to_string()), ballast]).await);
        }
        let guards = vec![at(&seat, last)];
        let (next, ()) = tokio::join!(behind.commit(guards, vec![put(&seat, "behind")]), async {
            // Its request is at the follower's door by then.
            tokio::time::sleep(Duration::from_millis(30)).await;
            server.resume(follower);
        });
        match next {
            Ok(Commit::Applied(_)) => through_follower += 1,
            Err(error) if error.is_transient() => {
                until("the follower serves again", async || behind.get(&seat).await.ok()).await;
            }
            other => panic!("round {round}: {other:?}"),
        }
    }
    assert!(through_follower > 10, "only {through_follower} commits went through the follower");
}

#[tokio::test]
async fn any_text_is_a_key() {
    let server = ZooKeeper::start(1);
    let coordinator = open(&server.url(), &new_chroot()).await;
    let mut keys = vec![
        ".",
        "..",
        "/",
        "//",
        "a//b",
        "a/./b",
        "a/..",
        "%",
        "%removals",
        "x/%removals",
        "\u{1}",
        "\u{7f}",
        "钟/楼",
        "\u{10FFFF}",
        "\u{FFFF}",
    ];
    keys.sort_unstable();
    applied(
        coordinator
            .commit(keys.iter().map(|key| absent(key)).collect(), keys.iter().map(|key| put(key, key)).collect())
            .await,
    );
    let listed: Vec<_> = coordinator.list("").await.unwrap().into_iter().map(|entry| entry.key).collect();
    assert_eq!(listed, keys);
    for key in keys {
        assert_eq!(value(&coordinator, key).await.as_deref(), Some(key));
    }
}

const OLD_SESSION: Duration = Duration::from_secs(2);

fn old_lock(url: &str, host: &str) -> OldLock {
    OldLock::of(&format!("{url}/x"), "db.backup.0230", host, OLD_SESSION).unwrap()
}

/// As the old wrapper sees it.
struct Old(Client);

impl Old {
    const MASTER: &str = "/x/db/backup/0230/master";
    const STATUS: &str = "/x/db/backup/0230/status";

    async fn beside(server: &ZooKeeper) -> Self {
        Self(Client::connect(&server.endpoints().join(",")).await.unwrap())
    }

    async fn run(&self) {
        self.0.mkdir("/x/db/backup/0230", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
        let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
        self.0.create(Self::MASTER, b"node-a", &ephemeral).await.unwrap();
    }

    async fn finish(&self) {
        let persistent = CreateMode::Persistent.with_acls(Acls::anyone_all());
        self.0.create(Self::STATUS, br#"{"status":0}"#, &persistent).await.unwrap();
        self.0.delete(Self::MASTER, None).await.unwrap();
    }

    async fn has(&self, path: &str) -> bool {
        self.0.check_stat(path).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn the_old_lock_is_ephemeral_below_lasting_parents_and_goes_when_it_is_released() {
    let server = ZooKeeper::start(1);
    let old = Old::beside(&server).await;
    let mut lock = old_lock(&server.url(), "node-b");
    assert_eq!(lock.take().await.unwrap(), OldTake::Taken);
    assert_eq!(lock.take().await.unwrap(), OldTake::Taken, "it has it already");
    let owner = async |path: &str| old.0.check_stat(path).await.unwrap().map(|stat| stat.ephemeral_owner != 0);
    assert_eq!((owner("/x/db/backup/0230").await, owner(Old::MASTER).await), (Some(false), Some(true)));
    assert_eq!(server.ephemerals(), 1);
    lock.release().await;
    assert_eq!((old.has(Old::MASTER).await, old.has(Old::STATUS).await), (false, false));

    let mut dropped = old_lock(&server.url(), "node-b");
    assert_eq!(dropped.take().await.unwrap(), OldTake::Taken);
    drop(dropped);
    until("it is gone", async || (!old.has(Old::MASTER).await).then_some(())).await;
}

#[tokio::test]
async fn without_a_path_in_the_url_the_old_lock_is_at_the_root() {
    let server = ZooKeeper::start(1);
    let mut lock = OldLock::of(&server.url(), "a.1", "node-b", OLD_SESSION).unwrap();
    assert_eq!(lock.take().await.unwrap(), OldTake::Taken);
    assert!(Old::beside(&server).await.has("/a/1/master").await);
}

#[tokio::test]
async fn what_the_old_wrapper_runs_or_has_run_is_not_ours() {
    let server = ZooKeeper::start(1);
    let old = Old::beside(&server).await;
    let mut lock = old_lock(&server.url(), "node-b");
    old.run().await;
    assert_eq!(lock.take().await.unwrap(), OldTake::Held { by: "node-a".into() });
    old.finish().await;
    assert_eq!(lock.take().await.unwrap(), OldTake::Finished);
}

#[tokio::test]
async fn the_lock_of_another_one_of_ours_is_waited_for_and_what_it_finished_is_not_run_again() {
    let server = ZooKeeper::start(1);
    let (mut first, mut second) = (old_lock(&server.url(), "node-b"), old_lock(&server.url(), "node-c"));
    assert_eq!(first.take().await.unwrap(), OldTake::Taken);
    let error = second.take().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("node-b"), "{error}");
    first.release().await;
    assert_eq!(second.take().await.unwrap(), OldTake::Taken);
    second.finish(3).await.unwrap();
    second.finish(3).await.unwrap();
    second.release().await;
    let (status, _) = Old::beside(&server).await.0.get_data(Old::STATUS).await.unwrap();
    assert_eq!(status, br#"{"id":"node-c","status":3}"#);
    assert_eq!(old_lock(&server.url(), "node-b").take().await.unwrap(), OldTake::Finished);
}

/// The node is made and nobody says so: it is known by its session.
#[tokio::test]
async fn an_old_lock_whose_answer_was_lost_is_ours() {
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    // The parents are there, so that the first request is the one that counts.
    old_lock(&server.url(), "node-b").take().await.unwrap();
    let old = Old::beside(&server).await;
    until("it is gone", async || (!old.has(Old::MASTER).await).then_some(())).await;
    let mut lock = old_lock(&through(&proxy), "node-b");
    proxy.lose_answer_to(b"(belfry)");
    let lost = lock.take().await;
    assert!(matches!(&lost, Err(error) if error.is_transient()), "{lost:?}");
    assert_eq!(proxy.answers_lost(), 1);
    assert!(old.has(Old::MASTER).await);
    let again = until("it is back", async || lock.take().await.ok()).await;
    assert_eq!(again, OldTake::Taken);
}

#[tokio::test]
async fn the_end_of_the_session_of_an_old_lock_is_told_and_another_session_takes_it_again() {
    let server = ZooKeeper::start(1);
    let proxy = Proxy::before(&server.endpoints()[0]);
    let old = Old::beside(&server).await;
    let mut lock = old_lock(&through(&proxy), "node-b");
    assert_eq!(lock.take().await.unwrap(), OldTake::Taken);
    assert_eq!(lock.stays_for(), Some(OLD_SESSION));
    let lost = lock.lost();
    proxy.stall();
    tokio::time::timeout(HINT_WITHIN, lost).await.expect("it is told");
    until("it is gone", async || (!old.has(Old::MASTER).await).then_some(())).await;
    proxy.heal();
    let again = until("it is back", async || lock.take().await.ok()).await;
    assert_eq!(again, OldTake::Taken);
}
