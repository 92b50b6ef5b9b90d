//! What a run may use, and what holds it to that here: control groups for the whole tree where the machine lets the agent have them,
//! else the kernel's limits for each process. What nothing can hold is refused, not forgotten.

use std::sync::Arc;

use belfry_core::job::Limits;
use belfry_core::run::{Held, HeldBy};
use belfry_core::units::Size;
use belfry_exec::{Cage, Cgroups, Controller, LimitOf, ProcessLimit, RunTag, TreeLimits, Version};

use crate::prepare::CannotStart;

/// A run's limits, ready for its start.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    pub of_processes: Vec<ProcessLimit>,
    pub cage: Option<Arc<Cage>>,
    pub held: Held,
    pub memory: Option<Size>,
}

/// The kernel does not count the processes of root.
const ROOT: u32 = 0;

pub(crate) async fn bounds(
    cgroups: &Arc<Cgroups>,
    tag: &RunTag,
    limits: Limits,
    uid: u32,
) -> Result<Bounds, CannotStart> {
    let mut bounds = Bounds { memory: limits.memory, ..Bounds::default() };
    let tree =
        TreeLimits { memory_bytes: limits.memory.map(Size::bytes), cpus: limits.cpus, processes: limits.processes };
    if tree != TreeLimits::default() {
        let (cgroups, tag) = (Arc::clone(cgroups), tag.clone());
        let made = tokio::task::spawn_blocking(move || cgroups.cage(&tag, &tree)).await;
        let made = made.map_err(|cause| cannot_hold(&cause.to_string()))?;
        bounds.cage = made.map_err(|cause| cannot_hold(&cause.to_string()))?.map(Arc::new);
    }
    let by_cage = |controller| bounds.cage.as_ref().and_then(|cage| cage.holds(controller)).map(by_version);
    let mut of_processes = Vec::new();
    let mut by_process = |of: LimitOf, value: Option<u64>| {
        of_processes.extend(value.map(|value| ProcessLimit { of, value }));
        value.map(|_| HeldBy::Rlimit)
    };
    let memory = by_cage(Controller::Memory);
    let processes = by_cage(Controller::Pids);
    let cpus = by_cage(Controller::Cpu);
    let why_not = || cgroups.why_not().join("; ");
    if limits.cpus.is_some() && cpus.is_none() {
        return Err(cannot_hold(&format!("limits.cpus needs control groups ({})", why_not())));
    }
    if limits.processes.is_some() && processes.is_none() && uid == ROOT {
        return Err(cannot_hold(&format!("limits.processes needs control groups for root ({})", why_not())));
    }
    bounds.held = Held {
        memory: memory.or_else(|| by_process(LimitOf::Memory, limits.memory.map(Size::bytes))),
        cpus,
        processes: processes.or_else(|| by_process(LimitOf::UserProcesses, limits.processes)),
        open_files: by_process(LimitOf::OpenFiles, limits.open_files),
        cpu_time: by_process(LimitOf::CpuSeconds, limits.cpu_time.map(|time| time.get().as_secs().max(1))),
        file_size: by_process(LimitOf::FileBytes, limits.file_size.map(Size::bytes)),
    };
    bounds.of_processes = of_processes;
    Ok(bounds)
}

fn by_version(version: Version) -> HeldBy {
    match version {
        Version::V1 => HeldBy::CgroupV1,
        Version::V2 => HeldBy::CgroupV2,
    }
}

fn cannot_hold(why: &str) -> CannotStart {
    CannotStart::skipped(format!("limits: this node cannot hold the job to them: {why}"))
}

#[cfg(test)]
mod tests {
    use belfry_core::run::Outcome;

    use super::*;

    const NOBODY: u32 = 65_534;

    /// On a machine that gives the agent no control groups.
    async fn bounds_of(limits: Limits, uid: u32) -> Result<Bounds, CannotStart> {
        let tag = RunTag { run: "7".into(), attempt: 1 };
        bounds(&Arc::new(Cgroups::default()), &tag, limits, uid).await
    }

    #[tokio::test]
    async fn without_control_groups_each_process_is_held_and_the_record_says_so() {
        let memory = Some(Size::from_bytes(64 << 20));
        let bounds = bounds_of(Limits { memory, processes: Some(50), ..Limits::default() }, NOBODY).await.unwrap();
        assert!(bounds.cage.is_none());
        assert_eq!(bounds.held.words(), ["memory by rlimit", "processes by rlimit"]);
        let of_processes = [(LimitOf::Memory, 64 << 20), (LimitOf::UserProcesses, 50)];
        assert_eq!(bounds.of_processes, of_processes.map(|(of, value)| ProcessLimit { of, value }));
    }

    #[tokio::test]
    async fn what_nothing_can_hold_without_control_groups_is_refused() {
        let (cpus, processes) = (Limits { cpus: Some(0.5), ..Limits::default() }, Some(50));
        let processes = Limits { processes, ..Limits::default() };
        for (limits, uid, why) in [
            (cpus, NOBODY, "limits.cpus needs control groups"),
            (processes, ROOT, "limits.processes needs control groups for root"),
        ] {
            let refused = bounds_of(limits, uid).await.unwrap_err();
            assert_eq!(refused.outcome, Outcome::Skipped);
            assert!(refused.reason.contains(why), "{}", refused.reason);
        }
    }
}
