//! The short form of `cargo xtask chaos`: a cluster of real processes on each backend suffers five faults that are seen to do something,
//! and breaks no promise. Bugs that are planted in the shipped code show that the judge can see.

use belfry_testkit::chaos::{self, Backend, Kind, Plan, Report};
use tokio::sync::Mutex;

/// One cluster at a time: each has up to a dozen processes.
static ALONE: Mutex<()> = Mutex::const_new(());

async fn suffer(backend: Backend, kinds: &[Kind], planted: Option<&str>) -> Report {
    let _alone = ALONE.lock().await;
    let plan =
        Plan { planted: planted.map(str::to_owned), ..Plan::short(env!("CARGO_BIN_EXE_belfry"), backend, kinds) };
    let report = chaos::run(&plan).await;
    eprintln!("{report}");
    report
}

async fn survives(backend: Backend, kinds: [Kind; 5]) {
    let report = suffer(backend, &kinds, None).await;
    assert!(report.is_good(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_with_one_server() {
    let kinds = [Kind::KillServer, Kind::KillAgent, Kind::IsolateAgent, Kind::ServerDiskFull, Kind::PauseAgent];
    survives(Backend::Sqlite, kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql() {
    let kinds = [Kind::KillServer, Kind::CoordinatorAway, Kind::CutLink, Kind::PauseAgent, Kind::StopServer];
    survives(Backend::Postgres, kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb() {
    let kinds = [Kind::KillAllServers, Kind::IsolateServer, Kind::KillAgent, Kind::PauseServer, Kind::IsolateAgent];
    survives(Backend::MariaDb, kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_etcd_and_postgresql() {
    let kinds = [Kind::PauseMember, Kind::StoreAway, Kind::KillServer, Kind::IsolateServer, Kind::AgentDiskFull];
    survives(Backend::Etcd, kinds).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_zookeeper_and_mariadb() {
    let kinds = [Kind::KillMember, Kind::CoordinatorAway, Kind::PauseServer, Kind::KillAgent, Kind::CutLink];
    survives(Backend::ZooKeeper, kinds).await;
}

async fn is_caught(bug: &str, backend: Backend, kinds: &[Kind], verdict: &str) {
    let report = suffer(backend, kinds, Some(bug)).await;
    let seen = report.verdicts().get(verdict).copied().unwrap_or(0);
    assert!(seen > 0, "{bug} was not seen as `{verdict}`");
}

/// A stopped agent ends nothing, and its node is held dead: its services run twice.
#[tokio::test(flavor = "multi_thread")]
async fn services_without_a_shim_are_caught_as_running_twice() {
    is_caught("no_shim", Backend::Postgres, &[Kind::PauseAgent, Kind::PauseAgent, Kind::PauseAgent], "service").await;
}

/// A new owner finds a run without a node, and starts it on another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_names_no_node_is_caught_as_doubled() {
    let kinds = [Kind::KillServer, Kind::KillServer, Kind::PauseServer];
    is_caught("node_not_named_in_the_claim", Backend::Postgres, &kinds, "doubled").await;
}

/// It fires its own jobs again when it is started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgets_how_far_it_came_is_caught_as_doubled() {
    is_caught("local_cursor_forgotten", Backend::Sqlite, &[Kind::KillAgent; 3], "doubled").await;
}
