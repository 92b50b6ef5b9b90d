//! Runs the built test programs, two at a time: most of them wait for timers, servers and processes, and seldom for a core. What one
//! prints is shown when it has ended, so that no two are mixed.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::console;
use crate::json::Json;
use crate::workspace::{cargo, locked};

/// A test program, and where cargo would run it.
struct Suite {
    name: String,
    program: PathBuf,
    folder: PathBuf,
}

const BUILD: &[&str] = &["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"];
/// The longest ones, which also care most about time: one after the other, while the rest goes on beside them.
const LONG: [&str; 8] = [
    "belfry/chaos",
    "belfry/runs",
    "belfry/dcron",
    "belfry/dcron_faults",
    "belfry/cluster",
    "belfry-coord/zookeeper",
    "belfry/dcron_cron",
    "belfry/retry",
];
/// Takes as long as all of these, and does not care about time: it gets what nobody else wants.
const FIRST_OF_THE_REST: &str = "belfry-sim/seeds";
const GIVES_WAY_TO_ALL: &str = "19";
/// They print a report (backends, members and cases; faults and verdicts; seeds), which is shown also when all is well.
const REPORTING: [&str; 6] = [
    "belfry/chaos",
    "belfry-sim/seeds",
    "belfry-coord/backends",
    "belfry-coord/etcd",
    "belfry-coord/sql_servers",
    "belfry-coord/zookeeper",
];
/// Aims at single milliseconds: nothing else runs beside it.
const ALONE: [&str; 1] = ["belfry/kill9"];
/// Of each program that failed, at the end of everything: what stands earlier in a long log may not be kept.
const FAILURE_LINES_MAX: usize = 60;
/// Three times what the longest one takes on a busy machine.
const PROGRAM_SECONDS_MAX: &str = "2700";
/// What `timeout` says of a program that it had to end.
const TIMED_OUT: i32 = 124;
/// The rest gives way to them.
const GIVES_WAY: &str = "5";

/// Every test program of the workspace, or nothing when one could not be built; cargo has said why.
pub fn build() -> Option<Suites> {
    let built = cargo(BUILD)
        .args(locked())
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output();
    match built.context("start cargo").and_then(|built| {
        let text = String::from_utf8(built.stdout).context("what cargo prints")?;
        Ok(built.status.success().then(|| text.lines().filter_map(suite).collect()))
    }) {
        Ok(suites) => suites.map(Suites),
        Err(cause) => {
            eprintln!("xtask: {cause:#}");
            None
        }
    }
}

fn suite(line: &str) -> Option<Suite> {
    let message = Json::parse(line).ok()?;
    let text = |path: &[&str]| message.at(path).first().and_then(|value| value.text()).map(str::to_owned);
    if text(&["reason"])? != "compiler-artifact" || message.at(&["profile", "test"]).first() != Some(&&Json::Bool(true))
    {
        return None;
    }
    let manifest = PathBuf::from(text(&["manifest_path"])?);
    let folder = manifest.parent()?.to_owned();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let name = format!("{package}/{}", text(&["target", "name"])?);
    Some(Suite { name, program: text(&["executable"])?.into(), folder })
}

pub struct Suites(Vec<Suite>);

struct Ended {
    name: String,
    took: Duration,
    /// What it printed of what went wrong.
    failure: Option<String>,
}

impl Suites {
    /// What went wrong, a text for each program that failed. `with_console`: they are to find it in the server.
    pub fn run(self, with_console: bool) -> Vec<String> {
        let rank = |suite: &Suite| LONG.iter().position(|long| *long == suite.name);
        let (alone, others): (Vec<Suite>, Vec<Suite>) =
            self.0.into_iter().partition(|suite| ALONE.contains(&suite.name.as_str()));
        let (mut long, mut rest): (Vec<Suite>, Vec<Suite>) =
            others.into_iter().partition(|suite| rank(suite).is_some());
        long.sort_by_key(rank);
        rest.sort_by_key(|suite| suite.name != FIRST_OF_THE_REST);
        let ended: Mutex<Vec<Ended>> = Mutex::default();
        let rest = Mutex::new(rest.iter());
        let next = || rest.lock().ok().and_then(|mut rest| rest.next());
        let run_rest = || std::iter::from_fn(next).for_each(|suite| suite.run(true, with_console, &ended));
        std::thread::scope(|scope| {
            scope.spawn(run_rest);
            long.iter().for_each(|suite| suite.run(false, with_console, &ended));
            run_rest();
        });
        alone.iter().for_each(|suite| suite.run(false, with_console, &ended));
        let mut ended = ended.into_inner().unwrap_or_default();
        ended.sort_by_key(|suite| std::cmp::Reverse(suite.took));
        let slowest: Vec<String> =
            ended.iter().take(8).map(|suite| format!("{} {:.0} s", suite.name, suite.took.as_secs_f64())).collect();
        println!("\n{} test programs; the longest: {}", ended.len(), slowest.join(", "));
        if ended.is_empty() {
            return vec!["no test program was built".to_owned()];
        }
        ended.into_iter().filter_map(|suite| Some(format!("{}\n{}", suite.name, suite.failure?))).collect()
    }
}

impl Suite {
    fn run(&self, gives_way: bool, with_console: bool, ended: &Mutex<Vec<Ended>>) {
        let began = Instant::now();
        // One that hangs must fail, and say so, long before whoever waits for all of them gives up.
        let mut command = Command::new("timeout");
        command.args(["--kill-after=30", PROGRAM_SECONDS_MAX]);
        if gives_way {
            let nice = if self.name == FIRST_OF_THE_REST { GIVES_WAY_TO_ALL } else { GIVES_WAY };
            command.args(["nice", "-n", nice]);
        }
        command.arg(&self.program);
        if REPORTING.contains(&self.name.as_str()) {
            command.arg("--show-output");
        }
        if with_console {
            command.env(console::EXPECTED, "1");
        }
        let done =
            command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null()).output();
        let (ok, said) = match done {
            Ok(done) => {
                let late = format!("it did not end within {PROGRAM_SECONDS_MAX} s\n").into_bytes();
                let late = if done.status.code() == Some(TIMED_OUT) { late } else { vec![] };
                (done.status.success(), [done.stdout, done.stderr, late].concat())
            }
            Err(cause) => (false, format!("it could not be started: {cause}\n").into_bytes()),
        };
        let took = began.elapsed();
        let said = String::from_utf8_lossy(&said);
        // In one call, and so in one piece.
        println!("     Running {} ({:.1} s)\n{said}", self.name, took.as_secs_f64());
        if let Ok(mut ended) = ended.lock() {
            ended.push(Ended { name: self.name.clone(), took, failure: (!ok).then(|| what_failed(&said)) });
        }
    }
}

/// The part in which a test program tells of its failures, or where it died, its last lines.
fn what_failed(said: &str) -> String {
    let told: Vec<&str> = said.split_once("\nfailures:\n").map_or(said, |(_, told)| told).lines().collect();
    let is_told = said.contains("\nfailures:\n");
    let kept = told.len().min(FAILURE_LINES_MAX);
    let kept = if is_told { &told[..kept] } else { &told[told.len() - kept..] };
    kept.join("\n")
}
