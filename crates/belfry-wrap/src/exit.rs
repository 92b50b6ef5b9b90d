//! What the wrapper tells cron by its exit code when it is not the command's own.

/// Bad parameters: nothing was tried.
pub const SAID_WRONG: u8 = 64;
/// The machine did not let it: a folder, a user, a process.
const CANNOT: u8 = 71;
const COORDINATOR_AWAY: u8 = 75;
const CUT_OFF: u8 = 76;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
const SIGNALLED: i32 = 128;

/// Why the command's own exit code is not to be had.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    SaidWrong(String),
    #[error("{0}")]
    Cannot(String),
    #[error(
        "the coordinator does not answer: {0} (DCRON_ABSENT=run runs the command all the same, DCRON_WAIT sets how long to wait)"
    )]
    CoordinatorAway(String),
    /// After this host had claimed the instance, and before a start.
    #[error("{0}")]
    AwayAfterClaim(String),
    #[error("{0}")]
    CutOff(String),
    #[error("{0}")]
    NotExecutable(String),
    #[error("{0}")]
    NotFound(String),
}

impl Failure {
    /// As a shell would say it.
    pub(crate) fn of_start(cause: &belfry_exec::SpawnError) -> Failure {
        match cause.exit_code() {
            127 => Failure::NotFound(cause.to_string()),
            _ => Failure::NotExecutable(cause.to_string()),
        }
    }

    pub fn code(&self) -> u8 {
        match self {
            Failure::SaidWrong(_) => SAID_WRONG,
            Failure::Cannot(_) => CANNOT,
            Failure::CoordinatorAway(_) | Failure::AwayAfterClaim(_) => COORDINATOR_AWAY,
            Failure::CutOff(_) => CUT_OFF,
            Failure::NotExecutable(_) => NOT_EXECUTABLE,
            Failure::NotFound(_) => NOT_FOUND,
        }
    }
}

/// As a shell would say it.
pub(crate) fn code_of(status: belfry_exec::ExitStatus) -> u8 {
    let code = match status {
        belfry_exec::ExitStatus::Code(code) => code,
        belfry_exec::ExitStatus::Signal(signal) => SIGNALLED + signal,
        belfry_exec::ExitStatus::Lost => SIGNALLED + nix::sys::signal::Signal::SIGKILL as i32,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}
