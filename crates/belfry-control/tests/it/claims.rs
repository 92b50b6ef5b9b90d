//! What is claimed, and what becomes of it: jobs that are edited at the wrong moment, commits that are large, and a coordinator that is
//! away over an instant.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belfry_control::{Control, ManualRun};
use belfry_coord::faulty::Faulty;
use belfry_coord::{Clock, Commit, CoordError, Coordinator, Entry, Guard, Hints, Memory, SystemClock, Write, keys};
use belfry_core::cursor::Cursor;
use belfry_core::id::Slot;
use belfry_core::job::{Misfire, MisfirePolicy, Overlap};
use belfry_core::run::RunState;
use belfry_core::{JobId, RunId, ShardId, Term, Timestamp};
use belfry_proto::session::{self, to_agent};
use jiff::SignedDuration;

use crate::support::{Cluster, ENDLESS_TTL, Session, every_second, manual, until};

fn term_of(server: &Control, job: JobId) -> Term {
    let shards = server.cluster().shards;
    shards.iter().find(|shard| shard.shard == job.shard()).expect("it owns the shard").term
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_edit_that_leaves_the_schedule_alone_leaves_the_delay_after_the_end_alone() {
    const DELAY: SignedDuration = SignedDuration::from_secs(3);
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut agent = Session::open(&server, 1).await;
    let job = cluster.job_with(3, |document| document.schedule.0.push("@after 3s".to_owned())).await;
    server.jobs_changed().await;
    let first = agent.order().await.key.unwrap();
    agent.start(&first).await;
    agent.end(&first, "succeeded", 0).await;
    until(|| server.cluster().open_runs == 0).await;
    let ended = cluster.stored(first.run.parse().unwrap(), |run| run.state.is_ended()).await.ended_at.unwrap();
    cluster.change_job(job, |document| document.description = "another one".to_owned()).await;
    server.jobs_changed().await;
    let next = agent.order_of(|_| true).await;
    assert_ne!(next.key.as_ref(), Some(&first), "what was run already is ordered again");
    let planned = Timestamp::from_millisecond(next.planned_ms).unwrap();
    assert_eq!(planned.duration_since(ended), DELAY, "it is due as if nothing had been edited");
    server.stop().await;
}

/// Its fire was claimed a moment ago and is in the new schedule too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_that_is_changed_right_before_an_instant_that_it_keeps_costs_nobody_the_shard() {
    const EDITS: usize = 6;
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut agent = Session::open(&server, 1).await;
    let job = cluster.job_with(3, every_second).await;
    server.jobs_changed().await;
    let term = term_of(&server, job);
    for edit in 0..EDITS {
        // Ahead of its instant.
        let order = agent.until(|message| match message {
            to_agent::Message::Dispatch(order) if order.start_in_ms > 300 => Some(order),
            _ => None,
        });
        let planned = order.await.planned_ms;
        let other = if edit % 2 == 0 { "*/1 * * * * *" } else { "* * * * * *" };
        cluster.change_job(job, |document| document.schedule.0 = vec![other.to_owned()]).await;
        server.jobs_changed().await;
        agent
            .until(|message| match message {
                to_agent::Message::Dispatch(order) => (order.planned_ms > planned).then_some(()),
                _ => None,
            })
            .await;
    }
    assert_eq!(term_of(&server, job), term, "the shard was given up and taken again");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_with_large_environments_that_are_lost_together_end_and_cost_nobody_the_shard() {
    const RUNS: usize = 40;
    const ENV_BYTES: usize = 32 << 10;
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut agent = Session::open(&server, 1).await;
    let job = cluster.job_with(3, |document| document.overlap = Overlap::Allow).await;
    server.jobs_changed().await;
    let term = term_of(&server, job);
    let large = || ManualRun { env: [("LARGE".to_owned(), "x".repeat(ENV_BYTES))].into(), ..manual(job) };
    let mut runs: Vec<RunId> = Vec::new();
    for _ in 0..RUNS {
        runs.push(server.run_now(large()).await.unwrap().id);
        let key = agent.order_of(|key| key.run == runs.last().unwrap().to_string()).await.key.unwrap();
        agent.start(&key).await;
    }
    until(|| server.open_runs(|run| run.state == RunState::Running).len() == RUNS).await;
    cluster.hold_dead(1).await;
    for run in runs {
        assert_eq!(cluster.stored(run, |run| run.state.is_ended()).await.state, RunState::Lost);
    }
    until(|| server.cluster().open_runs == 0).await;
    assert_eq!(term_of(&server, job), term, "the shard was given up and taken again");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fire_whose_claim_came_through_long_after_its_instant_is_a_missed_one() {
    let coordinator = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let cluster = Cluster { coordinator: coordinator.clone(), ..Cluster::new().await }.with_ttl(ENDLESS_TTL);
    let server = cluster.server("a").await;
    let mut agent = Session::open(&server, 1).await;
    let in_two_seconds = SystemClock.now() + SignedDuration::from_secs(2);
    let planned = Timestamp::from_second(in_two_seconds.as_second() + 1).unwrap();
    let job = cluster
        .job_with(3, |document| {
            document.schedule.0.push(format!("@at {planned}"));
            document.misfire = Misfire { policy: MisfirePolicy::Skip, ..document.misfire };
        })
        .await;
    server.jobs_changed().await;
    coordinator.set_away(true);
    until(|| SystemClock.now() > planned + SignedDuration::from_millis(5_500)).await;
    coordinator.set_away(false);
    let run = RunId::of(job, planned, belfry_core::id::Slot::Only);
    let ended = cluster.stored(run, |run| run.state.is_ended()).await;
    assert_eq!(ended.state, RunState::Skipped, "{ended:?}");
    assert!(ended.reason.as_deref().is_some_and(|why| why.contains("misfire.policy is skip")), "{ended:?}");
    let ordered = tokio::time::timeout(Duration::from_millis(300), agent.order()).await;
    assert!(ordered.is_err(), "an order went out: {ordered:?}");
    server.stop().await;
}

/// Looks at every commit of a shard: all fires up to its cursor, of jobs that fire each second, have been claimed by then.
struct NothingPassed {
    inner: Faulty,
    shard: ShardId,
    jobs: Vec<JobId>,
    from: Timestamp,
    claimed: Mutex<HashSet<String>>,
    passed: Mutex<Vec<String>>,
}

impl NothingPassed {
    fn look(&self, writes: &[Write]) {
        let mut claimed = self.claimed.lock().unwrap();
        let puts = || {
            writes.iter().filter_map(|write| if let Write::Put(key, value) = write { Some((key, value)) } else { None })
        };
        claimed.extend(puts().filter_map(|(key, _)| key.rsplit('/').next().map(str::to_owned)));
        let seat = puts().find(|(key, _)| keys::shard_of(key) == Some(self.shard));
        let Some((_, seat)) = seat else { return };
        let seat: serde_json::Value = serde_json::from_slice(seat).unwrap();
        let cursor: Cursor = serde_json::from_value(seat["extra"].clone()).unwrap();
        let instants =
            (self.from.as_second()..=cursor.at.as_second()).map(|second| Timestamp::from_second(second).unwrap());
        for (at, job) in instants.flat_map(|at| self.jobs.iter().map(move |job| (at, *job))) {
            let run = RunId::of(job, at, Slot::Only);
            if (Cursor { at, job }) <= cursor && !claimed.contains(&run.to_string()) {
                self.passed.lock().unwrap().push(format!("{run} of {at} by {cursor:?}"));
            }
        }
    }
}

#[async_trait::async_trait]
impl Coordinator for NothingPassed {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.inner.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        self.inner.list(prefix).await
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        let done = self.inner.commit(guards, writes.clone()).await;
        if matches!(done, Ok(Commit::Applied(_))) {
            self.look(&writes);
        }
        done
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        self.inner.watch(prefix).await
    }
}

/// While more waits to be claimed than there is room for, it ends and is due again: it is claimed after what was due before it, and before
/// what is due later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_due_late_passes_over_no_fire() {
    const JOBS: usize = 200;
    let service = JobId::from_u128(3);
    let shard = service.shard();
    let mut jobs = (4..).map(JobId::from_u128).filter(|job| job.shard() == shard).take(JOBS).collect::<Vec<_>>();
    let cluster = Cluster::new().await.with_ttl(ENDLESS_TTL);
    for job in &jobs {
        cluster.job_with(job.as_u128(), every_second).await;
    }
    let from = Timestamp::from_second(SystemClock.now().as_second() + 1).unwrap();
    jobs.sort_unstable();
    let coordinator = Arc::new(NothingPassed {
        inner: Faulty::new(Arc::new(Memory::default())),
        shard,
        jobs,
        from,
        claimed: Mutex::default(),
        passed: Mutex::default(),
    });
    let cluster = Cluster { coordinator: coordinator.clone(), ..cluster };
    let server = cluster.server("a").await;
    let mut agent = Session::connect(&server, 1);
    agent.greet(session::Hello { slots: 100_000, ..agent.greeting(1) }).await;
    cluster.job_with(3, crate::service::service).await;
    server.jobs_changed().await;
    let id = service.to_string();
    let of_service = |message| match message {
        to_agent::Message::Dispatch(order) => (order.job_id == id).then_some(order),
        _ => None,
    };
    let first = agent.until(of_service).await.key.unwrap();
    agent.start(&first).await;
    cluster.stored(first.run.parse().unwrap(), |run| run.state == RunState::Running).await;
    coordinator.inner.set_away(true);
    let away_at = SystemClock.now();
    until(|| SystemClock.now() > away_at + SignedDuration::from_millis(3_500)).await;
    agent.end(&first, "succeeded", 0).await;
    until(|| SystemClock.now() > away_at + SignedDuration::from_millis(6_500)).await;
    coordinator.inner.set_away(false);
    let again = agent.until(|message| of_service(message).filter(|order| order.key.as_ref() != Some(&first))).await;
    let planned = Timestamp::from_millisecond(again.planned_ms).unwrap();
    until(|| SystemClock.now() > planned + SignedDuration::from_secs(2)).await;
    assert_eq!(coordinator.passed.lock().unwrap().first(), None);
    server.stop().await;
}
