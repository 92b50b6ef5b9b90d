//! Writes runs and output to the store in batches, so that nobody waits for it: at most one entry a run, the newest, until it is
//! written. When the end of a run is in the store, its agent and its shard are told. While the store is away what waits has a bound:
//! output beyond it is left to the agents, which have it on their disks (`taken`), and beyond a number of runs nothing is claimed. What nodes
//! fired by themselves takes at most half of that number, and the rest of it is left to them as well.

mod taken;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_core::attempt::Attempt;
use belfry_core::run::{Run, RunState};
use belfry_core::{NodeId, RunId, ShardId};
use belfry_proto::session::{RunKey, SendAgain, Stored};
use belfry_store::OutputChunk;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::context::Context;
use crate::live::LiveChunk;
use crate::shard::ShardMessage;
use crate::view::Unrecorded;
use taken::{Taken, Verdict};

/// A run that ends within this is written once.
const FLUSH_EVERY: Duration = Duration::from_millis(100);
/// In a herd writes share their cost: no two begin within this, unless a whole batch waits.
const WRITES_APART: Duration = Duration::from_millis(30);
const RUNS_PER_WRITE_MAX: usize = 2_000;
const CHUNKS_WORTH_A_WRITE: usize = 256;
const CHUNK_BYTES_PER_WRITE_MAX: usize = 4 << 20;
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// What the store refuses for good is offered to it again after so long: another Belfry may serve by then.
const REFUSED_AGAIN_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Recorder {
    dirty: Mutex<Dirty>,
    /// There is something to write.
    wake: Notify,
    /// It is the end of a run: somebody waits for it.
    hurry: Notify,
    /// It was said that too much waits.
    is_full: AtomicBool,
    /// The last round of which nothing waits any more.
    settled: watch::Sender<u64>,
}

/// It is written in rounds: one begins with all that waits when the one before it is through. So what was handed over is written although
/// more comes all the time.
#[derive(Debug, Default)]
struct Dirty {
    round: Waiting,
    /// Rounds that have begun.
    rounds: u64,
    /// For the next round.
    new: Waiting,
    /// Of all chunks, also of those that are being written.
    chunk_bytes: usize,
    taken: Taken,
    runs_writing: usize,
    /// Set aside, see [`Refused`].
    refused: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    runs: HashMap<RunId, Run>,
    attempts: Vec<Attempt>,
    chunks: Vec<Arc<OutputChunk>>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.attempts.is_empty() && self.chunks.is_empty()
    }

    fn records(&self) -> usize {
        self.runs.len() + self.attempts.len()
    }
}

impl Dirty {
    fn is_written_no_more(&mut self, batch: &Batch) {
        self.runs_writing = self.runs_writing.saturating_sub(batch.runs.len() + batch.attempts.len());
    }

    /// Runs and attempts that the store does not have.
    fn unrecorded(&self) -> usize {
        self.round.records() + self.new.records() + self.runs_writing + self.refused
    }

    fn has_room_for_local(&self, context: &Context, run: RunId) -> bool {
        let waits = self.round.runs.contains_key(&run) || self.new.runs.contains_key(&run);
        waits || self.unrecorded() < context.config.unrecorded_runs_max / 2
    }

    fn put(&mut self, run: Run) {
        match self.round.runs.get_mut(&run.id).or_else(|| self.new.runs.get_mut(&run.id)) {
            // What a run waits for may change without a step forward.
            Some(held) if held.progress() == run.progress() && run.state == RunState::Claimed => *held = run,
            // Nor is it one that it takes too long.
            Some(held) if held.progress() == run.progress() && run.overdue_at.is_some() => *held = run,
            Some(held) if held.progress() >= run.progress() => {}
            Some(_) | None => {
                // Not before the output and the attempts that came before it.
                self.round.runs.remove(&run.id);
                self.new.runs.insert(run.id, run);
            }
        }
    }

    fn take_chunk(&mut self, context: &Context, chunk: &Arc<OutputChunk>) -> Verdict {
        let bytes = chunk.bytes.len();
        // A single one has room, however large: else it would never be taken.
        let has_room = self.chunk_bytes == 0 || self.chunk_bytes + bytes <= context.config.unrecorded_output_bytes_max;
        let verdict = self.taken.judge((chunk.run, chunk.attempt), chunk.seq, has_room);
        if verdict == Verdict::Take {
            self.chunk_bytes += bytes;
            self.new.chunks.push(chunk.clone());
        }
        verdict
    }
}

/// What one write takes.
#[derive(Debug)]
struct Batch {
    runs: Vec<Run>,
    attempts: Vec<Attempt>,
    chunks: Vec<Arc<OutputChunk>>,
}

impl Batch {
    /// Each entry in a batch of its own, in the order in which they are needed.
    fn apart(self) -> Vec<Batch> {
        let nothing = || Batch { runs: vec![], attempts: vec![], chunks: vec![] };
        let chunks = self.chunks.into_iter().map(|chunk| Batch { chunks: vec![chunk], ..nothing() });
        let attempts = self.attempts.into_iter().map(|attempt| Batch { attempts: vec![attempt], ..nothing() });
        let runs = self.runs.into_iter().map(|run| Batch { runs: vec![run], ..nothing() });
        chunks.chain(attempts).chain(runs).collect()
    }

    fn together(some: Vec<Batch>) -> Batch {
        let mut all = Batch { runs: vec![], attempts: vec![], chunks: vec![] };
        for one in some {
            all.runs.extend(one.runs);
            all.attempts.extend(one.attempts);
            all.chunks.extend(one.chunks);
        }
        all
    }

    fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.attempts.is_empty() && self.chunks.is_empty()
    }

    /// Of a batch of one.
    fn run(&self) -> Option<RunId> {
        let chunk = self.chunks.first().map(|chunk| chunk.run);
        chunk.or(self.attempts.first().map(|attempt| attempt.run)).or(self.runs.first().map(|run| run.id))
    }

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

/// What the store refuses for good while it takes others: a defect of ours. It is told of, and kept as long as this server lives, with all
/// that follows of the same run: its end must not be in the store, nor its agent told so, without what came before it. Other runs go on.
#[derive(Default)]
struct Refused {
    kept: Vec<Batch>,
    runs: HashSet<RunId>,
    offered: Option<Instant>,
}

impl Refused {
    fn keep(&mut self, some: Vec<Batch>) {
        self.runs.extend(some.iter().filter_map(Batch::run));
        self.kept.extend(some);
        self.offered.get_or_insert_with(Instant::now);
    }

    /// What belongs to a run that is kept already, apart.
    fn withhold(&self, batch: &mut Batch) -> Vec<Batch> {
        if self.runs.is_empty() {
            return Vec::new();
        }
        let is_kept = |run: &RunId| self.runs.contains(run);
        let runs = batch.runs.extract_if(.., |run| is_kept(&run.id)).collect();
        let attempts = batch.attempts.extract_if(.., |attempt| is_kept(&attempt.run)).collect();
        let chunks = batch.chunks.extract_if(.., |chunk| is_kept(&chunk.run)).collect();
        Batch { runs, attempts, chunks }.apart()
    }

    async fn is_due(&self) {
        match self.offered.filter(|_| !self.kept.is_empty()) {
            Some(offered) => tokio::time::sleep_until(offered + REFUSED_AGAIN_AFTER).await,
            None => std::future::pending().await,
        }
    }
}

impl Recorder {
    pub fn run(&self, run: Run) {
        let ended = run.state.is_ended();
        self.lock().put(run);
        self.wake.notify_one();
        if ended {
            self.hurry.notify_one();
        }
    }

    /// An attempt that has ended, beside its run.
    pub fn attempt(&self, attempt: Attempt) {
        self.lock().new.attempts.push(attempt);
        self.wake.notify_one();
        self.hurry.notify_one();
    }

    /// What is not taken is shown to followers all the same.
    pub fn chunk(&self, context: &Context, chunk: OutputChunk, live_only: bool) {
        let chunk = Arc::new(chunk);
        let verdict = if live_only { Verdict::Leave } else { self.lock().take_chunk(context, &chunk) };
        match verdict {
            Verdict::Known => return,
            Verdict::Take => self.wake.notify_one(),
            Verdict::Leave => {}
        }
        context.live.chunk(LiveChunk { chunk, live_only }, verdict == Verdict::Take);
    }

    /// Whether the end of an attempt that printed so many chunks may be recorded. If not, its agent will say all of it again.
    pub fn takes_end(&self, context: &Context, run: RunId, attempt: u32, chunks: u32, node: NodeId) -> bool {
        let mut dirty = self.lock();
        if dirty.taken.has_all((run, attempt), chunks.into()) {
            return true;
        }
        dirty.taken.missed((run, attempt), node);
        drop(dirty);
        self.ask_again(context);
        false
    }

    /// What a node fired by itself has begun. Its end will say all of this, so without room it is passed over.
    pub fn local_run(&self, context: &Context, run: Run) {
        if self.lock().has_room_for_local(context, run.id) {
            self.run(run);
        }
    }

    /// Whether the end of what a node fired by itself may be recorded. If not, the node will say it again: there is no end to what it may
    /// fire while the store is away, and runs that are ordered must have room beside it.
    pub fn takes_local_end(&self, context: &Context, run: RunId, attempt: u32, node: NodeId) -> bool {
        let mut dirty = self.lock();
        let has_room = dirty.has_room_for_local(context, run);
        if !has_room {
            dirty.taken.missed_local((run, attempt), node);
        }
        has_room
    }

    /// As soon as there is room, agents are asked for what was not taken.
    fn ask_again(&self, context: &Context) {
        let mut by_node: HashMap<NodeId, Vec<RunKey>> = HashMap::new();
        {
            let mut dirty = self.lock();
            let mut missed = Vec::new();
            if dirty.chunk_bytes <= context.config.unrecorded_output_bytes_max / 4 {
                missed.extend(dirty.taken.next_missed());
            }
            if dirty.unrecorded() <= context.config.unrecorded_runs_max / 4 {
                missed.extend(dirty.taken.next_missed_local());
            }
            for ((run, attempt), node) in missed {
                by_node.entry(node).or_default().push(RunKey { run: run.to_string(), attempt });
            }
        }
        for (node, keys) in by_node {
            context.sessions.tell(node, SendAgain { keys }.into());
        }
    }

    pub fn unrecorded(&self) -> Unrecorded {
        let dirty = self.lock();
        Unrecorded {
            runs: dirty.unrecorded() as u64,
            output_bytes: dirty.chunk_bytes as u64,
            full: self.is_full.load(Ordering::Relaxed),
        }
    }

    /// So many runs wait for the store that no more are claimed.
    pub fn is_full(&self, context: &Context) -> bool {
        let is_full = self.unrecorded().runs >= context.config.unrecorded_runs_max as u64;
        if self.is_full.swap(is_full, Ordering::Relaxed) != is_full {
            if is_full {
                tracing::error!(
                    "{} runs wait for the store: nothing more is claimed until it takes them; fires that pass follow `misfire`",
                    context.config.unrecorded_runs_max
                );
            } else {
                tracing::info!("the store takes runs again: fires are claimed");
            }
        }
        is_full
    }

    pub fn forget_idle(&self, context: &Context) {
        self.lock().taken.forget_idle(|run| context.open.get(run).is_some());
    }

    /// Waits until everything that was handed over before is in the store, or set aside; not for what comes meanwhile.
    pub async fn flushed(&self) {
        let last = {
            let dirty = self.lock();
            dirty.rounds + u64::from(!dirty.new.is_empty())
        };
        self.wake.notify_one();
        self.hurry.notify_one();
        let _ = self.settled.subscribe().wait_for(|settled| *settled >= last).await;
    }

    /// Never ends; a store that is away is tried again.
    pub async fn write_all(&self, context: &Context) {
        let mut retry_delay = Duration::from_millis(50);
        let mut last_write: Option<Instant> = None;
        let mut refused = Refused::default();
        loop {
            tokio::select! {
                () = self.wake.notified() => {}
                () = refused.is_due() => self.offer_again(context, &mut refused).await,
            }
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
            if let Some(mut batch) = self.take() {
                let of_kept = refused.withhold(&mut batch);
                self.set_aside(&mut refused, of_kept);
                let taken = match batch.write(context).await {
                    Ok(()) => {
                        context.store_health.ok();
                        self.is_written(context, batch).await;
                        true
                    }
                    Err(cause) if cause.is_transient() => {
                        context.store_health.away(context.now(), crate::chain(&cause));
                        self.put_back(batch);
                        false
                    }
                    // It may not take one of them: the others must not wait for that.
                    Err(_) => self.write_apart(context, batch, &mut refused).await,
                };
                if taken {
                    retry_delay = Duration::from_millis(50);
                } else {
                    tokio::time::sleep(retry_delay).await;
                    retry_delay = (retry_delay * 2).min(RETRY_DELAY_MAX);
                }
                self.settle();
                // What is left, or came meanwhile.
                self.wake.notify_one();
                self.hurry.notify_one();
            }
        }
    }

    /// Nothing is being written.
    fn settle(&self) {
        let dirty = self.lock();
        if dirty.round.is_empty() {
            self.settled.send_replace(dirty.rounds);
        }
    }

    fn has_whole_batch(&self) -> bool {
        let Dirty { round, new, .. } = &*self.lock();
        !round.is_empty() || new.runs.len() >= RUNS_PER_WRITE_MAX || new.chunks.len() >= CHUNKS_WORTH_A_WRITE
    }

    fn take(&self) -> Option<Batch> {
        let mut dirty = self.lock();
        if dirty.round.is_empty() {
            if dirty.new.is_empty() {
                return None;
            }
            dirty.round = std::mem::take(&mut dirty.new);
            dirty.rounds += 1;
        }
        let round = &mut dirty.round;
        let mut bytes = 0;
        let few = round.chunks.iter().take_while(|chunk| {
            bytes += chunk.bytes.len() + 64;
            bytes <= CHUNK_BYTES_PER_WRITE_MAX
        });
        let count = few.count().max(1).min(round.chunks.len());
        let chunks: Vec<_> = round.chunks.drain(..count).collect();
        // The end of a run or attempt is written only when none of its output waits: with it the output is complete.
        let count = if round.chunks.is_empty() { round.attempts.len().min(RUNS_PER_WRITE_MAX) } else { 0 };
        let attempts: Vec<Attempt> = round.attempts.drain(..count).collect();
        // And a run that waits, or has ended, after the attempts before it.
        let runs = if round.chunks.is_empty() && round.attempts.is_empty() {
            if round.runs.len() <= RUNS_PER_WRITE_MAX {
                std::mem::take(&mut round.runs).into_values().collect()
            } else {
                let ids: Vec<RunId> = round.runs.keys().take(RUNS_PER_WRITE_MAX).copied().collect();
                ids.iter().filter_map(|id| round.runs.remove(id)).collect()
            }
        } else {
            Vec::new()
        };
        dirty.runs_writing = runs.len() + attempts.len();
        Some(Batch { runs, attempts, chunks })
    }

    async fn is_written(&self, context: &Context, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        {
            let mut dirty = self.lock();
            dirty.is_written_no_more(&batch);
            dirty.chunk_bytes -= batch.chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>();
        }
        self.tell(context, batch).await;
        self.ask_again(context);
    }

    /// One by one, and nothing of a run after what is refused of it. False: the store took nothing, so it is no single record's fault; all of
    /// them wait as they do while it is away.
    async fn write_apart(&self, context: &Context, batch: Batch, refused: &mut Refused) -> bool {
        let mut left = VecDeque::from(batch.apart());
        let (mut held, mut not_taken, mut any_taken) = (HashSet::new(), Vec::new(), false);
        let mut last_cause = None;
        while let Some(one) = left.pop_front() {
            if one.run().is_some_and(|run| held.contains(&run)) {
                not_taken.push(one);
                continue;
            }
            match one.write(context).await {
                Ok(()) => {
                    any_taken = true;
                    self.is_written(context, one).await;
                }
                Err(cause) if cause.is_transient() => {
                    context.store_health.away(context.now(), crate::chain(&cause));
                    self.put_back(Batch::together(not_taken.into_iter().chain([one]).chain(left).collect()));
                    return false;
                }
                Err(cause) => {
                    held.extend(one.run());
                    not_taken.push(one);
                    last_cause = Some(crate::chain(&cause));
                }
            }
        }
        let cause = last_cause.unwrap_or_default();
        if any_taken {
            context.store_health.ok();
            let runs: Vec<String> = held.iter().map(RunId::to_string).collect();
            tracing::error!(
                "the store refuses what is to be recorded of {}; it is kept in memory and offered again every ten seconds: {cause}",
                runs.join(", ")
            );
            self.set_aside(refused, not_taken);
        } else {
            context.store_health.away(context.now(), cause);
            self.put_back(Batch::together(not_taken));
        }
        any_taken
    }

    fn set_aside(&self, refused: &mut Refused, some: Vec<Batch>) {
        if some.is_empty() {
            return;
        }
        let mut dirty = self.lock();
        some.iter().for_each(|one| dirty.is_written_no_more(one));
        refused.keep(some);
        dirty.refused = refused.kept.len();
    }

    /// Each run's in their order, up to the first that is refused again.
    async fn offer_again(&self, context: &Context, refused: &mut Refused) {
        let mut kept = VecDeque::from(std::mem::take(&mut refused.kept));
        let (mut held, mut not_taken) = (HashSet::new(), Vec::new());
        while let Some(one) = kept.pop_front() {
            if one.run().is_some_and(|run| held.contains(&run)) {
                not_taken.push(one);
                continue;
            }
            match one.write(context).await {
                Ok(()) => self.is_written(context, one).await,
                Err(cause) => {
                    held.extend(one.run());
                    not_taken.push(one);
                    if cause.is_transient() {
                        not_taken.extend(kept);
                        break;
                    }
                }
            }
        }
        *refused = Refused::default();
        if !not_taken.is_empty() {
            refused.keep(not_taken);
        }
        self.lock().refused = refused.kept.len();
    }

    /// With all that has come since: what the store took of that says whether it refused this alone.
    fn put_back(&self, batch: Batch) {
        let mut dirty = self.lock();
        dirty.is_written_no_more(&batch);
        let (mut round, mut new) = (std::mem::take(&mut dirty.round), std::mem::take(&mut dirty.new));
        let runs = std::mem::take(&mut round.runs);
        let mut all = Waiting { runs, attempts: batch.attempts, chunks: batch.chunks };
        for later in [&mut round, &mut new] {
            all.attempts.append(&mut later.attempts);
            all.chunks.append(&mut later.chunks);
        }
        for run in batch.runs.into_iter().chain(new.runs.into_values()) {
            if all.runs.get(&run.id).is_none_or(|held| held.progress() <= run.progress()) {
                all.runs.insert(run.id, run);
            }
        }
        dirty.round = all;
        dirty.rounds += 1;
    }

    async fn tell(&self, context: &Context, Batch { runs, attempts, chunks }: Batch) {
        context.live.stored(&chunks);
        let mut by_node: HashMap<NodeId, Vec<RunKey>> = HashMap::new();
        let mut by_shard: HashMap<ShardId, Vec<RunId>> = HashMap::new();
        let mut waiting: HashMap<ShardId, Vec<RunId>> = HashMap::new();
        // What was given up as lost is no result: an agent that has one must not forget it.
        let mut results = Vec::new();
        let mut has_result = |node: Option<NodeId>, given_up: bool, run: RunId, attempt: u32| {
            if let Some(node) = node.filter(|_| !given_up) {
                results.push((run, attempt));
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
        let mut dirty = self.lock();
        results.into_iter().for_each(|key| dirty.taken.forget(key));
    }

    fn lock(&self) -> MutexGuard<'_, Dirty> {
        self.dirty.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
