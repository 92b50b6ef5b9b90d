//! "Something under this prefix may have changed": merged, possibly late or lost, never the change itself.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::{Stream, StreamExt, stream};
use tokio::sync::Notify;

use crate::{Coordinator, Write};

const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

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

/// A watch that is opened by whoever waits for it, as often as that fails.
pub struct Watch {
    coordinator: Arc<dyn Coordinator>,
    prefix: &'static str,
    hints: Option<Hints>,
}

impl Watch {
    /// Not open yet.
    pub fn on(coordinator: Arc<dyn Coordinator>, prefix: &'static str) -> Self {
        Self { coordinator, prefix, hints: None }
    }

    /// Whether it is open; one that is not is tried once.
    pub async fn open(&mut self) -> bool {
        if self.hints.is_none() {
            self.hints = self.coordinator.watch(self.prefix).await.ok();
        }
        self.hints.is_some()
    }

    /// As [`Hints::changed`]. That it was opened is a hint too: what changed before was told to nobody.
    pub async fn changed(&mut self) {
        match &mut self.hints {
            Some(hints) => hints.changed().await,
            None => {
                while !self.open().await {
                    tokio::time::sleep(OPEN_AGAIN_AFTER).await;
                }
            }
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
