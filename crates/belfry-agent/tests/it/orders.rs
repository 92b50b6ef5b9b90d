use std::time::Duration;

use belfry_proto::session::{Dispatch, from_agent, to_agent};

use crate::server::{config, key, shell, start, start_with, stdout};

#[tokio::test(flavor = "multi_thread")]
async fn the_same_order_again_starts_nothing_and_is_answered_with_all_that_is_known() {
    let folder = tempfile::tempdir().unwrap();
    let witness = folder.path().join("witness");
    let (_agent, mut server) = start(folder.path()).await;
    let order = shell(1, &format!("echo x >> {}; sleep 0.5; echo done", witness.display()));
    server.dispatch(order.clone()).await;
    server.until_started(1).await;
    server.dispatch(order.clone()).await;
    assert_eq!(server.until_taken(1).await.refused, "");
    server.until_started(1).await;
    server.stores = false;
    server.until_ended(1).await;
    server.dispatch(order.clone()).await;
    assert_eq!(server.until_taken(1).await.refused, "");
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), stdout(&chunks).as_str()), ("succeeded", "done\n"));
    server.store(ended.key).await;
    server.dispatch(order).await;
    assert_eq!(server.until_taken(1).await.refused, "", "it is known also when it was stored");
    // Orders start in turn: whatever the last one started has begun well before this one ends.
    server.dispatch(shell(2, "sleep 0.5")).await;
    let mut again = Vec::new();
    server
        .until(|message| match message {
            from_agent::Message::Ended(ended) if ended.key == Some(key(2)) => Some(()),
            from_agent::Message::Started(started) if started.key == Some(key(1)) => {
                again.push(started);
                None
            }
            _ => None,
        })
        .await;
    let lines = std::fs::read_to_string(witness).unwrap();
    assert!(again.is_empty() && lines == "x\n", "it was started again: {again:?}, {lines:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_for_another_incarnation_is_refused_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let incarnation = server.hello.incarnation;
    server.hello.incarnation -= 1;
    server.dispatch(shell(1, "true")).await;
    assert!(server.until_taken(1).await.refused.contains("another incarnation"));
    server.hello.incarnation = incarnation;
    server.dispatch(shell(1, "true")).await;
    assert!(server.until_taken(1).await.refused.contains("another incarnation"));
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_of_a_lower_term_are_not_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.dispatch(shell(1, "sleep 1; echo survived")).await;
    server.until_started(1).await;
    server.term = 4;
    server.dispatch(shell(2, "true")).await;
    assert!(server.until_taken(2).await.refused.contains("does not own the shard"));
    server.kill(1, 1, "old").await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), stdout(&chunks).as_str()), ("succeeded", "survived\n"));
    server.term = 6;
    server.dispatch(shell(2, "true")).await;
    assert!(server.until_taken(2).await.refused.contains("does not own the shard"), "a refusal is remembered");
}

#[tokio::test(flavor = "multi_thread")]
async fn before_its_start_a_run_is_amended_by_a_higher_revision_only() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let later = |command: &str, revision| Dispatch { start_in_ms: 1500, revision, ..shell(1, command) };
    server.dispatch(later("echo two", 2)).await;
    server.dispatch(later("echo one", 1)).await;
    server.dispatch(Dispatch { start_in_ms: 100, ..later("echo three", 3) }).await;
    let (chunks, _ended) = server.result(1).await;
    assert_eq!(stdout(&chunks), "three\n");
    let heard = server.listen_for(Duration::from_millis(1700)).await;
    assert!(heard.is_empty(), "it starts once: {heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recalled_or_killed_run_never_starts() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    for run in 1..=2 {
        server.dispatch(Dispatch { start_in_ms: 500, ..shell(run, "echo never") }).await;
    }
    server.recall(1, "skipped", "overlap").await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), ended.reason.as_str(), chunks.len()), ("skipped", "overlap", 0));
    server.kill(2, 0, "killed by ann").await;
    let ended = server.until_ended(2).await;
    assert_eq!((ended.outcome.as_str(), ended.reason.as_str()), ("cancelled", "killed by ann"));
    assert_eq!((ended.started_at_ms, ended.chunks), (None, 0));
    assert!(server.listen_for(Duration::from_millis(700)).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_one_goes_on_when_recalled_and_ends_with_its_tree_when_killed() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.dispatch(shell(1, "trap '' TERM; (setsid sleep 998 &) ; echo up; while true; do sleep 0.05; done")).await;
    server.until(|message| matches!(message, from_agent::Message::Output(_)).then_some(())).await;
    server.recall(1, "cancelled", "too late").await;
    // It came too late, so it is answered with how far the run is.
    assert_eq!(server.until_taken(1).await.refused, "");
    server.until_started(1).await;
    server.kill(1, 60_000, "killed by ann").await;
    let heard = server.listen_for(Duration::from_millis(300)).await;
    assert!(heard.is_empty(), "TERM is ignored, and the grace is long: {heard:?}");
    server.kill(1, 1, "killed by bob").await;
    let ended = server.until_ended(1).await;
    assert_eq!((ended.outcome.as_str(), ended.reason.as_str(), ended.signal), ("killed", "killed by ann", Some(9)));
    assert_eq!(count_processes("BELFRY_RUN_ID", &key(1).run, &server.hello.node), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_takes_nothing_new_waits_and_then_ends_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let quit_time = Duration::from_millis(800);
    let (agent, mut server) = start_with(belfry_agent::AgentConfig { quit_time, ..config(folder.path()) }).await;
    server.dispatch(shell(1, "sleep 0.3")).await;
    server.dispatch(shell(2, "sleep 997")).await;
    server.dispatch(Dispatch { start_in_ms: 60_000, ..shell(3, "true") }).await;
    server.until_started(2).await;
    let draining = tokio::spawn(async move {
        agent.drain("SIGTERM").await;
        agent
    });
    let skipped = server.until_ended(3).await;
    assert_eq!((skipped.outcome.as_str(), skipped.reason.as_str()), ("skipped", "the agent on node1 stops: SIGTERM"));
    server.dispatch(shell(4, "true")).await;
    assert_eq!(server.until_taken(4).await.refused, "the agent is stopping");
    assert_eq!(server.until_ended(1).await.outcome, "succeeded");
    let killed = server.until_ended(2).await;
    assert_eq!((killed.outcome.as_str(), killed.reason.as_str()), ("killed", "the agent on node1 stops: SIGTERM"));
    let agent = draining.await.unwrap();
    drop(agent);
    while server.next_or_end().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_question_is_answered_with_the_wall_clock() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.send(to_agent::Message::Clock(belfry_proto::session::ClockQuestion { token: 9 })).await;
    let answer = server
        .until(|message| if let from_agent::Message::Clock(answer) = message { Some(answer) } else { None })
        .await;
    let now = belfry_core::Timestamp::now().as_millisecond();
    assert_eq!(answer.token, 9);
    assert!((now - answer.now_ms).abs() < 5000);
}

/// Living processes of this node with this entry in their environment.
pub fn count_processes(name: &str, value: &str, node: &str) -> usize {
    let wanted = [format!("{name}={value}").into_bytes(), format!("BELFRY_NODE_ID={node}").into_bytes()];
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        wanted.iter().all(|wanted| environ.split(|byte| *byte == 0).any(|entry| entry == wanted))
    })
    .count()
}
