//! Runs the built test programs, two at a time: most of them wait for timers, servers and processes, and seldom for a core. What one
//! prints is shown when it has ended, so that no two are mixed.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Context;

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
const LONG: [&str; 5] = ["belfry/chaos", "belfry/runs", "belfry/cluster", "belfry-coord/zookeeper", "belfry/retry"];
/// Takes as long as all of these, and does not care about time.
const FIRST_OF_THE_REST: &str = "belfry-sim/seeds";
/// Aims at single milliseconds: nothing else runs beside it.
const ALONE: [&str; 1] = ["belfry/kill9"];
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

impl Suites {
    /// True when all of them passed.
    pub fn run(self) -> bool {
        let rank = |suite: &Suite| LONG.iter().position(|long| *long == suite.name);
        let (alone, others): (Vec<Suite>, Vec<Suite>) =
            self.0.into_iter().partition(|suite| ALONE.contains(&suite.name.as_str()));
        let (mut long, mut rest): (Vec<Suite>, Vec<Suite>) =
            others.into_iter().partition(|suite| rank(suite).is_some());
        long.sort_by_key(rank);
        rest.sort_by_key(|suite| suite.name != FIRST_OF_THE_REST);
        let ended: Mutex<Vec<(String, Duration, bool)>> = Mutex::new(Vec::new());
        let rest = Mutex::new(rest.iter());
        let next = || rest.lock().ok().and_then(|mut rest| rest.next());
        let run_rest = || std::iter::from_fn(next).for_each(|suite| suite.run(true, &ended));
        std::thread::scope(|scope| {
            scope.spawn(run_rest);
            long.iter().for_each(|suite| suite.run(false, &ended));
            run_rest();
        });
        alone.iter().for_each(|suite| suite.run(false, &ended));
        let mut ended = ended.into_inner().unwrap_or_default();
        ended.sort_by_key(|(_, took, _)| std::cmp::Reverse(*took));
        let slowest: Vec<String> =
            ended.iter().take(8).map(|(name, took, _)| format!("{name} {:.0} s", took.as_secs_f64())).collect();
        println!("\n{} test programs; the longest: {}", ended.len(), slowest.join(", "));
        let failed: Vec<&str> = ended.iter().filter(|(.., ok)| !ok).map(|(name, ..)| name.as_str()).collect();
        if !failed.is_empty() {
            println!("error: {} test programs failed: {}", failed.len(), failed.join(", "));
        }
        failed.is_empty() && !ended.is_empty()
    }
}

impl Suite {
    fn run(&self, gives_way: bool, ended: &Mutex<Vec<(String, Duration, bool)>>) {
        let began = Instant::now();
        let mut command = if gives_way {
            let mut nice = Command::new("nice");
            nice.args(["-n", GIVES_WAY]).arg(&self.program);
            nice
        } else {
            Command::new(&self.program)
        };
        let done =
            command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder).stdin(Stdio::null()).output();
        let (ok, said) = match done {
            Ok(done) => (done.status.success(), [done.stdout, done.stderr].concat()),
            Err(cause) => (false, format!("it could not be started: {cause}\n").into_bytes()),
        };
        let took = began.elapsed();
        let said = String::from_utf8_lossy(&said);
        // In one call, and so in one piece.
        println!("     Running {} ({:.1} s)\n{said}", self.name, took.as_secs_f64());
        if let Ok(mut ended) = ended.lock() {
            ended.push((self.name.clone(), took, ok));
        }
    }
}
