//! What a cluster costs its backend: no-op fires a second beside the backend's own batched writes, commits a fire at a steady rate, commits
//! of an idle server, and a million fires on an etcd with a small quota. Store and coordinator are the real servers.
//!
//! `path_bench cluster [etcd|postgres|mariadb|zookeeper] …`, `path_bench cluster quota`; each line is a figure.

use std::sync::Arc;
use std::time::{Duration, Instant};

use belfry_control::{Control, ControlConfig};
use belfry_coord::{
    Commit, Coordinator, EtcdCoordinator, SqlCoordinator, SystemClock, Users, Write, ZooKeeperCoordinator,
};
use belfry_core::job::{Action, Exec, JobDocument};
use belfry_core::{JobId, ServerId, Timestamp};
use belfry_sql::{Database, MySql, Postgres};
use belfry_store::{Actor, Change, Store};
use belfry_testkit::servers::{self, EtcdOptions};
use serde_json::{Value, json};

use crate::bed::instant_agent;

pub async fn run(wanted: &[String]) {
    for name in wanted {
        match name.as_str() {
            "quota" => small_quota().await,
            backend => measure(&Bed::on(backend, None).await, backend).await,
        }
    }
}

/// A backend with one server's worth of clients. The servers end with it.
struct Bed {
    store: Store,
    coordinator: Arc<dyn Coordinator>,
    etcd: Option<Arc<EtcdCoordinator>>,
    _alive: Vec<Box<dyn std::any::Any>>,
}

impl Bed {
    /// etcd and ZooKeeper coordinate, with a PostgreSQL as store; a database does both.
    async fn on(backend: &str, quota_bytes: Option<u64>) -> Self {
        let mut alive: Vec<Box<dyn std::any::Any>> = Vec::new();
        let database: Arc<dyn Database> = if backend == "mariadb" {
            let server = servers::MariaDb::start();
            let database = MySql::connect(&server.fresh_database()).await.expect("MariaDB");
            alive.push(Box::new(server));
            Arc::new(database)
        } else {
            let server = servers::Postgres::start();
            let database = Postgres::connect(&server.fresh_database()).await.expect("PostgreSQL");
            alive.push(Box::new(server));
            Arc::new(database)
        };
        let mut etcd = None;
        let coordinator: Arc<dyn Coordinator> = match backend {
            "etcd" => {
                let server = servers::Etcd::start_with(1, EtcdOptions { quota_bytes, ..EtcdOptions::default() });
                let client = Arc::new(EtcdCoordinator::connect(&server.url()).await.expect("etcd"));
                alive.push(Box::new(server));
                etcd = Some(client.clone());
                client
            }
            "zookeeper" => {
                let server = servers::ZooKeeper::start(1);
                let client = ZooKeeperCoordinator::open(&server.url()).await.expect("ZooKeeper");
                alive.push(Box::new(server));
                Arc::new(client)
            }
            "postgres" | "mariadb" => {
                Arc::new(SqlCoordinator::open(database.clone(), Users::Many).await.expect("a coordinator"))
            }
            other => panic!("`{other}` is not a backend; etcd, zookeeper, postgres and mariadb are"),
        };
        let store = Store::open(database).await.expect("a store");
        Self { store, coordinator, etcd, _alive: alive }
    }

    async fn control(&self) -> Control {
        let now = Timestamp::now();
        let server = ServerId::new(now, u128::from(std::process::id()) << 20 | now.subsec_nanosecond() as u128);
        let clock = Arc::new(SystemClock);
        Control::start(ControlConfig::default(), server, self.coordinator.clone(), self.store.clone(), clock)
            .await
            .expect("a server")
    }

    async fn add_jobs(&self, control: &Control, name: &str, count: usize, schedule: &str) -> Vec<JobId> {
        const JOBS_PER_WRITE: usize = 2_000;
        let now = Timestamp::now();
        let numbers: Vec<usize> = (0..count).collect();
        let id = |n: usize| JobId::new(now, n as u128);
        for some in numbers.chunks(JOBS_PER_WRITE) {
            let create = |n: &usize| {
                let action = Action::Exec(Exec { argv: vec!["/bin/true".to_owned()] });
                let mut document = JobDocument::new(format!("{name}-{n:07}"), action);
                document.schedule.0.push(schedule.to_owned());
                document.timezone = Some("UTC".to_owned());
                Change::Create { id: id(*n), document }
            };
            self.store.apply(some.iter().map(create).collect(), now, &Actor::new("bench")).await.expect("jobs");
        }
        control.jobs_changed().await;
        numbers.into_iter().map(id).collect()
    }

    async fn remove_jobs(&self, control: &Control, ids: Vec<JobId>) {
        for some in ids.chunks(2_000) {
            let remove = |id: &JobId| Change::Remove { id: *id, expected_revision: None };
            let changes = some.iter().map(remove).collect();
            self.store.apply(changes, Timestamp::now(), &Actor::new("bench")).await.expect("jobs are removed");
        }
        control.jobs_changed().await;
        self.until_closed(control).await;
    }

    async fn until_closed(&self, control: &Control) {
        while control.cluster().open_runs > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// How many commits the backend has counted so far, this one included: a version is its own count of them.
    async fn commits(&self) -> u64 {
        match self.coordinator.commit(vec![], vec![Write::Put("bench/probe".into(), "x".into())]).await {
            Ok(Commit::Applied(version)) => version.0,
            other => panic!("{other:?}"),
        }
    }

    /// Keys a second in commits of 99 puts, as many under way as there are shards.
    async fn batched_writes(&self, keys: usize) -> f64 {
        let began = Instant::now();
        let batches = keys / 16 / 99;
        let lanes: Vec<_> = (0..16)
            .map(|lane| {
                let coordinator = self.coordinator.clone();
                tokio::spawn(async move {
                    for batch in 0..batches {
                        let put = |n| Write::Put(format!("bench/{lane:02}/{batch:05}/{n:02}"), vec![b'x'; 220].into());
                        coordinator.commit(vec![], (0..99).map(put).collect()).await.expect("a commit");
                    }
                })
            })
            .collect();
        for lane in lanes {
            lane.await.expect("a lane");
        }
        (batches * 16 * 99) as f64 / began.elapsed().as_secs_f64()
    }
}

async fn measure(bed: &Bed, backend: &str) {
    let raw = bed.batched_writes(30_000).await;
    let control = bed.control().await;
    let _dispatched = instant_agent(&control);

    const IDLE_S: u64 = 20;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = bed.commits().await;
    tokio::time::sleep(Duration::from_secs(IDLE_S)).await;
    // Of a server and a node, each every TTL/4; the probe itself is one.
    let idle = bed.commits().await - before - 1;
    let beats = IDLE_S as f64 / 2.5 + IDLE_S as f64 / 2.0;
    figure(backend, "commits of an idle server ÷ heartbeats", json!({ "value": idle as f64 / beats, "at_most": 1.2 }));

    const RATE: usize = 1_000;
    const RATE_S: u64 = 20;
    let jobs = bed.add_jobs(&control, "steady", RATE, "* * * * * *").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = bed.commits().await;
    tokio::time::sleep(Duration::from_secs(RATE_S)).await;
    let commits = bed.commits().await - before - 1;
    let fires = RATE as u64 * RATE_S;
    let per_fire = commits as f64 / fires as f64;
    figure(backend, "commits a fire at 1,000 fires/s", json!({ "value": per_fire, "at_most": 0.05 }));
    bed.remove_jobs(&control, jobs).await;

    let per_s = herd(bed, &control, 30_000).await;
    figure(
        backend,
        "no-op fires/s ÷ batched writes",
        json!({ "value": per_s, "unit": "/s", "baseline": raw, "at_least": 5000 }),
    );
    control.stop().await;
}

/// All due at one instant: fires a second from the first claim to the last record.
async fn herd(bed: &Bed, control: &Control, count: usize) -> f64 {
    let due = Timestamp::from_second(Timestamp::now().as_second() + 45).expect("an instant");
    let before = counted(bed).await;
    bed.add_jobs(control, &format!("herd-{}", due.as_second()), count, &format!("@at {due}")).await;
    assert!(Timestamp::now() < due, "saving the jobs took too long");
    tokio::time::sleep(Duration::from_millis((due.as_millisecond() - Timestamp::now().as_millisecond()) as u64)).await;
    let began = Instant::now();
    while counted(bed).await < before + count || control.cluster().open_runs > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    count as f64 / began.elapsed().as_secs_f64()
}

/// A million fires, as fast as they go, on an etcd that takes 64 MiB.
async fn small_quota() {
    const FIRES: usize = 1_000_000;
    const JOBS: usize = 5_000;
    const QUOTA_BYTES: u64 = 64 << 20;
    let bed = Bed::on("etcd", Some(QUOTA_BYTES)).await;
    let etcd = bed.etcd.clone().expect("etcd");
    let control = bed.control().await;
    let _dispatched = instant_agent(&control);
    let began = Instant::now();
    bed.add_jobs(&control, "all-the-time", JOBS, "* * * * * *").await;
    let (mut most, mut fired, mut alarm) = (0, 0, false);
    while fired < FIRES && !alarm {
        tokio::time::sleep(Duration::from_secs(5)).await;
        let quota = etcd.quota().await.expect("its state");
        most = most.max(quota.file_bytes);
        alarm = quota.alarm;
        fired = counted(&bed).await;
        eprintln!("{fired} fires, file {} MiB, used {} MiB", quota.file_bytes >> 20, quota.used_bytes >> 20);
    }
    assert!(!alarm, "etcd is full after {fired} fires");
    let share = most as f64 / QUOTA_BYTES as f64;
    figure("etcd", "largest file ÷ quota of 64 MiB in 1,000,000 fires", json!({ "value": share, "at_most": 1.0 }));
    let per_s = fired as f64 / began.elapsed().as_secs_f64();
    figure("etcd", "fires/s while it did", json!({ "value": per_s, "unit": "/s" }));
    control.stop().await;
}

fn figure(backend: &str, name: &str, mut facts: Value) {
    facts["figure"] = format!("{backend}: {name}").into();
    println!("{facts}");
}

async fn counted(bed: &Bed) -> usize {
    let day = Timestamp::from_second(0).expect("an instant");
    let counts = bed.store.run_counts(None, day, Timestamp::MAX).await.expect("counts");
    counts.iter().map(|count| count.runs as usize).sum()
}
