//! The one place where this crate spawns futures: each has a name, and all end with the agent.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

#[derive(Clone)]
pub(crate) struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Everything is dropped when `stop` is cancelled.
    pub(crate) fn new(stop: CancellationToken) -> Tasks {
        Tasks { tracker: TaskTracker::new(), stop }
    }

    /// Runs `future` until it ends or the agent does. `name` says in traces whose future it is.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the wrapper: it names the future and ends it with the agent"
    )]
    pub(crate) fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        let span = tracing::debug_span!("task", name);
        let until_stopped = async move {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = future => {}
            }
        };
        drop(self.tracker.spawn(until_stopped.instrument(span)));
    }
}
