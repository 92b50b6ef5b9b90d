//! `test` and `check`: steps one after the other, all of them even when one fails, and a table of where the time went.

use std::time::{Duration, Instant};

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
    let mut steps = Steps::default();
    steps.run("tools", tools_are_there);
    steps.cargo("format", FORMAT, &[]);
    // The tests are built before the lints are checked: who waits for a failing test should not wait for clippy first.
    let mut suites = None;
    steps.run("build tests", || {
        suites = suites::build();
        suites.is_some()
    });
    match suites {
        Some(suites) => steps.run("run tests", || suites.run()),
        None => steps.skip("run tests"),
    };
    if lints == Lints::Checked {
        steps.clippy();
    }
    Ok(steps.print())
}

pub fn check() -> anyhow::Result<bool> {
    let mut steps = Steps::default();
    steps.cargo("format", FORMAT, &[]);
    steps.clippy();
    Ok(steps.print())
}

fn tools_are_there() -> bool {
    match tools::ensure() {
        Ok(()) => true,
        Err(cause) => {
            eprintln!("xtask: {cause:#}");
            false
        }
    }
}

#[derive(Default)]
struct Steps(Vec<Step>);

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
    fn run(&mut self, name: &'static str, work: impl FnOnce() -> bool) -> bool {
        eprintln!("xtask: {name}");
        let began = Instant::now();
        let ok = work();
        self.0.push(Step { name, took: began.elapsed(), end: if ok { End::Ok } else { End::Failed } });
        ok
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

    fn skip(&mut self, name: &'static str) -> bool {
        self.0.push(Step { name, took: Duration::ZERO, end: End::Skipped });
        false
    }

    /// True when nothing failed.
    fn print(&self) -> bool {
        let mut table = Table::new(&["step", "seconds", "result"]);
        for step in &self.0 {
            let result = match step.end {
                End::Ok => "ok",
                End::Failed => "FAILED",
                End::Skipped => "skipped",
            };
            table.row(&[step.name.to_owned(), format!("{:.1}", step.took.as_secs_f64()), result.to_owned()]);
        }
        let all: Duration = self.0.iter().map(|step| step.took).sum();
        let ok = self.0.iter().all(|step| step.end == End::Ok);
        let result = if ok { "ok" } else { "FAILED" };
        table.row(&["all".to_owned(), format!("{:.1}", all.as_secs_f64()), result.to_owned()]);
        print!("\n{table}");
        ok
    }
}
