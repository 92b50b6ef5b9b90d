//! Writes runs and output to the store in batches, so that nobody waits for it: at most one entry a run, the newest, until it is
//! written. When the end of a run is in the store, its agent and its shard are told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_core::run::Run;
use belfry_core::{NodeId, RunId};
use belfry_proto::session::{RunKey, Stored};
use belfry_store::OutputChunk;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::context::Context;
use crate::live::LiveChunk;
use crate::shard::ShardMessage;

/// A run that ends within this is written once.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// In a herd writes share their cost: no two begin within this, unless a whole batch waits.
const WRITES_APART: Duration = Duration::from_millis(30);
const RUNS_PER_WRITE_MAX: usize = 2_000;
const CHUNKS_WORTH_A_WRITE: usize = 256;
const CHUNK_BYTES_PER_WRITE_MAX: usize = 4 << 20;
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Recorder {
    dirty: Mutex<Dirty>,
    /// There is something to write.
    wake: Notify,
    /// It is the end of a run: somebody waits for it.
    hurry: Notify,
}

#[derive(Debug, Default)]
struct Dirty {
    runs: HashMap<RunId, Run>,
    chunks: Vec<Arc<OutputChunk>>,
    /// Being written right now.
    writing: usize,
}

impl Recorder {
    pub fn run(&self, run: Run) {
        let ended = run.state.is_ended();
        let mut dirty = self.lock();
        match dirty.runs.get_mut(&run.id) {
            Some(held) if held.progress() >= run.progress() => {}
            Some(held) => *held = run,
            None => {
                dirty.runs.insert(run.id, run);
            }
        }
        drop(dirty);
        self.wake.notify_one();
        if ended {
            self.hurry.notify_one();
        }
    }

    pub fn chunk(&self, context: &Context, chunk: OutputChunk, live_only: bool) {
        let chunk = Arc::new(chunk);
        if !live_only {
            self.lock().chunks.push(chunk.clone());
            self.wake.notify_one();
        }
        context.live.chunk(LiveChunk { chunk, live_only });
    }

    /// Waits until everything that was handed over before is in the store.
    pub async fn flushed(&self) {
        loop {
            {
                let dirty = self.lock();
                if dirty.runs.is_empty() && dirty.chunks.is_empty() && dirty.writing == 0 {
                    return;
                }
            }
            self.wake.notify_one();
            self.hurry.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Never ends; a store that is away is tried again.
    pub async fn write_all(&self, context: &Context) {
        let mut retry_delay = Duration::from_millis(50);
        let mut last_write: Option<Instant> = None;
        loop {
            self.wake.notified().await;
            // A run that goes on can wait for company; an end is written at once, with whatever else is there.
            let _ = tokio::time::timeout(FLUSH_EVERY, self.hurry.notified()).await;
            if belfry_core::planted::is("acknowledged_on_receipt") {
                // A store so slow that no kill comes after its write: what was acknowledged is surely not in it.
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            if let Some(last) = last_write.filter(|_| !self.has_whole_batch()) {
                tokio::time::sleep_until(last + WRITES_APART).await;
            }
            last_write = Some(Instant::now());
            if let Some((runs, chunks)) = self.take() {
                let failed = self.write(context, &runs, &chunks).await.err();
                self.lock().writing = 0;
                match failed {
                    None => {
                        retry_delay = Duration::from_millis(50);
                        context.store_health.ok();
                        self.tell(context, runs, &chunks).await;
                    }
                    Some(cause) => {
                        context.store_health.away(context.now(), crate::chain(&cause));
                        self.put_back(runs, chunks);
                        tokio::time::sleep(retry_delay).await;
                        retry_delay = (retry_delay * 2).min(RETRY_DELAY_MAX);
                    }
                }
                // What is left, or came meanwhile.
                self.wake.notify_one();
                self.hurry.notify_one();
            }
        }
    }

    fn has_whole_batch(&self) -> bool {
        let dirty = self.lock();
        dirty.runs.len() >= RUNS_PER_WRITE_MAX || dirty.chunks.len() >= CHUNKS_WORTH_A_WRITE
    }

    fn take(&self) -> Option<(Vec<Run>, Vec<Arc<OutputChunk>>)> {
        let mut dirty = self.lock();
        let mut bytes = 0;
        let few = dirty.chunks.iter().take_while(|chunk| {
            bytes += chunk.bytes.len() + 64;
            bytes <= CHUNK_BYTES_PER_WRITE_MAX
        });
        let count = few.count().max(1).min(dirty.chunks.len());
        let chunks: Vec<_> = dirty.chunks.drain(..count).collect();
        // The end of a run is written only when none of its output waits: with it the output is complete.
        let runs = if dirty.chunks.is_empty() {
            if dirty.runs.len() <= RUNS_PER_WRITE_MAX {
                std::mem::take(&mut dirty.runs).into_values().collect()
            } else {
                let ids: Vec<RunId> = dirty.runs.keys().take(RUNS_PER_WRITE_MAX).copied().collect();
                ids.iter().filter_map(|id| dirty.runs.remove(id)).collect()
            }
        } else {
            Vec::new()
        };
        if runs.is_empty() && chunks.is_empty() {
            return None;
        }
        dirty.writing = runs.len() + chunks.len();
        Some((runs, chunks))
    }

    async fn write(
        &self,
        context: &Context,
        runs: &[Run],
        chunks: &[Arc<OutputChunk>],
    ) -> Result<(), belfry_store::StoreError> {
        if !chunks.is_empty() {
            let plain: Vec<OutputChunk> = chunks.iter().map(|chunk| (**chunk).clone()).collect();
            context.store.append_output(&plain).await?;
        }
        if !runs.is_empty() {
            context.store.record_runs(runs).await?;
        }
        Ok(())
    }

    fn put_back(&self, runs: Vec<Run>, mut chunks: Vec<Arc<OutputChunk>>) {
        let mut dirty = self.lock();
        chunks.append(&mut dirty.chunks);
        dirty.chunks = chunks;
        for run in runs {
            let newer = dirty.runs.get(&run.id).is_some_and(|held| held.progress() >= run.progress());
            if !newer {
                dirty.runs.insert(run.id, run);
            }
        }
    }

    async fn tell(&self, context: &Context, runs: Vec<Run>, chunks: &[Arc<OutputChunk>]) {
        context.live.stored(chunks);
        let mut by_node: HashMap<NodeId, Vec<RunKey>> = HashMap::new();
        let mut by_shard: HashMap<belfry_core::ShardId, Vec<RunId>> = HashMap::new();
        for run in runs.into_iter().filter(|run| run.state.is_ended()) {
            metrics::counter!("belfry_runs_total", "state" => run.state.as_str()).increment(1);
            if let Some(node) = run.node {
                by_node.entry(node).or_default().push(RunKey { run: run.id.to_string(), attempt: run.attempt });
            }
            by_shard.entry(run.job.shard()).or_default().push(run.id);
            context.live.ended(Arc::new(run));
        }
        for (shard, ids) in by_shard {
            if let Some(inbox) = context.shards.inbox(shard) {
                // A shard that is gone is reloaded by its next owner, who looks into the store.
                let _ = inbox.send(ShardMessage::Recorded(ids)).await;
            }
        }
        for (node, keys) in by_node {
            // If the agent is away it reports again, and is told again.
            context.sessions.tell(node, Stored { keys }.into());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Dirty> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
