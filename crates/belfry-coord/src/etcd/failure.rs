//! What an error of etcd proves. A commit that failed may be given up or sent again only on proof that it was not and never
//! will be applied; everything that is not listed here proves nothing.

use std::error::Error as _;

use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use crate::CoordError;

#[derive(Debug)]
pub(super) enum Failure {
    /// Nothing was sent, or the member refused before it looked at the request: another member may be asked.
    NotHeard(String),
    /// The member does not know the user's token any more, or knows newer rights: refused before it was applied.
    StaleToken(String),
    /// Refused for a reason that stays. Nothing was applied.
    Refused(String),
    /// No proof of anything: etcd says it also for the commit that fills the database, which is applied.
    NoSpace(String),
    /// A revision that is asked for is not kept any more, or not there yet.
    NoSuchRevision(String),
    /// The answer has more bytes than we take.
    AnswerTooLarge(String),
    /// May have been applied, or may still be.
    Open(String),
}

impl Failure {
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::GRpcStatus(status) => Self::of_status(status),
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                Failure::Refused(error.to_string())
            }
            other => Failure::Open(other.to_string()),
        }
    }

    fn of_status(status: &Status) -> Self {
        let said = status.message();
        if is_connect_error(status) {
            return Failure::NotHeard(chain(status));
        }
        match status.code() {
            Code::Unauthenticated => Failure::StaleToken(said.into()),
            Code::PermissionDenied => Failure::Refused(format!(
                "{said}; give the user of the URL a role that may read and write every key below the URL's path"
            )),
            // By interceptors, before the request reaches what handles it.
            Code::Unavailable if is(said, &["etcdserver: no leader", "etcdserver: rpc not supported for learner"]) => {
                Failure::NotHeard(said.into())
            }
            // Before it is proposed to the other members.
            Code::ResourceExhausted if is(said, &["etcdserver: too many requests"]) => Failure::NotHeard(said.into()),
            Code::ResourceExhausted if is(said, &["etcdserver: mvcc: database space exceeded"]) => {
                Failure::NoSpace(said.into())
            }
            Code::OutOfRange if said.starts_with("etcdserver: mvcc: required revision") => {
                Failure::NoSuchRevision(said.into())
            }
            Code::OutOfRange if said.contains("decoded message length too large") => {
                Failure::AnswerTooLarge(said.into())
            }
            Code::InvalidArgument => Self::of_invalid_argument(said),
            Code::FailedPrecondition if is(said, &["etcdserver: authentication is not enabled"]) => {
                Failure::Refused(format!("{said}; leave user and password out of the URL, or enable authentication"))
            }
            Code::DataLoss if is(said, &["etcdserver: corrupt cluster"]) => {
                Failure::Refused(format!("{said}; its members disagree, restore a backup of etcd"))
            }
            _ => Failure::Open(chain(status)),
        }
    }

    fn of_invalid_argument(said: &str) -> Self {
        match said {
            "etcdserver: authentication failed, invalid user ID or password" => {
                Failure::Refused(format!("{said}; check user and password in the URL"))
            }
            "etcdserver: user name is empty" => {
                Failure::Refused(format!("{said}; it wants a user: put user:password@ before the hosts of the URL"))
            }
            "etcdserver: revision of auth store is old" => Failure::StaleToken(said.into()),
            "etcdserver: request is too large" => {
                Failure::Refused(format!("{said}; start it with --max-request-bytes of at least 1572864"))
            }
            "etcdserver: too many operations in txn request" => {
                Failure::Refused(format!("{said}; start it with --max-txn-ops of at least 128"))
            }
            other => Failure::Open(other.into()),
        }
    }

    /// Of the request for a token: whatever became of it, what was to follow has not been sent.
    pub(super) fn before_sending(self) -> Self {
        match self {
            Failure::Open(why) => Failure::NotHeard(why),
            other => other,
        }
    }

    /// Where nothing can have been changed, or where changing it twice is the same.
    pub(super) fn of_read(self) -> CoordError {
        match self {
            Failure::NotHeard(why) | Failure::Open(why) | Failure::NoSuchRevision(why) => CoordError::Away(why),
            Failure::NoSpace(why) => CoordError::Full(out_of_space(&why)),
            Failure::StaleToken(why) => CoordError::Broken(stale_token(&why)),
            Failure::Refused(why) | Failure::AnswerTooLarge(why) => CoordError::Broken(why),
        }
    }
}

pub(super) fn out_of_space(said: &str) -> String {
    format!("{said}; compact and defragment etcd or raise its quota, then `etcdctl alarm disarm`")
}

/// It was renewed just before and is refused again.
pub(super) fn stale_token(said: &str) -> String {
    format!("{said}, also with a new token; check the rights of the URL's user")
}

pub(super) fn is_stale_token(error: &Error) -> bool {
    matches!(Failure::of(error), Failure::StaleToken(_))
}

/// There was no connection yet, so no request can have gone through it.
fn is_connect_error(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// With its causes: the outermost text is only "transport error".
fn chain(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !said.is_empty() && !text.contains(&said) {
            text = if text.is_empty() { said } else { format!("{text}: {said}") };
        }
        cause = error.source();
    }
    text
}

fn is(said: &str, one_of: &[&str]) -> bool {
    one_of.contains(&said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: Code, said: &str) -> Failure {
        Failure::of(&Error::GRpcStatus(Status::new(code, said)))
    }

    #[test]
    fn only_known_refusals_prove_that_a_commit_was_not_applied() {
        for (code, said) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "error reading from server"),
            (Code::Cancelled, "Timeout expired"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::Internal, "h2 protocol error"),
            (Code::Unknown, "raft proposal dropped"),
            (Code::InvalidArgument, "something new"),
            (Code::ResourceExhausted, "something new"),
        ] {
            assert!(matches!(of(code, said), Failure::Open(_)), "{code:?} {said}");
        }
        let full = of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
        assert!(matches!(full, Failure::NoSpace(_)));
        assert!(matches!(of(Code::Unavailable, "etcdserver: no leader"), Failure::NotHeard(_)));
        assert!(matches!(of(Code::ResourceExhausted, "etcdserver: too many requests"), Failure::NotHeard(_)));
        assert!(matches!(of(Code::PermissionDenied, "etcdserver: permission denied"), Failure::Refused(_)));
        assert!(matches!(of(Code::Unauthenticated, "etcdserver: invalid auth token"), Failure::StaleToken(_)));
    }
}
