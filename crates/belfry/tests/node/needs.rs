//! What a node has is shown, what runs need decides where they go, and what is not there is said.

use std::time::Duration;

use belfry_testkit::{Mark, Witness, until, until_within};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::{BELFRY, Cluster};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_nodes_machine_has_is_measured_again_and_again_and_shown() {
    let cluster = Cluster::start().await;
    let mut agent = cluster.join("a", &[]).await;
    let node = cluster.until_node("a", |node| node["host"]["cpu_use"].is_number()).await;
    let host = &node["host"];
    assert!(
        number(&host["cpus"]) > 0.0 && number(&host["memory_total"]) >= number(&host["memory_available"]),
        "{host}"
    );
    assert!(number(&host["disk_total"]) >= number(&host["disk_free"]) && number(&host["disk_floor"]) > 0.0, "{host}");
    assert!(number(&host["age_ms"]) < 20_000.0 && host["load"].as_array().unwrap().len() == 3, "{host}");
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(host["kernel"], kernel.trim());
    assert!(number(&node["free_for_needs"]["memory"]) <= number(&host["memory_available"]), "{node}");
    assert_eq!((&node["disk_low"], &node["healthy"]), (&json!(false), &json!(true)));
    let first = host["measured_at"].clone();
    cluster.until_node("a", |node| node["host"]["measured_at"] != first).await;
    // What was measured last stays, with its age, when the node is gone.
    agent.kill9();
    let gone = cluster.until_node("a", |node| node["connected"] == false).await;
    assert!(gone["host"]["age_ms"].is_number());
    let shown = assert_cmd::Command::new(BELFRY)
        .args(["node", "show", "a"])
        .env("BELFRY_DATA", cluster.data("server"))
        .output()
        .unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    for word in ["memory", "free of", "cpus", "load", "booted", kernel.trim(), "free for needs", "away"] {
        assert!(text.contains(word), "{word} is not in\n{text}{}", String::from_utf8_lossy(&shown.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_runs_that_need_a_whole_machine_each_never_share_it() {
    let cluster = Cluster::start().await;
    let _agents = (cluster.join("a", &[]).await, cluster.join("b", &[]).await);
    let (client, witness) = (&cluster.client, Witness::new());
    let cpus = cluster.until_node("a", |node| node["host"].is_object()).await["host"]["cpus"].clone();
    let needs = json!({"needs": {"cpus": cpus}, "overlap": "allow"});
    client.add("whole", &witness.command("whole", "sleep 0.3"), needs.clone()).await;
    let mut runs = Vec::new();
    for _ in 0..10 {
        runs.push(client.run_now("whole").await);
    }
    client.add("little", "true", json!({})).await;
    assert_eq!(client.run_to_end("little").await.state, "succeeded", "what needs nothing does not wait for them");
    for run in &runs {
        let ended = client.until_ended(&run.id).await;
        assert_eq!(ended.state, "succeeded", "{ended:?}");
    }
    let lines = witness.lines("whole");
    for node in ["a", "b"] {
        let on_node: Vec<Mark> = lines.iter().filter(|line| line.node == node).map(|line| line.mark).collect();
        assert!(!on_node.is_empty(), "{node} took its part");
        assert!(
            on_node.chunks(2).all(|pair| pair == [Mark::Started, Mark::Finished]),
            "two at once on {node}: {lines:?}"
        );
    }
    // While both are taken, the next one waits, and says for what.
    client.add("long", "sleep 600", needs).await;
    let long = [client.run_now("long").await, client.run_now("long").await];
    for run in &long {
        client.until_state(&run.id, "running").await;
    }
    let next = client.run_now("whole").await;
    let why = until("it says what it waits for", async || client.run(&next.id).await.reason).await;
    assert!(why.contains("cpus, has 0 free): too little is free for the job's needs"), "{why}");
    client.post(&format!("/runs/{}/kill", long[0].id), json!({})).await;
    assert_eq!(client.until_ended(&next.id).await.state, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_needs_more_than_any_node_has_is_told_so() {
    let cluster = Cluster::start().await;
    let _agent = cluster.join("a", &[]).await;
    let client = &cluster.client;
    client.add("huge", "true", json!({"needs": {"memory": "900TiB"}, "misfire": {"within": "1s"}})).await;
    let ended = client.run_to_end("huge").await;
    assert_eq!(ended.state, "skipped", "{ended:?}");
    let why = "a (needs 900TiB memory, has ";
    assert!(
        ended.why().contains(why) && ended.why().contains("it never has what the job's needs ask for"),
        "{ended:?}"
    );
    client.add("huger", "true", json!({"schedule": "0 0 1 1 *", "needs": {"memory": "900TiB", "disk": "1GiB"}})).await;
    let explained = client.get("/explain?job=default/huger").await;
    let unfit = &explained["outlook"]["placement"]["unfit"][0];
    assert_eq!((&unfit["why"], &unfit["nodes"]), (&json!("too_small"), &json!(["a"])), "{explained}");
    assert!(unfit["has"][0].as_str().unwrap().starts_with("needs 900TiB memory, has "), "{explained}");
    let said = explained["sentences"].to_string();
    assert!(said.contains("it never has what the job's needs ask for"), "{said}");
}

/// A small file system, unmounted at the end.
struct Small(std::path::PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _gone = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_below_its_floor_of_disk_gets_no_work_until_there_is_room_again() {
    let cluster = Cluster::start().await;
    let folder = cluster.data("a");
    std::fs::create_dir_all(&folder).unwrap();
    let options = Some("size=64m,mode=0755");
    if mount(Some("tmpfs"), &folder, Some("tmpfs"), MsFlags::empty(), options).is_err() {
        eprintln!("left out: only root can mount a small file system");
        return;
    }
    let _small = Small(folder.clone());
    let _agent = cluster.join("a", &["--disk-floor", "32MiB"]).await;
    let client = &cluster.client;
    client.add("any", "true", json!({})).await;
    assert_eq!(client.run_to_end("any").await.state, "succeeded");
    std::fs::write(folder.join("filler"), vec![1; 40 << 20]).unwrap();
    let node = cluster.until_node("a", |node| node["disk_low"] == true).await;
    assert_eq!(node["healthy"], false);
    let run = client.run_now("any").await;
    let why = until("it says what it waits for", async || client.run(&run.id).await.reason).await;
    assert!(why.contains("a: less free disk than its floor (--disk-floor)"), "{why}");
    assert!(until_within(Duration::from_millis(500), async || client.run(&run.id).await.started_at).await.is_none());
    std::fs::remove_file(folder.join("filler")).unwrap();
    assert_eq!(client.until_ended(&run.id).await.state, "succeeded");
    cluster.until_node("a", |node| node["disk_low"] == false).await;
}
