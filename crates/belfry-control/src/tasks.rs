//! The one place where a server's futures are spawned: each has a name, and a fate when it panics.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::task::TaskTracker;
use tracing::error;

/// The process that a server lives in: where its futures run, and how it ends itself. A simulation has several of them in one
/// thread, and its own way to end one.
pub trait Host: Send + Sync + 'static {
    /// Runs it to its end, or to the process's.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>);

    /// Ends the process, so that its supervisor starts it again. Nothing that runs on after this has any effect.
    fn exit(&self, status: i32);
}

/// The process of this program.
struct ThisProcess;

impl Host for ThisProcess {
    #[expect(clippy::disallowed_methods, reason = "the named wrapper that the ban points at")]
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        drop(tokio::spawn(future));
    }

    fn exit(&self, status: i32) {
        std::process::exit(status);
    }
}

/// Knows every future of a server; [`Tasks::ended`] waits for all of them.
#[derive(Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    host: Arc<dyn Host>,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::on(Arc::new(ThisProcess))
    }
}

impl Tasks {
    pub fn on(host: Arc<dyn Host>) -> Self {
        Self { tracker: TaskTracker::new(), host }
    }

    /// A future that panics takes the whole process down: a server that goes on without one of its parts would look alive
    /// and do half of its work, which is worse than a restart.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        // Caught where it is polled: what is dropped beside another thread's panic, as in a test that failed, did not panic itself.
        let guarded = self.tracker.track_future(async move {
            if AssertUnwindSafe(future).catch_unwind().await.is_err() {
                error!("part `{name}` of the server panicked; the process ends so that a supervisor starts it again");
                std::process::abort();
            }
        });
        self.host.spawn(name, Box::pin(guarded));
    }

    pub async fn ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    pub(crate) fn exit_process(&self, status: i32) {
        self.host.exit(status);
    }
}
