//! A look at the machine's processes through /proc, and signals that can only reach the process that was looked at.
//! It does not know which of them belong to whom.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// One process as it was seen. `started_ticks` tells it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub pid: i32,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    pub started_ticks: u64,
    pub dead: bool,
}

/// All processes at about one moment.
pub(crate) struct Processes {
    by_pid: HashMap<i32, Process>,
    children: HashMap<i32, Vec<i32>>,
}

impl Processes {
    pub(crate) fn look() -> Processes {
        let mut by_pid = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
            if let Some(process) = pid.and_then(read_process) {
                by_pid.insert(process.pid, process);
            }
        }
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for process in by_pid.values() {
            children.entry(process.parent).or_default().push(process.pid);
        }
        Processes { by_pid, children }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Process> {
        self.by_pid.values()
    }

    pub(crate) fn children_of(&self, pid: i32) -> impl Iterator<Item = &Process> {
        self.children.get(&pid).into_iter().flatten().filter_map(|child| self.by_pid.get(child))
    }

    /// Everything below `pid`, without itself, dead ones included.
    pub(crate) fn descendants_of(&self, pid: i32) -> Vec<Process> {
        let mut found: Vec<Process> = self.children_of(pid).copied().collect();
        let mut next = 0;
        while let Some(process) = found.get(next).copied() {
            // A look is not one instant: numbers used again meanwhile could form a ring.
            if found.len() > self.by_pid.len() {
                break;
            }
            found.extend(self.children_of(process.pid).copied());
            next += 1;
        }
        found
    }
}

/// The process runs as somebody else, and this one is not root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAllowed;

impl Process {
    /// The environment the process was started with; empty when it may not be read.
    pub(crate) fn environ(&self) -> Vec<u8> {
        self.read("environ")
    }

    /// A file of it in /proc; empty when it may not be read. A process whose first thread has ended has it only with the others.
    fn read(&self, file: &str) -> Vec<u8> {
        let of_all = std::fs::read(format!("/proc/{}/{file}", self.pid)).unwrap_or_default();
        if !of_all.is_empty() {
            return of_all;
        }
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let of_each = threads.map(|thread| std::fs::read(thread.path().join(file)).unwrap_or_default());
        of_each.into_iter().find(|bytes| !bytes.is_empty()).unwrap_or_default()
    }

    /// The environment, unless the process is in the middle of an exec or gone. One that is empty is looked at again: an exec may
    /// have ended between the two looks that tell an empty environment from none.
    pub(crate) fn settled_environ(&self) -> Option<Vec<u8>> {
        for _look in 0..3 {
            let environ = self.environ();
            if !environ.is_empty() {
                return Some(environ);
            }
            if self.is_in_exec() {
                return None;
            }
        }
        Some(Vec::new())
    }

    /// Seen in the middle of an exec, when a process has neither arguments nor environment for a moment.
    fn is_in_exec(&self) -> bool {
        // The environment once more: it comes just after the arguments.
        self.read("cmdline").is_empty() && self.read("environ").is_empty()
    }

    /// What the process is called, for a message.
    pub(crate) fn name(&self) -> String {
        String::from_utf8_lossy(&self.read("comm")).trim().to_owned()
    }

    /// Sends `signal` to this process and to no later one that got its number. Gone is fine.
    pub(crate) fn signal(&self, signal: Signal) {
        let _nothing_to_be_done = self.try_signal(signal);
    }

    /// The same; it fails where the kernel does not allow it, as for a process that has become another user.
    pub(crate) fn try_signal(&self, signal: Signal) -> Result<(), NotAllowed> {
        let handle = open_handle(self.pid);
        // Looked at again after the handle was taken: the handle is that of the process we meant, or of nobody.
        if read_process(self.pid).is_none_or(|now| now.started_ticks != self.started_ticks) {
            return Ok(());
        }
        let sent = match handle {
            Ok(handle) => signal_through(&handle, signal),
            // Kernels before 5.3 have no handles; the window between the look and the signal is microseconds.
            Err(Errno::ENOSYS) => kill(Pid::from_raw(self.pid), signal),
            Err(gone) => Err(gone),
        };
        if sent == Err(Errno::EPERM) { Err(NotAllowed) } else { Ok(()) }
    }
}

fn read_process(pid: i32) -> Option<Process> {
    let mut text = [0; 1024];
    let length = File::open(format!("/proc/{pid}/stat")).and_then(|mut stat| stat.read(&mut text)).ok()?;
    parse_stat(pid, &text[..length])
}

fn parse_stat(pid: i32, stat: &[u8]) -> Option<Process> {
    // The name stands in brackets and may itself contain brackets and spaces: count from the last one.
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 2;
    let fields: Vec<&str> = std::str::from_utf8(stat.get(after_name..)?).ok()?.split(' ').collect();
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<i64>().ok());
    // A process whose first thread has ended looks dead, but its other threads live on.
    let dead = matches!(fields.first(), Some(&"Z" | &"X")) && number(20)? <= 1;
    Some(Process {
        pid,
        parent: number(4)? as i32,
        group: number(5)? as i32,
        session: number(6)? as i32,
        started_ticks: number(22)? as u64,
        dead,
    })
}

#[expect(unsafe_code, reason = "nix has no pidfd_open")]
fn open_handle(pid: i32) -> Result<OwnedFd, Errno> {
    // SAFETY: plain system call with two integers; the descriptor it returns is new (and close-on-exec).
    unsafe {
        let descriptor = Errno::result(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        Ok(OwnedFd::from_raw_fd(descriptor as i32))
    }
}

#[expect(unsafe_code, reason = "nix has no pidfd_send_signal")]
fn signal_through(handle: &OwnedFd, signal: Signal) -> Result<(), Errno> {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: the descriptor is open; a null siginfo is allowed. A process that is gone answers ESRCH: what we want.
    Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, handle.as_raw_fd(), signal as i32, nothing, 0) })
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let stat = b"42 (a) b (c) S 7 8 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 12345 0 0";
        let process = parse_stat(42, stat).expect("a line of stat");
        assert_eq!((process.parent, process.group, process.session), (7, 8, 9));
        assert_eq!((process.started_ticks, process.dead), (12345, false));
    }

    #[test]
    fn this_process_is_seen_below_its_parent() {
        let me = std::process::id() as i32;
        let seen = Processes::look();
        let parent = seen.all().find(|process| process.pid == me).expect("this process").parent;
        assert!(seen.descendants_of(parent).iter().any(|process| process.pid == me));
    }
}
