//! Scripts: the job's own and those that a server sends, run from memory by their interpreter.

use belfry_agent::AgentConfig;
use belfry_proto::session::{Dispatch, Script};
use serde_json::{Value, json};

use crate::server::{config, start, start_with, stdout, with_document};

/// Of something else.
const OTHER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

fn script(run: u32, script: Value) -> Dispatch {
    with_document(run, &json!({"name": "job", "action": {"script": script}}))
}

fn sent(version: u64, sha256: &str, body: &str) -> Option<Script> {
    Some(Script { version, sha256: sha256.to_owned(), body: body.to_owned() })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_is_run_by_what_it_names_and_keeps_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let cases = [
        (json!({"body": "echo \"$0 $BASH_VERSION\" | cut -d. -f1; exit 3"}), "job 5", 3),
        (json!({"body": "#!/bin/sh\necho \"$0 ${BASH_VERSION:-no bash}\""}), "job no bash", 0),
        (
            json!({"body": "print $0 ne '' ? 'perl' : 'nothing', \"\\n\";", "interpreter": "/usr/bin/perl -w"}),
            "perl",
            0,
        ),
    ];
    for ((action, said, code), run) in cases.into_iter().zip(1..) {
        server.dispatch(script(run, action.clone())).await;
        let (chunks, ended) = server.result(run).await;
        assert_eq!((stdout(&chunks).trim(), ended.exit_code), (said, Some(code)), "{action} {}", ended.reason);
        assert!(ended.script.starts_with("sha256 ") && ended.script.len() == 7 + 64, "{}", ended.script);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_a_server_sends_is_held_to_its_digest() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let body = "echo $0 one";
    let order = |run, script| Dispatch { script, ..self::script(run, json!({"name": "nightly"})) };
    server.dispatch(order(1, sent(3, OTHER, body))).await;
    let ended = server.until_ended(1).await;
    assert_eq!(ended.outcome, "skipped");
    assert!(ended.reason.starts_with("signature: script nightly came with sha256 "), "{}", ended.reason);
    let found = ended.reason.split_whitespace().nth(6).unwrap().trim_matches(',').to_owned();
    server.dispatch(order(2, sent(3, &found, body))).await;
    let (chunks, ended) = server.result(2).await;
    assert_eq!((stdout(&chunks).as_str(), ended.outcome.as_str()), ("nightly one\n", "succeeded"));
    assert_eq!(ended.script, format!("nightly version 3, sha256 {found}"));
    server.dispatch(order(3, None)).await;
    let ended = server.until_ended(3).await;
    assert!(ended.outcome == "failed" && ended.reason.contains("belfry script put nightly"), "{}", ended.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_holds_for_scripts_and_for_what_runs_them() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    let with = |text: &str| {
        std::fs::write(&policy, format!("allow_root = true\n{text}")).unwrap();
        AgentConfig { policy: Some(policy.clone()), ..config(folder.path()) }
    };
    let bash = std::fs::canonicalize("/bin/bash").unwrap();
    let text = format!("kinds = [\"script\"]\nprograms = [\"{}\"]\n", bash.display());
    let (_agent, mut server) = start_with(with(&text)).await;
    server.dispatch(script(1, json!({"body": "true"}))).await;
    let ended = server.until_ended(1).await;
    assert_eq!(ended.outcome, "succeeded", "{}", ended.reason);
    server.dispatch(script(2, json!({"body": "exit", "interpreter": "/usr/bin/perl"}))).await;
    let ended = server.until_ended(2).await;
    assert!(
        ended.outcome == "skipped" && ended.reason.contains("jobs may not execute /usr/bin/perl"),
        "{}",
        ended.reason
    );
    std::fs::write(&policy, "allow_root = true\nkinds = [\"shell\"]\n").unwrap();
    server.dispatch(script(3, json!({"body": "true"}))).await;
    let ended = server.until_ended(3).await;
    assert!(ended.reason.contains("policy: `script` jobs are not allowed here"), "{}", ended.reason);
}
