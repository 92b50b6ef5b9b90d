//! What is claimed, and what becomes of it: jobs that are edited at the wrong moment, commits that are large, and a coordinator that is
//! away over an instant.

use std::sync::Arc;
use std::time::Duration;

use belfry_control::{Control, ManualRun};
use belfry_coord::faulty::Faulty;
use belfry_coord::{Clock, Memory, SystemClock};
use belfry_core::job::{Misfire, MisfirePolicy, Overlap};
use belfry_core::run::RunState;
use belfry_core::{JobId, RunId, Term, Timestamp};
use belfry_proto::session::to_agent;
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
