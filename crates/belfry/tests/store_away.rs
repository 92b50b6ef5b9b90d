//! The store is away and the coordinator is not: real processes fire on, keep their records, and write them when it is back.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use belfry_testkit::servers::{Etcd, Postgres};
use belfry_testkit::{Client, Daemon, Witness, until, until_within};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(90);
const STOP_PATIENCE: Duration = Duration::from_secs(40);

struct Cluster {
    servers: Vec<(Daemon, Client)>,
    agent: Option<Daemon>,
    postgres: Postgres,
    _etcd: Etcd,
    env: Vec<(String, String)>,
    folder: tempfile::TempDir,
}

impl Cluster {
    async fn start(env: &[(&str, &str)]) -> Self {
        let (postgres, etcd) = (Postgres::start(), Etcd::start(1));
        let folder = tempfile::Builder::new().prefix("belfry-away-").tempdir().expect("a temporary folder");
        let mut all = vec![
            ("BELFRY_STORE".to_owned(), postgres.fresh_database()),
            ("BELFRY_COORDINATOR".to_owned(), etcd.url()),
            ("BELFRY_TTL".to_owned(), "2s".to_owned()),
            ("BELFRY_QUIT_TIME".to_owned(), "1s".to_owned()),
        ];
        all.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let mut cluster = Self { servers: Vec::new(), agent: None, postgres, _etcd: etcd, env: all, folder };
        cluster.add_server("one").await;
        let token = cluster.client().join_token().await;
        cluster.start_agent(&["--join", &token]);
        cluster.until_connected().await;
        cluster
    }

    fn daemon(&self, name: &'static str, args: &[&str]) -> Daemon {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut env = self.env.clone();
        env.push(("BELFRY_DATA".to_owned(), self.data(name).display().to_string()));
        let log = self.folder.path().join(format!("{name}.err"));
        Daemon::start(name, env!("CARGO_BIN_EXE_belfry").as_ref(), &args, &env, &log)
    }

    fn data(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn add_server(&mut self, name: &'static str) {
        let data = self.data(name);
        let _none_yet = std::fs::remove_file(data.join("address"));
        // One that is started again is found by its agents where it was.
        let agents = std::fs::read_to_string(data.join("agents-address")).unwrap_or("127.0.0.1:0".to_owned());
        let mut daemon = self.daemon(name, &["server", "--listen", "127.0.0.1:0", "--listen-agents", agents.trim()]);
        let address = until("the address is written", async || {
            if let Some(status) = daemon.ended() {
                panic!("it ended by itself with {status}:\n{}", daemon.stderr());
            }
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).expect("the token for the command line");
        self.servers.push((daemon, Client::new(address.trim(), token.trim())));
    }

    fn start_agent(&mut self, more: &[&str]) {
        self.agent = Some(self.daemon("agent", &[&["agent", "--name", "worker"], more].concat()));
    }

    async fn until_connected(&self) {
        until("the agent is connected", async || {
            self.client().nodes().await.iter().any(|node| node["connected"] == true).then_some(())
        })
        .await;
    }

    fn client(&self) -> &Client {
        &self.servers[0].1
    }

    fn logs(&self) -> String {
        let read = |name: &str| std::fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        ["one.err", "two.err", "agent.err"].map(|name| format!("--- {name}\n{}", read(name))).concat()
    }

    /// Every run that was started, and every second between the first and the last, has a record that has ended.
    async fn until_all_is_recorded(&self, witness: &Witness, job: &str) -> Vec<belfry_testkit::Run> {
        let started: HashSet<String> = witness.starts(job).into_iter().map(|line| line.run).collect();
        let recorded = until_within(PATIENCE, async || {
            let runs = self.client().runs(job).await;
            let known: HashSet<&String> = runs.iter().map(|run| &run.id).collect();
            let is_whole = started.iter().all(|run| known.contains(run)) && runs.iter().all(|run| run.has_ended());
            is_whole.then_some(runs)
        })
        .await;
        recorded.unwrap_or_else(|| panic!("{job}: not all is recorded\n{}", self.logs()))
    }

    async fn stop(mut self) {
        let daemons = self.agent.take().into_iter().chain(self.servers.drain(..).map(|(daemon, _)| daemon));
        for mut daemon in daemons {
            let status = daemon.stop(STOP_PATIENCE).await;
            assert!(status.success(), "stopped with {status}:\n{}", daemon.stderr());
        }
    }
}

async fn until_it_fired(witness: &Witness, job: &str, times: usize) {
    let before = witness.lines(job).len();
    until("it fires on", async || (witness.lines(job).len() >= before + 2 * times).then_some(())).await;
}

/// Each run prints 300 kB, and the agent may keep 1 MiB: from the third on output is left out, and nothing else is.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_print_a_lot_go_on_and_when_the_store_is_back_each_has_its_record_with_what_was_left_out_marked() {
    const PRINTED: u64 = 300_000;
    let mut cluster = Cluster::start(&[("BELFRY_SPOOL_MAX", "1MiB")]).await;
    let witness = Witness::new();
    let loud = witness.command("loud", &format!("head -c {PRINTED} /dev/zero | tr '\\0' x"));
    let more = json!({"schedule": "* * * * * *", "overlap": "allow"});
    cluster.client().add("loud", &loud, more).await;
    until_it_fired(&witness, "loud", 1).await;
    cluster.postgres.kill();
    until_it_fired(&witness, "loud", 8).await;
    cluster.postgres.restart();
    until("it is ready again", async || cluster.client().is_ready().await.then_some(())).await;
    cluster.client().post("/jobs/default/loud/pause", json!({})).await;

    let runs = cluster.until_all_is_recorded(&witness, "loud").await;
    let mut cut = 0;
    for run in &runs {
        if run.why().contains("paused before its instant") {
            continue;
        }
        assert_eq!(run.state, "succeeded", "{}", run.why());
        let record = cluster.client().get(&format!("/runs/{}", run.id)).await;
        let dropped = record["output_dropped_bytes"].as_u64().expect("a number");
        let text = cluster.client().output_text(&run.id).await;
        assert_eq!(text.bytes().filter(|byte| *byte == b'x').count() as u64, PRINTED - dropped, "{}", run.id);
        // One gap or several: there may have been room again while it printed.
        let marks = text.split('…').filter_map(|part| part.trim().strip_suffix(" bytes left out"));
        let marked: u64 = marks.map(|bytes| bytes.parse::<u64>().expect("a number")).sum();
        assert_eq!(marked, dropped, "the gaps are marked");
        cut += u32::from(dropped > 0);
    }
    assert!(cut > 0 && (cut as usize) < runs.len(), "{cut} of {} were cut", runs.len());
    let mut planned: Vec<i64> = runs.iter().map(|run| run.planned.as_second()).collect();
    planned.sort_unstable();
    assert!(planned.windows(2).all(|pair| pair[1] - pair[0] == 1), "each second has its record: {planned:?}");
    cluster.stop().await;
}

/// Decisions of a server (skipped, lost) and attempts that it gave up are known to nobody else: they outlive it in the coordinator.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_a_server_knew_while_the_store_was_away_is_recorded_after_its_kill() {
    let mut cluster = Cluster::start(&[]).await;
    let client = cluster.client().clone();
    let witness = Witness::new();
    let gate = witness.file("gate");
    let until_gate = format!("until [ -e {} ]; do sleep 0.1; done", gate.display());
    client.add("tick", &witness.command("tick", ":"), json!({"schedule": "* * * * * *", "overlap": "allow"})).await;
    client.add("busy", &witness.command("busy", &until_gate), json!({"schedule": "* * * * * *"})).await;
    let retry = json!({"retry": {"attempts": 2, "on": ["lost"], "delay": "1s"}});
    client.add("fragile", &witness.command("fragile", "[ $BELFRY_ATTEMPT = 2 ] || sleep 300"), retry).await;
    let fragile = client.run_now("fragile").await;
    client.until_state(&fragile.id, "running").await;
    until("busy goes on", async || (witness.starts("busy").len() == 1).then_some(())).await;

    cluster.postgres.kill();
    cluster.agent.take().expect("it runs").kill9();
    cluster.start_agent(&[]);
    until("the lost attempt is followed by another", async || (witness.lines("fragile").len() == 3).then_some(()))
        .await;
    until("busy goes on again", async || (witness.starts("busy").len() == 2).then_some(())).await;
    until_it_fired(&witness, "tick", 4).await;
    let (mut server, _) = cluster.servers.remove(0);
    server.kill9();
    cluster.postgres.restart();
    cluster.add_server("one").await;
    cluster.until_connected().await;
    std::fs::write(&gate, "").expect("a folder of our own");
    let client = cluster.client().clone();
    for job in ["tick", "busy"] {
        client.post(&format!("/jobs/default/{job}/pause"), json!({})).await;
    }

    for job in ["tick", "busy"] {
        let runs = cluster.until_all_is_recorded(&witness, job).await;
        let mut planned: Vec<i64> = runs.iter().map(|run| run.planned.as_second()).collect();
        planned.sort_unstable();
        assert!(
            planned.windows(2).all(|pair| pair[1] - pair[0] == 1),
            "{job}: each second has one record: {planned:?}"
        );
    }
    let states: Vec<String> = client.runs("busy").await.into_iter().map(|run| run.state).collect();
    let count = |wanted: &str| states.iter().filter(|state| *state == wanted).count();
    assert!(count("lost") >= 1 && count("skipped") >= 3, "{states:?}");
    client.until_state(&fragile.id, "succeeded").await;
    let record = client.get(&format!("/runs/{}", fragile.id)).await;
    let attempts = record["attempts"].as_array().expect("attempts");
    assert_eq!(attempts.len(), 2, "{record}");
    assert_eq!((&attempts[0]["state"], &attempts[1]["state"]), (&json!("lost"), &json!("succeeded")), "{record}");
    cluster.stop().await;
}

/// The coordinator is up and the store is not: jobs, nodes, credentials and callers are in the server's snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_started_while_the_store_is_away_fires_from_its_snapshot_and_says_so() {
    let mut cluster = Cluster::start(&[]).await;
    let witness = Witness::new();
    let more = json!({"schedule": "* * * * * *", "overlap": "allow"});
    cluster.client().add("tick", &witness.command("tick", ":"), more).await;
    until_it_fired(&witness, "tick", 1).await;
    let snapshot = cluster.data("one").join("snapshot.jsonl");
    until("the job is in the snapshot", async || {
        std::fs::read_to_string(&snapshot).is_ok_and(|text| text.contains("\"name\":\"tick\"")).then_some(())
    })
    .await;
    let mode = std::fs::metadata(&snapshot).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it has hashes of credentials and the key of the CA");

    cluster.postgres.kill();
    let (mut server, _) = cluster.servers.remove(0);
    server.kill9();
    cluster.add_server("one").await;
    until_it_fired(&witness, "tick", 3).await;
    let client = cluster.client().clone();
    assert!(!client.is_ready().await);
    let store = client.get("/cluster").await["store"].clone();
    assert!(store["message"].as_str().is_some_and(|why| why.contains("snapshot")), "{store}");
    assert!(client.nodes().await.iter().any(|node| node["connected"] == true));
    let refused = client.call(reqwest::Method::GET, "/jobs", None).await;
    assert_eq!((refused.status.as_u16(), &refused.body["error"]["code"]), (503, &json!("store_away")));

    cluster.postgres.restart();
    until("it is ready again", async || client.is_ready().await.then_some(())).await;
    client.post("/jobs/default/tick/pause", json!({})).await;
    let runs = cluster.until_all_is_recorded(&witness, "tick").await;
    let mut planned: Vec<i64> = runs.iter().map(|run| run.planned.as_second()).collect();
    planned.sort_unstable();
    assert!(planned.windows(2).all(|pair| pair[1] - pair[0] == 1), "each second has one record: {planned:?}");
    cluster.stop().await;
}
