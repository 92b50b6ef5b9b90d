//! Brings what was written to the disk, at most every 100 ms, on a thread of its own: a slow disk delays no result.

use std::fs::File;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

const SYNC_INTERVAL: Duration = Duration::from_millis(100);

pub(super) struct Syncer {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    unsynced: Vec<Arc<File>>,
    closed: bool,
}

impl Syncer {
    pub(super) fn start() -> io::Result<Syncer> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        // Fate: ends with the writer, after a last sync.
        std::thread::Builder::new().name("spool-sync".into()).spawn(move || sync_until_closed(&theirs))?;
        Ok(Syncer { shared })
    }

    /// Something was written to `file`.
    pub(super) fn written(&self, file: &Arc<File>) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.unsynced.iter().any(|known| Arc::ptr_eq(known, file)) {
            state.unsynced.push(Arc::clone(file));
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.changed.notify_one();
    }
}

#[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
fn sync_until_closed(shared: &Shared) {
    loop {
        let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.unsynced.is_empty() && !state.closed {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let closed = state.closed;
        let files = std::mem::take(&mut state.unsynced);
        drop(state);
        sync(&files);
        if closed {
            return;
        }
        std::thread::sleep(SYNC_INTERVAL);
    }
}

fn sync(files: &[Arc<File>]) {
    for file in files {
        if let Err(cause) = file.sync_data() {
            tracing::error!(%cause, "bring results of runs to the disk; a power failure now could lose them");
        }
    }
}
