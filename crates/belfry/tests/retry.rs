//! At least once, on real processes: servers and agents that are killed or frozen while runs go on or wait for their next attempt.

use std::path::PathBuf;
use std::time::Duration;

use belfry_testkit::{Client, Daemon, Witness, now, processes_with, until, until_within};
use jiff::{Timestamp, ToSpan};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const TTL: Duration = Duration::from_secs(2);
const STOP_PATIENCE: Duration = Duration::from_secs(40);

/// Servers on one SQLite file, and agents that know the first one.
struct Cluster {
    folder: tempfile::TempDir,
    servers: Vec<(Daemon, Client, PathBuf)>,
    agents: Vec<(String, Daemon)>,
}

impl Cluster {
    async fn start(servers: &[&'static str], agents: &[&'static str]) -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-retry-").tempdir().expect("a temporary folder");
        let mut cluster = Self { folder, servers: Vec::new(), agents: Vec::new() };
        for name in servers {
            cluster.add_server(name).await;
        }
        for name in agents {
            cluster.add_agent(name).await;
        }
        cluster
    }

    fn daemon(&self, name: &'static str, args: &[&str]) -> Daemon {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let folder = self.folder.path();
        let env = [
            ("BELFRY_STORE", format!("sqlite:{}/shared.db", folder.display())),
            ("BELFRY_TTL", format!("{}s", TTL.as_secs())),
            ("BELFRY_QUIT_TIME", "1s".to_owned()),
            ("BELFRY_DATA", folder.join(name).display().to_string()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value));
        Daemon::start(name, env!("CARGO_BIN_EXE_belfry").as_ref(), &args, &env, &folder.join(format!("{name}.err")))
    }

    async fn add_server(&mut self, name: &'static str) {
        let data = self.folder.path().join(name);
        let mut daemon = self.daemon(name, &["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0"]);
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

    async fn add_agent(&mut self, name: &'static str) {
        let token = self.servers[0].1.join_token().await;
        let args = ["agent", "--name", name, "--join", &token];
        let daemon = self.daemon(name, &args);
        self.agents.push((name.to_owned(), daemon));
        for (_, client, _) in &self.servers {
            until("the agent is connected to each server", async || {
                let is_here = |node: &Value| node["name"] == name && node["connected"] == true;
                client.nodes().await.iter().any(is_here).then_some(())
            })
            .await;
        }
    }

    fn client(&self) -> &Client {
        &self.servers[0].1
    }

    async fn stop(mut self) {
        let agents = self.agents.drain(..).map(|(_, daemon)| daemon);
        for mut daemon in agents.chain(self.servers.drain(..).map(|(daemon, ..)| daemon)) {
            let status = daemon.stop(STOP_PATIENCE).await;
            assert!(status.success(), "stopped with {status}:\n{}", daemon.stderr());
        }
    }
}

async fn attempts(client: &Client, run: &str) -> Vec<Value> {
    client.get(&format!("/runs/{run}")).await["attempts"].as_array().expect("attempts").clone()
}

fn instant(text: &Value) -> Timestamp {
    text.as_str().expect("an instant").parse().expect("an instant")
}

/// Each round kills the node that has the run; the other one gets it, and the killed one comes back for the next round. More rounds
/// than a test needs: `cargo xtask bench retries`.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_had_starts_elsewhere_within_the_ttl_and_three_seconds() {
    let mut cluster = Cluster::start(&["server"], &["east", "west"]).await;
    let client = cluster.client().clone();
    let witness = Witness::new();
    let retry = json!({"retry": {"attempts": 2, "on": ["lost"], "delay": "1h", "backoff": "fixed"}});
    let work = witness.command("work", "[ $BELFRY_ATTEMPT = 2 ] || sleep 300");
    client.add("work", &work, retry).await;
    let rounds = rounds(3);
    let mut all = Vec::new();
    for round in 0..rounds {
        let run = client.run_now("work").await;
        client.until_state(&run.id, "running").await;
        // Its process has started; what it writes is counted below.
        until("the work has begun", async || (witness.starts("work").len() == 2 * round + 1).then_some(())).await;
        let first = attempts(&client, &run.id).await.remove(0);
        let place = cluster.agents.iter().position(|(name, _)| first["node_name"] == name.as_str()).expect("a node");
        let (name, mut agent) = cluster.agents.remove(place);
        agent.kill9();
        let killed_at = now();
        let ended = client.until_state(&run.id, "succeeded").await;
        assert_eq!(ended.attempt, 2);
        let attempts = attempts(&client, &run.id).await;
        assert_eq!(attempts[0]["state"], "lost");
        assert_ne!(attempts[0]["node_name"], attempts[1]["node_name"]);
        assert!(attempts[0]["fence"].as_u64() < attempts[1]["fence"].as_u64());
        let took = instant(&attempts[1]["started_at"]).duration_since(killed_at);
        all.push(took);
        println!("round {round}: attempt 2 started {took:#} after kill -9 of {name}, with a TTL of {TTL:?}");
        assert!(took <= (TTL + Duration::from_secs(3)).try_into().unwrap(), "{took:#}");
        cluster.add_agent(if name == "east" { "east" } else { "west" }).await;
    }
    assert_eq!(witness.starts("work").len(), 2 * rounds);
    all.sort_unstable();
    println!("of {rounds} rounds: median {:#}, longest {:#}", all[rounds / 2], all[rounds - 1]);
    tell("nodes killed, what they had started elsewhere within the TTL and 3 s", rounds);
    cluster.stop().await;
}

/// The agent cannot know whether its servers are frozen or the link is cut. It ends exclusive work in time, and other work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn exclusive_work_ends_while_the_servers_are_silent_and_starts_again() {
    let cluster = Cluster::start(&["server"], &["east", "west"]).await;
    let client = cluster.client().clone();
    let witness = Witness::new();
    let stubborn = "trap '' TERM; [ $BELFRY_ATTEMPT = 2 ] || for n in {1..3000}; do sleep 0.1; done";
    let retry = json!({"retry": {"attempts": 2, "on": ["lost"]}, "timeout": {"after": "1h", "grace": "1h"}});
    client.add("exclusive", &witness.command("exclusive", stubborn), retry).await;
    client.add("patient", &witness.command("patient", "sleep 300"), json!({})).await;
    let run = client.run_now("exclusive").await;
    let other = client.run_now("patient").await;
    client.until_state(&run.id, "running").await;
    client.until_state(&other.id, "running").await;
    let processes = |run: &str| processes_with(&format!("BELFRY_RUN_ID={run}"));
    cluster.servers[0].0.signal(Signal::SIGSTOP);
    let gone = until_within(TTL * 2, async || processes(&run.id).is_empty().then_some(())).await;
    assert!(!processes(&other.id).is_empty(), "what is not exclusive goes on");
    cluster.servers[0].0.signal(Signal::SIGCONT);
    assert!(gone.is_some(), "exclusive work went on while the servers were silent");
    let ended = client.until_state(&run.id, "succeeded").await;
    assert_eq!(ended.attempt, 2, "and it is started again, wherever that is");
    let first = attempts(&client, &run.id).await.remove(0);
    assert!(["killed", "lost"].contains(&first["state"].as_str().unwrap_or_default()), "{first}");
    client.post(&format!("/runs/{}/kill", other.id), json!({})).await;
    client.until_ended(&other.id).await;
    cluster.stop().await;
}

/// Both servers are killed while a retry waits: it starts at its time under the next ones. In each round anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_retry_waits_through_the_end_of_all_servers() {
    let mut cluster = Cluster::start(&["one", "two"], &["worker"]).await;
    let witness = Witness::new();
    let retry = json!({"retry": {"attempts": 3, "on": ["failed"], "delay": "12s", "backoff": "fixed"}});
    cluster.client().add("patient", &witness.command("patient", "[ $BELFRY_ATTEMPT = 2 ] || exit 1"), retry).await;
    let rounds = rounds(1);
    for round in 0..rounds {
        let client = cluster.client().clone();
        let run = client.run_now("patient").await;
        client.until_state(&run.id, "waiting").await;
        let due = instant(&client.get(&format!("/runs/{}", run.id)).await["next_attempt_at"]);
        for (mut server, ..) in cluster.servers.drain(..) {
            server.kill9();
        }
        let (_, mut agent) = cluster.agents.remove(0);
        agent.kill9();
        for name in ["three", "four"] {
            cluster.add_server(format!("{name}-{round}").leak()).await;
        }
        cluster.add_agent("worker").await;
        let client = cluster.client().clone();
        until("all shards are owned again", async || {
            let mut owned = 0;
            for (_, client, _) in &cluster.servers {
                owned += client.get("/cluster").await["shards"].as_array().map_or(0, Vec::len);
            }
            (owned == 16).then_some(())
        })
        .await;
        let back = now();
        let ended = client.until_state(&run.id, "succeeded").await;
        assert_eq!(ended.attempt, 2, "the count is what it was");
        let starts = witness.starts("patient");
        assert_eq!(starts.len(), 2 * (round + 1), "{starts:?}");
        let second = starts[2 * round + 1].at;
        assert!(second >= due, "it started {:#} before its time", due.duration_since(second));
        let late = second.duration_since(due.max(back));
        println!("it started {:#} after its time, the servers were back {:#} before", late, due.duration_since(back));
        assert!(second <= due.max(back) + 1.second(), "{late:#} too late");
    }
    tell("retries that waited through the end of all servers and started in time, once", rounds);
    cluster.stop().await;
}

fn rounds(in_a_test: usize) -> usize {
    std::env::var("BELFRY_ROUNDS").ok().map_or(in_a_test, |rounds| rounds.parse().expect("a number of rounds"))
}

/// On a line of its own, for whoever reads figures.
fn tell(figure: &str, rounds: usize) {
    println!("\n{}", json!({"figure": figure, "value": rounds, "at_least": 30}));
}
