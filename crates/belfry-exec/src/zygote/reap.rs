//! Exits: roots are reported with what they used and how much they left behind; orphans that came to us are just reaped.

use nix::errno::Errno;
use nix::sys::signal::killpg;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use super::ending::descendants_of_run;
use super::serve::{Root, Zygote};
use super::shim::{LastWord, Told};
use crate::clock;
use crate::processes::Processes;
use crate::wire::{Exited, Reply};

impl Zygote {
    pub(super) fn reap_exited(&mut self) {
        while let Ok(Some(_)) = self.exits.read_signal() {}
        while let Some(pid) = next_exited() {
            // While it is not reaped, its number, and with it its session and group, cannot be anybody else's.
            self.settle_start(pid);
            match self.roots.remove(&pid) {
                None => {
                    let _orphan = reap(pid);
                    self.memory.reaped(pid, clock::monotonic());
                }
                Some(root) => self.close_root(pid, &root),
            }
            self.look_at_endings_now();
        }
    }

    fn close_root(&mut self, pid: i32, root: &Root) {
        self.remember_members_before_reaping(pid);
        let end = reap(pid);
        let (Some(end), false) = (end, root.failed) else { return };
        let told = root.shim.as_ref().map(Told::read_from);
        let is_shim_killed = told.is_some_and(|told| told.last.is_none());
        let said = told.and_then(|told| told.last).unwrap_or_else(|| {
            let left_behind = if is_shim_killed { 0 } else { self.count_left_behind(pid, root) };
            LastWord { code: end.code, signal: end.signal, left_behind, past_deadline: false }
        });
        let exited = Exited {
            token: root.token,
            code: said.code,
            signal: said.signal,
            // What a shim used includes its tree.
            user_us: end.user_us,
            system_us: end.system_us,
            max_rss_kib: end.max_rss_kib,
            left_behind: said.left_behind,
            past_deadline: said.past_deadline,
            ended_at_ns: clock::boottime_ns(),
        };
        if is_shim_killed {
            // Nobody holds the rest of the tree to its deadline any more, and the next start must not find it.
            self.answer_when_ended(root, told.and_then(|told| told.first), exited);
        } else {
            self.answer(&Reply::Exited(exited));
        }
    }

    /// A look at all of /proc costs about a millisecond, so it happens only when something was surely left: the
    /// process group still has members, or we have children although no run is left. A daemon that left its group is
    /// therefore not counted while other runs go on.
    fn count_left_behind(&self, pid: i32, root: &Root) -> u32 {
        let group_lives = killpg(Pid::from_raw(pid), None) != Err(Errno::ESRCH);
        let somebody_lives = self.roots.is_empty() && next_child_state() != ChildState::None;
        if !group_lives && !somebody_lives {
            return 0;
        }
        let seen = Processes::look();
        let group = seen.all().filter(|process| group_lives && process.group == pid).map(|process| process.pid);
        let seeds: Vec<i32> = group.collect();
        descendants_of_run(&seen, &root.tag, &self.roots, &seeds).members.len() as u32
    }
}

pub(super) struct End {
    pub code: Option<i32>,
    pub signal: i32,
    user_us: u64,
    system_us: u64,
    max_rss_kib: u64,
}

#[derive(PartialEq, Eq)]
enum ChildState {
    None,
    Running,
    Exited(i32),
}

/// A child that has exited, not reaped yet.
fn next_exited() -> Option<i32> {
    match next_child_state() {
        ChildState::Exited(pid) => Some(pid),
        ChildState::None | ChildState::Running => None,
    }
}

fn next_child_state() -> ChildState {
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::All, flags) {
        Ok(WaitStatus::StillAlive) => ChildState::Running,
        Ok(status) => status.pid().map_or(ChildState::Running, |pid| ChildState::Exited(pid.as_raw())),
        Err(Errno::ECHILD) => ChildState::None,
        Err(_) => ChildState::Running,
    }
}

#[expect(unsafe_code, reason = "nix has no wait4, which alone tells what this one child used")]
fn reap(pid: i32) -> Option<End> {
    let mut status = 0;
    // SAFETY: all-zero is a valid rusage, and both out-pointers are to locals of the right type.
    let (reaped, usage) = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage), usage)
    };
    let micros = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    (reaped == pid).then(|| End {
        code: libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)),
        signal: if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 },
        user_us: micros(usage.ru_utime),
        system_us: micros(usage.ru_stime),
        max_rss_kib: usage.ru_maxrss as u64,
    })
}

/// Reaps whatever has exited, and tells of it.
pub(super) fn reap_all(mut reaped: impl FnMut(i32, End)) {
    while let Some(pid) = next_exited() {
        if let Some(end) = reap(pid) {
            reaped(pid, end);
        }
    }
}

/// Whoever reaps for a whole tree and has no children has nobody below it.
pub(super) fn has_children() -> bool {
    next_child_state() != ChildState::None
}
