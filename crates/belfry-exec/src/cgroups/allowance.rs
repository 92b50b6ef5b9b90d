//! What the groups that this process is in leave to it and all it starts: in a container, or as a service with limits, that is less than
//! what the machine has. It only reads.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Controller, Version, places};

/// What is absent is not limited, or cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    pub memory_bytes: Option<u64>,
    /// Of that, what is not in use; pages that can be had back count as free.
    pub memory_free_bytes: Option<u64>,
    pub milli_cpus: Option<u64>,
}

/// Version 1 says so when there is no limit.
const UNLIMITED_BYTES: u64 = 1 << 60;

impl Allowance {
    /// By the narrowest of the groups, from its own one to the outermost that can be seen. Waits for the kernel.
    pub fn of_this_process() -> Allowance {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = |controller| places::own_groups(&mounts, &own, controller);
        Allowance::by(&groups(Controller::Memory), &groups(Controller::Cpu))
    }

    fn by(memory: &[(Version, PathBuf)], cpu: &[(Version, PathBuf)]) -> Allowance {
        let limited = || memory.iter().filter_map(|(version, group)| memory_of(*version, group));
        Allowance {
            memory_bytes: limited().map(|(limit, _)| limit).min(),
            memory_free_bytes: limited().map(|(limit, used)| limit.saturating_sub(used)).min(),
            milli_cpus: cpu.iter().filter_map(|(version, group)| milli_cpus_of(*version, group)).min(),
        }
    }
}

/// Its limit, and what is used of it.
fn memory_of(version: Version, group: &Path) -> Option<(u64, u64)> {
    let (limit, used, reclaimable) = match version {
        Version::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        Version::V2 => ("memory.max", "memory.current", "inactive_file"),
    };
    let limit = number(group, limit).filter(|bytes| *bytes < UNLIMITED_BYTES)?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix(reclaimable)?.strip_prefix(' '));
    let reclaimable = line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0);
    Some((limit, number(group, used).unwrap_or(0).saturating_sub(reclaimable)))
}

fn milli_cpus_of(version: Version, group: &Path) -> Option<u64> {
    let (quota, period) = match version {
        Version::V1 => (number(group, "cpu.cfs_quota_us")?, number(group, "cpu.cfs_period_us")?),
        Version::V2 => {
            let text = fs::read_to_string(group.join("cpu.max")).ok()?;
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
    };
    (period > 0).then(|| quota * 1000 / period)
}

/// None also for `max` and `-1`.
fn number(group: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        folder
    }

    #[test]
    fn the_narrowest_group_counts_and_pages_that_can_be_had_back_are_free() {
        let inner = group(&[("memory.max", "max\n"), ("cpu.max", "150000 100000\n")]);
        let outer = group(&[
            ("memory.max", "1000000\n"),
            ("memory.current", "700000\n"),
            ("memory.stat", "anon 5\ninactive_file 200000\nactive_file 7\n"),
            ("cpu.max", "max 100000\n"),
        ]);
        let groups = [(Version::V2, inner.path().to_owned()), (Version::V2, outer.path().to_owned())];
        let allowance = Allowance::by(&groups, &groups);
        let expected =
            Allowance { memory_bytes: Some(1_000_000), memory_free_bytes: Some(500_000), milli_cpus: Some(1500) };
        assert_eq!(allowance, expected);
    }

    #[test]
    fn version_one_says_the_same_with_other_words() {
        let limited = group(&[
            ("memory.limit_in_bytes", "1000000\n"),
            ("memory.usage_in_bytes", "700000\n"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 300000\n"),
            ("cpu.cfs_quota_us", "50000\n"),
            ("cpu.cfs_period_us", "100000\n"),
        ]);
        let free = group(&[
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
        ]);
        let of = |folder: &tempfile::TempDir| {
            let groups = [(Version::V1, folder.path().to_owned())];
            Allowance::by(&groups, &groups)
        };
        let expected =
            Allowance { memory_bytes: Some(1_000_000), memory_free_bytes: Some(600_000), milli_cpus: Some(500) };
        assert_eq!(of(&limited), expected);
        assert_eq!(of(&free), Allowance::default());
    }
}
