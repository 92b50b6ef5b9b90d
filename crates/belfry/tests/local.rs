//! Jobs that nodes fire by themselves (`run_on: each` and `home`): real servers and agents, also without each other.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::time::Duration;

use belfry_testkit::servers::Port;
use belfry_testkit::{Client, Daemon, Line, Witness, until};
use serde_json::{Value, json};

const STOP_PATIENCE: Duration = Duration::from_secs(40);

struct Cluster {
    folder: tempfile::TempDir,
    ports: [Port; 2],
    client: Client,
    server: Daemon,
}

impl Cluster {
    async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-local-").tempdir().unwrap();
        let data = folder.path().join("server");
        let ports = [Port::free(), Port::free()];
        let mut server = start(&folder, "server", BELFRY, &args(&ports));
        let address = until("the address is written", async || {
            assert!(server.ended().is_none(), "{}", server.stderr());
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).unwrap();
        Self { client: Client::new(address.trim(), token.trim()), folder, ports, server }
    }

    async fn join(&self, name: &'static str) -> Daemon {
        let token = self.client.join_token().await;
        let agent = start(&self.folder, name, BELFRY, &["agent", "--name", name, "--join", &token]);
        self.until_connected(name).await;
        agent
    }

    async fn until_connected(&self, name: &str) -> Value {
        until("the node is connected", async || {
            let nodes = self.client.nodes().await;
            nodes.into_iter().find(|node| node["name"] == name && node["connected"] == true)
        })
        .await
    }

    /// As it is started again, with what is on its disk alone.
    fn again(&self, name: &'static str) -> Daemon {
        start(&self.folder, name, BELFRY, &["agent", "--name", name])
    }

    /// As above, where there is no network at all, not even the loopback.
    fn again_alone(&self, name: &'static str) -> Daemon {
        start(&self.folder, name, "unshare", &["--net", "--", BELFRY, "agent", "--name", name])
    }

    async fn homes(&self) -> BTreeMap<String, u64> {
        let nodes = self.client.nodes().await;
        nodes.iter().map(|node| (node["name"].as_str().unwrap().to_owned(), node["homes"].as_u64().unwrap())).collect()
    }
}

const BELFRY: &str = env!("CARGO_BIN_EXE_belfry");

/// Where it is found again after a restart.
fn args([api, agents]: &[Port; 2]) -> Vec<String> {
    let address = |port: &Port| format!("127.0.0.1:{}", port.number());
    let words = ["server", "--ttl", "2s", "--listen", &address(api), "--listen-agents", &address(agents)];
    words.map(str::to_owned).to_vec()
}

fn start(folder: &tempfile::TempDir, name: &'static str, program: &str, args: &[impl AsRef<str>]) -> Daemon {
    let args: Vec<String> = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    let env = [("BELFRY_DATA".to_owned(), folder.path().join(name).display().to_string())];
    let log = folder.path().join(format!("{name}.err"));
    Daemon::start(name, Path::new(program), &args, &env, &log)
}

/// Each fire of a job on a node started once, and was due.
fn none_twice_and_all_due(starts: &[Line]) {
    let mut seen = HashSet::new();
    for line in starts {
        assert!(seen.insert((&line.job, &line.node, line.planned)), "started twice: {line:?}");
        assert_eq!(line.planned.subsec_nanosecond(), 0, "no fire of its schedule: {line:?}");
        assert!(line.at >= line.planned, "before its instant: {line:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_node_fires_by_itself_and_goes_on_from_its_disk_without_any_network() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("left out: only root can give an agent a network of its own");
        return;
    }
    let cluster = Cluster::start().await;
    let (_a, mut b) = (cluster.join("a").await, cluster.join("b").await);
    let (client, witness) = (&cluster.client, Witness::new());
    let every_second = |more: Value| {
        let mut document = json!({"schedule": "* * * * * *", "overlap": "allow", "run_on": "each"});
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        document
    };
    client.add("all", &witness.command("all", ":"), every_second(json!({}))).await;
    client.add("only-a", &witness.command("only-a", ":"), every_second(json!({"select": {"hosts": ["a"]}}))).await;
    client.add("anywhere", &witness.command("anywhere", ":"), every_second(json!({"run_on": "one"}))).await;
    client.add("paused", &witness.command("paused", ":"), every_second(json!({}))).await;
    client.add("gone", &witness.command("gone", ":"), every_second(json!({}))).await;
    client.add("at-boot", &witness.command("at-boot", ":"), every_second(json!({"schedule": "@boot"}))).await;
    let on = |job: &str, node: &str| witness.starts(job).iter().filter(|line| line.node == node).count();
    until("both fire it", async || (on("all", "a") > 1 && on("all", "b") > 1).then_some(())).await;
    assert_eq!(on("only-a", "b"), 0);
    let changes = client.changes().await;
    until("their ends are told", async || {
        let told: Vec<_> = changes.runs().into_iter().filter(|run| run.job_name == "all").collect();
        ["a", "b"]
            .iter()
            .all(|node| told.iter().any(|run| run.node_name.as_deref() == Some(node) && run.state == "succeeded"))
            .then_some(())
    })
    .await;
    drop(changes);
    client.post("/jobs/default/paused/pause", json!({})).await;
    client.delete("/jobs/default/gone").await;
    until("runs of both are recorded", async || {
        let runs = client.runs("all").await;
        ["a", "b"]
            .iter()
            .all(|node| runs.iter().any(|run| run.node_name.as_deref() == Some(node) && run.state == "succeeded"))
            .then_some(())
    })
    .await;
    // The pause has reached the node when a fire is over that came after it.
    let (paused, gone) = (on("paused", "b"), on("gone", "b"));
    let fired = on("all", "b");
    until("three more fires", async || (on("all", "b") >= fired + 3).then_some(())).await;
    let quiet = (on("paused", "b"), on("gone", "b"));
    assert!(quiet.0 <= paused + 2 && quiet.1 <= gone + 2, "it went on after its pause or removal");

    b.kill9();
    let before = witness.starts("all").iter().filter(|line| line.node == "b").map(|line| line.planned).max().unwrap();
    let mut alone = cluster.again_alone("b");
    let alone_fires = async || {
        let after = witness.starts("all").into_iter().filter(|line| line.node == "b" && line.planned > before);
        (after.count() > 3).then_some(())
    };
    until("it fires alone", alone_fires).await;
    assert_eq!((on("paused", "b"), on("gone", "b")), quiet, "what was not due was fired");
    assert_eq!((on("only-a", "b"), on("at-boot", "b")), (0, 0), "what was not its own, or the machine's boot");
    let ordered: Vec<Line> =
        witness.starts("anywhere").into_iter().filter(|line| line.node == "b" && line.planned > before).collect();
    assert!(ordered.is_empty(), "it started what only a server may order: {ordered:?}");
    none_twice_and_all_due(&witness.starts("all"));
    alone.kill9();

    // Back in the cluster it tells what it did alone.
    let mut back = cluster.again("b");
    cluster.until_connected("b").await;
    until("what it fired alone is recorded and marked", async || {
        let mut alone: Vec<_> =
            witness.starts("all").into_iter().filter(|line| line.node == "b" && line.planned > before).collect();
        alone.truncate(3);
        for line in &alone {
            let run = client.ask(&format!("/runs/{}", line.run)).await?;
            let marks = run["marks"].as_array().unwrap();
            if run["state"] == "succeeded" {
                assert!(marks.contains(&json!("local")) && marks.contains(&json!("cut_off")), "{run}");
            } else if run["state"] != "lost" {
                return None;
            }
        }
        Some(())
    })
    .await;
    none_twice_and_all_due(&witness.starts("all"));
    assert!(back.stop(STOP_PATIENCE).await.success(), "{}", back.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn homes_are_balanced_move_with_their_fires_and_go_on_without_servers() {
    let mut cluster = Cluster::start().await;
    let mut a = cluster.join("a").await;
    let (client, witness) = (cluster.client.clone(), Witness::new());
    for n in 0..8 {
        let name = format!("h{n}");
        let more = json!({"schedule": "* * * * * *", "overlap": "allow", "run_on": "home"});
        client.add(&name, &witness.command(&name, ":"), more).await;
    }
    let balanced = async |nodes: &[(&str, u64)]| {
        let wanted: BTreeMap<String, u64> = nodes.iter().map(|(name, homes)| ((*name).to_owned(), *homes)).collect();
        until("the homes are balanced", async || {
            let mut homes = cluster.homes().await;
            homes.retain(|_, count| *count > 0);
            (homes == wanted).then_some(())
        })
        .await;
    };
    balanced(&[("a", 8)]).await;
    let mut b = cluster.join("b").await;
    balanced(&[("a", 4), ("b", 4)]).await;
    let fires_on = async |node: &str, from: usize| {
        until("each job fires there", async || {
            let lines = witness.all();
            let jobs: HashSet<&str> =
                lines[from..].iter().filter(|line| line.node == node).map(|line| line.job.as_str()).collect();
            (jobs.len() == 4).then_some(())
        })
        .await;
    };
    fires_on("b", witness.all().len()).await;
    // A move that was asked for starts nothing twice, and leaves nothing out.
    client.patch("/nodes/b", json!({"draining": true})).await;
    balanced(&[("a", 8)]).await;
    client.patch("/nodes/b", json!({"draining": false})).await;
    balanced(&[("a", 4), ("b", 4)]).await;
    fires_on("b", witness.all().len()).await;
    for n in 0..8 {
        let mut instants: Vec<i64> =
            witness.starts(&format!("h{n}")).iter().map(|line| line.planned.as_second()).collect();
        instants.sort_unstable();
        let count = instants.len();
        instants.dedup();
        assert_eq!(instants.len(), count, "h{n} fired twice at one instant");
    }
    // Killed: its jobs go on where the other is, from where they were left off.
    b.kill9();
    let killed_at = witness.all().len();
    balanced(&[("a", 8)]).await;
    until("all of them fire there", async || {
        let lines = witness.all();
        let jobs: HashSet<&str> =
            lines[killed_at..].iter().filter(|line| line.node == "a").map(|line| line.job.as_str()).collect();
        (jobs.len() == 8).then_some(())
    })
    .await;
    // All servers gone: homes go on, and tell it later.
    cluster.server.kill9();
    let alone_from = witness.all().len();
    until("it fires without a server", async || (witness.all().len() > alone_from + 40).then_some(())).await;
    let last = witness.all().into_iter().rfind(|line| line.node == "a").unwrap();
    cluster.server = start(&cluster.folder, "server", BELFRY, &args(&cluster.ports));
    let run = until("what they did alone is recorded", async || {
        client.ask(&format!("/runs/{}", last.run)).await.filter(|run| run["state"] == "succeeded")
    })
    .await;
    assert!(run["marks"].as_array().unwrap().contains(&json!("cut_off")), "{run}");
    assert!(a.stop(STOP_PATIENCE).await.success(), "{}", a.stderr());
}
