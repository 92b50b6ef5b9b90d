//! Control groups: one for each run whose whole tree has limits, made before its start, removed when nobody is left in it.
//!
//! Each of the three controllers is taken where the machine has it: in the one tree of version 2, or in its own of version 1.

mod allowance;
mod cage;
mod places;

use std::path::PathBuf;

pub use allowance::Allowance;
pub use cage::{Cage, CageUsage};
use places::Place;

use crate::prepared::RunTag;

/// What a whole tree may use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeLimits {
    pub memory_bytes: Option<u64>,
    pub cpus: Option<f64>,
    pub processes: Option<u64>,
}

impl TreeLimits {
    fn wants(&self, controller: Controller) -> bool {
        match controller {
            Controller::Memory => self.memory_bytes.is_some(),
            Controller::Cpu => self.cpus.is_some(),
            Controller::Pids => self.processes.is_some(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Cpu,
    Pids,
}

impl Controller {
    const ALL: [Controller; 3] = [Controller::Memory, Controller::Cpu, Controller::Pids];

    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Cpu => "cpu",
            Controller::Pids => "pids",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Version::V1 => "cgroup v1",
            Version::V2 => "cgroup v2",
        })
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{what} control group {}: {cause}", path.display())]
pub struct CgroupError {
    what: &'static str,
    path: PathBuf,
    cause: std::io::Error,
}

/// Where this agent may make groups.
#[derive(Debug, Default)]
pub struct Cgroups {
    places: Vec<(Controller, Place)>,
    /// Of what is missing.
    why_not: Vec<String>,
}

impl Cgroups {
    /// Makes a folder of this name for the groups of runs, as far as the machine lets us; what is left in it of a former start is
    /// removed. On version 2 this process moves one level down first, so call it before it starts others: a group that limits its
    /// children has no processes of its own. Waits for the kernel.
    pub fn open(name: &str) -> Cgroups {
        let mut found = Cgroups::default();
        for (controller, place) in places::find(name) {
            match place {
                Ok(place) => found.places.push((controller, place)),
                Err(why) => found.why_not.push(format!("{}: {why}", controller.name())),
            }
        }
        found
    }

    /// None: nothing of its kind can hold it here.
    pub fn version_for(&self, controller: Controller) -> Option<Version> {
        self.place(controller).map(|place| place.version)
    }

    /// For people: what cannot be held here, and why.
    pub fn why_not(&self) -> &[String] {
        &self.why_not
    }

    /// A group of its own for one run. Limits that no controller here can hold are left to the caller. Waits for the kernel.
    pub fn cage(&self, tag: &RunTag, limits: &TreeLimits) -> Result<Option<Cage>, CgroupError> {
        let wanted = self.places.iter().filter(|(controller, _)| limits.wants(*controller));
        Cage::make(tag, limits, wanted.map(|(controller, place)| (*controller, place)))
    }

    fn place(&self, controller: Controller) -> Option<&Place> {
        self.places.iter().find(|(of, _)| *of == controller).map(|(_, place)| place)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for (_, place) in &self.places {
            places::remove_groups_in(&place.folder);
            // Busy: what was left behind ends a moment later, with the zygote. The next start removes it.
            let _busy = std::fs::remove_dir(&place.folder);
        }
    }
}
