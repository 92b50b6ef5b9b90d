//! The machine under the agent, measured every few seconds: a task of its own, so that a file system that hangs holds up nothing else. It
//! decides nothing; the desk counts with what it says.

mod proc;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belfry_core::room::Host;
use belfry_exec::Allowance;
use nix::sys::statvfs::statvfs;

use crate::desk::Event;
use crate::session::Node;
use proc::CpuTime;

/// As often as heartbeats with the usual TTL, or seldomer.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// The floor of free disk if none is asked for; on a small disk a twentieth of it.
const FLOOR_DEFAULT_BYTES: u64 = 256 << 20;

#[derive(Clone)]
pub(crate) struct Probe {
    data_dir: PathBuf,
    /// None: what suits the disk.
    disk_floor: Option<u64>,
    kernel: String,
    os: String,
    last_cpu: Option<CpuTime>,
}

impl Probe {
    pub(crate) fn new(data_dir: &Path, disk_floor: Option<u64>) -> Probe {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Probe {
            data_dir: data_dir.to_owned(),
            disk_floor,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            os: proc::os_name(&read("/etc/os-release")),
            last_cpu: None,
        }
    }

    /// None: not even the memory can be read. Waits for the kernel, and for the disk.
    pub(crate) fn measure(&mut self, up: Duration) -> Option<Host> {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let (memory_total, memory_available) = proc::memory(&read("/proc/meminfo")?)?;
        let allowance = Allowance::of_this_process();
        let cpus = proc::cpus_allowed(&read("/proc/self/status").unwrap_or_default()).unwrap_or(1) * 1000;
        let cpu = proc::cpu_time(&read("/proc/stat").unwrap_or_default());
        let cpu_use_permille = cpu.zip(self.last_cpu).and_then(|(now, before)| now.use_since(before));
        self.last_cpu = cpu;
        let disk = statvfs(&self.data_dir).ok()?;
        let disk_bytes = |blocks: u64| blocks * disk.fragment_size();
        let disk_total = disk_bytes(disk.blocks());
        Some(Host {
            milli_cpus: allowance.milli_cpus.map_or(cpus, |allowed| allowed.min(cpus)),
            cpu_use_permille,
            load: proc::load(&read("/proc/loadavg").unwrap_or_default()),
            memory_total: allowance.memory_bytes.map_or(memory_total, |allowed| allowed.min(memory_total)),
            memory_available: allowance.memory_free_bytes.map_or(memory_available, |free| free.min(memory_available)),
            disk_total,
            disk_free: disk_bytes(disk.blocks_available()),
            disk_floor: self.disk_floor.unwrap_or(FLOOR_DEFAULT_BYTES.min(disk_total / 20)),
            up_ms: up.as_millis() as u64,
            kernel: self.kernel.clone(),
            os: self.os.clone(),
        })
    }

    /// The same, and the runtime goes on meanwhile.
    pub(crate) async fn measure_aside(mut self, up: Duration) -> (Probe, Option<Host>) {
        let again = self.clone();
        let measured = tokio::task::spawn_blocking(move || {
            let host = self.measure(up);
            (self, host)
        });
        // It is only cut off when the runtime ends.
        measured.await.unwrap_or((again, None))
    }
}

/// Measures until the agent ends. One measurement at a time, however long it takes.
pub(crate) async fn keep_measuring(node: Arc<Node>, mut probe: Probe) {
    loop {
        tokio::time::sleep(MEASURE_EVERY).await;
        let (same, host) = probe.measure_aside(node.clock.boottime()).await;
        probe = same;
        if let Some(host) = host {
            node.tell(Event::Measured(Box::new(host))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let mut probe = Probe::new(folder.path(), None);
        let host = probe.measure(Duration::from_secs(7)).unwrap();
        assert!(host.milli_cpus > 0 && host.memory_total >= host.memory_available && host.memory_available > 0);
        assert!(host.disk_total >= host.disk_free && host.disk_total > 0);
        assert!(host.disk_floor <= FLOOR_DEFAULT_BYTES && host.disk_floor <= host.disk_total / 20);
        assert_eq!((host.up_ms, host.cpu_use_permille), (7000, None));
        assert!(!host.kernel.is_empty());
        let again = Probe { disk_floor: Some(7), ..probe }.measure(Duration::ZERO).unwrap();
        assert_eq!(again.disk_floor, 7);
    }
}
