//! `up`: builds Belfry and becomes it, with its data in `.belfry`, while a process apart adds a few example jobs.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::console;
use crate::workspace::{built, root, target_folder};

/// Hidden: the part that adds the examples.
pub const ADD_EXAMPLES: &str = "up-examples";

const LISTEN: &str = "127.0.0.1:8787";
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Of the CLI: there is no such job.
const NOT_FOUND: i32 = 3;

/// Name, then the rest of `belfry job add`.
const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "hello",
        &["--every", "30s", "--", "echo \"hello from $BELFRY_JOB on $BELFRY_NODE, planned for $BELFRY_SCHEDULED_AT\""],
    ),
    (
        "steps",
        &["--cron", "* * * * *", "--timeout", "30s", "--", "for n in 1 2 3 4 5; do echo \"step $n\"; sleep 1; done"],
    ),
    ("disk", &["--cron", "*/5 * * * *", "--description", "how full the disk is", "--", "df -h /"]),
    ("fails", &["--cron", "*/10 * * * *", "--", "echo 'this went to stderr' >&2; exit 3"]),
    (
        "nightly",
        &[
            "--cron",
            "30 2 * * *",
            "--tz",
            "Europe/Berlin",
            "--label",
            "team=ops",
            "--",
            "echo 'once a night, also when clocks change'",
        ],
    ),
];

/// Does not come back: the process becomes Belfry, so that signals reach it and nothing is left when it ends.
pub fn up() -> anyhow::Result<bool> {
    // Belfry runs without it, too, and says at `/` what is missing.
    if let Err(cause) = console::build() {
        eprintln!("xtask: the console is not built: {cause:#}");
    }
    eprintln!("xtask: building Belfry; the first time this takes some minutes");
    built(&["--bin", "belfry"])?;
    let apart = Command::new(std::env::current_exe()?).arg(ADD_EXAMPLES).stdin(Stdio::null()).status()?;
    if !apart.success() {
        bail!("the part that adds example jobs could not be started");
    }
    let cause = Command::new(program()?).arg("up").arg("--data").arg(data()).args(["--listen", LISTEN]).exec();
    Err(cause).context("start belfry")
}

/// Starts the adding and leaves: Belfry then has no child that it does not know of.
pub fn add_examples_apart() -> anyhow::Result<bool> {
    Command::new(std::env::current_exe()?).args([ADD_EXAMPLES, "now"]).stdin(Stdio::null()).spawn()?;
    Ok(true)
}

/// Adds what is missing once Belfry answers. A job that somebody has changed stays as it is.
pub fn add_examples() -> anyhow::Result<bool> {
    let belfry = program()?;
    let began = Instant::now();
    while ask(&belfry, &["job", "ls"])? != Some(0) {
        if began.elapsed() > READY_WITHIN {
            bail!("no example jobs were added: Belfry did not answer within {} s", READY_WITHIN.as_secs());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    for (name, rest) in EXAMPLES {
        if ask(&belfry, &["job", "get", name])? == Some(NOT_FOUND) {
            let add = [&["job", "add", name], *rest].concat();
            if ask(&belfry, &add)? != Some(0) {
                bail!("the example job {name} was refused; see: belfry --data .belfry job add --help");
            }
        }
    }
    eprintln!("xtask: example jobs are there; look at them with: {} --data .belfry job ls", shown(&belfry));
    Ok(true)
}

/// The exit code of a command of the CLI, whatever it says.
fn ask(belfry: &Path, args: &[&str]) -> anyhow::Result<Option<i32>> {
    let mut command = Command::new(belfry);
    command.arg("--data").arg(data()).args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status().context("start belfry")?.code())
}

fn program() -> anyhow::Result<PathBuf> {
    Ok(target_folder()?.join("debug/belfry"))
}

fn data() -> PathBuf {
    std::path::absolute(root().join(".belfry")).unwrap_or_else(|_| PathBuf::from(".belfry"))
}

fn shown(program: &Path) -> String {
    let root = std::path::absolute(root()).unwrap_or_default();
    program.strip_prefix(&root).unwrap_or(program).display().to_string()
}
