//! Where the workspace is, and how cargo is called in it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::json::Json;

/// The folder above this crate; the current one when the program is not started by cargo.
pub fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    here.and_then(|folder| folder.parent().map(PathBuf::from)).unwrap_or_else(|| PathBuf::from("."))
}

/// The very cargo that started us; without stdin, so that nothing can ever wait for an answer.
pub fn cargo(args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root()).stdin(Stdio::null());
    if is_ci() {
        // What is built once gains nothing from notes for the next time, and they cost a tenth of it.
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

fn is_ci() -> bool {
    std::env::var_os("CI").is_some()
}

/// On a machine that builds for others, the lock file is what was reviewed, and stays so.
pub fn locked() -> &'static [&'static str] {
    if is_ci() { &["--locked"] } else { &[] }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    Dev,
    Release,
}

/// Builds these targets as the tests are built, and says in which folder they are.
pub fn built(targets: &[&str]) -> anyhow::Result<PathBuf> {
    built_for(Profile::Dev, targets)
}

/// Of the whole workspace: a package by itself has other features of its dependencies, and all of them would be built once more.
pub fn built_for(profile: Profile, targets: &[&str]) -> anyhow::Result<PathBuf> {
    let (flags, folder): (&[&str], _) = match profile {
        Profile::Dev => (&[], "debug"),
        Profile::Release => (&["--release"], "release"),
    };
    let status = cargo(&["build", "--quiet", "--workspace"]).args(flags).args(targets).args(locked()).status()?;
    if !status.success() {
        bail!("what is needed could not be built; the messages of cargo are above");
    }
    Ok(target_folder()?.join(folder))
}

/// `target`, or wherever this developer has it.
pub fn target_folder() -> anyhow::Result<PathBuf> {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps"]).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo metadata failed");
    }
    let text = String::from_utf8(output.stdout)?;
    let metadata = Json::parse(&text).context("read the answer of cargo metadata")?;
    let folder =
        metadata.get("target_directory").and_then(Json::text).context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(folder))
}
