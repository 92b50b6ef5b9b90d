//! Writes runs and output to the store in batches, so that nobody waits for it: at most one entry a run, the newest, until it is
//! written. When the end of a run is in the store, its agent and its shard are told.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_core::attempt::Attempt;
use belfry_core::run::{Run, RunState};
use belfry_core::{NodeId, RunId, ShardId};
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
    attempts: Vec<Attempt>,
    chunks: Vec<Arc<OutputChunk>>,
    /// Being written right now.
    writing: usize,
}

/// What one write takes.
#[derive(Debug)]
struct Batch {
    runs: Vec<Run>,
    attempts: Vec<Attempt>,
    chunks: Vec<Arc<OutputChunk>>,
}

impl Batch {
    /// In the order in which they are needed: whoever sees a run that waits finds the attempt that ended, with its output.
    async fn write(&self, context: &Context) -> Result<(), belfry_store::StoreError> {
        if !self.chunks.is_empty() {
            let plain: Vec<OutputChunk> = self.chunks.iter().map(|chunk| (**chunk).clone()).collect();
            context.store.append_output(&plain).await?;
        }
        context.store.record_attempts(&self.attempts).await?;
        if !self.runs.is_empty() {
            context.store.record_runs(&self.runs).await?;
        }
        Ok(())
    }
}

impl Recorder {
    pub fn run(&self, run: Run) {
        let ended = run.state.is_ended();
        let mut dirty = self.lock();
        match dirty.runs.get_mut(&run.id) {
            // What a run waits for may change without a step forward.
            Some(held) if held.progress() == run.progress() && run.state == RunState::Claimed => *held = run,
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

    /// An attempt that has ended, beside its run.
    pub fn attempt(&self, attempt: Attempt) {
        self.lock().attempts.push(attempt);
        self.wake.notify_one();
        self.hurry.notify_one();
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
                let is_empty = dirty.runs.is_empty() && dirty.attempts.is_empty() && dirty.chunks.is_empty();
                if is_empty && dirty.writing == 0 {
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
            if let Some(batch) = self.take() {
                let failed = batch.write(context).await.err();
                self.lock().writing = 0;
                match failed {
                    None => {
                        retry_delay = Duration::from_millis(50);
                        context.store_health.ok();
                        self.tell(context, batch).await;
                    }
                    Some(cause) => {
                        context.store_health.away(context.now(), crate::chain(&cause));
                        self.put_back(batch);
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

    fn take(&self) -> Option<Batch> {
        let mut dirty = self.lock();
        let mut bytes = 0;
        let few = dirty.chunks.iter().take_while(|chunk| {
            bytes += chunk.bytes.len() + 64;
            bytes <= CHUNK_BYTES_PER_WRITE_MAX
        });
        let count = few.count().max(1).min(dirty.chunks.len());
        let chunks: Vec<_> = dirty.chunks.drain(..count).collect();
        // The end of a run or attempt is written only when none of its output waits: with it the output is complete.
        let attempts = if dirty.chunks.is_empty() { std::mem::take(&mut dirty.attempts) } else { Vec::new() };
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
        if runs.is_empty() && attempts.is_empty() && chunks.is_empty() {
            return None;
        }
        dirty.writing = runs.len() + attempts.len() + chunks.len();
        Some(Batch { runs, attempts, chunks })
    }

    fn put_back(&self, Batch { runs, mut attempts, mut chunks }: Batch) {
        let mut dirty = self.lock();
        attempts.append(&mut dirty.attempts);
        dirty.attempts = attempts;
        chunks.append(&mut dirty.chunks);
        dirty.chunks = chunks;
        for run in runs {
            let newer = dirty.runs.get(&run.id).is_some_and(|held| held.progress() >= run.progress());
            if !newer {
                dirty.runs.insert(run.id, run);
            }
        }
    }

    async fn tell(&self, context: &Context, Batch { runs, attempts, chunks }: Batch) {
        context.live.stored(&chunks);
        let mut by_node: HashMap<NodeId, Vec<RunKey>> = HashMap::new();
        let mut by_shard: HashMap<ShardId, Vec<RunId>> = HashMap::new();
        let mut waiting: HashMap<ShardId, Vec<RunId>> = HashMap::new();
        // What was given up as lost is no result: an agent that has one must not forget it.
        let mut has_result = |node: Option<NodeId>, given_up: bool, run: RunId, attempt: u32| {
            if let Some(node) = node.filter(|_| !given_up) {
                by_node.entry(node).or_default().push(RunKey { run: run.to_string(), attempt });
            }
        };
        for attempt in &attempts {
            has_result(attempt.node, attempt.state == RunState::Lost, attempt.run, attempt.attempt);
        }
        for run in runs {
            if run.state == RunState::Waiting {
                waiting.entry(run.job.shard()).or_default().push(run.id);
            }
            if !run.state.is_ended() {
                continue;
            }
            by_shard.entry(run.job.shard()).or_default().push(run.id);
            metrics::counter!("belfry_runs_total", "state" => run.state.as_str()).increment(1);
            // What a node fired by itself only the node itself gives up here.
            has_result(run.node, run.state == RunState::Lost && !run.marks.local, run.id, run.attempt);
            context.live.ended(Arc::new(run));
        }
        let ended = by_shard.into_iter().map(|(shard, ids)| (shard, ShardMessage::Recorded(ids)));
        let waiting = waiting.into_iter().map(|(shard, ids)| (shard, ShardMessage::WaitRecorded(ids)));
        for (shard, message) in ended.chain(waiting) {
            if let Some(inbox) = context.shards.inbox(shard) {
                // A shard that is gone is reloaded by its next owner, who looks into the store.
                let _ = inbox.send(message).await;
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
