//! A server in this process on a temporary folder, and jobs in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belfry_agent::{Agent, AgentConfig};
use belfry_control::{Control, ControlConfig};
use belfry_coord::{Coordinator, SqlCoordinator, SystemClock, Users, keys};
use belfry_core::job::{Action, Exec, JobDocument, Limits};
use belfry_core::state::{Saved, Values};
use belfry_core::units::{Size, Span};
use belfry_core::{JobId, ServerId, Timestamp};
use belfry_exec::ZygoteCommand;
use belfry_proto::session::{self, FromAgent, ToAgent, to_agent};
use belfry_sql::{Sqlite, SqliteOptions, SqliteStats};
use belfry_store::{Actor, Change, Store};
use tokio::sync::mpsc;

const JOBS_PER_WRITE: usize = 2_000;

/// How a job of the bench is run.
#[derive(Clone, Copy)]
pub enum Kind {
    Plain,
    /// Another user, and what the kernel limits for each process.
    AsUserWithLimits,
    /// The same, and what is limited for the whole tree, by a cgroup where the machine has them.
    AsUserWithAllLimits,
    /// Exclusive work, which ends with the trust of its node.
    BehindShim,
}

impl Kind {
    fn write_into(self, document: &mut JobDocument) {
        let of_each_process = Limits {
            open_files: Some(1024),
            cpu_time: Some(Span::from_millis(600_000)),
            file_size: Some(Size::from_bytes(1 << 30)),
            ..Limits::default()
        };
        let of_the_tree = Limits {
            memory: Some(Size::from_bytes(1 << 30)),
            cpus: Some(1.0),
            processes: Some(100),
            ..of_each_process
        };
        let mut as_user = |limits| {
            document.run_as.user = Some("nobody".to_owned());
            document.limits = Some(limits);
        };
        match self {
            Kind::Plain => {}
            Kind::AsUserWithLimits => as_user(of_each_process),
            Kind::AsUserWithAllLimits => as_user(of_the_tree),
            Kind::BehindShim => {
                let retry = serde_json::json!({ "attempts": 2, "on": ["lost"] });
                document.retry = Some(serde_json::from_value(retry).expect("a retry"));
            }
        }
    }
}

pub struct Bed {
    temporary: Option<tempfile::TempDir>,
    folder: PathBuf,
    pub store_db: Sqlite,
    pub coordinator_db: Sqlite,
    pub store: Store,
    coordinator: Arc<SqlCoordinator>,
}

impl Bed {
    pub async fn new() -> Self {
        Self::at(tempfile::tempdir().expect("a temporary folder")).await
    }

    async fn at(folder: tempfile::TempDir) -> Self {
        let mut bed = Self::in_folder(folder.path()).await;
        bed.temporary = Some(folder);
        bed
    }

    pub async fn in_folder(folder: impl AsRef<Path>) -> Self {
        let folder = folder.as_ref().to_owned();
        let open = |name: &str| Sqlite::open(folder.join(name), SqliteOptions::default()).expect("a database");
        let (store_db, coordinator_db) = (open("belfry.db"), open("coordinator.db"));
        let store = Store::open(Arc::new(store_db.clone())).await.expect("a store");
        let coordinator =
            SqlCoordinator::open(Arc::new(coordinator_db.clone()), Users::SoleByLock).await.expect("a coordinator");
        Self { temporary: None, folder, store_db, coordinator_db, store, coordinator: Arc::new(coordinator) }
    }

    /// The folder, with nothing open in it.
    pub fn close(self) -> tempfile::TempDir {
        drop((self.store, self.store_db, self.coordinator_db, self.coordinator));
        self.temporary.expect("a bed of its own")
    }

    pub async fn control(&self) -> Control {
        let now = Timestamp::now();
        let server = ServerId::new(now, u128::from(std::process::id()) << 20 | now.subsec_nanosecond() as u128);
        let clock = Arc::new(SystemClock);
        Control::start(ControlConfig::default(), server, self.coordinator.clone(), self.store.clone(), clock)
            .await
            .expect("a server")
    }

    pub async fn agent(&self, control: &Control, slots: u32) -> Agent {
        let program = std::env::var_os("BELFRY_BIN").expect("BELFRY_BIN names the built binary").into();
        let agent = Agent::start(AgentConfig {
            data_dir: self.folder.join("agent"),
            name: "bench".to_owned(),
            labels: Default::default(),
            slots,
            allow_root: true,
            default_user: None,
            policy: None,
            quit_time: Duration::from_secs(10),
            spool_max_bytes: 1 << 30,
            run_logs: None,
            disk_floor_bytes: None,
            zygote: ZygoteCommand { program, args: vec!["__zygote".to_owned()] },
            join: None,
        })
        .await
        .expect("an agent");
        let link = agent.connect_local();
        control.connect_local(link.to_agent, link.from_agent);
        // Its first heartbeat must be acknowledged before it may start anything.
        while !control.nodes().iter().any(|node| node.connected) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        agent
    }

    /// The id of the last one.
    pub async fn add_jobs(&self, control: &Control, count: usize, schedule: &str, argv: &[&str]) -> JobId {
        self.add_jobs_of(Kind::Plain, control, count, schedule, argv).await
    }

    pub async fn add_jobs_of(
        &self,
        kind: Kind,
        control: &Control,
        count: usize,
        schedule: &str,
        argv: &[&str],
    ) -> JobId {
        let action = Action::Exec(Exec { argv: argv.iter().map(|s| (*s).to_owned()).collect() });
        let now = Timestamp::now();
        let id = |n: usize| JobId::new(now, (u128::from(tag(schedule)) << 40) | n as u128);
        let mut at = 0;
        while at < count {
            let changes = (at..count.min(at + JOBS_PER_WRITE))
                .map(|n| {
                    let mut document = JobDocument::new(
                        format!("job-{schedule_tag:x}-{n:07}", schedule_tag = tag(schedule)),
                        action.clone(),
                    );
                    document.schedule.0.push(schedule.to_owned());
                    document.timezone = Some("Europe/Berlin".to_owned());
                    kind.write_into(&mut document);
                    Change::Create { id: id(n), document }
                })
                .collect();
            self.store.apply(changes, now, &Actor::new("bench")).await.expect("jobs are saved");
            at += JOBS_PER_WRITE;
        }
        control.jobs_changed().await;
        id(count.saturating_sub(1))
    }

    pub async fn remove_job(&self, control: &Control, id: JobId) {
        let change = Change::Remove { id, expected_revision: None };
        self.store.apply(vec![change], Timestamp::now(), &Actor::new("bench")).await.expect("the job is removed");
        control.jobs_changed().await;
    }

    /// As the coordinator has it.
    pub async fn saved(&self, job: JobId) -> Option<Values> {
        let entry = self.coordinator.get(&keys::state(job)).await.expect("the coordinator answers")?;
        Some(serde_json::from_slice::<Saved>(&entry.value).expect("a saved state").values)
    }

    pub fn stats(&self) -> (SqliteStats, SqliteStats) {
        (self.store_db.stats(), self.coordinator_db.stats())
    }
}

fn tag(schedule: &str) -> u32 {
    schedule.bytes().fold(7, |tag: u32, byte| tag.wrapping_mul(31).wrapping_add(byte.into()))
}

/// An agent that has done everything the moment it is told, and counts.
pub fn instant_agent(control: &Control) -> mpsc::Receiver<Timestamp> {
    let (orders, mut told) = mpsc::channel::<ToAgent>(100_000);
    let (said, reports) = mpsc::channel::<FromAgent>(100_000);
    let (seen, dispatched) = mpsc::channel(2_000_000);
    control.connect_local(orders, reports);
    tokio::spawn(async move {
        let hello = session::Hello {
            node: belfry_core::NodeId::new(Timestamp::now(), 7).to_string(),
            name: "instant".to_owned(),
            incarnation: 1,
            version: "bench".to_owned(),
            slots: 1_000_000,
            ..Default::default()
        };
        let _ = said.send(hello.into()).await;
        let mut beat = tokio::time::interval(Duration::from_secs(2));
        let mut sequence = 0;
        loop {
            let message = tokio::select! {
                message = told.recv() => message,
                _ = beat.tick() => {
                    sequence += 1;
                    let _ = said.send(session::Heartbeat { sequence }.into()).await;
                    continue;
                }
            };
            match message.and_then(|m| m.message) {
                Some(to_agent::Message::Dispatch(order)) => {
                    let now = Timestamp::now();
                    let _ = seen.try_send(now);
                    let ended = session::Ended {
                        key: order.key,
                        outcome: "succeeded".to_owned(),
                        started_at_ms: Some(now.as_millisecond()),
                        ended_at_ms: now.as_millisecond(),
                        exit_code: Some(0),
                        ..Default::default()
                    };
                    let _ = said.send(ended.into()).await;
                }
                Some(_) => {}
                None => return,
            }
        }
    });
    dispatched
}
