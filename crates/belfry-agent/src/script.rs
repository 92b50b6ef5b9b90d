//! Scripts: the job's own body, or what a server sent for the name, held to its digest and executed from memory that nobody can change.

use belfry_core::job::Script;
use belfry_exec::Sealed;
use belfry_proto::session;
use sha2::{Digest, Sha256};

use crate::prepare::{CANNOT_RUN, CannotStart};

/// A script that is ready to be executed.
pub(crate) struct Ready {
    /// What it sees as `$0`.
    pub name: String,
    pub sealed: Sealed,
    /// Which one it is, for the record.
    pub which: String,
}

/// `sent`: what came with the order for a script that is stored under a name.
pub(crate) fn ready(script: &Script, job: &str, sent: Option<&session::Script>) -> Result<Ready, CannotStart> {
    let (name, version, body, wanted) = match (&script.body, &script.name, sent) {
        (Some(body), ..) => (job, None, body.as_str(), None),
        (None, Some(name), Some(sent)) => (name.as_str(), Some(sent.version), sent.body.as_str(), Some(&sent.sha256)),
        (None, name, _) => {
            let name = name.as_deref().unwrap_or_default();
            let reason = format!("the server knows no script `{name}`; store it with `belfry script put {name} FILE`");
            return Err(CannotStart::failed(reason, CANNOT_RUN));
        }
    };
    let found: String = Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    if let Some(wanted) = wanted.filter(|wanted| **wanted != found) {
        let reason = format!("signature: script {name} came with sha256 {found}, and the server says {wanted}");
        return Err(CannotStart::skipped(reason));
    }
    let sealed = Sealed::script(body.as_bytes(), script.interpreter.as_deref())
        .map_err(|cause| CannotStart::failed(cause.to_string(), CANNOT_RUN))?;
    let which = match version {
        Some(version) => format!("{name} version {version}, sha256 {found}"),
        None => format!("sha256 {found}"),
    };
    Ok(Ready { name: name.to_owned(), sealed, which })
}
