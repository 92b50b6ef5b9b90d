//! What is to be started: everything about a child that is known before its start.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use nix::sys::resource::Resource;

use crate::cgroups::Cage;
use crate::sealed::Sealed;

/// A child that is ready to be started. Nothing is inherited from the agent beyond what stands here.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Program and arguments. A program without `/` is searched in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    /// Executed in the place of the first argument, which stays its name.
    pub program: Option<PathBuf>,
    /// The same from memory.
    pub sealed: Option<Sealed>,
    pub env: Vec<(OsString, OsString)>,
    /// Default: `/dev/null`.
    pub stdin: Option<Arc<OwnedFd>>,
    /// Entered as the child's user. Default `/`.
    pub directory: Option<PathBuf>,
    /// Default: the agent's.
    pub umask: Option<u32>,
    /// Default: the agent's own user.
    pub identity: Option<Identity>,
    /// Neither sudo nor any other program gives it or its children more rights than it has.
    pub no_new_privileges: bool,
    /// Of each of its processes.
    pub limits: Vec<ProcessLimit>,
    /// Of all of them together. It must outlive the child.
    pub cage: Option<Arc<Cage>>,
    /// Nothing of it outlives the deadline that the spawner was given, nor its first process.
    pub exclusive: bool,
    /// Names the run in the child's environment, so that its whole tree can be found again.
    pub tag: RunTag,
}

impl Prepared {
    /// As the agent's own user in `/`, without limits.
    pub fn new(argv: Vec<OsString>, env: Vec<(OsString, OsString)>, tag: RunTag) -> Prepared {
        Prepared {
            argv,
            program: None,
            sealed: None,
            env,
            stdin: None,
            directory: None,
            umask: None,
            identity: None,
            no_new_privileges: false,
            limits: Vec::new(),
            cage: None,
            exclusive: false,
            tag,
        }
    }
}

/// A limit that the kernel keeps for one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessLimit {
    pub of: LimitOf,
    pub value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOf {
    /// Bytes of address space.
    Memory = 1,
    /// Processes of the user, on the whole machine.
    UserProcesses = 2,
    OpenFiles = 3,
    CpuSeconds = 4,
    FileBytes = 5,
}

impl LimitOf {
    pub(crate) const ALL: [LimitOf; 5] =
        [LimitOf::Memory, LimitOf::UserProcesses, LimitOf::OpenFiles, LimitOf::CpuSeconds, LimitOf::FileBytes];

    /// The kernel asks with a signal of its own at the soft limit of CPU time, and kills at the hard one.
    pub(crate) fn hard_above_soft(self) -> u64 {
        u64::from(self == LimitOf::CpuSeconds)
    }

    pub(crate) fn resource(self) -> Resource {
        match self {
            LimitOf::Memory => Resource::RLIMIT_AS,
            LimitOf::UserProcesses => Resource::RLIMIT_NPROC,
            LimitOf::OpenFiles => Resource::RLIMIT_NOFILE,
            LimitOf::CpuSeconds => Resource::RLIMIT_CPU,
            LimitOf::FileBytes => Resource::RLIMIT_FSIZE,
        }
    }
}

/// User, group and supplementary groups of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Written into the environment as `BELFRY_RUN_ID` and `BELFRY_ATTEMPT`; whatever `env` says of these two is replaced.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RunTag {
    pub run: String,
    pub attempt: u32,
}

pub(crate) const RUN_ID: &str = "BELFRY_RUN_ID";
pub(crate) const ATTEMPT: &str = "BELFRY_ATTEMPT";

impl RunTag {
    /// The two environment entries that every process of the run carries.
    pub(crate) fn entries(&self) -> [Vec<u8>; 2] {
        [format!("{RUN_ID}={}", self.run).into_bytes(), format!("{ATTEMPT}={}", self.attempt).into_bytes()]
    }

    /// Whether an environment, as in `/proc/PID/environ`, is that of a process of this run.
    pub(crate) fn is_in(&self, environ: &[u8]) -> bool {
        self.entries().iter().all(|wanted| environ.split(|byte| *byte == 0).any(|entry| entry == wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_found_only_when_run_and_attempt_are_both_equal() {
        let tag = RunTag { run: "01H".into(), attempt: 2 };
        assert!(tag.is_in(b"A=1\0BELFRY_ATTEMPT=2\0BELFRY_RUN_ID=01H\0"));
        assert!(!tag.is_in(b"BELFRY_ATTEMPT=1\0BELFRY_RUN_ID=01H\0"));
        assert!(!tag.is_in(b"BELFRY_ATTEMPT=2\0BELFRY_RUN_ID=01HX\0"));
        assert!(!tag.is_in(b"BELFRY_ATTEMPT=2\0XBELFRY_RUN_ID=01H\0"));
        assert!(!tag.is_in(b""));
    }
}
