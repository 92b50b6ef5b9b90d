//! What the files of /proc say, from their text.

/// Ticks of all processors since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CpuTime {
    busy: u64,
    total: u64,
}

impl CpuTime {
    /// In thousandths of all processors. None: no time has passed.
    pub(super) fn use_since(self, before: CpuTime) -> Option<u32> {
        let total = self.total.saturating_sub(before.total);
        let busy = self.busy.saturating_sub(before.busy).min(total);
        (total > 0).then(|| (busy * 1000 / total) as u32)
    }
}

/// Of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
pub(super) fn cpu_time(stat: &str) -> Option<CpuTime> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
    let total = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (ticks.len() >= 4).then(|| CpuTime { busy: total - idle, total })
}

/// Of /proc/meminfo: total and available, in bytes.
pub(super) fn memory(meminfo: &str) -> Option<(u64, u64)> {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some((of("MemTotal")?, of("MemAvailable")?))
}

/// Of /proc/self/status: how many processors this process may use.
pub(super) fn cpus_allowed(status: &str) -> Option<u64> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').try_fold(0, |count, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        Some(count + last.checked_sub(first)? + 1)
    })
}

pub(super) fn load(loadavg: &str) -> [f64; 3] {
    let mut words = loadavg.split_whitespace().map(|word| word.parse().unwrap_or(0.0));
    [(); 3].map(|()| words.next().unwrap_or(0.0))
}

/// Of /etc/os-release.
pub(super) fn os_name(release: &str) -> String {
    let of = |key: &str| release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let name = of("PRETTY_NAME").or_else(|| of("NAME")).unwrap_or("Linux");
    name.trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_use_of_processors_is_counted_between_two_readings() {
        let first = cpu_time("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3 4\n").unwrap();
        let second = cpu_time("cpu  150 0 150 780 120 0 0 0 9 9\ncpu0 1 2 3 4\n").unwrap();
        assert_eq!(second.use_since(first), Some(500));
        assert_eq!(first.use_since(first), None);
        assert_eq!(cpu_time("intr 5\n"), None);
    }

    #[test]
    fn memory_is_what_programs_can_have() {
        let text = "MemTotal:        8000 kB\nMemFree:   10 kB\nMemAvailable:    3000 kB\n";
        assert_eq!(memory(text), Some((8_192_000, 3_072_000)));
        assert_eq!(memory("MemTotal: 8000 kB\n"), None, "a kernel that does not say is not guessed at");
    }

    #[test]
    fn processors_are_those_that_this_process_may_use() {
        let allowed = |list: &str| cpus_allowed(&format!("Name:\tx\nCpus_allowed_list:\t{list}\n"));
        assert_eq!((allowed("0-3"), allowed("5"), allowed("0-1,4,8-11")), (Some(4), Some(1), Some(7)));
        assert_eq!((allowed("x"), cpus_allowed("")), (None, None));
    }

    #[test]
    fn load_and_system_are_read_as_they_are_written() {
        assert_eq!(load("0.50 1.25 2.00 1/100 4711\n"), [0.5, 1.25, 2.0]);
        assert_eq!(load(""), [0.0; 3]);
        assert_eq!(os_name("ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 12\"\n"), "Debian GNU/Linux 12");
        assert_eq!(os_name(""), "Linux");
    }
}
