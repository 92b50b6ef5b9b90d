//! The end of whole trees: whatever they forked, wherever it hid.
#![expect(clippy::disallowed_methods, reason = "tests spawn as they like")]

mod support;

use std::time::Duration;

use belfry_exec::{Child, ExitStatus, Prepared, RunTag, Spawner};
use support::{alive, in_time, run, shell, spawner, until};

/// Long enough to be seen when it is waited for by mistake.
const LONG_GRACE: Duration = Duration::from_secs(60);
const SHORT_GRACE: Duration = Duration::from_millis(100);

/// A tree that has come up: `members` processes of it are alive.
async fn tree(spawner: &Spawner, what: Prepared, members: usize) -> (Child, RunTag) {
    let tag = what.tag.clone();
    let child = spawner.spawn(what).await.expect("start");
    until("the tree is up", || alive(&tag).len() >= members).await;
    (child, tag)
}

async fn ends(command: &str, members: usize, grace: Duration, status: ExitStatus) {
    let spawner = spawner();
    let (mut child, tag) = tree(&spawner, shell(command), members).await;
    in_time("the end of the tree", child.killer().end_tree(grace)).await;
    assert_eq!(alive(&tag), [] as [i32; 0], "{command}");
    assert_eq!(in_time("exit", child.wait()).await.status, status, "{command}");
}

#[tokio::test]
async fn a_plain_child_ends_by_term_without_waiting_for_the_grace() {
    ends("exec sleep 1000", 1, LONG_GRACE, ExitStatus::Signal(15)).await;
}

#[tokio::test]
async fn a_child_may_clean_up_in_its_grace() {
    ends("trap 'sleep 0.2; exit 7' TERM; while :; do sleep 0.02; done", 2, LONG_GRACE, ExitStatus::Code(7)).await;
}

#[tokio::test]
async fn a_child_that_ignores_term_is_killed_after_the_grace() {
    ends("trap '' TERM; sleep 1000; true", 2, SHORT_GRACE, ExitStatus::Signal(9)).await;
}

#[tokio::test]
async fn a_stopped_child_ends_by_term() {
    ends("kill -STOP $$", 1, LONG_GRACE, ExitStatus::Signal(15)).await;
}

#[tokio::test]
async fn forked_children_end_with_their_parent() {
    ends("sleep 1000 & (sleep 1000 & sleep 1000) & wait", 5, LONG_GRACE, ExitStatus::Signal(15)).await;
}

#[tokio::test]
async fn children_that_called_setsid_end() {
    ends(
        "setsid sleep 1000 & setsid bash -c 'trap \"\" TERM; sleep 1000; true' & wait",
        4,
        SHORT_GRACE,
        ExitStatus::Signal(15),
    )
    .await;
}

#[tokio::test]
async fn double_forked_daemons_end() {
    let daemon = "(setsid bash -c '(trap \"\" TERM; setsid sleep 1000) & exit' &) ; sleep 1000; true";
    ends(daemon, 3, SHORT_GRACE, ExitStatus::Signal(15)).await;
}

#[tokio::test]
async fn an_orphan_without_the_tag_ends_if_it_stayed_in_the_session() {
    let spawner = spawner();
    let (child, tag) = tree(&spawner, shell("(env -i sleep 4321.5 &) ; exec sleep 1000"), 1).await;
    let orphan = || sleeping("4321.5");
    until("the orphan is up", || orphan() == 1).await;
    in_time("the end of the tree", child.killer().end_tree(LONG_GRACE)).await;
    assert_eq!((alive(&tag).len(), orphan()), (0, 0));
}

#[tokio::test]
async fn a_tree_that_keeps_forking_does_not_escape() {
    let forking = "trap '' TERM; f() { trap '' TERM; while :; do sleep 0.01 & (setsid sleep 0.05 &); sleep 0.002; done; }; f & f & f & wait";
    ends(forking, 8, SHORT_GRACE, ExitStatus::Signal(9)).await;
}

#[tokio::test]
async fn a_chain_that_forks_and_exits_at_once_does_not_escape() {
    // Each link lives a moment, starts the next in a session of its own, and is gone.
    let chain = "export L='trap \"\" TERM HUP; setsid bash -c \"$L\" & exit'; (setsid bash -c \"$L\" &); sleep 1000";
    ends(chain, 2, SHORT_GRACE, ExitStatus::Signal(15)).await;
}

#[tokio::test]
async fn other_runs_of_the_same_spawner_are_left_alone() {
    let spawner = spawner();
    let (one, one_tag) = tree(&spawner, shell("(setsid sleep 1000 &); sleep 1000; true"), 3).await;
    let (other, other_tag) = tree(&spawner, shell("(setsid sleep 1000 &); sleep 1000; true"), 3).await;
    in_time("the end of one", one.killer().end_tree(LONG_GRACE)).await;
    assert_eq!((alive(&one_tag).len(), alive(&other_tag).len()), (0, 3));
    in_time("the end of the other", other.killer().end_tree(Duration::ZERO)).await;
    assert_eq!(alive(&other_tag).len(), 0);
}

#[tokio::test]
async fn fifty_trees_end_at_once_without_survivors() {
    let spawner = spawner();
    let mut trees = Vec::new();
    for _ in 0..50 {
        let what = shell("trap '' TERM; sleep 1000 & (setsid sleep 1000 &) ; wait; sleep 1000");
        trees.push((what.tag.clone(), spawner.spawn(what).await.expect("start")));
    }
    until("all trees are up", || trees.iter().all(|(tag, _)| alive(tag).len() >= 3)).await;
    let ends = trees
        .iter()
        .map(|(_, child)| child.killer())
        .map(|killer| tokio::spawn(async move { killer.end_tree(SHORT_GRACE).await }));
    for end in ends.collect::<Vec<_>>() {
        in_time("an end", end).await.expect("no panic");
    }
    let survivors: usize = trees.iter().map(|(tag, _)| alive(tag).len()).sum();
    assert_eq!(survivors, 0);
}

#[tokio::test]
async fn what_an_ordinary_exit_leaves_behind_is_counted_left_alone_and_ended_on_demand() {
    let spawner = spawner();
    let what = shell("sleep 1000 & (setsid sleep 1000 &) ; exit 3");
    let tag = what.tag.clone();
    let mut child = spawner.spawn(what).await.expect("start");
    let exit = in_time("exit", child.wait()).await;
    assert_eq!((exit.status, exit.left_behind), (ExitStatus::Code(3), 2));
    assert_eq!(alive(&tag).len(), 2);
    in_time("the end of the rest", child.killer().end_tree(LONG_GRACE)).await;
    assert_eq!(alive(&tag).len(), 0);
}

#[tokio::test]
async fn ending_what_has_ended_returns_at_once_and_twice_is_fine() {
    let spawner = spawner();
    assert_eq!(run(&spawner, shell("exit 0")).await.code(), ExitStatus::Code(0));
    let (mut child, _) = tree(&spawner, shell("trap '' TERM; sleep 1000; true"), 2).await;
    let killer = child.killer();
    let patient = {
        let killer = killer.clone();
        tokio::spawn(async move { killer.end_tree(LONG_GRACE).await })
    };
    in_time("an end that is in a hurry", killer.end_tree(SHORT_GRACE)).await;
    in_time("the patient end", patient).await.expect("no panic");
    in_time("an end after the end", killer.end_tree(LONG_GRACE)).await;
    assert_eq!(in_time("exit", child.wait()).await.status, ExitStatus::Signal(9));
}

#[tokio::test]
async fn a_start_nobody_waits_for_is_ended() {
    let spawner = spawner();
    let what = shell("sleep 1000");
    let tag = what.tag.clone();
    let mut start = Box::pin(spawner.spawn(what));
    // One poll sends the request; then the caller goes away.
    let _pending = std::future::poll_fn(|context| std::task::Poll::Ready(start.as_mut().poll(context))).await;
    drop(start);
    assert_eq!(run(&spawner, shell("exit 0")).await.code(), ExitStatus::Code(0));
    until("nobody is left", || alive(&tag).is_empty()).await;
}

fn sleeping(seconds: &str) -> usize {
    let wanted = format!("sleep\0{seconds}\0");
    let commands = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    commands.filter(|command| command == wanted.as_bytes()).count()
}

/// Its first thread ends, another one lives on: in /proc it looks as if it were just about to exec.
const FIRST_THREAD_ENDS: &str = r#"
#include <pthread.h>
#include <unistd.h>
static void *live(void *nothing) { for (;;) pause(); return nothing; }
int main(void) { pthread_t thread; pthread_create(&thread, 0, live, 0); pthread_exit(0); }
"#;

#[tokio::test]
async fn an_orphan_whose_first_thread_has_ended_holds_up_nobodys_end_and_ends_with_its_own_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("no-1st-{}", std::process::id());
    let (source, program) = (folder.path().join("main.c"), folder.path().join(&name));
    std::fs::write(&source, FIRST_THREAD_ENDS).expect("write");
    let built = std::process::Command::new("cc").args(["-pthread", "-o"]).arg(&program).arg(&source).status();
    assert!(built.expect("the compiler that links this test").success());
    let spawner = spawner();
    let what = shell(&format!("(setsid {} &); exit 0", program.display()));
    let mut child = spawner.spawn(what).await.expect("start");
    in_time("its exit", child.wait()).await;
    let is_there = || {
        let named = std::fs::read_dir("/proc").expect("/proc").flatten();
        let mut names = named.map(|process| std::fs::read_to_string(process.path().join("comm")).unwrap_or_default());
        names.any(|comm| comm.trim_end() == name)
    };
    until("it is there", is_there).await;
    let (other, _) = tree(&spawner, shell("exec sleep 1000"), 1).await;
    in_time("the end of another tree", other.killer().end_tree(LONG_GRACE)).await;
    in_time("the end of its own", child.killer().end_tree(LONG_GRACE)).await;
    assert!(!is_there());
}
