//! One process of the program under test: started, watched, and ended by its id.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::servers::{die_with_parent, spawn_from_a_thread_that_stays};
use crate::until::until_within;

/// Lines of stderr that a failed test shows.
const STDERR_LINES_SHOWN: usize = 60;

/// A running process. It does not outlive its value.
pub struct Daemon {
    name: String,
    child: Child,
    stderr: PathBuf,
}

impl Daemon {
    /// What it says goes to the end of the file `stderr`.
    #[expect(clippy::disallowed_methods, reason = "the program under test is started as a user starts it")]
    pub fn start(name: &str, program: &Path, args: &[String], env: &[(String, String)], stderr: &Path) -> Self {
        let log = File::options().create(true).append(true).open(stderr).expect("the file for stderr");
        let inherited: Vec<(String, String)> =
            std::env::vars().filter(|(name, _)| !name.starts_with("BELFRY_")).collect();
        let mut command = Command::new(program);
        command
            .args(args)
            .env_clear()
            .envs(inherited)
            .envs(env.iter().cloned())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        die_with_parent(&mut command);
        let child = spawn_from_a_thread_that_stays(command)
            .unwrap_or_else(|cause| panic!("start {}: {cause}", program.display()));
        Self { name: name.to_owned(), child, stderr: stderr.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Some when it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for a child")
    }

    pub fn signal(&self, signal: Signal) {
        let _gone = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    /// SIGKILL, and its end.
    pub fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().expect("wait for a child");
    }

    /// SIGTERM, and its end.
    pub async fn stop(&mut self, patience: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        match until_within(patience, async || self.ended()).await {
            Some(status) => status,
            None => panic!("{} did not stop within {patience:?} after SIGTERM", self.name),
        }
    }

    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.kill9();
        }
        if std::thread::panicking() {
            let said = self.stderr();
            let lines: Vec<&str> = said.lines().collect();
            let last = &lines[lines.len().saturating_sub(STDERR_LINES_SHOWN)..];
            eprintln!("--- the last that {} said ---\n{}\n---", self.name, last.join("\n"));
        }
    }
}

/// Processes that have this entry in their environment.
pub fn processes_with(entry: &str) -> Vec<i32> {
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        let environ = std::fs::read(process.path().join("environ")).ok()?;
        environ.split(|byte| *byte == 0).any(|found| found == entry.as_bytes()).then_some(pid)
    })
    .collect()
}
