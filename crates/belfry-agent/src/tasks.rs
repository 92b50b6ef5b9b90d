//! The one place where this crate spawns futures: each has a name, and all end with the agent.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// Where futures run: a simulation has several agents in one thread, each of which can be stopped and killed.
pub type Spawn = Arc<dyn Fn(BoxFuture<'static, ()>) + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Tasks {
    spawn: Spawn,
    stop: CancellationToken,
}

impl Tasks {
    /// Everything is dropped when `stop` is cancelled.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the wrapper: it names the future and ends it with the agent"
    )]
    pub(crate) fn new(stop: CancellationToken) -> Tasks {
        Tasks::on(Arc::new(|future| drop(tokio::spawn(future))), stop)
    }

    pub(crate) fn on(spawn: Spawn, stop: CancellationToken) -> Tasks {
        Tasks { spawn, stop }
    }

    /// Runs `future` until it ends or the agent does. `name` says in traces whose future it is.
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
        (self.spawn)(Box::pin(until_stopped.instrument(span)));
    }
}
