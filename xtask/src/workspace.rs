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
    command
}

/// On a machine that builds for others, the lock file is what was reviewed, and stays so.
pub fn locked() -> &'static [&'static str] {
    if std::env::var_os("CI").is_some() { &["--locked"] } else { &[] }
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
