//! The programs that the tests start besides our own: looked for first, and installed where we may.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::workspace::cargo;

struct Tool {
    program: &'static str,
    /// In Debian.
    package: &'static str,
    wanted_by: Wanted,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Everybody,
    /// Tests that need root leave themselves out for everybody else.
    Root,
}

const TOOLS: &[Tool] = &[
    Tool { program: "bash", package: "bash", wanted_by: Wanted::Everybody },
    Tool { program: "seq", package: "coreutils", wanted_by: Wanted::Everybody },
    Tool { program: "setsid", package: "util-linux", wanted_by: Wanted::Everybody },
    Tool { program: "mount", package: "mount", wanted_by: Wanted::Root },
];

/// Everything is there afterwards, or the error says the one line that installs it.
pub fn ensure() -> anyhow::Result<()> {
    let root = is_root();
    let wanted = TOOLS.iter().filter(|tool| root || tool.wanted_by == Wanted::Everybody);
    let mut packages: Vec<&str> = wanted.filter(|tool| !is_on_path(tool.program)).map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    if !packages.is_empty() {
        if !root || !is_on_path("apt-get") {
            bail!(
                "the tests need programs that are missing; install them with: sudo apt-get install -y {}",
                packages.join(" ")
            );
        }
        eprintln!("xtask: installing {} from the distribution's packages", packages.join(", "));
        apt(&["update", "-qq"])?;
        apt(&[&["install", "-y", "-qq", "--no-install-recommends"], packages.as_slice()].concat())?;
    }
    ensure_component("rustfmt", "fmt")?;
    ensure_component("clippy", "clippy")
}

fn apt(args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new("apt-get")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .context("start apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed; its messages are above", args.join(" "));
    }
    Ok(())
}

/// `rust-toolchain.toml` names them, so that rustup brings them along; a toolchain from elsewhere may lack them.
fn ensure_component(component: &str, subcommand: &str) -> anyhow::Result<()> {
    let answers = || {
        let asked = cargo(&[subcommand, "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    };
    if answers() {
        return Ok(());
    }
    let add = Command::new("rustup").args(["component", "add", component]).stdin(Stdio::null()).status();
    if !add.is_ok_and(|status| status.success()) || !answers() {
        bail!("`cargo {subcommand}` is missing; install it with: rustup component add {component}");
    }
    Ok(())
}

pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The entry of a process belongs to the user that it runs as.
fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|process| process.uid() == 0)
}
