//! One server process: started so that it cannot survive us, asked until it answers, and ended with all its children.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, chown, getppid, getuid};

/// Also for three Java processes on a busy machine.
const READY_PATIENCE: Duration = Duration::from_secs(60);
const GONE_PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOG_LINES_SHOWN: usize = 40;

/// How a server is started, each time in the same way.
pub(super) struct Launch {
    pub(super) name: String,
    /// In Debian.
    pub(super) package: &'static str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// Its working folder; what it says is in the file `log` there.
    pub(super) folder: PathBuf,
    pub(super) identity: Identity,
}

/// Whom a server runs as. Databases refuse to run as root.
#[derive(Clone, Copy)]
pub(super) enum Identity {
    Ourselves,
    Other { uid: u32, gid: u32 },
}

impl Identity {
    /// The user that the package made, when we may become it; ourselves otherwise.
    pub(super) fn of_service(user: &str, package: &str) -> Self {
        if !getuid().is_root() {
            return Identity::Ourselves;
        }
        match User::from_name(user) {
            Ok(Some(user)) => Identity::Other { uid: user.uid.as_raw(), gid: user.gid.as_raw() },
            Ok(None) => panic!("there is no user `{user}`; install the Debian package {package}"),
            Err(cause) => panic!("look for the user `{user}`: {cause}"),
        }
    }

    pub(super) fn give(self, folder: &Path) {
        if let Identity::Other { uid, gid } = self {
            chown(folder, Some(uid.into()), Some(gid.into())).expect("give a folder away");
        }
    }
}

impl Launch {
    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The last that it said.
    pub(super) fn said(&self) -> String {
        let said = std::fs::read(self.log()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    fn fail(&self, why: &str) -> ! {
        panic!(
            "{} (Debian package {}, {}): {why}\n--- the last that it said ---\n{}\n---",
            self.name,
            self.package,
            self.program.display(),
            self.said()
        )
    }

    #[expect(clippy::disallowed_methods, reason = "servers for tests are no jobs: no zygote starts them")]
    fn command(&self) -> Command {
        let log = File::options().create(true).append(true).open(self.log()).expect("the server's log");
        let mut command = Command::new(&self.program);
        command.args(&self.args).current_dir(&self.folder).stdin(Stdio::null());
        // MariaDB removes what looks like an old temporary table of its own: another one's, where two share a folder.
        command.env("TMPDIR", &self.folder);
        command.stdout(log.try_clone().expect("the server's log")).stderr(log);
        if let Identity::Other { uid, gid } = self.identity {
            command.uid(uid).gid(gid);
        }
        die_with_parent(&mut command);
        command
    }

    fn spawn(&self) -> Child {
        spawn_from_a_thread_that_stays(self.command()).unwrap_or_else(|cause| self.fail(&format!("start: {cause}")))
    }

    /// Something that ends by itself, as `initdb`.
    pub(super) fn run_to_end(&self) {
        match self.spawn().wait() {
            Ok(status) if status.success() => {}
            Ok(status) => self.fail(&format!("it ended with {status}")),
            Err(cause) => self.fail(&format!("wait for its end: {cause}")),
        }
    }
}

/// A server, running or killed. It does not outlive its value.
pub(super) struct Process {
    launch: Launch,
    child: Option<Child>,
    suspended: AtomicBool,
}

impl Process {
    pub(super) fn start(launch: Launch) -> Self {
        let child = launch.spawn();
        Self { launch, child: Some(child), suspended: AtomicBool::new(false) }
    }

    /// Neither killed nor suspended.
    pub(super) fn is_running(&self) -> bool {
        self.child.is_some() && !self.suspended.load(Ordering::Relaxed)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.as_ref().map_or_else(|| panic!("{} is not running", self.launch.name), Child::id)
    }

    /// Asks until the server answers as it should. Err of `ask`: what was found instead.
    pub(super) fn until_ready(&mut self, ask: impl Fn() -> Result<(), String>) {
        let mut found = String::new();
        let ready = until_within(READY_PATIENCE, || {
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().expect("wait for a child")) {
                self.launch.fail(&format!("it ended with {status} before it was ready"));
            }
            ask().map_err(|why| found = why).is_ok()
        });
        if !ready {
            self.launch.fail(&format!("it was not ready within {READY_PATIENCE:?}: {found}"));
        }
    }

    /// SIGKILL for the server and all its children at once, as when a machine loses its power.
    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // Stopped, it makes no further children. SIGKILL ends stopped processes too.
        let tree = stopped_tree(child.id());
        for pid in &tree {
            signal(*pid, Signal::SIGKILL);
        }
        child.wait().expect("wait for a child");
        if !until_within(GONE_PATIENCE, || tree.iter().all(|pid| !is_alive(*pid))) {
            self.launch.fail(&format!("processes of it are still there {GONE_PATIENCE:?} after SIGKILL"));
        }
    }

    pub(super) fn restart(&mut self) {
        self.kill();
        self.child = Some(self.launch.spawn());
        self.suspended.store(false, Ordering::Relaxed);
    }

    pub(super) fn suspend(&self) {
        stopped_tree(self.pid());
        self.suspended.store(true, Ordering::Relaxed);
    }

    pub(super) fn resume(&self) {
        self.suspended.store(false, Ordering::Relaxed);
        for pid in tree_of(self.pid()) {
            signal(pid, Signal::SIGCONT);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the last that {} said ---\n{}\n---", self.launch.name, self.launch.said());
        }
        self.kill();
    }
}

/// SIGSTOP from the root on, until no process of the tree is new.
fn stopped_tree(root: u32) -> Vec<u32> {
    let mut stopped = vec![];
    loop {
        let new: Vec<u32> = tree_of(root).into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            return stopped;
        }
        for pid in new {
            signal(pid, Signal::SIGSTOP);
            stopped.push(pid);
        }
    }
}

/// The root first, then its children and theirs.
fn tree_of(root: u32) -> Vec<u32> {
    let parents = parents();
    let mut tree = vec![root];
    let mut next = 0;
    while let Some(parent) = tree.get(next).copied() {
        tree.extend(parents.iter().filter(|(_, its)| *its == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    tree
}

/// Every process of the machine with its parent.
fn parents() -> Vec<(u32, u32)> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, stat(pid)?.1))).collect()
}

fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// State and parent. The name before them is in parentheses and may itself have any character.
fn stat(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn signal(pid: u32, signal: Signal) {
    let _gone = kill(Pid::from_raw(pid as i32), signal);
}

/// After the change of user, which would take the death signal away; and looks whether the parent died before that.
#[expect(unsafe_code, reason = "the death signal can only be set between fork and exec; both calls are safe there")]
pub(crate) fn die_with_parent(command: &mut Command) {
    let parent = nix::unistd::getpid();
    let in_child = move || {
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != parent {
            return Err(std::io::Error::other("the parent is gone"));
        }
        Ok(())
    };
    // SAFETY: two system calls and a comparison; nothing allocates or takes a lock.
    unsafe { command.pre_exec(in_child) };
}

/// The death signal comes when the thread that forked ends, so no thread of a test may do it.
pub(crate) fn spawn_from_a_thread_that_stays(command: Command) -> std::io::Result<Child> {
    type Order = (Command, SyncSender<std::io::Result<Child>>);
    static SPAWNER: OnceLock<SyncSender<Order>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        // Whoever orders waits for its answer: the queue is as long as there are threads that start servers.
        let (orders, received) = sync_channel::<Order>(0);
        let spawn_all = move || {
            for (mut command, answer) in received {
                let _asker_is_gone = answer.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("testkit-servers".into()).spawn(spawn_all).expect("a thread");
        orders
    });
    let (answer, answered) = sync_channel(1);
    spawner.send((command, answer)).expect("the thread stays");
    answered.recv().expect("the thread answers")
}

#[expect(clippy::disallowed_methods, reason = "a test that starts a server has nothing else to do")]
pub(crate) fn until_within(patience: Duration, mut look: impl FnMut() -> bool) -> bool {
    let give_up = Instant::now() + patience;
    loop {
        if look() {
            return true;
        }
        if Instant::now() >= give_up {
            return false;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// On the path, or where daemons are.
pub(super) fn program(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")]);
    let mut candidates = folders.map(|folder| folder.join(name));
    let found = candidates.find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| panic!("the program `{name}` is missing; install the Debian package {package}"))
}

/// A client program of a server, as `psql`: Err is what it said.
#[expect(clippy::disallowed_methods, reason = "a client program for tests ends by itself at once")]
pub(super) fn ask_with(program: &Path, args: &[&str]) -> Result<String, String> {
    let asked = Command::new(program).args(args).stdin(Stdio::null()).output();
    let output = asked.map_err(|cause| format!("start {}: {cause}", program.display()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
