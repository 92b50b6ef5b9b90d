//! `sim`: simulated clusters. The simulation is a program of its own (`belfry-sim`), built with debug assertions so that planted bugs
//! are in it.

use anyhow::Context;

use crate::workspace::{cargo, locked};

/// True when no seed went wrong.
pub fn sim(options: &[&str]) -> anyhow::Result<bool> {
    let mut program = cargo(&["run", "--quiet", "--package", "belfry-sim"]);
    let status = program.args(locked()).arg("--").args(options).status().context("start cargo")?;
    Ok(status.success())
}
