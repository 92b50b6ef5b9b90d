//! What a shim needs at its deadline is locked in memory, as far as the zygote's user may lock any.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use belfry_exec::{Deadline, LastMoments, Prepared, Spawner, ZygoteCommand};
use nix::time::{ClockId, clock_gettime};
use support::{exec, spawner_with, until, we_are_root};

const SETPRIV: &str = "/usr/bin/setpriv";

fn exclusive(what: Prepared) -> Prepared {
    Prepared { exclusive: true, ..what }
}

fn far_off() -> Deadline {
    let deadline = Deadline::new().expect("memory");
    let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("a clock"));
    deadline.put_off(LastMoments { ask: now + Duration::from_secs(1_000), kill: now + Duration::from_secs(2_000) });
    deadline
}

/// A machine that is short of memory takes the pages of idle programs away, and its disk may be slow when they are needed again.
#[tokio::test]
async fn what_a_shim_needs_at_its_deadline_stays_in_memory() {
    let spawner = spawner_with(far_off());
    let plain = spawner.spawn(exec(["sleep", "1000"])).await.expect("start");
    let zygote = parent(plain.pid);
    assert_eq!(kept_code_bytes(zygote), 0, "nothing is kept for work that no shim holds to a deadline");
    let held = spawner.spawn(exclusive(exec(["sleep", "1000"]))).await.expect("start");
    assert_eq!(parent(held.pid), zygote, "its shim");
    until("code is kept", || kept_code_bytes(zygote) > 64 * 1024).await;
}

fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let (_, rest) = stat.rsplit_once(") ").expect("a name in brackets");
    rest.split(' ').nth(1).and_then(|parent| parent.parse().ok()).expect("its parent")
}

/// Of the program text that is mapped there: what the kernel may not take away.
fn kept_code_bytes(pid: u32) -> u64 {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it lives");
    let (mut bytes, mut sum) = (0, 0);
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        match words[..] {
            [range, rights, _, _, ..] if range.contains('-') => {
                let (from, to) = range.split_once('-').expect("a range");
                let number = |text| u64::from_str_radix(text, 16).expect("a place");
                bytes = if rights == "r-xp" { number(to) - number(from) } else { 0 };
            }
            ["VmFlags:", ..] if words.contains(&"lo") => sum += bytes,
            _ => {}
        }
    }
    sum
}

/// `ulimit -l` of old systems is 64 KiB, and the kernel locks all of a place or nothing.
#[tokio::test]
async fn who_may_lock_little_locks_what_fits_and_says_once_what_to_allow() {
    if !we_are_root() || !Path::new(SETPRIV).exists() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("for all");
    let (program, stderr) = (folder.path().join("zygote"), folder.path().join("stderr"));
    std::fs::copy(env!("CARGO_BIN_EXE_belfry-zygote"), &program).expect("copy a program");
    let as_nobody = format!("{SETPRIV} --reuid=65534 --regid=65534 --clear-groups {}", program.display());
    let start = format!("ulimit -l 64; exec {as_nobody} 2> {}", stderr.display());
    let zygote = ZygoteCommand { program: "/bin/sh".into(), args: vec!["-c".to_owned(), start] };
    let spawner = Spawner::start(zygote, far_off()).expect("start the zygote");
    let held = spawner.spawn(exclusive(exec(["sleep", "1000"]))).await.expect("start");
    let zygote = parent(held.pid);
    let told = || std::fs::read_to_string(&stderr).expect("its stderr");
    until("it is told", || told().contains('\n')).await;
    assert_eq!((told().lines().count(), locked_kib(zygote)), (1, 64), "{}", told());
    assert!(told().starts_with("belfry: 64 of ") && told().contains("`ulimit -l "), "{}", told());
}

fn locked_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let locked = status.lines().find_map(|line| line.strip_prefix("VmLck:")?.trim().strip_suffix(" kB"));
    locked.and_then(|kib| kib.parse().ok()).expect("a number")
}
