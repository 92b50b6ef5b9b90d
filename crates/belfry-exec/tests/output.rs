//! Captured output of real processes.
#![expect(clippy::disallowed_methods, reason = "tests measure and spawn as they like")]

mod support;

use std::time::Duration;

use belfry_exec::{CaptureEvent, CaptureLimits, ExitStatus, FailOn, Stream, capture};
use support::{collect, exec, in_time, run, shell, spawner, text, until};
use tokio::sync::mpsc;

#[tokio::test]
async fn the_streams_are_apart_and_their_order_is_kept() {
    let spawner = spawner();
    // Each line waits until the one before must have been read: the pipe is empty again.
    let command = "e() { sleep 0.02; }; echo 1; e; echo 2 >&2; e; echo 3; e; printf '\\xff\\x00' >&2";
    let mut child = spawner.spawn(shell(command)).await.expect("start");
    let (events, summary) = collect(&mut child, CaptureLimits::default(), None).await;
    let mut seen = Vec::new();
    let mut offset = 0;
    for event in &events {
        let CaptureEvent::Chunk(chunk) = event else { panic!("a gap in {events:?}") };
        assert_eq!((chunk.offset, chunk.live_only), (offset, false));
        offset += chunk.bytes.len() as u64;
        seen.push((chunk.stream, chunk.bytes.to_vec()));
    }
    use Stream::{Stderr, Stdout};
    assert_eq!(
        seen,
        [(Stdout, b"1\n".to_vec()), (Stderr, b"2\n".to_vec()), (Stdout, b"3\n".to_vec()), (Stderr, vec![0xff, 0])]
    );
    assert_eq!((summary.stdout_bytes, summary.stderr_bytes, summary.held_open), (4, 4, false));
}

#[tokio::test]
async fn a_line_is_handed_on_while_the_child_still_runs() {
    let spawner = spawner();
    let mut child = spawner.spawn(shell("echo ready; sleep 1000")).await.expect("start");
    let (sink, mut events) = mpsc::channel(4);
    let capturing = tokio::spawn(capture(child.take_output(), CaptureLimits::default(), None, sink));
    let Some(CaptureEvent::Chunk(first)) = in_time("the line", events.recv()).await else { panic!("no chunk") };
    assert_eq!(&first.bytes[..], b"ready\n");
    child.killer().end_tree(Duration::ZERO).await;
    in_time("the capture", capturing).await.expect("no panic");
}

#[tokio::test]
async fn of_too_much_output_exactly_the_first_and_the_last_half_are_kept() {
    let spawner = spawner();
    let produced: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    for keep_bytes in [1000, 64 * 1024, 1024 * 1024] {
        let mut child = spawner.spawn(exec(["seq", "1", "200000"])).await.expect("start");
        let (events, summary) =
            collect(&mut child, CaptureLimits { keep_bytes }, FailOn::parse("nothing|100001")).await;
        let half = keep_bytes as usize / 2;
        let expected = format!("{}{}", &produced[..half], &produced[produced.len() - half..]);
        assert!(text(&events, Stream::Stdout) == expected, "keep {keep_bytes}");
        let dropped_bytes = produced.len() as u64 - keep_bytes;
        assert_eq!(events.iter().filter(|event| **event == CaptureEvent::Gap { dropped_bytes }).count(), 1);
        assert_eq!((summary.stdout_bytes, summary.dropped_bytes), (produced.len() as u64, dropped_bytes));
        assert_eq!(summary.failed_on.map(|found| found.word), Some("100001".into()), "also in the dropped middle");
        assert_eq!(child.wait().await.status, ExitStatus::Code(0));
    }
}

#[tokio::test]
async fn a_child_is_never_held_up_by_who_reads_nothing() {
    let spawner = spawner();
    let mut child = spawner
        .spawn(shell("head -c 50000000 /dev/zero; head -c 20000000 /dev/zero >&2; echo end"))
        .await
        .expect("start");
    let (sink, mut events) = mpsc::channel(2);
    let capturing = tokio::spawn(capture(child.take_output(), CaptureLimits { keep_bytes: 100_000 }, None, sink));
    assert_eq!(in_time("exit", child.wait()).await.status, ExitStatus::Code(0));
    let mut kept = Vec::new();
    while let Some(event) = in_time("an event", events.recv()).await {
        kept.push(event);
    }
    let summary = capturing.await.expect("no panic");
    assert_eq!((summary.stdout_bytes, summary.stderr_bytes), (50_000_004, 20_000_000));
    let bytes: u64 = kept
        .iter()
        .map(|event| match event {
            CaptureEvent::Chunk(chunk) if !chunk.live_only => chunk.bytes.len() as u64,
            CaptureEvent::Chunk(_) | CaptureEvent::Gap { .. } => 0,
        })
        .sum();
    assert_eq!(bytes + summary.dropped_bytes, 70_000_004);
    assert!(text(&kept, Stream::Stdout).ends_with("end\n"));
}

#[tokio::test]
async fn output_nobody_captures_any_more_is_drained_all_the_same() {
    let spawner = spawner();
    let mut child = spawner.spawn(shell("head -c 3000000 /dev/zero; echo end")).await.expect("start");
    let (sink, events) = mpsc::channel(2);
    drop(events);
    let summary = in_time("the capture", capture(child.take_output(), CaptureLimits::default(), None, sink)).await;
    assert_eq!(summary.stdout_bytes, 3_000_004);
    assert_eq!(in_time("exit", child.wait()).await.status, ExitStatus::Code(0));
}

#[tokio::test]
async fn followers_see_something_of_the_dropped_middle_but_not_all() {
    let spawner = spawner();
    let mut child = spawner.spawn(exec(["head", "-c", "30000000", "/dev/zero"])).await.expect("start");
    let (events, _) = collect(&mut child, CaptureLimits { keep_bytes: 10_000 }, None).await;
    let live: usize = events
        .iter()
        .map(|event| match event {
            CaptureEvent::Chunk(chunk) if chunk.live_only => chunk.bytes.len(),
            CaptureEvent::Chunk(_) | CaptureEvent::Gap { .. } => 0,
        })
        .sum();
    assert!(live > 0 && live < 10_000_000, "{live} bytes");
}

#[tokio::test]
async fn what_is_left_in_the_background_does_not_hold_up_the_end_of_the_output() {
    let spawner = spawner();
    let what = shell("sleep 1000 & echo done");
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    let killer = child.killer();
    let (events, summary) = collect(&mut child, CaptureLimits::default(), None).await;
    assert_eq!(text(&events, Stream::Stdout), "done\n");
    assert!(summary.held_open);
    assert_eq!(in_time("exit", child.wait()).await.left_behind, 1);
    killer.end_tree(Duration::ZERO).await;
    until("nobody is left", || support::alive(&tag).is_empty()).await;
}

#[tokio::test]
async fn a_word_to_fail_on_is_found_in_stderr_across_two_writes() {
    let spawner = spawner();
    let mut child = spawner.spawn(shell("printf 'a FAT' >&2; sleep 0.1; printf 'AL thing' >&2")).await.expect("start");
    let (_, summary) = collect(&mut child, CaptureLimits::default(), FailOn::parse("fatal|error|fail")).await;
    let found = summary.failed_on.expect("a word");
    assert_eq!((found.word.as_str(), found.stream), ("fatal", Stream::Stderr));
    assert_eq!(run(&spawner, shell("echo fine")).await.summary.failed_on, None);
}
