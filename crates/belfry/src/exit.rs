//! What the process answers to the shell: every exit code, and which error leads to which. It prints nothing.

use std::process::ExitCode;

use crate::client::ClientError;
use crate::documents::DocumentError;

/// Shown at the end of `belfry --help`; keep in step with [`Exit`].
pub const HELP: &str = "\
Exit codes:
  0  done
  1  the server refused it, it failed, or the run that was followed did not succeed
  2  the command line, or a file named on it, is not understood; nothing was changed
  3  no such job, run, node, user or token
  4  no server could be reached, or it wants a login

Environment: BELFRY_URL, BELFRY_TOKEN, BELFRY_DATA, NO_COLOR, TZ.";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    NoServer = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Something on the command line is wrong in a way that clap cannot see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// What was named does not exist, found out without a 404 of the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotFound(pub String);

impl Exit {
    pub fn of(error: &anyhow::Error) -> Self {
        if is_closed_pipe(error) {
            return Exit::Done;
        }
        for cause in error.chain() {
            if let Some(client) = cause.downcast_ref::<ClientError>() {
                return client.exit();
            }
            if cause.is::<UsageError>() || cause.is::<DocumentError>() {
                return Exit::Usage;
            }
            if cause.is::<NotFound>() {
                return Exit::NotFound;
            }
        }
        Exit::Failed
    }
}

/// The reader of our output is gone (`| head`): it has what it wanted, so this is no failure and no message.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|cause| cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_code_under_context() {
        let missing = anyhow::Error::new(NotFound("job a".into())).context("look for a");
        assert_eq!(Exit::of(&missing), Exit::NotFound);
        assert_eq!(Exit::of(&anyhow::Error::new(UsageError("x".into()))), Exit::Usage);
        assert_eq!(Exit::of(&anyhow::anyhow!("anything else")), Exit::Failed);
    }

    #[test]
    fn a_closed_pipe_is_quiet() {
        let gone = anyhow::Error::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)).context("write");
        assert!(is_closed_pipe(&gone));
        assert_eq!(Exit::of(&gone), Exit::Done);
    }
}
