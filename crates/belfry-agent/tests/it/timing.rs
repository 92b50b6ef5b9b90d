use std::time::Duration;

use belfry_agent::{Clock, SystemClock};
use belfry_proto::session::{Dispatch, from_agent};

use crate::server::{config, key, shell, start, start_with, with_document};

fn exec_true(run: u32) -> Dispatch {
    with_document(run, &serde_json::json!({"name": "job", "action": {"exec": {"argv": ["/bin/true"]}}}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_starts_at_its_instant_and_never_before() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let mut lags_us = Vec::new();
    for run in 1..=10 {
        let sent = SystemClock.boottime();
        let wall = SystemClock.now();
        server.dispatch(Dispatch { start_in_ms: 100, ..exec_true(run) }).await;
        let ended = server.until_ended(run).await;
        let began_ms = ended.started_at_ms.unwrap() - wall.as_millisecond();
        assert!(began_ms >= 99, "run {run} began after {began_ms} ms");
        lags_us.push((SystemClock.boottime() - sent).as_micros() as i64 - 100_000);
    }
    lags_us.sort_unstable();
    println!("from the instant to the end of /bin/true at the server: {lags_us:?} µs");
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_come_in_the_order_of_their_instants_whatever_the_order_of_arrival() {
    let folder = tempfile::tempdir().unwrap();
    // One after the other: which of two that are let go at once is the first to be a process is the kernel's choice.
    let (_agent, mut server) = start_with(belfry_agent::AgentConfig { slots: 1, ..config(folder.path()) }).await;
    let runs: Vec<u32> = (1..=60).collect();
    let mut shuffled = runs.clone();
    shuffled.sort_unstable_by_key(|run| (run * 37) % 61);
    // All have come before the first of them is due.
    for run in shuffled {
        server.dispatch(Dispatch { start_in_ms: 2_000 + i64::from(run) * 2, ..exec_true(run) }).await;
    }
    let mut ended = Vec::new();
    while ended.len() < runs.len() {
        if let from_agent::Message::Ended(end) = server.next().await {
            ended.push(end.key.unwrap().run);
        }
    }
    let expected: Vec<_> = runs.into_iter().map(|run| key(run).run).collect();
    assert_eq!(ended, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_finds_no_slot_in_time_is_skipped_and_a_free_slot_is_used_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start_with(belfry_agent::AgentConfig { slots: 2, ..config(folder.path()) }).await;
    server.dispatch(shell(1, "sleep 996")).await;
    server.dispatch(shell(2, "sleep 1")).await;
    server.dispatch(Dispatch { start_within_ms: 300, ..shell(3, "true") }).await;
    server.dispatch(shell(4, "true")).await;
    let skipped = server.until_ended(3).await;
    assert_eq!((skipped.outcome.as_str(), skipped.reason.as_str()), ("skipped", "no free slot on node1 for 300ms"));
    assert_eq!(server.until_ended(2).await.outcome, "succeeded");
    assert_eq!(server.until_ended(4).await.outcome, "succeeded", "the hanging one delays nobody");
    server.kill(1, 1, "enough").await;
    assert_eq!(server.until_ended(1).await.outcome, "killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_due_at_one_instant_all_start_once() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    const RUNS: u32 = 1000;
    let began = SystemClock.boottime();
    for run in 1..=RUNS {
        let start_in_ms = 300 - (SystemClock.boottime() - began).as_millis() as i64;
        server.dispatch(Dispatch { start_in_ms, ..exec_true(run) }).await;
    }
    let mut ended = std::collections::HashSet::new();
    let mut started = 0;
    while ended.len() < RUNS as usize {
        match server.next().await {
            from_agent::Message::Started(_) => started += 1,
            from_agent::Message::Ended(end) => {
                assert_eq!(end.outcome, "succeeded", "{}", end.reason);
                assert!(ended.insert(end.key.unwrap().run));
            }
            _ => {}
        }
    }
    assert_eq!(started, RUNS);
    assert!(ended.contains(&key(1).run));
    let took = SystemClock.boottime() - began - Duration::from_millis(300);
    println!(
        "{RUNS} runs of /bin/true from their instant to the last end: {took:?}, {:.0}/s",
        f64::from(RUNS) / took.as_secs_f64()
    );
}
