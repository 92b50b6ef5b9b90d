//! What is to be started: everything about a child that is known before its start.

use std::ffi::OsString;
use std::path::PathBuf;

/// A child that is ready to be started. Nothing is inherited from the agent beyond what stands here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Program and arguments. A program without `/` is searched in the `PATH` of `env`.
    pub argv: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    /// Entered as the child's user. Default `/`.
    pub directory: Option<PathBuf>,
    /// Default: the agent's.
    pub umask: Option<u32>,
    /// Default: the agent's own user.
    pub identity: Option<Identity>,
    /// Names the run in the child's environment, so that its whole tree can be found again.
    pub tag: RunTag,
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
