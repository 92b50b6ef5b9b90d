//! Hosts that have nothing but the wrapper (`dcron`) and a coordinator: each has its own folders, id and link, or a whole network, and its
//! calls are process trees of their own.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::chaos::{Backend, FakeClock};
use crate::daemon::processes_with;
use crate::netns::Namespace;
use crate::proxy::Proxy;
use crate::servers::{Etcd, MariaDb, Postgres, ZooKeeper, spawn_from_a_thread_that_stays};
use crate::until::until_within;

const ENDS_WITHIN: Duration = Duration::from_secs(120);
const MARK: &str = "BELFRY_TESTKIT";

/// A real coordinator, and a folder for all who use it.
pub struct Ground {
    folder: TempDir,
    service: Service,
}

enum Service {
    Etcd(Etcd),
    ZooKeeper(ZooKeeper),
    Postgres(Postgres, String),
    MariaDb(MariaDb, String),
}

impl Ground {
    /// With one member: who has a quorum is not the question here.
    pub fn start(backend: Backend) -> Self {
        let service = match backend {
            Backend::Etcd => Service::Etcd(Etcd::start(1)),
            Backend::ZooKeeper => Service::ZooKeeper(ZooKeeper::start(1)),
            Backend::Postgres => {
                let postgres = Postgres::start();
                let name = postgres.fresh_database_name();
                Service::Postgres(postgres, name)
            }
            Backend::MariaDb => {
                let mariadb = MariaDb::start();
                let name = mariadb.fresh_database_name();
                Service::MariaDb(mariadb, name)
            }
            Backend::Sqlite => panic!("hosts share no file"),
        };
        Self {
            folder: tempfile::Builder::new().prefix("belfry-hosts-").tempdir().expect("a temporary folder"),
            service,
        }
    }

    fn address(&self) -> String {
        match &self.service {
            Service::Etcd(etcd) => etcd.endpoints().remove(0),
            Service::ZooKeeper(zookeeper) => zookeeper.endpoints().remove(0),
            Service::Postgres(postgres, _) => postgres.address(),
            Service::MariaDb(mariadb, _) => mariadb.address(),
        }
    }

    fn url_through(&self, address: &str) -> String {
        match &self.service {
            Service::Etcd(_) => format!("etcd://{address}"),
            Service::ZooKeeper(_) => format!("zookeeper://{address}/hosts"),
            Service::Postgres(postgres, name) => postgres.url_of(address, name),
            Service::MariaDb(mariadb, name) => mariadb.url_of(address, name),
        }
    }

    pub fn kill(&mut self) {
        match &mut self.service {
            Service::Etcd(etcd) => etcd.kill(0),
            Service::ZooKeeper(zookeeper) => zookeeper.kill(0),
            Service::Postgres(postgres, _) => postgres.kill(),
            Service::MariaDb(mariadb, _) => mariadb.kill(),
        }
    }

    pub fn restart(&mut self) {
        match &mut self.service {
            Service::Etcd(etcd) => etcd.restart(0),
            Service::ZooKeeper(zookeeper) => zookeeper.restart(0),
            Service::Postgres(postgres, _) => postgres.restart(),
            Service::MariaDb(mariadb, _) => mariadb.restart(),
        }
    }

    /// A file that all hosts can write to.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn host(&self, program: &str, name: &str) -> Host {
        self.host_on(None, program, name)
    }

    /// In a network of its own, so that its link is one that can be cut; for others than root as [`Ground::host`].
    pub fn host_apart(&self, program: &str, name: &str) -> Host {
        self.host_on(Namespace::make(), program, name)
    }

    fn host_on(&self, network: Option<Namespace>, program: &str, name: &str) -> Host {
        let link = match &network {
            None => Proxy::before(&self.address()),
            Some(network) => Proxy::at(&network.to_coordinator(), &self.address()),
        };
        let env = network.iter().map(|network| ("WITNESS".to_owned(), network.to_witness())).collect();
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder).expect("the folder of a host");
        let url = self.url_through(&link.address());
        Host { name: name.to_owned(), program: program.into(), folder, network, link, url, mark: self.mark(), env }
    }

    fn mark(&self) -> String {
        self.folder.path().display().to_string()
    }

    /// Whatever hosts have started, wrappers in the background too.
    pub fn processes(&self) -> Vec<i32> {
        processes_with(&format!("{MARK}={}", self.mark()))
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // A wrapper that is killed leaves its command to the shim, which ends it: look until nobody is left.
        for _ in 0..200 {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            for pid in &left {
                let _gone = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
            #[expect(clippy::disallowed_methods, reason = "nothing else goes on in this thread any more")]
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

pub struct Host {
    pub name: String,
    program: PathBuf,
    folder: PathBuf,
    network: Option<Namespace>,
    /// To the coordinator. Behind the link of the host's own network, if it has one.
    link: Proxy,
    pub url: String,
    mark: String,
    /// Beside what every call has.
    pub env: Vec<(String, String)>,
}

impl Host {
    /// From the coordinator.
    pub fn cut(&self) {
        match &self.network {
            None => self.link.cut(),
            Some(network) => network.cut(),
        }
    }

    pub fn heal(&self) {
        match &self.network {
            None => self.link.heal(),
            Some(network) => network.heal(),
        }
    }

    /// Where it runs things.
    #[expect(clippy::disallowed_methods, reason = "the program under test is started as cron starts it")]
    fn command(&self, program: impl AsRef<OsStr>) -> Command {
        match &self.network {
            None => Command::new(program),
            Some(network) => {
                let mut command = network.command();
                command.arg(program);
                command
            }
        }
    }

    pub fn log(&self, file: &str) -> PathBuf {
        self.folder.join("log").join(file)
    }

    pub fn lib(&self) -> PathBuf {
        self.folder.join("lib")
    }

    /// In the environment of all that it starts.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// The program by its other name.
    pub fn link_to_program(&self) -> PathBuf {
        let link = self.folder.join("dcron");
        if !link.exists() {
            std::os::unix::fs::symlink(&self.program, &link).expect("a link");
        }
        link
    }

    /// What is in its log files, for a test that failed.
    pub fn logs(&self) -> String {
        let files = std::fs::read_dir(self.log("")).into_iter().flatten().flatten();
        files.map(|file| format!("{}: {}\n", file.path().display(), read(&file.path()))).collect()
    }

    /// As the line of a crontab does.
    pub fn call(&self, parameters: &[&str], command: &[&str]) -> Call {
        let mut call = self.command(&self.program);
        call.arg("wrap").args(parameters).arg("--").args(command);
        self.start(call)
    }

    /// By a script of bash that has the call as its arguments.
    pub fn shell(&self, script: &str, parameters: &[&str], command: &[&str]) -> Call {
        let mut call = self.command("bash");
        call.args(["-c", script, "bash"]).arg(&self.program).arg("wrap").args(parameters).arg("--").args(command);
        self.start(call)
    }

    /// By a clock that begins at this moment, in UTC.
    pub fn call_at(&self, moment: &str, parameters: &[&str], command: &[&str]) -> Call {
        let mut call = self.command(&self.program);
        call.arg("wrap")
            .args(parameters)
            .arg("--")
            .args(command)
            .env("TZ", "UTC")
            .env("FAKETIME", format!("@{moment}"));
        call.envs(FakeClock::library_env());
        self.start(call)
    }

    fn start(&self, mut call: Command) -> Call {
        let stderr = self.folder.join(format!("stderr-{}", self.calls()));
        let faked: Vec<_> =
            call.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))).collect();
        call.env_clear()
            .envs(faked)
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", &self.folder)
            .env("DCRON_COORD", &self.url)
            .env("DCRON_ID", &self.name)
            .env("DCRON_LIBDIR", self.lib())
            .env("DCRON_LOGDIR", self.folder.join("log"))
            .env("DCRON_TTL", "2")
            .env("HOST", &self.name)
            .env(MARK, &self.mark)
            .envs(self.env.iter().cloned())
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&stderr).expect("a file for stderr"))
            .process_group(0);
        let child = spawn_from_a_thread_that_stays(call).unwrap_or_else(|cause| panic!("start the wrapper: {cause}"));
        Call { child, stderr }
    }

    fn calls(&self) -> usize {
        std::fs::read_dir(&self.folder).expect("the folder of a host").count()
    }

    /// Wrappers of this host that are still there, also in the background.
    pub fn wrappers(&self) -> Vec<i32> {
        let own = format!("HOST={}", self.name);
        let is_wrapper = |pid: &i32| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = words.split(|byte| *byte == 0);
            let by_link = words.next().is_some_and(|name| name.ends_with(b"/dcron"));
            by_link || words.next() == Some(b"wrap")
        };
        let ours = processes_with(&format!("{MARK}={}", self.mark));
        let of_host = processes_with(&own);
        of_host.into_iter().filter(|pid| ours.contains(pid)).filter(is_wrapper).collect()
    }
}

/// One call of the wrapper.
pub struct Call {
    child: Child,
    stderr: PathBuf,
}

impl Call {
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    /// Its exit code; none by a signal.
    pub async fn ends(&mut self) -> Option<i32> {
        let ended = until_within(ENDS_WITHIN, async || self.child.try_wait().expect("wait for a child")).await;
        ended.unwrap_or_else(|| panic!("the wrapper does not end; it said: {}", self.said())).code()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("wait for a child").is_some()
    }

    pub fn signal(&self, signal: Signal) {
        let _gone = kill(Pid::from_raw(self.pid()), signal);
    }

    pub fn signal_group(&self, signal: Signal) {
        let _gone = killpg(Pid::from_raw(self.pid()), signal);
    }

    pub fn said(&self) -> String {
        read(&self.stderr)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.signal(Signal::SIGKILL);
            drop(self.child.wait());
        }
    }
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap_or_default()
}
