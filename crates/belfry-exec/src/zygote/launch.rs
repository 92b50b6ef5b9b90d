//! One start: a new process, then the steps in it up to exec. A failed step is reported in the memory that the child shares;
//! or, when it has a copy because it may hang on a dead network mount, through a pipe that a successful exec closes.

use std::convert::Infallible;
use std::ffi::{CStr, CString, OsStr, c_char};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    AccessFlags, Gid, Pid, Uid, access, chdir, getegid, geteuid, getppid, pipe2, setgroups, setresgid, setresuid,
    setsid,
};

use super::clone::{self, ChildStack};
use super::mounts::Mounts;
use super::{close_descriptors_from, raw};
use crate::environment::CLEAN_PATH;
use crate::prepared::Identity;
use crate::wire::{SpawnRequest, Step};

/// Everything the child needs, made before the fork: after it, nothing is allocated.
pub(super) struct Launch {
    /// The places where the program may be, in order.
    candidates: Vec<CString>,
    argv: Vec<CString>,
    env: Vec<CString>,
    directory: CString,
    umask: Option<Mode>,
    identity: Option<(Uid, Gid, Vec<Gid>)>,
}

pub(super) struct Started {
    pub pid: i32,
    pub report: Report,
}

/// Whether the child became the program.
pub(super) enum Report {
    Known(Option<Failure>),
    /// End of file: exec has happened. Five bytes: it has not, `Failure::read_from` says why.
    Awaited(OwnedFd),
}

pub(super) enum Way<'a> {
    SharingMemory(&'a mut ChildStack),
    CopyingMemory,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub step: Step,
    pub errno: i32,
}

const REPORT_BYTES: usize = 5;
const REPORT_DESCRIPTOR: i32 = 3;

impl Launch {
    pub(super) fn new(request: SpawnRequest) -> Launch {
        let path = request.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=".as_slice()));
        let program = request.argv.first().map_or(b"".as_slice(), Vec::as_slice);
        Launch {
            candidates: candidates(program, path.unwrap_or(CLEAN_PATH.as_bytes())),
            argv: request.argv.iter().map(|argument| text(argument)).collect(),
            env: request.env.iter().map(|entry| text(entry)).collect(),
            directory: text(&request.directory),
            umask: request.umask.map(Mode::from_bits_truncate),
            identity: request.identity.filter(|identity| !is_already(identity)).map(|Identity { uid, gid, groups }| {
                (Uid::from_raw(uid), Gid::from_raw(gid), groups.into_iter().map(Gid::from_raw).collect())
            }),
        }
    }

    /// The child shares our memory up to its exec unless its paths could make that exec hang, and us with it.
    pub(super) fn start(&self, way: Way<'_>, standard: [&OwnedFd; 3]) -> io::Result<Started> {
        let zygote = nix::unistd::getpid();
        let argv = pointers(&self.argv);
        let env = pointers(&self.env);
        // Descriptors first: a child that hangs in a later step must not hold the zygote's socket or another child's pipes.
        match way {
            Way::SharingMemory(stack) => {
                let mut failure = None;
                let mut body = || {
                    let placed = place_descriptors(standard).at(Step::Files);
                    close_descriptors_from(REPORT_DESCRIPTOR as u32);
                    let Err(cause) = placed.and_then(|()| self.become_the_program(zygote, &argv, &env));
                    failure = Some(cause);
                    exit_now()
                };
                let pid = clone::sharing_memory(stack, &mut body)?;
                Ok(Started { pid, report: Report::Known(failure) })
            }
            Way::CopyingMemory => {
                let (report, child_report) = pipe2(OFlag::O_CLOEXEC)?;
                let mut body = || {
                    if let Err(failure) = place_descriptors_and_report(standard, &child_report).at(Step::Files) {
                        failure.send_and_exit(raw(&child_report))
                    }
                    let Err(failure) = self.become_the_program(zygote, &argv, &env);
                    failure.send_and_exit(REPORT_DESCRIPTOR)
                };
                Ok(Started { pid: clone::copying_memory(&mut body)?, report: Report::Awaited(report) })
            }
        }
    }

    /// Whether any path that the start will touch may be on a file system that hangs.
    pub(super) fn may_hang(&self, mounts: &mut Mounts) -> bool {
        let directory = Path::new(OsStr::from_bytes(self.directory.as_bytes()));
        let mut programs = self.candidates.iter().map(|candidate| Path::new(OsStr::from_bytes(candidate.as_bytes())));
        mounts.may_hang(directory) || programs.any(|program| mounts.may_hang(&directory.join(program)))
    }

    fn become_the_program(
        &self,
        zygote: Pid,
        argv: &[*const c_char],
        env: &[*const c_char],
    ) -> Result<Infallible, Failure> {
        setsid().at(Step::Session)?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).at(Step::Signals)?;
        if let Some(mask) = self.umask {
            umask(mask);
        }
        if let Some((uid, gid, groups)) = &self.identity {
            setgroups(groups).at(Step::Groups)?;
            setresgid(*gid, *gid, *gid).at(Step::Group)?;
            setresuid(*uid, *uid, *uid).at(Step::User)?;
            if getegid() != *gid || geteuid() != *uid {
                return Err(Failure { step: Step::User, errno: libc::EPERM });
            }
        }
        // After the change of user, which clears it; then the check, for the zygote may have died just before.
        prctl::set_pdeathsig(Signal::SIGKILL).at(Step::DeathSignal)?;
        if getppid() != zygote {
            return Err(Failure { step: Step::Parent, errno: libc::ESRCH });
        }
        chdir(self.directory.as_c_str()).at(Step::Directory)?;
        Err(self.exec(argv, env))
    }

    /// Tries the places in order, as a shell does: what is not there is passed over, what may not be run is remembered.
    fn exec(&self, argv: &[*const c_char], env: &[*const c_char]) -> Failure {
        let mut failure = Failure { step: Step::Exec, errno: libc::ENOENT };
        for candidate in &self.candidates {
            match execute(candidate, argv, env) {
                Errno::ENOENT | Errno::ENOTDIR => {
                    if access(candidate.as_c_str(), AccessFlags::F_OK).is_ok() {
                        return Failure { step: Step::Interpreter, errno: libc::ENOENT };
                    }
                }
                Errno::EACCES => failure.errno = libc::EACCES,
                other => return Failure { step: Step::Exec, errno: other as i32 },
            }
        }
        failure
    }
}

impl Failure {
    /// `None`: nothing was reported, the program runs.
    pub(super) fn read_from(report: &OwnedFd) -> Option<Failure> {
        let mut bytes = [0; REPORT_BYTES];
        match nix::unistd::read(report.as_fd(), &mut bytes) {
            Ok(REPORT_BYTES) => Some(Failure {
                step: Step::from_number(bytes[0])?,
                errno: i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]),
            }),
            Ok(_) | Err(_) => None,
        }
    }

    #[expect(unsafe_code, reason = "write takes a raw descriptor")]
    fn send_and_exit(self, report_pipe: i32) -> ! {
        let [a, b, c, d] = self.errno.to_le_bytes();
        let report = [self.step as u8, a, b, c, d];
        // SAFETY: the pipe is open in this child, and five bytes are readable.
        unsafe { libc::write(report_pipe, report.as_ptr().cast(), report.len()) };
        exit_now()
    }
}

#[expect(unsafe_code, reason = "a child leaves without running anybody's exit handlers")]
fn exit_now() -> ! {
    // SAFETY: ends this process and nothing else.
    unsafe { libc::_exit(127) }
}

/// An agent that is not root cannot set groups, and need not when the child is to run as the agent itself.
fn is_already(identity: &Identity) -> bool {
    let me = geteuid();
    !me.is_root() && me.as_raw() == identity.uid && getegid().as_raw() == identity.gid
}

fn candidates(program: &[u8], path: &[u8]) -> Vec<CString> {
    if program.contains(&b'/') {
        return vec![text(program)];
    }
    // An empty part of PATH would mean the current directory, which nobody wants from a scheduler.
    path.split(|byte| *byte == b':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| text(&[folder, b"/", program].concat()))
        .collect()
}

/// The agent has refused NUL bytes already; should one come all the same, the text ends there.
fn text(bytes: &[u8]) -> CString {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    CString::new(&bytes[..end]).unwrap_or_default()
}

fn pointers(texts: &[CString]) -> Vec<*const c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// All sources are above 2, since the zygote keeps its own 0, 1 and 2 open; so no step overwrites a later source.
fn place_descriptors(standard: [&OwnedFd; 3]) -> Result<(), Errno> {
    (0..).zip(standard).try_for_each(|(to, from)| duplicate(raw(from), to, 0))
}

fn place_descriptors_and_report(standard: [&OwnedFd; 3], report: &OwnedFd) -> Result<(), Errno> {
    place_descriptors(standard)?;
    if raw(report) != REPORT_DESCRIPTOR {
        duplicate(raw(report), REPORT_DESCRIPTOR, libc::O_CLOEXEC)?;
    }
    close_descriptors_from(REPORT_DESCRIPTOR as u32 + 1);
    Ok(())
}

#[expect(
    unsafe_code,
    reason = "nix's dup3 wants an owner for the number that is replaced; in a child about to exec there is none"
)]
fn duplicate(from: i32, to: i32, flags: i32) -> Result<(), Errno> {
    // SAFETY: only numbers change hands, in a process that is about to exec.
    Errno::result(unsafe { libc::dup3(from, to, flags) }).map(drop)
}

#[expect(unsafe_code, reason = "exec takes raw pointers; nix's wrapper would allocate after the fork")]
fn execute(program: &CStr, argv: &[*const c_char], env: &[*const c_char]) -> Errno {
    // SAFETY: both arrays end with null and point into strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    Errno::last()
}

trait At<T> {
    fn at(self, step: Step) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, step: Step) -> Result<T, Failure> {
        self.map_err(|errno| Failure { step, errno: errno as i32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_slash_is_searched_in_path_without_its_empty_parts() {
        assert_eq!(candidates(b"ls", b"/a::/b"), [c"/a/ls".to_owned(), c"/b/ls".to_owned()]);
        assert_eq!(candidates(b"./ls", b"/a"), [c"./ls".to_owned()]);
        assert!(candidates(b"ls", b"").is_empty());
    }
}
