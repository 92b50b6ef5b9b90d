//! `chaos`: builds what it needs, and hands its words on to the harness in `belfry-testkit`.

use std::process::Command;

use anyhow::Context;

use crate::tools;
use crate::workspace::built;

/// `BELFRY_BIN` may name a binary that was built before; bugs can only be planted in one with debug assertions.
pub fn chaos(words: &[&str]) -> anyhow::Result<bool> {
    tools::ensure()?;
    let folder = built(&["--bin", "belfry", "--example", "chaos"])?;
    let program = std::env::var_os("BELFRY_BIN").unwrap_or_else(|| folder.join("belfry").into());
    let mut harness = Command::new(folder.join("examples/chaos"));
    harness.args(words).env("BELFRY_BIN", program);
    Ok(harness.status().context("start the harness")?.success())
}
