//! `DCRON_COMPAT`: the real wrapper beside an old one, which is played by a bare client of a real ZooKeeper.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use belfry_coord::{Coordinator, ZooKeeperCoordinator, keys};
use belfry_testkit::{ZooKeeper, now, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use zookeeper_client::{Acls, Client, CreateMode};

struct Fleet {
    zookeeper: ZooKeeper,
    /// The old wrapper's.
    old: Client,
    folder: TempDir,
}

impl Fleet {
    async fn start() -> Self {
        let zookeeper = ZooKeeper::start(1);
        let old = Client::connect(&zookeeper.endpoints()[0]).await.unwrap();
        Self { zookeeper, old, folder: tempfile::tempdir().unwrap() }
    }

    /// One host of ours; its command is done by a shell.
    fn dcron(&self, parameters: &[&str], script: &str) -> Command {
        let zk = format!("DCRON_ZK={}/x", self.zookeeper.endpoints()[0]);
        let mut command = dcron(&self.folder);
        command.args(["DCRON_NAME=db.backup.%Y", &zk, "DCRON_COMPAT=true"]).args(parameters);
        command.args(["--", "/bin/sh", "-c", script]);
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What the command adds to with every start.
    fn starts(&self) -> usize {
        std::fs::read_to_string(self.file("starts")).map_or(0, |text| text.lines().count())
    }

    /// Says that it has started, and ends when this start is told to.
    fn script(&self) -> String {
        let (starts, end) = (self.file("starts"), self.file("end"));
        let (starts, end) = (starts.display(), end.display());
        format!("echo x >> {starts}; n=$(wc -l < {starts}); until [ -e {end}$n ]; do sleep 0.05; done; exit 3")
    }

    fn end(&self, start: usize) {
        std::fs::write(self.file(&format!("end{start}")), "").unwrap();
    }

    async fn until_started(&self, times: usize) {
        until("the command runs", async || (self.starts() == times).then_some(())).await;
    }

    /// Whether it is bound to a session; none: it is not there.
    async fn is_ephemeral(&self, name: &str) -> Option<bool> {
        let path = format!("{}/{name}", instance());
        self.old.check_stat(&path).await.unwrap().map(|stat| stat.ephemeral_owner != 0)
    }

    async fn make(&self, name: &str, mode: CreateMode) {
        self.old.mkdir(&instance(), &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
        let path = format!("{}/{name}", instance());
        self.old.create(&path, b"node-a", &mode.with_acls(Acls::anyone_all())).await.unwrap();
    }

    /// As our own record has it.
    async fn outcome(&self) -> String {
        let coordinator = ZooKeeperCoordinator::open(&format!("{}/x", self.zookeeper.url())).await.unwrap();
        let entries = coordinator.list(&keys::wrapped_of_name("db.backup")).await.unwrap();
        let ended = entries.iter().find_map(|entry| {
            let value: serde_json::Value = serde_json::from_slice(&entry.value).ok()?;
            Some(value["info"]["phase"]["ended"]["outcome"].as_str()?.to_owned())
        });
        ended.unwrap_or_else(|| panic!("no end in {entries:?}"))
    }
}

fn instance() -> String {
    format!("/x/db/backup/{}", now().strftime("%Y"))
}

#[expect(clippy::disallowed_methods, reason = "the program under test is started as cron starts it")]
fn dcron(folder: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belfry"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("TZ", "UTC").arg("wrap");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    for (name, to) in [("DCRON_LIBDIR", "lib"), ("DCRON_LOGDIR", "log")] {
        command.env(name, folder.path().join(to));
    }
    command
}

async fn exit(mut child: Child) -> Output {
    until("the wrapper ends", async || child.try_wait().unwrap()).await;
    child.wait_with_output().unwrap()
}

fn code(output: &Output) -> Option<i32> {
    eprintln!("{}", String::from_utf8_lossy(&output.stderr));
    output.status.code()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_old_wrapper_runs_is_not_run_and_recorded_as_run_elsewhere() {
    let fleet = Fleet::start().await;
    fleet.make("master", CreateMode::Ephemeral).await;
    // The second one finds that it is over for all of ours.
    for _ in 0..2 {
        let ended = exit(fleet.dcron(&[], &fleet.script()).spawn().unwrap()).await;
        assert_eq!((code(&ended), fleet.starts()), (Some(0), 0));
    }
    assert_eq!(fleet.outcome().await, "elsewhere");
    assert_eq!(fleet.is_ephemeral("master").await, Some(true), "it is the old wrapper's still");
    assert_eq!(fleet.is_ephemeral("status").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_old_wrapper_has_run_is_not_run_again() {
    let fleet = Fleet::start().await;
    fleet.make("status", CreateMode::Persistent).await;
    let ended = exit(fleet.dcron(&[], &fleet.script()).spawn().unwrap()).await;
    assert_eq!((code(&ended), fleet.starts()), (Some(0), 0));
    assert_eq!(fleet.outcome().await, "elsewhere");
    assert_eq!(fleet.is_ephemeral("master").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_old_lock_is_held_through_all_attempts_and_gone_after_the_exit() {
    let fleet = Fleet::start().await;
    let wrapper = fleet.dcron(&["DCRON_RETRYON=ABEXIT"], &fleet.script()).spawn().unwrap();
    fleet.until_started(1).await;
    assert_eq!(fleet.is_ephemeral("master").await, Some(true));
    let made_by = async || fleet.old.get_data(&format!("{}/master", instance())).await.unwrap().1.czxid;
    let first = made_by().await;
    fleet.end(1);
    fleet.until_started(2).await;
    assert_eq!(made_by().await, first, "it never let go");
    fleet.end(2);
    assert_eq!(code(&exit(wrapper).await), Some(3));
    assert_eq!(fleet.is_ephemeral("master").await, None);
    assert_eq!(fleet.is_ephemeral("status").await, Some(false), "hosts of the old wrapper that stand by look for it");
    assert_eq!((fleet.outcome().await.as_str(), fleet.starts()), ("failed", 2));
}

/// The lock of a host that died stays for longer than its record, and must not pass for one of the old wrapper.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_host_of_ours_goes_on_when_one_has_died_with_the_old_lock() {
    let fleet = Fleet::start().await;
    let parameters = ["DCRON_RETRYON=CRASH", "DCRON_TTL=4"];
    let mut first = fleet.dcron(&parameters, &fleet.script()).spawn().unwrap();
    fleet.until_started(1).await;
    let second = fleet.dcron(&parameters, &fleet.script()).spawn().unwrap();
    kill(Pid::from_raw(first.id().try_into().unwrap()), Signal::SIGKILL).unwrap();
    first.wait().unwrap();
    assert_eq!(fleet.is_ephemeral("master").await, Some(true), "of one who is dead");
    fleet.until_started(2).await;
    fleet.end(2);
    assert_eq!(code(&exit(second).await), Some(3));
    assert_eq!((fleet.outcome().await.as_str(), fleet.starts()), ("failed", 2));
    assert_eq!(fleet.is_ephemeral("master").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_no_old_lock_to_take_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (parameters, says) in [
        (["DCRON_NAME=a.%F", "DCRON_COORD=etcd://127.0.0.1:1"].as_slice(), "DCRON_ZK"),
        (&["DCRON_NAME=a.%F", "DCRON_ZK=127.0.0.1:1", "DCRON_LLAP=true"], "DCRON_LLAP"),
        (&["DCRON_NAME=a..b.%F", "DCRON_ZK=127.0.0.1:1"], "no path of ZooKeeper"),
    ] {
        let mut command = dcron(&folder);
        command.args(parameters).args(["DCRON_COMPAT=true", "--", "/bin/true"]);
        let ended = exit(command.spawn().unwrap()).await;
        assert_eq!(code(&ended), Some(64), "{parameters:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains(says), "{parameters:?}");
    }
}
