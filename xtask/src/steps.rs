//! `test` and `check`: steps one after the other, all of them even when one fails, and a table of where the time went.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::console::{self, Console};
use crate::suites;
use crate::table::Table;
use crate::tools;
use crate::workspace::{cargo, locked};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lints {
    Checked,
    LeftOut,
}

const FORMAT: &[&str] = &["fmt", "--all", "--check"];
const CLIPPY: &[&str] = &["clippy", "--workspace", "--all-targets"];

pub fn test(lints: Lints) -> anyhow::Result<bool> {
    let mut steps = Steps::begin();
    steps.tried("tools", tools::ensure);
    steps.cargo("format", FORMAT, &[]);
    // Before the tests are built, which carry it.
    let mut console = None;
    steps.tried("console", || {
        console = Some(console::build()?);
        Ok(())
    });
    let has_console = console == Some(Console::Built);
    let mut suites = None;
    steps.run("build tests", || {
        suites = suites::build();
        suites.is_some()
    });
    // Most tests wait for something most of the time; what they leave of the cores is enough for the lints and the console's own tests.
    std::thread::scope(|scope| {
        let mut beside = if has_console { console::checks() } else { vec![] };
        if lints == Lints::Checked {
            beside.insert(0, ("lints", lint()));
        }
        let beside =
            scope.spawn(|| beside.into_iter().map(|(name, command)| Beside::run(name, &command)).collect::<Vec<_>>());
        match suites {
            Some(suites) => {
                let mut failures = vec![];
                steps.run("run tests", || {
                    failures = suites.run(has_console);
                    failures.is_empty()
                });
                steps.failures.extend(failures);
            }
            None => steps.skip("run tests"),
        }
        match beside.join() {
            Ok(beside) => beside.into_iter().for_each(|beside| steps.add(beside)),
            Err(_) => steps.failures.push("what runs beside the tests".to_owned()),
        }
    });
    Ok(steps.print())
}

/// A command that gives way to everything else and is heard when it has ended.
struct Beside {
    step: Step,
    failure: Option<String>,
}

impl Beside {
    fn run(name: &'static str, command: &Command) -> Self {
        let began = Instant::now();
        let (ok, said) = match gives_way(command).output() {
            Ok(done) => (done.status.success(), [done.stdout, done.stderr].concat()),
            Err(cause) => (false, format!("it could not be started: {cause}").into_bytes()),
        };
        let said = String::from_utf8_lossy(&said);
        let told = last_lines(&said, if ok { 12 } else { 80 });
        println!("     Beside the tests: {name} ({:.1} s)\n{told}\n", began.elapsed().as_secs_f64());
        let end = if ok { End::Ok } else { End::Failed };
        Self { step: Step { name, took: began.elapsed(), end }, failure: (!ok).then(|| format!("{name}\n{told}")) }
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn lint() -> Command {
    let mut command = cargo(CLIPPY);
    command.args(locked()).args(["--", "-D", "warnings"]);
    command
}

/// The same command under `nice`.
fn gives_way(command: &Command) -> Command {
    let mut nice = Command::new("nice");
    nice.args(["-n", "10"]).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
    if let Some(folder) = command.get_current_dir() {
        nice.current_dir(folder);
    }
    nice.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    nice
}

pub fn check() -> anyhow::Result<bool> {
    let mut steps = Steps::begin();
    steps.cargo("format", FORMAT, &[]);
    steps.clippy();
    Ok(steps.print())
}

struct Steps {
    began: Instant,
    done: Vec<Step>,
    /// Told again at the very end.
    failures: Vec<String>,
}

struct Step {
    name: &'static str,
    took: Duration,
    end: End,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Ok,
    Failed,
    Skipped,
}

impl Steps {
    fn begin() -> Self {
        Self { began: Instant::now(), done: vec![], failures: vec![] }
    }

    fn run(&mut self, name: &'static str, work: impl FnOnce() -> bool) -> bool {
        eprintln!("xtask: {name}");
        let began = Instant::now();
        let ok = work();
        self.done.push(Step { name, took: began.elapsed(), end: if ok { End::Ok } else { End::Failed } });
        ok
    }

    fn tried(&mut self, name: &'static str, work: impl FnOnce() -> anyhow::Result<()>) -> bool {
        self.run(name, || match work() {
            Ok(()) => true,
            Err(cause) => {
                eprintln!("xtask: {cause:#}");
                false
            }
        })
    }

    fn cargo(&mut self, name: &'static str, args: &[&str], more: &[&str]) -> bool {
        self.run(name, || match cargo(args).args(more).status() {
            Ok(status) => status.success(),
            Err(cause) => {
                eprintln!("xtask: cargo {} could not be started: {cause}", args.join(" "));
                false
            }
        })
    }

    fn clippy(&mut self) -> bool {
        let more = [locked(), &["--", "-D", "warnings"]].concat();
        self.cargo("lints", CLIPPY, &more)
    }

    fn skip(&mut self, name: &'static str) {
        self.done.push(Step { name, took: Duration::ZERO, end: End::Skipped });
    }

    fn add(&mut self, beside: Beside) {
        self.done.push(beside.step);
        self.failures.extend(beside.failure);
    }

    /// True when nothing failed.
    fn print(&self) -> bool {
        let mut table = Table::new(&["step", "seconds", "result"]);
        for step in &self.done {
            let result = match step.end {
                End::Ok => "ok",
                End::Failed => "FAILED",
                End::Skipped => "skipped",
            };
            table.row(&[step.name.to_owned(), format!("{:.1}", step.took.as_secs_f64()), result.to_owned()]);
        }
        let all = self.began.elapsed();
        let ok = self.done.iter().all(|step| step.end == End::Ok) && self.failures.is_empty();
        let result = if ok { "ok" } else { "FAILED" };
        table.row(&["all".to_owned(), format!("{:.1}", all.as_secs_f64()), result.to_owned()]);
        print!("\n{table}");
        for failure in &self.failures {
            println!("\nfailed: {failure}");
        }
        ok
    }
}
