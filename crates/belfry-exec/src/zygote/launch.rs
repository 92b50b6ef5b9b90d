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
use nix::sys::resource::setrlimit;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    AccessFlags, Gid, Pid, Uid, access, chdir, getegid, geteuid, getppid, getresgid, getresuid, pipe2, setgroups,
    setresgid, setresuid, setsid,
};

use super::clone::{self, ChildStack};
use super::mounts::Mounts;
use super::shim::Shim;
use super::{close_descriptors_from, raw};
use crate::clock;
use crate::deadline::Deadline;
use crate::environment::CLEAN_PATH;
use crate::prepared::{Identity, ProcessLimit};
use crate::sealed::SEALED_DESCRIPTOR;
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
    no_new_privileges: bool,
    limits: Vec<ProcessLimit>,
    entrances: Vec<CString>,
    sealed: Option<SealedFile>,
}

/// The file that a sealed copy was made of, and whether its interpreter reads the copy.
struct SealedFile {
    path: CString,
    is_script: bool,
}

/// Descriptors that the child gets.
pub(super) struct Given<'a> {
    pub standard: [&'a OwnedFd; 3],
    pub sealed: Option<&'a OwnedFd>,
}

/// What stands above the program, and must be there when it begins.
struct Above<'a> {
    pid: Pid,
    /// Until which it may be started.
    deadline: Option<&'a Deadline>,
}

pub(super) struct Started {
    pub pid: i32,
    pub report: Report,
    /// Where the shim has its last word, if there is one.
    pub shim: Option<OwnedFd>,
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
    /// As a grandchild, below a shim that holds it to the deadline.
    BehindShim(&'a Deadline),
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
        Launch {
            candidates: candidates(&request.program, path.unwrap_or(CLEAN_PATH.as_bytes())),
            argv: request.argv.iter().map(|argument| text(argument)).collect(),
            env: request.env.iter().map(|entry| text(entry)).collect(),
            directory: text(&request.directory),
            umask: request.umask.map(Mode::from_bits_truncate),
            identity: request.identity.filter(|identity| !is_already(identity)).map(|Identity { uid, gid, groups }| {
                (Uid::from_raw(uid), Gid::from_raw(gid), groups.into_iter().map(Gid::from_raw).collect())
            }),
            no_new_privileges: request.no_new_privileges,
            limits: request.limits,
            entrances: request.entrances.iter().map(|entrance| text(entrance)).collect(),
            sealed: request.sealed.map(|sealed| SealedFile { path: text(&sealed.path), is_script: sealed.is_script }),
        }
    }

    /// The child shares our memory up to its exec unless its paths could make that exec hang, and us with it.
    pub(super) fn start(&self, way: Way<'_>, given: &Given<'_>) -> io::Result<Started> {
        let zygote = nix::unistd::getpid();
        let above = Above { pid: zygote, deadline: None };
        let argv = pointers(&self.argv);
        let env = pointers(&self.env);
        // Descriptors first: a child that hangs in a later step must not hold the zygote's socket or another child's pipes.
        match way {
            Way::SharingMemory(stack) => {
                let mut failure = None;
                let mut body = || {
                    let placed = given.place(None).at(Step::Files);
                    let Err(cause) = placed.and_then(|()| self.become_the_program(&above, &argv, &env));
                    failure = Some(cause);
                    exit_now()
                };
                let pid = clone::sharing_memory(stack, &mut body)?;
                Ok(Started { pid, report: Report::Known(failure), shim: None })
            }
            Way::CopyingMemory => {
                let (report, child_report) = pipe2(OFlag::O_CLOEXEC)?;
                let mut body = || self.in_copy(&above, given, &child_report, &argv, &env);
                Ok(Started { pid: clone::copying_memory(&mut body)?, report: Report::Awaited(report), shim: None })
            }
            Way::BehindShim(deadline) => {
                let (report, child_report) = pipe2(OFlag::O_CLOEXEC)?;
                // Whoever reads it waits for nobody.
                let (said, word) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
                let mut word = Some(word);
                let mut body = || {
                    let Some(word) = word.take() else { return };
                    let shim = Shim::prepare(zygote, word, deadline.clone()).at(Step::Shim);
                    // Here too, or the shim might end the program before it says why it does not begin.
                    let shim = match shim.and_then(|shim| in_time(deadline).map(|()| shim)) {
                        Ok(shim) => shim,
                        Err(failure) => failure.send_and_exit(raw(&child_report)),
                    };
                    let above = Above { pid: nix::unistd::getpid(), deadline: Some(deadline) };
                    let mut body = || match shim.say_who_is_first().at(Step::Shim) {
                        Ok(()) => self.in_copy(&above, given, &child_report, &argv, &env),
                        Err(failure) => failure.send_and_exit(raw(&child_report)),
                    };
                    match clone::copying_memory(&mut body).at(Step::Fork) {
                        Ok(first) => shim.watch(first),
                        Err(failure) => failure.send_and_exit(raw(&child_report)),
                    }
                };
                let pid = clone::copying_memory(&mut body)?;
                Ok(Started { pid, report: Report::Awaited(report), shim: Some(said) })
            }
        }
    }

    /// In a process of its own that shares nothing with its maker.
    fn in_copy(
        &self,
        above: &Above<'_>,
        given: &Given<'_>,
        report: &OwnedFd,
        argv: &[*const c_char],
        env: &[*const c_char],
    ) {
        if let Err(failure) = given.place(Some(report)).at(Step::Files) {
            failure.send_and_exit(raw(report))
        }
        let Err(failure) = self.become_the_program(above, argv, env);
        failure.send_and_exit(REPORT_DESCRIPTOR)
    }

    /// Whether any path that the start will touch may be on a file system that hangs. Entering a control group takes the kernel long enough to
    /// count as that.
    pub(super) fn may_hang(&self, mounts: &mut Mounts) -> bool {
        if !self.entrances.is_empty() {
            return true;
        }
        let directory = Path::new(OsStr::from_bytes(self.directory.as_bytes()));
        let mut programs = self.candidates.iter().map(|candidate| Path::new(OsStr::from_bytes(candidate.as_bytes())));
        mounts.may_hang(directory) || programs.any(|program| mounts.may_hang(&directory.join(program)))
    }

    fn become_the_program(
        &self,
        above: &Above<'_>,
        argv: &[*const c_char],
        env: &[*const c_char],
    ) -> Result<Infallible, Failure> {
        setsid().at(Step::Session)?;
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).at(Step::Signals)?;
        if let Some(mask) = self.umask {
            umask(mask);
        }
        self.entrances.iter().try_for_each(|entrance| enter(entrance)).at(Step::ControlGroup)?;
        for ProcessLimit { of, value } in &self.limits {
            setrlimit(of.resource(), *value, value.saturating_add(of.hard_above_soft())).at(Step::Limits)?;
        }
        if let Some((uid, gid, groups)) = &self.identity {
            setgroups(groups).at(Step::Groups)?;
            setresgid(*gid, *gid, *gid).at(Step::Group)?;
            setresuid(*uid, *uid, *uid).at(Step::User)?;
            let (users, own_groups) = (getresuid().at(Step::User)?, getresgid().at(Step::Group)?);
            let is_user = [users.real, users.effective, users.saved].iter().all(|is| is == uid);
            let is_group = [own_groups.real, own_groups.effective, own_groups.saved].iter().all(|is| is == gid);
            if !is_user || !is_group || count_groups() != groups.len() {
                return Err(Failure { step: Step::User, errno: libc::EPERM });
            }
        }
        if self.no_new_privileges {
            prctl::set_no_new_privs().at(Step::Privileges)?;
        }
        // After the change of user, which clears it; then the check, for the parent may have died just before.
        prctl::set_pdeathsig(Signal::SIGKILL).at(Step::DeathSignal)?;
        if getppid() != above.pid {
            return Err(Failure { step: Step::Parent, errno: libc::ESRCH });
        }
        chdir(self.directory.as_c_str()).at(Step::Directory)?;
        // Right before exec: the machine may have stood still since the agent looked, and another one may run it by now.
        above.deadline.map_or(Ok(()), in_time)?;
        Err(self.exec(argv, env))
    }

    /// Tries the places in order, as a shell does: what is not there is passed over, what may not be run is remembered.
    fn exec(&self, argv: &[*const c_char], env: &[*const c_char]) -> Failure {
        if let Some(SealedFile { path, is_script }) = &self.sealed {
            let needed = if *is_script { AccessFlags::X_OK | AccessFlags::R_OK } else { AccessFlags::X_OK };
            if !path.is_empty()
                && let Err(errno) = access(path.as_c_str(), needed)
            {
                return Failure { step: Step::Exec, errno: errno as i32 };
            }
            if !is_script {
                return Failure { step: Step::Exec, errno: execute_sealed(argv, env) as i32 };
            }
        }
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
pub(super) fn exit_now() -> ! {
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

impl Given<'_> {
    /// All sources are above 2, since the zygote keeps its own 0, 1 and 2 open. What goes to a number above 2 is moved out of the way
    /// first; so no step overwrites a later source.
    fn place(&self, report: Option<&OwnedFd>) -> Result<(), Errno> {
        (0..).zip(self.standard).try_for_each(|(to, from)| duplicate(raw(from), to, 0))?;
        let out_of_the_way = |from: Option<&OwnedFd>| from.map(|from| duplicate_above(raw(from))).transpose();
        let (report, sealed) = (out_of_the_way(report)?, out_of_the_way(self.sealed)?);
        for (to, from) in [(REPORT_DESCRIPTOR, report), (SEALED_DESCRIPTOR, sealed)] {
            match from {
                // An interpreter opens what is sealed by its number, after the exec.
                Some(from) => duplicate(from, to, if to == REPORT_DESCRIPTOR { libc::O_CLOEXEC } else { 0 })?,
                None => close(to),
            }
        }
        close_descriptors_from(SEALED_DESCRIPTOR as u32 + 1);
        Ok(())
    }
}

fn in_time(deadline: &Deadline) -> Result<(), Failure> {
    let is_over = clock::boottime() >= deadline.last_moments().ask;
    if is_over { Err(Failure { step: Step::Deadline, errno: libc::ETIME }) } else { Ok(()) }
}

/// Writes that whoever writes enters.
#[expect(unsafe_code, reason = "plain system calls on a number that lives for two lines")]
fn enter(entrance: &CStr) -> Result<(), Errno> {
    // SAFETY: the path ends with NUL; the descriptor is this function's own; one byte is readable.
    unsafe {
        let file = Errno::result(libc::open(entrance.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC))?;
        let written = Errno::result(libc::write(file, b"0".as_ptr().cast(), 1));
        libc::close(file);
        written.map(drop)
    }
}

#[expect(unsafe_code, reason = "nix allocates the list; only its length is asked for")]
fn count_groups() -> usize {
    // SAFETY: with a size of zero the kernel writes nothing.
    unsafe { libc::getgroups(0, ptr::null_mut()).max(0) as usize }
}

#[expect(unsafe_code, reason = "in a child about to exec a number has no owner")]
fn close(number: i32) {
    // SAFETY: whatever stood there is not used any more in this child; nothing there is fine too.
    unsafe { libc::close(number) };
}

#[expect(unsafe_code, reason = "in a child about to exec a number has no owner")]
fn duplicate_above(from: i32) -> Result<i32, Errno> {
    // SAFETY: only numbers change hands, in a process that is about to exec.
    Errno::result(unsafe { libc::fcntl(from, libc::F_DUPFD_CLOEXEC, SEALED_DESCRIPTOR + 1) })
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

#[expect(unsafe_code, reason = "nix has no execveat that allocates nothing")]
fn execute_sealed(argv: &[*const c_char], env: &[*const c_char]) -> Errno {
    // SAFETY: as above; the empty path means the descriptor itself.
    unsafe {
        libc::fcntl(SEALED_DESCRIPTOR, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::syscall(
            libc::SYS_execveat,
            SEALED_DESCRIPTOR,
            c"".as_ptr(),
            argv.as_ptr(),
            env.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
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
