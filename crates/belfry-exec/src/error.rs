//! Why a child did not start, in words for the person who wrote the job.

use std::path::PathBuf;

use nix::errno::Errno;

use crate::wire::Step;

/// A start that did not happen. Nothing of the child is left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpawnError {
    #[error(
        "{program}: not found; PATH was {path_searched}; write the full path, or set PATH in the job's environment"
    )]
    NotFound { program: String, path_searched: String },
    #[error("{program}: no such file; check the path, it must exist on this node")]
    NoSuchFile { program: String },
    #[error("{program}: cannot be executed ({reason}); {advice}")]
    NotExecutable { program: String, reason: String, advice: &'static str },
    #[error("cannot enter directory {}: {reason}; create it on this node or let the job's user enter it", directory.display())]
    Directory { directory: PathBuf, reason: String },
    #[error("cannot become uid {uid}, gid {gid} ({step}: {reason}); only root starts a command as another user")]
    Identity { uid: u32, gid: u32, step: &'static str, reason: String },
    #[error(
        "{what} is too long for the kernel ({bytes} bytes, at most {limit_bytes}); put it into a file or a stored script"
    )]
    TooLong { what: &'static str, bytes: usize, limit_bytes: usize },
    #[error("{what} is empty or contains a NUL byte, which no process can be given")]
    NotText { what: &'static str },
    #[error("the helper process that starts children is gone; it is being started again, try once more")]
    ZygoteGone,
    #[error("it was not started: the time for which this node may start it was over")]
    TooLate,
    #[error("start a child ({step}): {}", std::io::Error::from_raw_os_error(*errno))]
    Os { step: &'static str, errno: i32 },
}

impl SpawnError {
    /// Whether the same start may succeed a little later, with nothing changed by a person.
    pub fn is_transient(&self) -> bool {
        match self {
            SpawnError::ZygoteGone | SpawnError::TooLate => true,
            SpawnError::Os { errno, .. } => matches!(
                Errno::from_raw(*errno),
                Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::EINTR | Errno::ETXTBSY
            ),
            SpawnError::NotFound { .. }
            | SpawnError::NoSuchFile { .. }
            | SpawnError::NotExecutable { .. }
            | SpawnError::Directory { .. }
            | SpawnError::Identity { .. }
            | SpawnError::TooLong { .. }
            | SpawnError::NotText { .. } => false,
        }
    }

    /// The exit code a shell would give for the same failure: 127 not found, 126 found but not started.
    pub fn exit_code(&self) -> i32 {
        match self {
            SpawnError::NotFound { .. } | SpawnError::NoSuchFile { .. } => 127,
            SpawnError::NotExecutable { .. }
            | SpawnError::Directory { .. }
            | SpawnError::Identity { .. }
            | SpawnError::TooLong { .. }
            | SpawnError::NotText { .. }
            | SpawnError::ZygoteGone
            | SpawnError::TooLate
            | SpawnError::Os { .. } => 126,
        }
    }

    pub(crate) fn os(step: &'static str, cause: &std::io::Error) -> Self {
        SpawnError::Os { step, errno: cause.raw_os_error().unwrap_or(0) }
    }
}

/// What the agent remembers of a request to say what failed in it.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub program: String,
    pub path_searched: String,
    pub directory: PathBuf,
    pub uid_gid: (u32, u32),
    pub bytes: usize,
}

/// What the kernel takes for all arguments and environment with the usual 8 MiB of stack.
const ALL_ARGUMENTS_BYTES_MAX: usize = 2 * 1024 * 1024;

impl Asked {
    pub(crate) fn failed_at(self, step: Step, errno: i32) -> SpawnError {
        let reason = std::io::Error::from_raw_os_error(errno).to_string();
        let Asked { program, path_searched, directory, uid_gid: (uid, gid), bytes } = self;
        match (step, Errno::from_raw(errno)) {
            (Step::Exec, Errno::ENOENT | Errno::ENOTDIR) if program.contains('/') => SpawnError::NoSuchFile { program },
            (Step::Exec, Errno::ENOENT | Errno::ENOTDIR) => SpawnError::NotFound { program, path_searched },
            (Step::Exec, Errno::E2BIG) => SpawnError::TooLong {
                what: "the command with its environment",
                bytes,
                limit_bytes: ALL_ARGUMENTS_BYTES_MAX,
            },
            (Step::Exec, Errno::ENOEXEC) => SpawnError::NotExecutable {
                program,
                reason,
                advice: "a script needs a first line such as #!/bin/sh, a program must be built for this machine",
            },
            (Step::Exec, Errno::EACCES | Errno::EPERM | Errno::EISDIR) => SpawnError::NotExecutable {
                program,
                reason,
                advice: "the job's user needs the right to execute it: chmod +x, and +x on the folders above",
            },
            (Step::Interpreter, _) => SpawnError::NotExecutable {
                program,
                reason: "the interpreter named in it does not exist".into(),
                advice: "correct the #! line of the script, or install the interpreter on this node",
            },
            (Step::Deadline, _) => SpawnError::TooLate,
            (Step::Directory, _) => SpawnError::Directory { directory, reason },
            (Step::Groups | Step::Group | Step::User, _) => {
                SpawnError::Identity { uid, gid, step: step.name(), reason }
            }
            (_, _) => SpawnError::Os { step: step.name(), errno },
        }
    }
}
