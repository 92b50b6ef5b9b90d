//! The agent dies, the zygote dies: nothing of theirs lives on.
#![expect(clippy::disallowed_methods, reason = "tests start helpers and spawn as they like")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use belfry_exec::{ExitStatus, RunTag};
use support::{alive, exists, in_time, run, shell, spawner, until};

const TREE: &str =
    "trap '' TERM HUP; sleep 1000 & setsid sleep 1000 & (setsid bash -c '(setsid sleep 1000 &)' &) ; wait; sleep 1000";
const TREE_MEMBERS: usize = 4;

/// Not a test by itself: the agent that `a_killed_agent_takes_all_its_trees_along` kills.
#[test]
#[ignore = "started by another test as a process of its own"]
fn agent_to_be_killed() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let spawner = spawner();
        let mut children = Vec::new();
        for _ in 0..5 {
            let what = shell(TREE);
            println!("tree {} {}", what.tag.run, what.tag.attempt);
            children.push(spawner.spawn(what).await.expect("start"));
        }
        println!("zygote {} 0", spawner.zygote_pid());
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn a_killed_agent_takes_all_its_trees_along() {
    let mut agent = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "agent_to_be_killed", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("an agent");
    let mut tags = Vec::new();
    let mut zygote = 0;
    for line in BufReader::new(agent.stdout.take().expect("stdout")).lines() {
        let line = line.expect("a line");
        match line.split(' ').collect::<Vec<_>>()[..] {
            [.., "tree", run, attempt] => {
                tags.push(RunTag { run: run.into(), attempt: attempt.parse().expect("a number") })
            }
            [.., "zygote", pid, _] => {
                zygote = pid.parse().expect("a number");
                break;
            }
            _ => {}
        }
    }
    until("all trees are up", || tags.iter().all(|tag| alive(tag).len() >= TREE_MEMBERS)).await;
    assert_eq!(tags.len(), 5);
    agent.kill().expect("kill -9");
    agent.wait().expect("reap");
    until("all trees are gone", || tags.iter().all(|tag| alive(tag).is_empty())).await;
    until("the zygote is gone", || !exists(zygote)).await;
}

#[tokio::test]
async fn a_killed_zygote_means_lost_children_no_survivors_and_a_new_zygote() {
    let spawner = spawner();
    let first = spawner.zygote_pid();
    let mut children = Vec::new();
    for _ in 0..3 {
        let what = shell(TREE);
        children.push((what.tag.clone(), spawner.spawn(what).await.expect("start")));
    }
    until("all trees are up", || children.iter().all(|(tag, _)| alive(tag).len() >= TREE_MEMBERS)).await;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), nix::sys::signal::Signal::SIGKILL)
        .expect("kill -9");
    for (tag, child) in &mut children {
        assert_eq!(in_time("exit", child.wait()).await.status, ExitStatus::Lost);
        assert_eq!(alive(tag).len(), 0, "lost means gone");
        in_time("the end of what is gone", child.killer().end_tree(support::PATIENCE)).await;
    }
    assert_eq!(run(&spawner, shell("exit 4")).await.code(), ExitStatus::Code(4));
    assert_ne!(spawner.zygote_pid(), first);
}

#[tokio::test]
async fn a_dropped_spawner_ends_its_trees_and_its_zygote() {
    let spawner = spawner();
    let zygote = spawner.zygote_pid();
    let what = shell(TREE);
    let tag = what.tag.clone();
    let child = spawner.spawn(what).await.expect("start");
    until("the tree is up", || alive(&tag).len() >= TREE_MEMBERS).await;
    drop(spawner);
    assert!(exists(zygote), "a child keeps its zygote");
    // Helpers of the shell come and go while it starts them; what is meant to stay is counted when they are gone.
    until("the tree is still up", || alive(&tag).len() >= TREE_MEMBERS).await;
    drop(child);
    until("the tree is gone", || alive(&tag).is_empty()).await;
    until("the zygote is gone", || !exists(zygote)).await;
}

#[tokio::test]
async fn the_zygote_ignores_signals_meant_for_a_terminals_processes() {
    let spawner = spawner();
    let zygote = nix::unistd::Pid::from_raw(spawner.zygote_pid() as i32);
    assert_eq!(run(&spawner, shell("exit 0")).await.code(), ExitStatus::Code(0));
    for signal in
        [nix::sys::signal::Signal::SIGINT, nix::sys::signal::Signal::SIGTERM, nix::sys::signal::Signal::SIGHUP]
    {
        nix::sys::signal::kill(zygote, signal).expect("a signal");
    }
    assert_eq!(run(&spawner, shell("exit 5")).await.code(), ExitStatus::Code(5));
    assert_eq!(spawner.zygote_pid(), zygote.as_raw() as u32);
}
