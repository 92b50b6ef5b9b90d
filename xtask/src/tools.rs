//! The programs that the tests start besides our own: looked for first, and installed where we may.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::workspace::cargo;

struct Tool {
    found: Found,
    /// In Debian.
    package: &'static str,
    wanted_by: Wanted,
}

/// What shows that a package is installed.
#[derive(Clone, Copy)]
enum Found {
    OnPath(&'static str),
    /// For what is no program, or lies where only root's path leads.
    File(&'static str),
    /// In a folder of whatever version below the first.
    InVersionOf(&'static str, &'static str),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Everybody,
    /// Tests that need root leave themselves out for everybody else.
    Root,
}

const fn tool(found: Found, package: &'static str, wanted_by: Wanted) -> Tool {
    Tool { found, package, wanted_by }
}

const TOOLS: &[Tool] = &[
    tool(Found::OnPath("bash"), "bash", Wanted::Everybody),
    tool(Found::OnPath("seq"), "coreutils", Wanted::Everybody),
    tool(Found::OnPath("setsid"), "util-linux", Wanted::Everybody),
    tool(Found::OnPath("mount"), "mount", Wanted::Root),
    tool(Found::OnPath("unshare"), "util-linux", Wanted::Root),
    tool(Found::OnPath("nsenter"), "util-linux", Wanted::Root),
    tool(Found::OnPath("ip"), "iproute2", Wanted::Root),
    tool(Found::OnPath("protoc"), "protobuf-compiler", Wanted::Everybody),
    tool(Found::File("/usr/include/google/protobuf/descriptor.proto"), "libprotobuf-dev", Wanted::Everybody),
    tool(Found::OnPath("etcd"), "etcd-server", Wanted::Everybody),
    tool(Found::OnPath("etcdctl"), "etcd-client", Wanted::Everybody),
    tool(Found::OnPath("java"), "default-jre-headless", Wanted::Everybody),
    tool(Found::File("/usr/share/java/zookeeper.jar"), "zookeeper", Wanted::Everybody),
    tool(Found::File("/usr/share/java/slf4j-simple.jar"), "libslf4j-java", Wanted::Everybody),
    tool(Found::File("/usr/sbin/mariadbd"), "mariadb-server", Wanted::Everybody),
    tool(Found::OnPath("chromium"), "chromium", Wanted::Everybody),
    tool(Found::OnPath("faketime"), "faketime", Wanted::Everybody),
    tool(Found::File("/usr/sbin/cron"), "cron", Wanted::Root),
    tool(Found::InVersionOf("/usr/lib/postgresql", "bin/postgres"), "postgresql", Wanted::Everybody),
];

/// Everything is there afterwards, or the error says the one line that installs it.
pub fn ensure() -> anyhow::Result<()> {
    let root = is_root();
    let wanted = TOOLS.iter().filter(|tool| root || tool.wanted_by == Wanted::Everybody);
    let mut packages: Vec<&str> = wanted.filter(|tool| !is_there(tool.found)).map(|tool| tool.package).collect();
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

fn is_there(found: Found) -> bool {
    match found {
        Found::OnPath(program) => is_on_path(program),
        Found::File(file) => Path::new(file).is_file(),
        Found::InVersionOf(versions, file) => {
            let versions = std::fs::read_dir(versions).into_iter().flatten().flatten();
            versions.into_iter().any(|version| version.path().join(file).is_file())
        }
    }
}

pub fn is_on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The entry of a process belongs to the user that it runs as.
fn is_root() -> bool {
    Path::new("/proc/self").metadata().is_ok_and(|process| process.uid() == 0)
}
