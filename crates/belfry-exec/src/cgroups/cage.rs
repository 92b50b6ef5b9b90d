//! The group of one run: its limits, who enters it, what was used in it, and its end.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::eventfd::{EfdFlags, EventFd};
use tokio::io::unix::AsyncFd;

use super::places::Place;
use super::{CgroupError, Controller, TreeLimits, Version};
use crate::prepared::RunTag;

/// A run's own group; removed when this is dropped, unless somebody is still in it.
#[derive(Debug)]
pub struct Cage {
    folders: Vec<Folder>,
    /// Version 1 only: there the kernel ends one process for want of memory, and the rest is for us to end.
    alarm: Option<AsyncFd<EventFd>>,
}

#[derive(Debug)]
struct Folder {
    version: Version,
    path: PathBuf,
    controllers: Vec<Controller>,
}

/// What the whole tree used; none: it was not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CageUsage {
    pub memory_peak_bytes: Option<u64>,
    pub cpu_us: Option<u64>,
    /// Processes that the kernel ended for want of memory.
    pub memory_kills: u64,
}

const PERIOD_US: u64 = 100_000;
/// About a second in all.
const LOOKS_AFTER_ALARM: u32 = 100;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
const REMOVE_TRIES: u32 = 20;
const REMOVE_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// The kernel's least.
const QUOTA_US_MIN: u64 = 1_000;

impl Cage {
    pub(super) fn make<'a>(
        tag: &RunTag,
        limits: &TreeLimits,
        wanted: impl Iterator<Item = (Controller, &'a Place)>,
    ) -> Result<Option<Cage>, CgroupError> {
        Cage::make_with(|path| fs::create_dir(path), tag, limits, wanted)
    }

    /// `create`: makes a group, in which the kernel then has its files.
    fn make_with<'a>(
        create: impl Fn(&Path) -> io::Result<()>,
        tag: &RunTag,
        limits: &TreeLimits,
        wanted: impl Iterator<Item = (Controller, &'a Place)>,
    ) -> Result<Option<Cage>, CgroupError> {
        // What is made is removed by `drop` when a later step fails.
        let mut cage = Cage { folders: Vec::new(), alarm: None };
        for (controller, place) in wanted {
            let path = place.folder.join(format!("{}.{}", tag.run, tag.attempt));
            let said = |what| move |path: &Path, cause| CgroupError { what, path: path.to_owned(), cause };
            if !cage.folders.iter().any(|folder| folder.path == path) {
                create(&path).map_err(|cause| said("make")(&path, cause))?;
                let (version, controllers) = (place.version, Vec::new());
                cage.folders.push(Folder { version, path: path.clone(), controllers });
            }
            limit(&path, place.version, controller, limits).map_err(|cause| said("limit")(&path, cause))?;
            if (controller, place.version) == (Controller::Memory, Version::V1) {
                cage.alarm = Some(alarm(&path).map_err(|cause| said("watch")(&path, cause))?);
            }
            let folder = cage.folders.iter_mut().find(|folder| folder.path == path);
            folder.into_iter().for_each(|folder| folder.controllers.push(controller));
        }
        Ok((!cage.folders.is_empty()).then_some(cage))
    }

    /// The files into which a process writes `0` to enter.
    pub(crate) fn entrances(&self) -> Vec<PathBuf> {
        self.folders.iter().map(|folder| folder.path.join("cgroup.procs")).collect()
    }

    pub fn holds(&self, controller: Controller) -> Option<Version> {
        self.folders.iter().find(|folder| folder.controllers.contains(&controller)).map(|folder| folder.version)
    }

    /// Waits until the kernel has ended a process for want of memory and the others are left to us. On version 2 it ends all of them
    /// by itself, so this never returns.
    pub async fn until_others_must_end(&self) {
        let Some(alarm) = &self.alarm else { return std::future::pending().await };
        loop {
            let Ok(mut ready) = alarm.readable().await else { return std::future::pending().await };
            ready.clear_ready();
            let _count = alarm.get_ref().read();
            // The kernel rings before it kills, and perhaps only once.
            for _look in 0..LOOKS_AFTER_ALARM {
                if self.usage().memory_kills > 0 {
                    return;
                }
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
            }
        }
    }

    /// When the run has ended. Who has just ended is in its group for a moment more.
    pub async fn remove(&self) {
        for _try in 0..REMOVE_TRIES {
            if self.folders.iter().all(|folder| fs::remove_dir(&folder.path).is_ok() || !folder.path.exists()) {
                return;
            }
            tokio::time::sleep(REMOVE_AGAIN_AFTER).await;
        }
    }

    pub fn usage(&self) -> CageUsage {
        let mut usage = CageUsage::default();
        for folder in &self.folders {
            let number = |file: &str| read(&folder.path, file).and_then(|text| text.trim().parse().ok());
            let counted = |file: &str, name: &str| entry(&read(&folder.path, file)?, name);
            match folder.version {
                Version::V2 => {
                    usage.memory_peak_bytes = usage.memory_peak_bytes.or(number("memory.peak"));
                    usage.cpu_us = usage.cpu_us.or(counted("cpu.stat", "usage_usec"));
                    usage.memory_kills += counted("memory.events", "oom_kill").unwrap_or(0);
                }
                Version::V1 if folder.controllers.contains(&Controller::Memory) => {
                    usage.memory_peak_bytes = number("memory.max_usage_in_bytes");
                    usage.memory_kills += counted("memory.oom_control", "oom_kill").unwrap_or(0);
                }
                Version::V1 => {}
            }
        }
        usage
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Somebody was left behind in it, and keeps its limits. The next start of the agent tries again.
            let _busy = fs::remove_dir(&folder.path);
        }
    }
}

fn limit(path: &Path, version: Version, controller: Controller, limits: &TreeLimits) -> io::Result<()> {
    let set = |file: &str, value: String| fs::write(path.join(file), value);
    let set_if_there = |file: &str, value: String| if path.join(file).exists() { set(file, value) } else { Ok(()) };
    let quota_us = |cpus: f64| ((cpus * PERIOD_US as f64) as u64).max(QUOTA_US_MIN);
    match (version, controller) {
        (Version::V2, Controller::Memory) => {
            let bytes = limits.memory_bytes.unwrap_or(u64::MAX).to_string();
            set("memory.max", bytes)?;
            // Without it the rest of the tree would be moved to the disk instead of being held.
            set_if_there("memory.swap.max", "0".to_owned())?;
            set_if_there("memory.oom.group", "1".to_owned())
        }
        (Version::V1, Controller::Memory) => {
            let bytes = limits.memory_bytes.unwrap_or(i64::MAX as u64).to_string();
            set("memory.limit_in_bytes", bytes.clone())?;
            set_if_there("memory.memsw.limit_in_bytes", bytes)
        }
        (Version::V2, Controller::Cpu) => {
            limits.cpus.map_or(Ok(()), |cpus| set("cpu.max", format!("{} {PERIOD_US}", quota_us(cpus))))
        }
        (Version::V1, Controller::Cpu) => {
            set("cpu.cfs_period_us", PERIOD_US.to_string())?;
            limits.cpus.map_or(Ok(()), |cpus| set("cpu.cfs_quota_us", quota_us(cpus).to_string()))
        }
        (Version::V1 | Version::V2, Controller::Pids) => {
            limits.processes.map_or(Ok(()), |processes| set("pids.max", processes.to_string()))
        }
    }
}

#[expect(unsafe_code, reason = "tokio cannot know that the type keeps its descriptor open")]
fn alarm(path: &Path) -> io::Result<AsyncFd<EventFd>> {
    let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let control = File::open(path.join("memory.oom_control"))?;
    let order = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
    fs::write(path.join("cgroup.event_control"), order)?;
    // SAFETY: an event owns its descriptor, and gives the same one for as long as it lives.
    Ok(unsafe { AsyncFd::register(event) }?)
}

fn read(folder: &Path, file: &str) -> Option<String> {
    fs::read_to_string(folder.join(file)).ok()
}

/// The number behind a name, one a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: u64 = 64 << 20;

    fn tag() -> RunTag {
        RunTag { run: "run7".into(), attempt: 2 }
    }

    /// A cage below this folder as version 2 has it: plain files stand for the kernel's, which are there as soon as the group is.
    fn cage(folder: &Path, limits: TreeLimits, files: &[&str]) -> Option<Cage> {
        let place = Place { version: Version::V2, folder: folder.to_owned() };
        let create = |path: &Path| {
            fs::create_dir(path)?;
            files.iter().try_for_each(|file| fs::write(path.join(file), "as it was"))
        };
        let wanted = Controller::ALL.into_iter().filter(|of| limits.wants(*of)).map(|of| (of, &place));
        Cage::make_with(create, &tag(), &limits, wanted).unwrap()
    }

    /// What is in the files of the one group.
    fn files(folder: &Path) -> Vec<(String, String)> {
        let found = fs::read_dir(folder.join("run7.2")).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<(String, String)> = found
            .map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap()))
            .collect();
        files.sort();
        files
    }

    fn expected(files: &[(&str, &str)]) -> Vec<(String, String)> {
        files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn all_limits_of_a_tree_are_in_one_group() {
        let folder = tempfile::tempdir().unwrap();
        let limits = TreeLimits { memory_bytes: Some(MEMORY), cpus: Some(0.25), processes: Some(50) };
        let kernel = ["memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max"];
        let cage = cage(folder.path(), limits, &kernel).expect("a cage");
        let written = [
            ("cpu.max", "25000 100000"),
            ("memory.max", "67108864"),
            ("memory.oom.group", "1"),
            ("memory.swap.max", "0"),
            ("pids.max", "50"),
        ];
        assert_eq!(files(folder.path()), expected(&written));
        assert_eq!(Controller::ALL.map(|controller| cage.holds(controller)), [Some(Version::V2); 3]);
        assert_eq!(cage.entrances(), [folder.path().join("run7.2/cgroup.procs")]);
    }

    #[test]
    fn only_what_is_limited_and_what_the_kernel_has_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let memory = TreeLimits { memory_bytes: Some(MEMORY), ..TreeLimits::default() };
        let cage = cage(folder.path(), memory, &["memory.max", "cpu.max"]).expect("a cage");
        // As on a kernel without swap.
        let written = [("cpu.max", "as it was"), ("memory.max", "67108864")];
        assert_eq!(files(folder.path()), expected(&written));
        assert_eq!(Controller::ALL.map(|controller| cage.holds(controller)), [Some(Version::V2), None, None]);
    }

    #[test]
    fn a_share_of_a_cpu_is_not_below_the_least_that_the_kernel_takes() {
        for (cpus, written) in [(0.001, "1000 100000"), (2.5, "250000 100000")] {
            let folder = tempfile::tempdir().unwrap();
            let limits = TreeLimits { cpus: Some(cpus), ..TreeLimits::default() };
            let _cage = cage(folder.path(), limits, &["cpu.max"]).expect("a cage");
            assert_eq!(files(folder.path()), expected(&[("cpu.max", written)]));
        }
    }

    #[test]
    fn without_limits_there_is_no_group() {
        let folder = tempfile::tempdir().unwrap();
        assert!(cage(folder.path(), TreeLimits::default(), &[]).is_none());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_used_is_what_the_kernel_counted_for_the_whole_tree() {
        let folder = tempfile::tempdir().unwrap();
        let limits = TreeLimits { memory_bytes: Some(MEMORY), cpus: Some(1.0), ..TreeLimits::default() };
        let cage = cage(folder.path(), limits, &[]).expect("a cage");
        let group = folder.path().join("run7.2");
        assert_eq!(cage.usage(), CageUsage::default(), "nothing is counted there");
        fs::write(group.join("memory.peak"), "50331648\n").unwrap();
        let events = "low 0\nhigh 0\nmax 12\noom 5\noom_kill 3\noom_group_kill 1\n";
        fs::write(group.join("memory.events"), events).unwrap();
        let stat = "usage_usec 312345\nuser_usec 300000\nsystem_usec 12345\nnr_periods 4\n";
        fs::write(group.join("cpu.stat"), stat).unwrap();
        let used = CageUsage { memory_peak_bytes: Some(48 << 20), cpu_us: Some(312_345), memory_kills: 3 };
        assert_eq!(cage.usage(), used);
    }

    #[test]
    fn a_group_that_cannot_be_made_or_limited_says_which() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { version: Version::V2, folder: folder.path().join("gone") };
        let limits = TreeLimits { processes: Some(5), ..TreeLimits::default() };
        let made = Cage::make(&tag(), &limits, [(Controller::Pids, &place)].into_iter());
        let said = made.unwrap_err().to_string();
        assert!(said.starts_with("make control group ") && said.contains("gone/run7.2"), "{said}");
    }
}
