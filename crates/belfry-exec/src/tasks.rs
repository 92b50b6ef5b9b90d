//! The one place where this crate spawns a future, with its name.

use std::future::Future;

use tracing::Instrument;

/// Runs `future` until it ends. `name` says in traces whose future it is; its fate is written at the call.
#[expect(clippy::disallowed_methods, reason = "the named wrapper that the ban points at")]
pub(crate) fn spawn(name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
    let span = tracing::debug_span!("task", name);
    drop(tokio::spawn(future.instrument(span)));
}
