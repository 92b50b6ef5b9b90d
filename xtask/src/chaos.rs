//! `chaos`: builds what it needs, and hands its words on to the harness in `belfry-testkit`.

use anyhow::{Context, bail};

use crate::tools;
use crate::workspace::{cargo, locked, target_folder};

/// `BELFRY_BIN` may name a binary that was built before; bugs can only be planted in one with debug assertions.
pub fn chaos(words: &[&str]) -> anyhow::Result<bool> {
    tools::ensure()?;
    let program = match std::env::var_os("BELFRY_BIN") {
        Some(program) => program.into(),
        None => {
            let built = cargo(&["build", "-p", "belfry", "--bin", "belfry"]).args(locked()).status()?;
            if !built.success() {
                bail!("belfry could not be built; the messages of cargo are above");
            }
            target_folder()?.join("debug/belfry")
        }
    };
    let mut harness = cargo(&["run", "-q", "-p", "belfry-testkit", "--example", "chaos"]);
    harness.args(locked()).arg("--").args(words).env("BELFRY_BIN", program);
    Ok(harness.status().context("start the harness")?.success())
}
