use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use belfry_proto::session::from_agent;

use crate::orders::count_processes;
use crate::server::{Server, config, key, shell, start, stdout};

const VICTIM_FOLDER: &str = "BELFRY_TEST_VICTIM_FOLDER";

/// Is run in a process of its own by the test below, and killed there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "only as the victim of another test"]
async fn victim() {
    let Ok(folder) = std::env::var(VICTIM_FOLDER) else { return };
    let folder = PathBuf::from(folder);
    let (_agent, mut server) = start(&folder).await;
    server.stores = false;
    server.dispatch(shell(1, "echo precious; exit 4")).await;
    server.until_ended(1).await;
    server.dispatch(shell(2, "(setsid sleep 995 &); echo begun; sleep 994")).await;
    server.until(|message| matches!(message, from_agent::Message::Output(_)).then_some(())).await;
    std::fs::write(folder.join("ready"), "").unwrap();
    loop {
        server.next().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_kill_9_results_are_delivered_and_nothing_is_left_running() {
    let folder = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::victim", "--ignored"])
        .env(VICTIM_FOLDER, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    while !folder.path().join("ready").exists() {
        assert!(victim.try_wait().unwrap().is_none(), "the victim ended by itself");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    let agent = belfry_agent::Agent::start(config(folder.path())).await.unwrap();
    let node = agent.node().to_string();
    assert_eq!(count_processes("BELFRY_RUN_ID", &key(2).run, &node), 0, "the former one's processes are gone");
    let mut server = Server::welcome(agent.connect_local(), Duration::from_secs(10)).await;
    assert_eq!(server.hello.finished, [key(1)], "run 2 has no end, so it is not known here any more");
    assert!(server.hello.running.is_empty());
    let (chunks, ended) = server.result(1).await;
    assert_eq!((ended.exit_code, stdout(&chunks).as_str()), (Some(4), "precious\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_agent_and_zygote_left_when_both_were_killed_is_ended_before_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let node = {
        let (agent, _server) = start(folder.path()).await;
        agent.node().to_string()
    };
    // As a child looks that nobody ended.
    let mut left = Command::new("/bin/sleep")
        .arg("993")
        .env("BELFRY_NODE_ID", &node)
        .env("BELFRY_INCARNATION", "1")
        .spawn()
        .unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let _agent = belfry_agent::Agent::start(config(folder.path())).await.unwrap();
    assert!(!left.wait().unwrap().success());
}
