//! The machine's own word on what jobs may do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use belfry_proto::session::Dispatch;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::server::{Server, config, start_with, stdout, with_document};

async fn agent_with(folder: &Path, policy: &str) -> (belfry_agent::Agent, Server) {
    let file = folder.join("policy.toml");
    fs::write(&file, policy).unwrap();
    start_with(belfry_agent::AgentConfig { policy: Some(file), ..config(folder) }).await
}

/// Why a run of this document was not started.
async fn refusal(server: &mut Server, run: u32, document: &Value) -> String {
    server.dispatch(with_document(run, document)).await;
    let ended = server.until_ended(run).await;
    assert_eq!((ended.outcome.as_str(), ended.started_at_ms), ("skipped", None), "{}", ended.reason);
    ended.reason
}

fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_policy_does_not_allow_is_skipped_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let jobs = folder.path().join("jobs");
    fs::create_dir(&jobs).unwrap();
    script(&jobs.join("hello"), "#!/bin/sh\necho hello from $0\n");
    let (inside, outside) = (jobs.display().to_string(), folder.path().display().to_string());
    let text = format!(
        "kinds = [\"exec\"]\nenvironment = [\"APP_*\"]\ndirectories = [\"{inside}\"]\nprograms = [\"{inside}\"]\n\
         limits = {{ open_files = 64 }}\n"
    );
    let (_agent, mut server) = agent_with(folder.path(), &text).await;
    let hello = jobs.join("hello").display().to_string();
    let document = |argv: &[&str], more: Value| {
        let mut document = json!({"name": "job", "action": {"exec": {"argv": argv}}, "as": {"directory": inside}});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    };
    let good = document(&[&hello], json!({}));
    server.dispatch(with_document(1, &good)).await;
    let (chunks, ended) = server.result(1).await;
    assert_eq!(ended.outcome, "succeeded", "{}", ended.reason);
    assert_eq!(stdout(&chunks), format!("hello from {hello}\n"));

    let shell = json!({"name": "job", "action": {"shell": {"command": "true"}}, "as": {"directory": inside}});
    assert!(refusal(&mut server, 2, &shell).await.starts_with("policy: `shell` jobs are not allowed here"));
    let env = document(&[&hello], json!({"as": {"directory": inside, "env": {"LD_PRELOAD": "x"}}}));
    assert!(refusal(&mut server, 3, &env).await.contains("may not set `LD_PRELOAD`"));
    let manual = Dispatch { env: [("PATH".to_owned(), "/tmp".to_owned())].into(), ..with_document(4, &good) };
    server.dispatch(manual).await;
    assert!(server.until_ended(4).await.reason.contains("may not set `PATH`"), "by whoever runs it by hand neither");
    let elsewhere = document(&[&hello], json!({"as": {"directory": outside}}));
    assert!(refusal(&mut server, 5, &elsewhere).await.contains("may not be started in"));
    assert!(refusal(&mut server, 6, &document(&["/bin/echo"], json!({}))).await.contains("may not execute"));
    assert!(refusal(&mut server, 7, &document(&["id"], json!({}))).await.contains("may not execute"), "in PATH");
    // Neither a link nor a path that goes up leads out.
    symlink("/bin/echo", jobs.join("link")).unwrap();
    let link = jobs.join("link").display().to_string();
    assert!(refusal(&mut server, 8, &document(&[&link], json!({}))).await.contains("may not execute"));
    let up = format!("{inside}/../../bin/echo");
    script(&folder.path().join("other"), "#!/bin/sh\n");
    let other = format!("{inside}/../other");
    assert!(refusal(&mut server, 9, &document(&[&other], json!({}))).await.contains("may not execute"), "{up}");
    // A signature does not bring in another program than the one that was looked at; servers refuse to save this.
    let digest: String = Sha256::digest("#!/bin/sh\n").iter().map(|byte| format!("{byte:02x}")).collect();
    let signed = json!({"signature": {"file": folder.path().join("other"), "sha256": digest}});
    let why = refusal(&mut server, 11, &document(&[&hello], signed)).await;
    assert!(why.contains("which is not what the job executes"), "{why}");
    let greedy = document(&[&hello], json!({"limits": {"open_files": 65}}));
    assert!(refusal(&mut server, 10, &greedy).await.contains("limits.open_files is 65, and at most 64 is allowed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policys_limits_hold_for_jobs_that_ask_for_none_and_a_broken_file_stops_everything() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = agent_with(folder.path(), "limits = { open_files = 77 }\n").await;
    let document = json!({"name": "job", "action": {"shell": {"command": "ulimit -n"}}});
    server.dispatch(with_document(1, &document)).await;
    assert_eq!(stdout(&server.result(1).await.0), "77\n");
    fs::write(folder.path().join("policy.toml"), "limits = { files = 77 }\n").unwrap();
    let why = refusal(&mut server, 2, &document).await;
    assert!(why.starts_with("policy: the policy file ") && why.contains("unknown field `files`"), "{why}");
    fs::write(folder.path().join("policy.toml"), "limits = { open_files = 78 }\n").unwrap();
    server.dispatch(with_document(3, &document)).await;
    assert_eq!(stdout(&server.result(3).await.0), "78\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_does_not_start_with_a_policy_that_others_can_write() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    fs::write(&policy, "").unwrap();
    fs::set_permissions(&policy, PermissionsExt::from_mode(0o666)).unwrap();
    let config = belfry_agent::AgentConfig { policy: Some(policy), ..config(folder.path()) };
    let why = belfry_agent::Agent::start(config).await.err().expect("a refusal").to_string();
    assert!(why.contains("chmod go-w"), "{why}");
}
