//! The one place where a server's futures are spawned: each has a name, and a fate when it panics.

use std::future::Future;

use tokio_util::task::TaskTracker;
use tracing::error;

/// Knows every future of a server; [`Tasks::ended`] waits for all of them.
#[derive(Clone, Debug, Default)]
pub struct Tasks(TaskTracker);

impl Tasks {
    /// A future that panics takes the whole process down: a server that goes on without one of its parts would look alive
    /// and do half of its work, which is worse than a restart.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let guard = Guard(name);
        #[expect(clippy::disallowed_methods, reason = "the named wrapper that the ban points at")]
        let _handle = self.0.spawn(async move {
            let guard = guard;
            future.await;
            std::mem::forget(guard);
        });
    }

    pub async fn ended(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

struct Guard(&'static str);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            error!("part `{}` of the server panicked; the process ends so that a supervisor starts it again", self.0);
            std::process::abort();
        }
    }
}
