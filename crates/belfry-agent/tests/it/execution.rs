use std::time::Duration;

use belfry_proto::session::Dispatch;
use serde_json::json;

use crate::server::{config, key, shell, start, start_with, stdout, with_document};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_reports_taken_started_output_and_end_in_this_order() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    server.dispatch(shell(1, "echo out; echo err >&2; exit 3")).await;
    assert_eq!(server.until_taken(1).await.refused, "");
    server.until_started(1).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), ended.reason.as_str(), ended.exit_code), ("failed", "exit code 3", Some(3)));
    assert_eq!(chunks.iter().map(|chunk| chunk.sequence).collect::<Vec<_>>(), (0..ended.chunks).collect::<Vec<_>>());
    assert_eq!(stdout(&chunks), "out\n");
    assert_eq!((ended.output_bytes, ended.dropped_bytes), (8, 0));
    assert!(ended.started_at_ms.unwrap() <= ended.ended_at_ms);
    assert!(ended.max_rss_bytes > 0);
}

/// By a child of the command, with and without a group that counts.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_says_how_much_of_a_cpu_was_used() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let burns = "perl -e 'do { 1 for 1..10_000 } while (times)[0] < 0.3'; true";
    for (run, command, limits, used_ms) in [
        (1, burns, json!({}), 200..10_000),
        (2, burns, json!({"memory": "256MiB"}), 200..10_000),
        (3, "sleep 0.5", json!({}), 0..200),
    ] {
        let document = json!({"name": "job", "action": {"shell": {"command": command}}, "limits": limits});
        server.dispatch(with_document(run, &document)).await;
        let ended = server.until_ended(run).await;
        assert_eq!(ended.outcome, "succeeded", "{}", ended.reason);
        assert!(used_ms.contains(&ended.cpu_ms), "{command} with {limits}: {} ms", ended.cpu_ms);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_is_clean_and_says_which_run_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    let document = json!({"name": "job", "action": {"exec": {"argv": ["/usr/bin/env"]}}, "as": {"env": {"A": "job", "B": "job", "BELFRY_FENCE": "forged"}}});
    let env = [("B".to_owned(), "manual".to_owned())].into();
    server.dispatch(Dispatch { env, planned_ms: 1_767_225_600_000, ..with_document(1, &document) }).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!(ended.outcome, "succeeded");
    let text = stdout(&chunks);
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    names.sort_unstable();
    let expected = "A B BELFRY_ATTEMPT BELFRY_FENCE BELFRY_INCARNATION BELFRY_JOB BELFRY_NODE BELFRY_NODE_ID BELFRY_RUN_ID \
                    BELFRY_SCHEDULED_AT BELFRY_STATE HOME LANG LOGNAME PATH SHELL USER";
    assert_eq!(names.join(" "), expected);
    for line in [
        "A=job".to_owned(),
        "B=manual".to_owned(),
        "BELFRY_JOB=default/job".to_owned(),
        format!("BELFRY_RUN_ID={}", key(1).run),
        "BELFRY_ATTEMPT=1".to_owned(),
        "BELFRY_SCHEDULED_AT=2026-01-01T00:00:00Z".to_owned(),
        "BELFRY_FENCE=77".to_owned(),
        "BELFRY_NODE=node1".to_owned(),
        format!("BELFRY_NODE_ID={}", agent.node()),
        format!("BELFRY_INCARNATION={}", agent.incarnation()),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directory_and_umask_are_the_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let action = json!({"shell": {"command": "pwd; umask"}});
    server
        .dispatch(with_document(
            1,
            &json!({"name": "job", "action": action, "as": {"directory": "/usr", "umask": "027"}}),
        ))
        .await;
    assert_eq!(stdout(&server.result(1).await.0), "/usr\n0027\n");
    server.dispatch(with_document(2, &json!({"name": "job", "action": action}))).await;
    let home = belfry_exec::current_user().home;
    assert!(stdout(&server.result(2).await.0).starts_with(home.to_str().unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_agent_runs_jobs_as_the_default_user_unless_it_may_be_root() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) =
        start_with(belfry_agent::AgentConfig { allow_root: false, ..config(folder.path()) }).await;
    let own = belfry_exec::current_user();
    let expected = if own.uid == 0 { "nobody".to_owned() } else { own.user.clone() };
    assert_eq!(agent.runs_as(), expected);
    assert_eq!(server.hello.runs_as, expected);
    server.dispatch(shell(1, "id -un")).await;
    assert_eq!(stdout(&server.result(1).await.0).trim(), expected);
    let as_root = json!({"name": "job", "action": {"shell": {"command": "id -un"}}, "as": {"user": "root"}});
    server.dispatch(with_document(2, &as_root)).await;
    let ended = server.until_ended(2).await;
    assert_eq!(ended.outcome, "skipped");
    assert!(ended.reason.starts_with("policy: "), "{}", ended.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_fails_with_help_and_the_shells_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let cases = [
        (json!({"exec": {"argv": ["no-such-program"]}}), json!({}), 127, "PATH was"),
        (json!({"exec": {"argv": ["/etc/passwd"]}}), json!({}), 126, "cannot be executed"),
        (
            json!({"shell": {"command": "true"}}),
            json!({"directory": "/no/such"}),
            126,
            "cannot enter directory /no/such",
        ),
        (json!({"shell": {"command": "true"}}), json!({"user": "belfry-nobody-has-this"}), 126, "does not exist"),
        (json!({"http": {"url": "http://x"}}), json!({}), 126, "not supported yet"),
    ];
    for (run, (action, run_as, code, words)) in (1..).zip(cases) {
        server.dispatch(with_document(run, &json!({"name": "job", "action": action, "as": run_as}))).await;
        let ended = server.until_ended(run).await;
        assert_eq!((ended.outcome.as_str(), ended.exit_code), ("failed", Some(code)), "{}", ended.reason);
        assert!(ended.reason.contains(words), "{}", ended.reason);
        assert_eq!(ended.started_at_ms, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_takes_too_long_is_ended_with_its_whole_tree() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let command = "setsid sleep 999 & echo $!; trap '' TERM; while true; do sleep 0.05; done";
    let document = json!({"name": "job", "action": {"shell": {"command": command}}, "timeout": {"after": "300ms", "grace": "200ms"}});
    server.dispatch(with_document(1, &document)).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.outcome.as_str(), ended.reason.as_str()), ("timed_out", "ran longer than 300ms"));
    let left = stdout(&chunks);
    assert!(!std::path::Path::new(&format!("/proc/{}/environ", left.trim())).exists() || is_dead(left.trim()));
}

fn is_dead(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.is_empty() || stat.contains(") Z ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_of_fail_on_makes_a_run_fail() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let action = json!({"shell": {"command": "echo a Fatal thing"}});
    server
        .dispatch(with_document(1, &json!({"name": "job", "action": action, "output": {"fail_on": "error|fatal"}})))
        .await;
    let ended = server.until_ended(1).await;
    assert_eq!((ended.outcome.as_str(), ended.reason.as_str()), ("failed", "`fatal` was found in stdout"));
    assert_eq!(ended.exit_code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_too_much_output_head_and_tail_are_kept_and_the_rest_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let action = json!({"shell": {"command": "seq 1 200000"}});
    server.dispatch(with_document(1, &json!({"name": "job", "action": action, "output": {"keep": "64KiB"}}))).await;
    let (chunks, ended) = server.result(1).await;
    let kept: Vec<_> = chunks.iter().filter(|chunk| !chunk.live_only).collect();
    assert_eq!(kept.iter().map(|chunk| chunk.sequence).collect::<Vec<_>>(), (0..ended.chunks).collect::<Vec<_>>());
    let kept_bytes: u64 = kept.iter().map(|chunk| chunk.bytes.len() as u64).sum();
    assert_eq!(kept_bytes, 64 * 1024);
    assert_eq!(kept_bytes + ended.dropped_bytes, ended.output_bytes);
    let gap = kept.iter().find(|chunk| chunk.stream == 0).expect("a gap");
    assert_eq!(gap.dropped, ended.dropped_bytes);
    assert!(kept.last().unwrap().bytes.ends_with(b"200000\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_runs_at_once_all_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start_with(belfry_agent::AgentConfig { slots: 200, ..config(folder.path()) }).await;
    for run in 1..=200 {
        server.dispatch(shell(run, "echo $BELFRY_RUN_ID; sleep 1")).await;
    }
    let mut ended = 0;
    let began = tokio::time::Instant::now();
    while ended < 200 {
        if let belfry_proto::session::from_agent::Message::Ended(end) = server.next().await {
            assert_eq!((end.outcome.as_str(), end.chunks), ("succeeded", 1), "{}", end.reason);
            ended += 1;
        }
    }
    assert!(began.elapsed() < Duration::from_secs(25));
}
