//! `sim`: simulated clusters. The simulation is a program of its own (`belfry-sim`), built with debug assertions so that planted bugs
//! are in it.

use std::process::Command;

use anyhow::Context;

use crate::workspace::built;

/// True when no seed went wrong.
pub fn sim(options: &[&str]) -> anyhow::Result<bool> {
    let program = built(&["--bin", "belfry-sim"])?.join("belfry-sim");
    let status = Command::new(program).args(options).status().context("start the simulation")?;
    Ok(status.success())
}
