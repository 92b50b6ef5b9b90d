//! What holds a run to its limits, with real processes that go beyond them.

use std::fs;

use belfry_core::run::{Held, HeldBy};
use belfry_proto::session::Ended;
use serde_json::{Value, json};

use crate::server::{Server, key, start, stdout, with_document};

async fn run(server: &mut Server, run: u32, command: &str, limits: Value) -> (String, Ended) {
    let document = json!({"name": "job", "action": {"shell": {"command": command}}, "limits": limits});
    server.dispatch(with_document(run, &document)).await;
    let (chunks, ended) = server.result(run).await;
    (stdout(&chunks), ended)
}

fn held(ended: &Ended) -> Held {
    Held::from_bits(ended.held)
}

/// Whether trees are held here; where the machine gives the agent no control groups, each process is.
fn is_of_tree(by: Option<HeldBy>) -> bool {
    match by {
        Some(HeldBy::CgroupV1 | HeldBy::CgroupV2) => true,
        Some(HeldBy::Rlimit) => false,
        None => panic!("nothing holds it"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_of_a_process_are_the_kernels_own() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let limits = json!({"open_files": 50, "cpu_time": "90s", "file_size": "8KiB"});
    let (said, ended) = run(&mut server, 1, "cat /proc/self/limits", limits).await;
    let row = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {said}"));
        line[name.len()..].split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("Max open files"), ["50", "50"]);
    assert_eq!(row("Max cpu time"), ["90", "91"], "a signal first, then the end");
    assert_eq!(row("Max file size"), ["8192", "8192"]);
    assert_eq!(held(&ended).words(), ["open_files by rlimit", "cpu_time by rlimit", "file_size by rlimit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_by_a_limit_of_a_process_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let file = folder.path().join("large");
    let write = format!("head -c 100000 /dev/zero > {}", file.display());
    let (_, ended) = run(&mut server, 1, &write, json!({"file_size": "8KiB"})).await;
    assert_eq!(ended.outcome, "failed");
    assert!(ended.reason.starts_with("file_size: "), "{}", ended.reason);
    assert_eq!(fs::metadata(&file).unwrap().len(), 8192);
    let (_, ended) = run(&mut server, 2, "while :; do :; done", json!({"cpu_time": "1s"})).await;
    assert_eq!(ended.outcome, "failed");
    assert!(ended.reason.starts_with("cpu_time: "), "{}", ended.reason);
}

/// The lines of /proc/self/cgroup that name the run, as paths below the mount points.
fn groups_of(said: &str) -> Vec<&str> {
    said.lines().filter(|line| line.contains(&key(1).run)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_with_limits_is_in_a_group_of_its_own_that_goes_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let (agent, mut server) = start(folder.path()).await;
    let limits = json!({"memory": "256MiB", "processes": 50});
    let (said, ended) = run(&mut server, 1, "cat /proc/self/cgroup; ulimit -v", limits).await;
    assert_eq!(ended.outcome, "succeeded", "{}", ended.reason);
    if !is_of_tree(held(&ended).memory) {
        assert!(said.ends_with(&format!("{}\n", 256 * 1024)), "{said}");
        return;
    }
    assert!(said.ends_with("unlimited\n"), "large reservations of memory that is not used are no harm: {said}");
    let groups = groups_of(&said);
    assert!(!groups.is_empty(), "{said}");
    assert!(groups.iter().all(|line| line.contains(&format!("belfry-{}", agent.node()))), "{groups:?}");
    assert!(ended.max_rss_bytes > 0 && ended.max_rss_bytes <= 256 << 20, "{}", ended.max_rss_bytes);
    let path = groups[0].splitn(3, ':').nth(2).unwrap().to_owned();
    belfry_testkit::until("its groups are gone", async || {
        let found = ["memory", "pids", "unified", ""].map(|tree| format!("/sys/fs/cgroup/{tree}{path}"));
        found.iter().all(|folder| !std::path::Path::new(folder).exists()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_children_that_together_exceed_the_memory_are_ended_and_the_record_says_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    // Each holds 12 MiB, and the shell waits for all of them for ever.
    let command = "for i in 1 2 3 4 5 6 7 8 9 10; do (head -c 12m /dev/zero | tail -c 12m | sleep 999) & done; \
                   echo all started; setsid sleep 999 & wait";
    let (_, ended) = run(&mut server, 1, "true", json!({"memory": "64MiB"})).await;
    if !is_of_tree(held(&ended).memory) {
        return;
    }
    let (said, ended) = run(&mut server, 2, command, json!({"memory": "64MiB"})).await;
    assert_eq!(said, "all started\n");
    assert_eq!(ended.outcome, "failed");
    assert!(
        ended.reason.starts_with("memory: its processes together used up limits.memory of 64MiB"),
        "{}",
        ended.reason
    );
    assert!((48 << 20..=64 << 20).contains(&ended.max_rss_bytes), "{}", ended.max_rss_bytes);
    let mark = format!("BELFRY_RUN_ID={}", key(2).run);
    let node = format!("BELFRY_NODE_ID={}", server.hello.node);
    belfry_testkit::until("nobody of it is left", async || {
        let left = belfry_testkit::processes_with(&mark);
        let of_node = belfry_testkit::processes_with(&node);
        left.iter().all(|pid| !of_node.contains(pid)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cpus_and_processes_are_those_of_the_whole_tree() {
    let folder = tempfile::tempdir().unwrap();
    let (_agent, mut server) = start(folder.path()).await;
    let look = "grep -h . /sys/fs/cgroup/cpu$(sed -n 's/.*:cpu:\\|.*:cpu,cpuacct://p' /proc/self/cgroup)/cpu.cfs_quota_us \
                /sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/cpu.max 2>/dev/null";
    let (said, ended) = run(&mut server, 1, look, json!({"cpus": 0.25})).await;
    if ended.outcome == "skipped" {
        assert!(
            ended.reason.starts_with("limits: this node cannot hold the job to them: limits.cpus"),
            "{}",
            ended.reason
        );
        return;
    }
    assert!(said.starts_with("25000"), "{said}");
    assert!(is_of_tree(held(&ended).cpus));
    // Not by bash, which waits longer and longer for another try.
    let forks = "sh -c 'for i in 1 2 3 4 5 6 7 8 9; do sleep 999 & done; kill $(jobs -p)' 2>&1";
    let (said, ended) = run(&mut server, 2, forks, json!({"processes": 6})).await;
    assert!(is_of_tree(held(&ended).processes));
    assert!(said.contains("annot fork"), "{said}");
}
