//! What jobs keep from run to run: who may write it, that the next run gets it, and that nothing that was acknowledged is lost.

use std::collections::BTreeMap;

use belfry_control::ControlError;
use belfry_coord::keys;
use belfry_core::job::{JobDocument, Overlap, RunOn};
use belfry_core::run::RunState;
use belfry_core::state::Saved;
use belfry_core::{RunId, Version};
use belfry_proto::session::{self, RunKey, SaveState, StateSaved, to_agent};
use belfry_store::Actor;
use belfry_testkit::until_within;

use crate::support::{Cluster, Session, manual, run_at_owner, shards, until};

type Values = BTreeMap<String, String>;

fn values(pairs: &[(&str, &str)]) -> Values {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn saves(sequence: u64, pairs: &[(&str, &str)]) -> SaveState {
    SaveState { key: None, sequence, changes: values(pairs).into_iter().collect() }
}

fn state_of(order: &session::Dispatch) -> Values {
    order.state.clone().into_iter().collect()
}

impl Session {
    pub async fn save(&mut self, key: &RunKey, save: SaveState) -> StateSaved {
        self.say(SaveState { key: Some(key.clone()), ..save }).await;
        self.until(|message| match message {
            to_agent::Message::StateSaved(saved) if saved.key.as_ref() == Some(key) => Some(saved),
            _ => None,
        })
        .await
    }

    async fn end_with(&self, key: &RunKey, saves: SaveState) {
        self.say(session::Ended {
            key: Some(key.clone()),
            outcome: "succeeded".into(),
            ended_at_ms: jiff::Timestamp::UNIX_EPOCH.as_millisecond() + 1_800_000_000_000,
            exit_code: Some(0),
            saves: Some(saves),
            ..Default::default()
        })
        .await;
    }
}

fn queued(document: &mut JobDocument) {
    document.overlap = Overlap::Queue;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_run_gets_what_the_one_before_it_wrote_to_its_end() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job_with(3, queued).await;
    server.run_now(manual(job)).await.unwrap();
    let first = one.order().await;
    assert_eq!(state_of(&first), Values::new());
    let key = first.key.unwrap();
    one.start(&key).await;
    server.run_now(manual(job)).await.unwrap();
    let saved = one.save(&key, saves(1, &[("A", "1=2"), ("B", "2"), ("bad", "x")])).await;
    assert_eq!(saved.refused.len(), 1, "{saved:?}");
    assert!(saved.refused[0].contains("`bad`"), "{saved:?}");
    assert_eq!(server.state(job).await.unwrap().values, values(&[("A", "1=2"), ("B", "2")]));
    one.end_with(&key, saves(2, &[("B", ""), ("C", "3")])).await;
    let second = one.order_of(|other| *other != key).await;
    assert_eq!(state_of(&second), values(&[("A", "1=2"), ("C", "3")]));
    let entry = cluster.coordinator.get(&keys::state(job)).await.unwrap().expect("it is in the coordinator");
    let kept: Saved = serde_json::from_slice(&entry.value).unwrap();
    assert_eq!((kept.fence.0, kept.sequence, kept.values), (first.fence, 2, state_of(&second)));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_under_a_stale_fence_is_refused_and_the_record_says_so() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job_with(3, |document| document.overlap = Overlap::Allow).await;
    let run = server.run_now(manual(job)).await.unwrap().id;
    let older = one.order().await;
    let older_key = older.key.clone().unwrap();
    server.run_now(manual(job)).await.unwrap();
    let newer = one.order_of(|key| *key != older_key).await;
    assert!(newer.fence > older.fence);
    let newer_key = newer.key.clone().unwrap();
    assert_eq!(one.save(&older_key, saves(1, &[("A", "old")])).await.refused, Vec::<String>::new());
    assert_eq!(one.save(&newer_key, saves(1, &[("A", "new")])).await.refused, Vec::<String>::new());
    let stale = one.save(&older_key, saves(2, &[("A", "old again"), ("B", "1")])).await;
    let words = format!("stale: its fence is {}, and a run with fence {} has saved since", older.fence, newer.fence);
    assert_eq!(stale.refused.join("; "), words);
    assert_eq!(server.state(job).await.unwrap().values, values(&[("A", "new")]));
    one.end_with(&older_key, saves(3, &[("A", "old at its end")])).await;
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!((ended.state, ended.reason.unwrap()), (RunState::Succeeded, format!("not saved: {words}")));
    assert_eq!(server.state(job).await.unwrap().values, values(&[("A", "new")]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_the_shard_over_has_what_was_saved_and_takes_nothing_twice() {
    let cluster = Cluster::new().await;
    let a = cluster.server("a").await;
    let mut one = Session::open(&a, 1).await;
    let job = cluster.job_with(3, queued).await;
    a.run_now(manual(job)).await.unwrap();
    let key = one.order().await.key.unwrap();
    one.start(&key).await;
    one.save(&key, saves(1, &[("A", "1")])).await;
    a.stop().await;
    let b = cluster.server("b").await;
    let mut one = Session::connect(&b, 1);
    one.greet(session::Hello { running: vec![key.clone()], ..one.greeting(1) }).await;
    until(|| b.open_run(key.run.parse().unwrap()).is_some()).await;
    b.set_state(job, values(&[("A", "by hand")]), None).await.unwrap();
    let again = one.save(&key, saves(1, &[("A", "1")])).await;
    assert_eq!(again.refused, Vec::<String>::new());
    assert_eq!(b.state(job).await.unwrap().values["A"], "by hand", "it was acknowledged before");
    b.run_now(manual(job)).await.unwrap();
    one.end_with(&key, saves(2, &[("B", "2")])).await;
    let next = one.order_of(|other| *other != key).await;
    assert_eq!(state_of(&next), values(&[("A", "by hand"), ("B", "2")]));
    b.stop().await;
}

/// The agent cannot reach the owner when the run ends, and tells another server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_with_an_end_that_another_server_was_told_is_kept_by_the_owner() {
    let cluster = Cluster::new().await;
    let (a, b) = (cluster.server("a").await, cluster.server("b").await);
    until(|| shards(&a) == 8 && shards(&b) == 8).await;
    let job = cluster.job_with(3, queued).await;
    let (to_a, to_b) = (Session::open(&a, 1).await, Session::open(&b, 1).await);
    let [(owner, mut asked), (_, mut told)] = run_at_owner((a.clone(), to_a), (b.clone(), to_b), job).await;
    let key = asked.order().await.key.unwrap();
    asked.start(&key).await;
    let run: RunId = key.run.parse().unwrap();
    cluster.stored(run, |run| run.state == RunState::Running).await;
    owner.run_now(manual(job)).await.unwrap();
    told.end_with(&key, saves(1, &[("A", "1")])).await;
    told.until_stored(&key).await;
    let next = asked.order_of(|other| *other != key).await;
    assert_eq!(state_of(&next), values(&[("A", "1")]));
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_set_by_hand_holds_for_the_next_run_and_goes_with_its_job() {
    let cluster = Cluster::new().await;
    let server = cluster.server("a").await;
    let mut one = Session::open(&server, 1).await;
    let job = cluster.job(3).await;
    server.jobs_changed().await;
    assert_eq!(server.state(job).await.unwrap().version, Version(0));
    let set = server.set_state(job, values(&[("A", "1"), ("GONE", "")]), Some(Version(0))).await.unwrap();
    assert_eq!(set.values, values(&[("A", "1")]));
    let stale = server.set_state(job, values(&[("A", "2")]), Some(Version(0))).await.unwrap_err();
    assert!(matches!(stale, ControlError::StateChanged(version) if version == set.version), "{stale}");
    let bad = server.set_state(job, values(&[("a", "2")]), None).await.unwrap_err();
    assert!(bad.to_string().contains("capital letters"), "{bad}");
    server.run_now(manual(job)).await.unwrap();
    assert_eq!(state_of(&one.order().await), values(&[("A", "1")]));
    let each = cluster.job_with(4, |document| document.run_on = RunOn::Each).await;
    server.jobs_changed().await;
    let refused = server.set_state(each, values(&[("A", "1")]), None).await.unwrap_err();
    assert!(refused.to_string().contains("`run_on: one`"), "{refused}");

    cluster.store.remove_job(job, None, jiff::Timestamp::UNIX_EPOCH, &Actor::new("test")).await.unwrap();
    server.jobs_changed().await;
    until_gone(&cluster, job).await;
    server.stop().await;
}

/// Nobody had the shard when the job was removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_a_job_that_was_removed_while_no_server_ran_is_removed_too() {
    let cluster = Cluster::new().await;
    let (job, other) = (cluster.job(3).await, cluster.job(4).await);
    let a = cluster.server("a").await;
    a.set_state(job, values(&[("A", "1")]), None).await.unwrap();
    a.set_state(other, values(&[("A", "2")]), None).await.unwrap();
    a.stop().await;
    cluster.store.remove_job(job, None, jiff::Timestamp::UNIX_EPOCH, &Actor::new("test")).await.unwrap();
    let b = cluster.server("b").await;
    until_gone(&cluster, job).await;
    assert_eq!(b.state(other).await.unwrap().values, values(&[("A", "2")]));
    b.stop().await;
}

async fn until_gone(cluster: &Cluster, job: belfry_core::JobId) {
    let patience = std::time::Duration::from_secs(30);
    let gone = async || cluster.coordinator.get(&keys::state(job)).await.unwrap().is_none().then_some(());
    until_within(patience, gone).await.expect("the state is removed with its job");
}
