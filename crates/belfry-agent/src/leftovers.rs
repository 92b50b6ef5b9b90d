//! Ends what a former incarnation of this node left behind. Its zygote normally did so already; this is for the case
//! that agent and zygote were killed together.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use belfry_core::{Incarnation, NodeId};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Rounds of 10 ms; then somebody hangs in the kernel, and waiting longer would keep the node away.
const ROUNDS_MAX: u32 = 300;
const ROUND: Duration = Duration::from_millis(10);

/// Kills until nothing is left, and says how many processes there were. Waits; call it where waiting is allowed.
#[expect(clippy::disallowed_methods, reason = "it is called where blocking is allowed")]
pub(crate) fn end_leftovers(node: NodeId, incarnation: Incarnation) -> usize {
    let ours = format!("BELFRY_NODE_ID={node}").into_bytes();
    let current = format!("BELFRY_INCARNATION={incarnation}").into_bytes();
    let spared = this_process_and_above();
    let mut ended = HashSet::new();
    for _round in 0..ROUNDS_MAX {
        let left: Vec<i32> = processes()
            .filter(|pid| !spared.contains(pid) && is_alive(*pid) && is_leftover(*pid, &ours, &current))
            .collect();
        if left.is_empty() {
            return ended.len();
        }
        for pid in left {
            ended.insert(pid);
            let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(ROUND);
    }
    tracing::warn!("some processes of a former start of this agent do not end; they hang in the kernel");
    ended.len()
}

fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
}

fn is_leftover(pid: i32, ours: &[u8], current: &[u8]) -> bool {
    let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let has = |wanted: &[u8]| environ.split(|byte| *byte == 0).any(|entry| entry == wanted);
    has(ours) && !has(current)
}

fn is_alive(pid: i32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// An agent that was itself started by a job of this node must not end itself, nor the shell it came from.
fn this_process_and_above() -> HashSet<i32> {
    let mut spared = HashSet::new();
    let mut pid = std::process::id() as i32;
    while pid > 1 && spared.insert(pid) {
        pid = stat_field(pid, 1).and_then(|parent| parent.parse().ok()).unwrap_or(0);
    }
    spared
}

/// A field of /proc/PID/stat, counted from the state. The name before it may contain anything.
fn stat_field(pid: i32, field: usize) -> Option<String> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let text = std::str::from_utf8(stat.get(after_name..)?).ok()?;
    text.split(' ').nth(field).map(str::to_owned)
}
