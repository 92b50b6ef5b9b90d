//! What happens right now, for followers: output as it comes in, and each change of a run. Holds only what the store does not
//! have yet; a follower reads the store for the rest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use belfry_core::RunId;
use belfry_core::run::Run;
use belfry_store::OutputChunk;
use tokio::sync::broadcast;

/// A follower that is further behind than this gets `Lagged` and reads the store again.
const EVENTS_BEHIND_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub enum LiveEvent {
    Chunk(LiveChunk),
    Ended(Arc<Run>),
}

#[derive(Clone, Debug)]
pub struct LiveChunk {
    pub chunk: Arc<OutputChunk>,
    /// From the part of the output that is not kept.
    pub live_only: bool,
}

/// A run as a new follower finds it: first `pending` (received, maybe not stored), then `events`.
pub struct Followed {
    pub pending: Vec<LiveChunk>,
    pub events: broadcast::Receiver<LiveEvent>,
    /// False: nothing is known of it here; it has ended, or its output has not begun.
    pub known: bool,
}

#[derive(Debug)]
struct LiveRun {
    pending: VecDeque<LiveChunk>,
    events: broadcast::Sender<LiveEvent>,
}

impl LiveRun {
    fn new() -> Self {
        Self { pending: VecDeque::new(), events: broadcast::channel(EVENTS_BEHIND_MAX).0 }
    }
}

#[derive(Clone, Debug)]
pub struct Live {
    runs: Arc<Mutex<HashMap<RunId, LiveRun>>>,
    changes: broadcast::Sender<Arc<Run>>,
}

impl Default for Live {
    fn default() -> Self {
        Self { runs: Arc::default(), changes: broadcast::channel(EVENTS_BEHIND_MAX).0 }
    }
}

impl Live {
    /// Follow first, then read the store: what comes in between is in `pending` or in `events`.
    pub fn follow(&self, run: RunId) -> Followed {
        let mut runs = self.lock();
        let known = runs.contains_key(&run);
        let live = runs.entry(run).or_insert_with(LiveRun::new);
        Followed { pending: live.pending.iter().cloned().collect(), events: live.events.subscribe(), known }
    }

    /// Every change of every run.
    pub fn changes(&self) -> broadcast::Receiver<Arc<Run>> {
        self.changes.subscribe()
    }

    /// `is_taken`: it is on its way into the store. What is not comes only now, or is asked for again.
    pub(crate) fn chunk(&self, chunk: LiveChunk, is_taken: bool) {
        let mut runs = self.lock();
        let live = runs.entry(chunk.chunk.run).or_insert_with(LiveRun::new);
        if is_taken {
            live.pending.push_back(chunk.clone());
        }
        // No follower is no error.
        let _ = live.events.send(LiveEvent::Chunk(chunk));
    }

    /// The store has these chunks; followers find them there.
    pub(crate) fn stored(&self, chunks: &[Arc<OutputChunk>]) {
        let mut runs = self.lock();
        for chunk in chunks {
            if let Some(live) = runs.get_mut(&chunk.run) {
                live.pending.retain(|held| (held.chunk.attempt, held.chunk.seq) != (chunk.attempt, chunk.seq));
            }
        }
    }

    pub(crate) fn changed(&self, run: &Arc<Run>) {
        let _ = self.changes.send(run.clone());
    }

    /// The store has the end of the run, and so all of its output.
    pub(crate) fn ended(&self, run: Arc<Run>) {
        if let Some(live) = self.lock().remove(&run.id) {
            let _ = live.events.send(LiveEvent::Ended(run));
        }
    }

    /// Drops the entries of followers who came for a run that is not going, and left.
    pub(crate) fn forget_unfollowed(&self) {
        self.lock().retain(|_, live| !live.pending.is_empty() || live.events.receiver_count() > 0);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<RunId, LiveRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
