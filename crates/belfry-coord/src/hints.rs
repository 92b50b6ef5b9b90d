//! "Something under this prefix may have changed": merged, possibly late or lost, never the change itself.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::Notify;

use crate::Write;

/// A watch. Dropping it ends it.
pub struct Hints(Pin<Box<dyn Stream<Item = ()> + Send>>);

impl Hints {
    pub fn new(stream: impl Stream<Item = ()> + Send + 'static) -> Self {
        Self(Box::pin(stream))
    }

    /// Waits for the next hint; any number of changes since the last call are one. Loses nothing when it is cancelled. A
    /// watch whose backend gave up waits for ever: lists every 10 s find what it would have told.
    pub async fn changed(&mut self) {
        if self.0.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}

/// Tells the watches of this process about commits of this process.
#[derive(Clone, Default)]
pub(crate) struct Listeners(Arc<Mutex<Vec<Listener>>>);

struct Listener {
    prefix: String,
    notify: Weak<Notify>,
}

impl Listeners {
    pub(crate) fn listen(&self, prefix: &str) -> Arc<Notify> {
        let notify = Arc::new(Notify::new());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|listener| listener.notify.strong_count() > 0);
        all.push(Listener { prefix: prefix.to_owned(), notify: Arc::downgrade(&notify) });
        notify
    }

    pub(crate) fn tell(&self, writes: &[Write]) {
        for listener in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            if writes.iter().any(|write| write.key().starts_with(&listener.prefix))
                && let Some(notify) = listener.notify.upgrade()
            {
                // One permit is kept when nobody waits right now: hints merge, none is missed.
                notify.notify_one();
            }
        }
    }

    pub(crate) fn hints(&self, prefix: &str) -> Hints {
        Hints::new(stream::unfold(self.listen(prefix), |notify| async move {
            notify.notified().await;
            Some(((), notify))
        }))
    }
}
