//! Two servers and an agent as real processes on one store and coordinator: they behave as one, also when a server is killed.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use belfry_testkit::servers::{Etcd, MariaDb, Postgres, ZooKeeper};
use belfry_testkit::{Client, Daemon, Witness, until, until_within};
use serde_json::json;

const JOBS: usize = 20;
const PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(40);

struct Cluster {
    folder: tempfile::TempDir,
    env: Vec<(String, String)>,
    servers: Vec<(Daemon, Client, PathBuf)>,
    agent: Option<Daemon>,
}

impl Cluster {
    async fn start(store: &str, coordinator: Option<&str>) -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-cluster-").tempdir().expect("a temporary folder");
        let store = store.replace("FOLDER", &folder.path().display().to_string());
        let mut env = vec![("BELFRY_STORE".to_owned(), store), ("BELFRY_TTL".to_owned(), "2s".to_owned())];
        env.extend(coordinator.map(|url| ("BELFRY_COORDINATOR".to_owned(), url.to_owned())));
        let mut cluster = Self { folder, env, servers: Vec::new(), agent: None };
        cluster.add_server("one").await;
        cluster.add_server("two").await;
        cluster.add_agent().await;
        cluster
    }

    fn daemon(&self, name: &'static str, args: &[&str], data: &std::path::Path) -> Daemon {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut env = self.env.clone();
        env.push(("BELFRY_DATA".to_owned(), data.display().to_string()));
        let log = self.folder.path().join(format!("{name}.err"));
        Daemon::start(name, env!("CARGO_BIN_EXE_belfry").as_ref(), &args, &env, &log)
    }

    async fn add_server(&mut self, name: &'static str) {
        let data = self.folder.path().join(name);
        let args = ["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"];
        let mut daemon = self.daemon(name, &args, &data);
        let address = until("the address is written", async || {
            if let Some(status) = daemon.ended() {
                panic!("it ended by itself with {status}:\n{}", daemon.stderr());
            }
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).expect("the token for the command line");
        self.servers.push((daemon, Client::new(address.trim(), token.trim()), data));
    }

    /// The token names the servers that live at the moment; later ones are learned.
    async fn add_agent(&mut self) {
        let token = self.servers[0].1.join_token().await;
        let args = ["agent", "--name", "worker", "--join", &token];
        self.agent = Some(self.daemon("agent", &args, &self.folder.path().join("agent")));
        for (_, client, _) in &self.servers {
            until("the agent is connected to each server", async || {
                client.nodes().await.iter().any(|node| node["connected"] == true).then_some(())
            })
            .await;
        }
    }

    async fn shards_of(&self, server: usize) -> usize {
        self.servers[server].1.get("/cluster").await["shards"].as_array().map_or(0, |shards| shards.len())
    }

    fn logs(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        ["one.err", "two.err", "three.err", "agent.err"].map(|name| format!("--- {name}\n{}", read(name))).concat()
    }

    async fn stop(mut self) {
        let daemons = self.agent.take().into_iter().chain(self.servers.drain(..).map(|(daemon, ..)| daemon));
        for mut daemon in daemons {
            let status = daemon.stop(STOP_PATIENCE).await;
            assert!(status.success(), "stopped with {status}:\n{}", daemon.stderr());
        }
    }
}

/// The whole story on one pair of backends.
async fn two_servers_are_one(store: &str, coordinator: Option<&str>, leaves_nothing_that_expires: impl AsyncFn()) {
    let mut cluster = Cluster::start(store, coordinator).await;
    until("the shards are shared evenly", async || {
        (cluster.shards_of(0).await == 8 && cluster.shards_of(1).await == 8).then_some(())
    })
    .await;
    until("both say who leads, and the same", async || {
        let leaders = async |server: usize| {
            let cluster = cluster.servers[server].1.get("/cluster").await;
            let servers = cluster["servers"].as_array().cloned().unwrap_or_default();
            let leaders = servers.iter().filter(|server| server["leader"] == true);
            leaders.map(|server| server["id"].clone()).collect::<Vec<_>>()
        };
        let told = leaders(0).await;
        (told.len() == 1 && told == leaders(1).await).then_some(())
    })
    .await;
    let witness = Witness::new();
    let client = cluster.servers[0].1.clone();
    for n in 0..JOBS {
        let name = format!("j{n:02}");
        let more = json!({"schedule": "* * * * * *", "overlap": "allow"});
        client.add(&name, &witness.command(&name, ":"), more).await;
    }
    // By hand through one server, whoever owns the job; and followed there, from whoever hears it.
    client.add("by-hand", "echo out loud; sleep 1; echo and again", json!({})).await;
    let changes = client.changes().await;
    for n in 0..8 {
        client.add(&format!("hand-{n}"), &format!("echo {n} out loud"), json!({})).await;
        let run = client.run_to_end(&format!("hand-{n}")).await;
        assert_eq!(run.state, "succeeded", "{}", run.why());
        let text = client.request(reqwest::Method::GET, &format!("/runs/{}/stream", run.id)).send().await.unwrap();
        let text = text.text().await.unwrap();
        assert!(text.contains(&format!("{n} out loud")) && text.contains("event: end"), "{text}");
        until("its end is told here, whoever owns the job", async || {
            changes.runs().iter().any(|told| told.id == run.id && told.state == "succeeded").then_some(())
        })
        .await;
    }
    drop(changes);
    let run = client.run_now("by-hand").await;
    let text = client.request(reqwest::Method::GET, &format!("/runs/{}/stream", run.id)).send().await.unwrap();
    let text = text.text().await.unwrap();
    assert!(text.contains("out loud") && text.contains("and again") && text.contains("event: end"), "{text}");

    every_job_fires(&witness).await;
    // Its shards are taken over, and what it had claimed ends in a record.
    cluster.servers[1].0.kill9();
    until("the other has all shards", async || (cluster.shards_of(0).await == 16).then_some(())).await;
    every_job_fires(&witness).await;
    drop(cluster.servers.remove(1));
    cluster.add_server("three").await;
    until("the new one has its share", async || (cluster.shards_of(1).await == 8).then_some(())).await;
    every_job_fires(&witness).await;

    for n in 0..JOBS {
        let name = format!("j{n:02}");
        client.post(&format!("/jobs/default/{name}/pause"), json!({})).await;
    }
    for n in 0..JOBS {
        no_fire_twice_and_each_in_one_record(&cluster, &client, &witness, &format!("j{n:02}")).await;
    }
    leaves_nothing_that_expires().await;
    cluster.stop().await;
}

async fn every_job_fires(witness: &Witness) {
    let starts = || (0..JOBS).map(|n| witness.starts(&format!("j{n:02}")).len()).collect::<Vec<_>>();
    let before = starts();
    until("every job fires", async || starts().iter().zip(&before).all(|(now, then)| *now > then + 1).then_some(()))
        .await;
}

async fn no_fire_twice_and_each_in_one_record(cluster: &Cluster, client: &Client, witness: &Witness, job: &str) {
    let mut starts: HashMap<String, usize> = HashMap::new();
    for line in witness.starts(job) {
        *starts.entry(line.run.clone()).or_default() += 1;
    }
    let doubled: Vec<_> = starts.iter().filter(|(_, count)| **count > 1).collect();
    assert!(doubled.is_empty(), "{job} started twice: {doubled:?}");
    // The last ones may still be on their way to the store, on whichever server owns them.
    let all_recorded = async || {
        let runs = client.runs(job).await;
        let is_recorded = |run: &&String| {
            let ended = |known: &&belfry_testkit::Run| matches!(known.state.as_str(), "succeeded" | "lost");
            runs.iter().filter(ended).any(|known| known.id == **run)
        };
        (starts.keys().all(|run| is_recorded(&run)) && runs.iter().all(|run| run.has_ended())).then_some(runs)
    };
    let Some(runs) = until_within(PATIENCE, all_recorded).await else {
        let known: Vec<(String, String)> = client.runs(job).await.into_iter().map(|run| (run.id, run.state)).collect();
        let missing: Vec<_> = starts.keys().filter(|run| !known.iter().any(|(id, _)| id == *run)).collect();
        let open: Vec<_> =
            known.iter().filter(|(_, state)| !matches!(state.as_str(), "succeeded" | "lost" | "skipped")).collect();
        panic!("{job}: started without a record: {missing:?}, open: {open:?}\n{}", cluster.logs());
    };
    // One a second from the first to the last, none missing.
    let mut planned: Vec<i64> = runs.iter().map(|run| run.planned.as_second()).collect();
    planned.sort_unstable();
    let gaps: Vec<_> = planned.windows(2).filter(|pair| pair[1] - pair[0] != 1).collect();
    assert!(gaps.is_empty(), "{job}: fires without a record, or with two: {gaps:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_one_sqlite_file() {
    two_servers_are_one("sqlite:FOLDER/shared.db", None, async || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql() {
    let postgres = Postgres::start();
    two_servers_are_one(&postgres.fresh_database(), None, async || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb() {
    let mariadb = MariaDb::start();
    two_servers_are_one(&mariadb.fresh_database(), None, async || {}).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql_with_etcd() {
    let (postgres, etcd) = (Postgres::start(), Etcd::start(1));
    // Counted by etcd itself since it was started.
    let no_lease = async || {
        let metrics =
            reqwest::get(format!("http://{}/metrics", etcd.endpoints()[0])).await.unwrap().text().await.unwrap();
        let granted = metrics.lines().find_map(|line| line.strip_prefix("etcd_debugging_lease_granted_total "));
        assert_eq!(granted, Some("0"), "leases were taken");
    };
    two_servers_are_one(&postgres.fresh_database(), Some(&etcd.url()), no_lease).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb_with_zookeeper() {
    let (mariadb, zookeeper) = (MariaDb::start(), ZooKeeper::start(1));
    let no_ephemeral = async || assert_eq!(zookeeper.ephemerals(), 0, "ephemeral nodes were made");
    two_servers_are_one(&mariadb.fresh_database(), Some(&zookeeper.url()), no_ephemeral).await;
}

/// What it cannot do is said before anything is started.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_backends_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    for (args, wanted) in [
        (vec!["--store", "oracle://secret@h/x"], "`oracle` is not known"),
        (vec!["--coordinator", "etcd://127.0.0.1:1"], "--coordinator needs --store"),
        (vec!["--store", "sqlite:/nowhere/at/all.db"], "/nowhere/at/all.db"),
        (vec!["--store", "postgres://u:secret@127.0.0.1:1/x"], "127.0.0.1:1"),
    ] {
        let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_belfry"))
            .args([&["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"], args.as_slice()].concat())
            .env("BELFRY_DATA", folder.path())
            .timeout(Duration::from_secs(60))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(wanted), "{args:?}: {said}");
        assert!(!said.contains("secret"), "{args:?} shows the password: {said}");
    }
}
