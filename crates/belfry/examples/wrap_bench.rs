//! The wrapper for system cron, measured: from its start to its command's start beside a bare spawn, what a waiting one holds, and what an
//! instance costs the coordinator. `BELFRY_BIN` names the built binary. Each line speaks for itself.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts the baseline itself")]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use belfry_coord::{Commit, Coordinator, EtcdCoordinator, SqlCoordinator, Users, Write, ZooKeeperCoordinator};
use belfry_sql::Database;
use belfry_testkit::chaos::Backend;
use belfry_testkit::{Ground, Host, until};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const BACKENDS: [Backend; 4] = [Backend::Etcd, Backend::ZooKeeper, Backend::Postgres, Backend::MariaDb];
/// So that two starts are slower than the 99th of a hundred.
const ROUNDS: usize = 300;
const START_MS_MAX: f64 = 25.0;
const WAITING_BYTES_MAX: f64 = 8e6;
const COMMITS_MAX: f64 = 3.0;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if let [_, said, file] = &words[..]
        && said == "stamp"
    {
        return std::fs::write(file, boottime_ns().to_string()).expect("the file for the moment");
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(measure());
}

async fn measure() {
    let program = std::env::var("BELFRY_BIN").expect("BELFRY_BIN names the built binary");
    for backend in BACKENDS {
        let ground = Ground::start(backend);
        let host = ground.host(&program, "h1");
        let (mut wrapped, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            bare.push(bare_start_ms(&ground));
            wrapped.push(wrapped_start_ms(&ground, &host).await);
        }
        let name = backend.name();
        for (part, word, aim) in [(0.5, "p50", Some(START_MS_MAX)), (0.99, "p99", None)] {
            let (value, baseline) = (quantile(&mut wrapped, part), quantile(&mut bare, part));
            let figure = format!("{name}: start to the command's start, {word}, beside a bare spawn");
            let mut line = json!({"figure": figure, "value": value, "unit": "ms", "baseline": baseline});
            if let Some(aim) = aim {
                line["at_most"] = aim.into();
            }
            println!("{line}");
        }
        let waiting = waiting_bytes(&ground, &program).await / 1e6;
        println!(
            "{}",
            json!({"figure": format!("{name}: private memory of a waiting wrapper"), "value": waiting, "unit": "MB", "at_most": WAITING_BYTES_MAX / 1e6})
        );
        let (winner, standby) = commits(&ground, backend, &program).await;
        for (who, value) in [("its winner", winner), ("each of two standbys", standby)] {
            // ZooKeeper numbers more than commits: what it refuses, barriers, the look for its root.
            let line = match backend {
                Backend::ZooKeeper => {
                    json!({"figure": format!("{name}: transactions for a short instance, {who}"), "value": value})
                }
                Backend::Etcd | Backend::Postgres | Backend::MariaDb | Backend::Sqlite => {
                    json!({"figure": format!("{name}: commits of a short instance, {who}"), "value": value, "at_most": COMMITS_MAX})
                }
            };
            println!("{line}");
        }
    }
}

fn boottime_ns() -> u128 {
    Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock")).as_nanos()
}

fn own_program() -> String {
    std::env::current_exe().expect("the name of this program").display().to_string()
}

fn since_ms(began: u128, file: &std::path::Path) -> f64 {
    let stamped: u128 = std::fs::read_to_string(file).expect("a moment").parse().expect("a number");
    (stamped - began) as f64 / 1e6
}

fn bare_start_ms(ground: &Ground) -> f64 {
    let file = ground.file("stamp");
    let began = boottime_ns();
    let status = Command::new(own_program()).arg("stamp").arg(&file).stdin(Stdio::null()).status();
    assert!(status.expect("a bare spawn").success());
    since_ms(began, &file)
}

async fn wrapped_start_ms(ground: &Ground, host: &Host) -> f64 {
    let file = ground.file("stamp");
    let began = boottime_ns();
    let mut call =
        host.call(&["DCRON_NAME=bench.%s%N", "DCRON_TTL=15"], &[&own_program(), "stamp", &file.display().to_string()]);
    assert_eq!(call.ends().await, Some(0), "{}", call.said());
    since_ms(began, &file)
}

/// Of the one that waits for another host's instance.
async fn waiting_bytes(ground: &Ground, program: &str) -> f64 {
    let (first, second) = (ground.host(program, "w1"), ground.host(program, "w2"));
    let file = ground.file("up");
    let parameters = ["DCRON_NAME=waits.%Y", "DCRON_RETRYON=CRASH", "DCRON_TTL=15"];
    let command = format!("touch {}; sleep 1000", file.display());
    let _running = first.call(&parameters, &["sh", "-c", &command]);
    until("it runs", async || file.exists().then_some(())).await;
    let waiting = second.call(&parameters, &["sh", "-c", &command]);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", waiting.pid())).expect("the waiting wrapper");
    let of = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name)).expect("a line of it");
        line.split_whitespace().next().and_then(|number| number.parse::<f64>().ok()).expect("a number") * 1024.0
    };
    of("Private_Clean:") + of("Private_Dirty:")
}

/// Versions count commits, on ZooKeeper all transactions but those of sessions. Of the winner alone, and beside two others of which one may wait.
async fn commits(ground: &Ground, backend: Backend, program: &str) -> (f64, f64) {
    let counter = ground.host(program, "counts");
    let url = &counter.url;
    let on = async |database: Arc<dyn Database>| {
        Box::new(SqlCoordinator::open(database, Users::Many).await.expect("the coordinator"))
    };
    let coordinator: Box<dyn Coordinator> = match backend {
        Backend::Etcd => Box::new(EtcdCoordinator::connect(url).await.expect("etcd")),
        Backend::ZooKeeper => Box::new(ZooKeeperCoordinator::open(url).await.expect("ZooKeeper")),
        Backend::Postgres => on(Arc::new(belfry_sql::Postgres::connect(url).await.expect("PostgreSQL"))).await,
        Backend::MariaDb => on(Arc::new(belfry_sql::MySql::connect(url).await.expect("MariaDB"))).await,
        Backend::Sqlite => unreachable!("it is no coordinator of several hosts"),
    };
    let version = async || match coordinator.commit(vec![], vec![Write::Put("bench".into(), "x".into())]).await {
        Ok(Commit::Applied(version)) => version.0,
        other => panic!("{other:?}"),
    };
    let sessions = async || match backend {
        Backend::ZooKeeper => sessions(url).await,
        Backend::Etcd | Backend::Postgres | Backend::MariaDb | Backend::Sqlite => 0,
    };
    let hosts: Vec<Host> = (1..=3).map(|number| ground.host(program, &format!("c{number}"))).collect();
    let count = async |name: &str, hosts: &[Host]| {
        let (sessions_before, before) = (sessions().await, version().await);
        let parameters = [format!("DCRON_NAME=counted.{name}%Y"), "DCRON_RETRYON=CRASH".into(), "DCRON_TTL=15".into()];
        let parameters: Vec<&str> = parameters.iter().map(String::as_str).collect();
        let mut calls: Vec<_> = hosts.iter().map(|host| host.call(&parameters, &["sleep", "1"])).collect();
        for call in &mut calls {
            assert_eq!(call.ends().await, Some(0), "{}", call.said());
        }
        let versions = version().await - before - 1;
        let opened = if matches!(backend, Backend::ZooKeeper) { hosts.len() as u64 } else { 0 };
        let closed = sessions_before + opened - sessions().await;
        (versions - opened - closed) as f64
    };
    // The first of a name also looks for old records, which the others then need not for an hour.
    count("first", &hosts[..1]).await;
    let alone = count("alone", &hosts[..1]).await;
    let beside = count("beside", &hosts).await;
    (alone, (beside - alone) / 2.0)
}

/// Of ZooKeeper, which counts their beginnings and ends as it counts commits.
async fn sessions(url: &str) -> u64 {
    let address = url.trim_start_matches("zookeeper://").split('/').next().expect("an address");
    let mut asked = TcpStream::connect(address).await.expect("ZooKeeper");
    asked.write_all(b"mntr").await.expect("a question");
    let mut answer = String::new();
    asked.read_to_string(&mut answer).await.expect("an answer");
    let number = answer.lines().find_map(|line| line.strip_prefix("zk_global_sessions")?.trim().parse().ok());
    number.unwrap_or_else(|| panic!("no number of sessions: {answer}"))
}

fn quantile(times: &mut [f64], part: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times[((times.len() - 1) as f64 * part).round() as usize]
}
