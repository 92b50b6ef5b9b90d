//! The one place of this crate that starts futures.

use tokio::task::JoinHandle;

#[expect(clippy::disallowed_methods, reason = "the place that the ban points at")]
pub(crate) fn spawn<T: Send + 'static>(
    _name: &'static str,
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    tokio::spawn(future)
}
