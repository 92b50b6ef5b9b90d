//! What jobs keep from run to run, on real processes: a server, agents on two nodes, and the command line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use belfry_testkit::{Client, Daemon, processes_with, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const BELFRY: &str = env!("CARGO_BIN_EXE_belfry");
const STOP_PATIENCE: Duration = Duration::from_secs(40);
const LINES: u32 = 1_000_000;
/// Far below what a million lines take.
const GROWTH_MAX_KIB: u64 = 8 * 1024;

struct Cluster {
    folder: tempfile::TempDir,
    client: Client,
    server: Daemon,
    agents: Vec<Daemon>,
}

impl Cluster {
    async fn start(agents: &[&'static str]) -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-state-").tempdir().unwrap();
        let data = folder.path().join("server");
        let args = ["server", "--ttl", "2s", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"];
        let mut server = start(folder.path(), "server", &args);
        let address = until("the address is written", async || {
            assert!(server.ended().is_none(), "{}", server.stderr());
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).unwrap();
        let client = Client::new(address.trim(), token.trim());
        let mut cluster = Self { folder, client, server, agents: Vec::new() };
        for name in agents {
            let token = cluster.client.join_token().await;
            cluster.agents.push(start(cluster.folder.path(), name, &["agent", "--name", name, "--join", &token]));
            until("the node is connected", async || {
                let is_here = |node: &Value| node["name"] == *name && node["connected"] == true;
                cluster.client.nodes().await.iter().any(is_here).then_some(())
            })
            .await;
        }
        cluster
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("server")
    }

    /// What the command line says, and whether it is content.
    #[expect(clippy::disallowed_methods, reason = "the program under test is started as a user starts it")]
    fn cli(&self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new(BELFRY);
        command.args(args).env("BELFRY_DATA", self.data()).env_remove("BELFRY_URL").env_remove("BELFRY_TOKEN");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), said)
    }

    async fn state(&self, job: &str) -> Value {
        self.client.get(&format!("/jobs/default/{job}/state")).await["values"].clone()
    }

    async fn output(&self, run: &str) -> String {
        self.client.output_text(run).await
    }

    async fn stop(mut self) {
        for agent in &mut self.agents {
            assert!(agent.stop(STOP_PATIENCE).await.success(), "{}", agent.stderr());
        }
        assert!(self.server.stop(STOP_PATIENCE).await.success(), "{}", self.server.stderr());
    }
}

fn start(folder: &Path, name: &'static str, args: &[&str]) -> Daemon {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let env = [("BELFRY_DATA".to_owned(), folder.join(name).display().to_string())];
    Daemon::start(name, Path::new(BELFRY), &args, &env, &folder.join(format!("{name}.err")))
}

fn memory_kib(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_matches(|char: char| !char.is_ascii_digit()).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_run_wrote_before_it_was_killed_is_there_for_the_next_one_on_another_node() {
    let cluster = Cluster::start(&["east", "west"]).await;
    let client = &cluster.client;
    let command = "echo \"it was $BELFRY_STATE_AT\"; echo \"AT=page 7, a=b\" > $BELFRY_STATE; sleep 300";
    client.add("crawl", command, json!({})).await;
    let run = client.run_with("crawl", json!({"node": "east"})).await;
    until("it is saved while the run goes", async || {
        (cluster.state("crawl").await == json!({"AT": "page 7, a=b"})).then_some(())
    })
    .await;
    for pid in processes_with(&format!("BELFRY_RUN_ID={}", run.id)) {
        let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    client.until_state(&run.id, "failed").await;
    let next = client.run_with("crawl", json!({"node": "west"})).await;
    until("the next one says what it got", async || {
        (cluster.output(&next.id).await == "it was page 7, a=b\n").then_some(())
    })
    .await;
    client.post(&format!("/runs/{}/kill", next.id), json!({})).await;
    client.until_ended(&next.id).await;

    // Written as the last thing before the end.
    client.add("last", "echo \"COUNT=$((BELFRY_STATE_COUNT + 1))\" > $BELFRY_STATE; kill -9 $$", json!({})).await;
    for _ in 0..5 {
        let run = client.run_now("last").await;
        client.until_state(&run.id, "failed").await;
    }
    assert_eq!(cluster.state("last").await, json!({"COUNT": "5"}));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_and_set_what_a_job_keeps_and_it_goes_with_the_job() {
    let cluster = Cluster::start(&["east"]).await;
    let client = &cluster.client;
    client.add("poll", "echo \"$BELFRY_STATE_SINCE $BELFRY_STATE_HOW\"", json!({})).await;
    let said = |args: &[&str]| cluster.cli(args);
    assert_eq!(said(&["state", "get", "poll"]), (true, "it keeps nothing\n".to_owned()));
    let (done, words) = said(&["state", "set", "poll", "SINCE=2026-11-17", "HOW=a=b"]);
    assert_eq!((done, words.as_str()), (true, "HOW=a=b\nSINCE=2026-11-17\n"));
    let run = client.run_to_end("poll").await;
    assert_eq!(cluster.output(&run.id).await, "2026-11-17 a=b\n");
    assert_eq!(said(&["state", "get", "poll", "HOW"]), (true, "a=b\n".to_owned()));
    let (done, words) = said(&["state", "get", "poll", "WHY"]);
    assert!(!done && words.contains("default/poll keeps nothing as `WHY`"), "{words}");
    assert_eq!(said(&["state", "set", "poll", "HOW="]), (true, "SINCE=2026-11-17\n".to_owned()));
    let (done, words) = said(&["state", "set", "poll", "how=1"]);
    assert!(!done && words.contains("`how`: a key has 1 to 64 capital letters"), "{words}");
    let long = format!("LONG={}", "x".repeat(4097));
    let (done, words) = said(&["state", "set", "poll", &long]);
    assert!(!done && words.contains("its value has 4097 bytes; at most 4096 are kept"), "{words}");
    let audit = client.get("/audit?limit=10").await;
    let states = audit["items"].as_array().unwrap().iter().filter(|row| row["action"] == "job.state").count();
    assert_eq!(states, 2, "{audit}");
    client.delete("/jobs/default/poll").await;
    client.add("poll", "echo \"now $BELFRY_STATE_SINCE\"", json!({})).await;
    let run = client.run_to_end("poll").await;
    assert_eq!(cluster.output(&run.id).await, "now \n", "it is another job");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_lines_keeps_memory_flat() {
    let cluster = Cluster::start(&["east"]).await;
    let client = &cluster.client;
    client.add("flood", &format!("seq 1 {LINES} | sed 's/^/N=/' > $BELFRY_STATE"), json!({})).await;
    client.add("trickle", "echo N=1 > $BELFRY_STATE", json!({})).await;
    client.run_to_end("trickle").await;
    let pids = [cluster.agents[0].pid(), cluster.server.pid()];
    let before = pids.map(|pid| memory_kib(pid, "VmHWM:"));
    let run = client.run_now("flood").await;
    let ended = client.until_ended(&run.id).await;
    assert_eq!(ended.state, "succeeded", "{}", ended.why());
    assert_eq!(cluster.state("flood").await, json!({"N": LINES.to_string()}));
    for (pid, before) in pids.into_iter().zip(before) {
        let grown = memory_kib(pid, "VmHWM:").saturating_sub(before);
        println!("process {pid} grew by {grown} KiB at most");
        assert!(grown < GROWTH_MAX_KIB, "a process grew by {grown} KiB");
    }
    cluster.stop().await;
}
