//! Limits on a machine that gives the agent no control groups.

use serde_json::json;

use crate::Cluster;

/// So many that nobody else's processes reach it.
const PROCESSES: u32 = 20_000;

#[tokio::test(flavor = "multi_thread")]
async fn without_control_groups_each_process_is_held_and_the_record_says_so() {
    let cluster = Cluster::start().await;
    let Some(agent) = cluster.join_without_control_groups("a").await else {
        eprintln!("left out: only root can take the control groups away");
        return;
    };
    assert!(agent.stderr().contains("held by the kernel's limits of each process"), "{}", agent.stderr());
    let client = &cluster.client;
    let limits = json!({"limits": {"memory": "64MiB", "processes": PROCESSES}});
    client.add("looks", "grep -h 'Max address space\\|Max processes' /proc/self/limits", limits.clone()).await;
    let run = client.run_to_end("looks").await;
    assert_eq!(run.state, "succeeded", "{}", run.why());
    let said = client.output_text(&run.id).await;
    let mut rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    rows.sort_unstable();
    let (memory, processes) = ((64 << 20).to_string(), PROCESSES.to_string());
    assert_eq!(rows[0][..4], ["Max", "address", "space", &memory], "{said}");
    assert_eq!(rows[1][..3], ["Max", "processes", &processes], "{said}");
    let record = client.get(&format!("/runs/{}", run.id)).await;
    assert_eq!(record["limits_held"], json!(["memory by rlimit", "processes by rlimit"]));

    client.add("greedy", "perl -e '$all = \"x\" x (200 << 20); print \"it had all\"'", limits).await;
    let run = client.run_to_end("greedy").await;
    let said = client.output_text(&run.id).await;
    assert!(run.state == "failed" && !said.contains("it had all"), "{run:?}: {said}");

    client.add("shares", "true", json!({"limits": {"cpus": 0.5}})).await;
    let run = client.run_to_end("shares").await;
    assert_eq!(run.state, "skipped", "{run:?}");
    assert!(run.why().contains("limits.cpus needs control groups"), "{}", run.why());
}
