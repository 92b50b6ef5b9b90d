//! Brings job definitions from the store to the shards: all of them when a shard is taken, changes as they happen; and what people
//! set about nodes. One task does
//! both in order, so that no change falls between.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belfry_coord::{Watch, keys};
use belfry_core::job::Action;
use belfry_core::place::LastNode;
use belfry_core::{Job, JobId, ShardId, Timestamp};
use belfry_store::{JobChange, RawJob, Store, StoreError};
use tokio::sync::{mpsc, oneshot};

use crate::context::Context;
use crate::shard::ShardMessage;
use crate::{scripts, snapshot};

/// Changes that no hint told of are found after this.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// While shards fire what a snapshot has.
const LOOK_WITHOUT_STORE_EVERY: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(500);
const REQUESTS_MAX: usize = 1024;

struct Load {
    shards: Vec<ShardId>,
    done: oneshot::Sender<()>,
}

#[derive(Clone)]
pub struct Feed {
    loads: mpsc::Sender<Load>,
    changes: mpsc::Sender<oneshot::Sender<()>>,
}

impl Feed {
    pub fn start(context: Arc<Context>) -> Self {
        let (loads, wanted) = mpsc::channel(REQUESTS_MAX);
        let (changes, asked) = mpsc::channel(REQUESTS_MAX);
        let tasks = context.tasks.clone();
        tasks.spawn("feed", serve(context, wanted, asked));
        Self { loads, changes }
    }

    /// Answers when the shards have been given their jobs.
    pub async fn load(&self, shards: Vec<ShardId>) {
        let (done, answer) = oneshot::channel();
        if self.loads.send(Load { shards, done }).await.is_ok() {
            let _ = answer.await;
        }
    }

    /// Answers when every change that was in the store before the call has reached its shard.
    pub async fn changes(&self) {
        let (done, answer) = oneshot::channel();
        if self.changes.send(done).await.is_ok() {
            let _ = answer.await;
        }
    }
}

/// What is looked for, and who waits for it.
#[derive(Default)]
struct Look {
    /// Not for changed jobs only.
    whole: bool,
    waiting: Vec<oneshot::Sender<()>>,
}

/// How far the jobs are known.
#[derive(Default)]
struct Known {
    seq: Option<u64>,
    from_snapshot: HashSet<ShardId>,
}

async fn serve(
    context: Arc<Context>,
    mut loads: mpsc::Receiver<Load>,
    mut changes: mpsc::Receiver<oneshot::Sender<()>>,
) {
    let mut known = Known::default();
    // Hints only: the look every 10 s finds what a broken watch does not tell.
    let mut watch = Watch::on(context.coordinator.clone(), keys::CHANGED);
    let mut wanted: Option<Look> = None;
    loop {
        let pause = if known.from_snapshot.is_empty() { LOOK_EVERY } else { LOOK_WITHOUT_STORE_EVERY };
        let load = match wanted.take() {
            None => tokio::select! {
                biased;
                load = loads.recv() => load,
                asked = changes.recv() => {
                    wanted = Some(Look { whole: false, waiting: asked.into_iter().collect() });
                    continue;
                }
                () = watch.changed() => { wanted = Some(Look { whole: true, ..Look::default() }); continue }
                () = tokio::time::sleep(pause) => { wanted = Some(Look { whole: true, ..Look::default() }); continue }
            },
            Some(mut look) => {
                // Everyone who waits now is served by one look.
                look.waiting.extend(std::iter::from_fn(|| changes.try_recv().ok()));
                tokio::select! {
                    biased;
                    // A shard does not wait for a look that the store holds up: that is made again after it.
                    load = loads.recv() => { wanted = Some(look); load }
                    () = known.look(&context, look.whole) => {
                        for done in look.waiting {
                            let _ = done.send(());
                        }
                        continue;
                    }
                }
            }
        };
        let Some(Load { shards, done }) = load else { return };
        known.load(&context, &shards).await;
        let _ = done.send(());
        // What was changed meanwhile.
        wanted.get_or_insert_default();
    }
}

impl Known {
    /// What it does not find the next one does. It may be given up at any point, and is made again.
    async fn look(&mut self, context: &Context, whole: bool) {
        if whole {
            if context.scripts.are_wanted() {
                scripts::bring(context, &context.store).await;
            }
            bring_nodes(context).await;
        }
        let Some(seq) = &mut self.seq else { return };
        match bring_changes(context, seq).await {
            Ok(()) => self.heard_all(context).await,
            Err(cause) => context.store_health.away(context.now(), crate::chain(&cause)),
        }
    }

    async fn heard_all(&mut self, context: &Context) {
        while let Some(shard) = self.from_snapshot.iter().next().copied() {
            if let Some(inbox) = context.shards.inbox(shard) {
                let _ = inbox.send(ShardMessage::HeardAll).await;
            }
            self.from_snapshot.remove(&shard);
        }
    }

    async fn load(&mut self, context: &Context, shards: &[ShardId]) {
        let mut loaded = load(context, &context.prompt_store, shards).await;
        while let Err(cause) = &loaded {
            context.store_health.away(context.now(), crate::chain(cause));
            if let Some(seq) = load_from_snapshot(context, shards).await {
                // What changed since follows when the store answers; what is known already comes again and changes nothing.
                self.seq = Some(self.seq.map_or(seq, |seen| seen.min(seq)));
                self.from_snapshot.extend(shards);
                return;
            }
            tokio::time::sleep(RETRY_DELAY).await;
            loaded = load(context, &context.store, shards).await;
        }
        if let Ok(seq) = loaded {
            self.seq.get_or_insert(seq);
            self.from_snapshot.retain(|shard| !shards.contains(shard));
        }
    }
}

async fn load(context: &Context, store: &Store, shards: &[ShardId]) -> Result<u64, StoreError> {
    let wanted: HashSet<ShardId> = shards.iter().copied().collect();
    let mut by_shard: HashMap<ShardId, Vec<RawJob>> = wanted.iter().map(|shard| (*shard, Vec::new())).collect();
    let seq = store
        .load_raw_jobs(|page| {
            for job in page {
                if let Some(jobs) = by_shard.get_mut(&job.id.shard()) {
                    jobs.push(job);
                }
            }
        })
        .await?;
    if by_shard.values().flatten().any(|job| scripts::is_named_in(job.document.as_bytes())) {
        context.scripts.want();
        scripts::bring(context, store).await;
    }
    for (shard, jobs) in by_shard {
        let mut last_ends: HashMap<JobId, Timestamp> = HashMap::new();
        for job in jobs.iter().filter(|job| job.document.contains("\"@after")) {
            if let Some(end) = store.last_ended_run_of_job(job.id).await?.and_then(|run| run.ended_at) {
                last_ends.insert(job.id, end);
            }
        }
        let sticky: Vec<JobId> = jobs.iter().filter(|job| may_be_sticky(&job.document)).map(|job| job.id).collect();
        let last_nodes = store.last_nodes(&sticky).await?;
        let last_nodes =
            last_nodes.into_iter().map(|(job, (node, planned))| (job, LastNode { node, planned })).collect();
        if let Some(inbox) = context.shards.inbox(shard) {
            let _ = inbox.send(ShardMessage::Load { jobs, last_ends, last_nodes, all: true }).await;
        }
    }
    Ok(seq)
}

/// Also services, unless they say otherwise: see `JobDocument::effective_placement`.
fn may_be_sticky(document: &str) -> bool {
    document.contains("\"sticky\"") || document.contains("\"service\"")
}

/// The jobs as this server last knew them. When the last runs of `@after` jobs ended is not known: they count from now, which is late
/// rather than early. None: there is no snapshot to go by.
async fn load_from_snapshot(context: &Context, shards: &[ShardId]) -> Option<u64> {
    let path = context.config.snapshot.clone()?;
    let wanted: HashSet<ShardId> = shards.iter().copied().collect();
    let read = tokio::task::spawn_blocking(move || {
        let mut by_shard: HashMap<ShardId, Vec<RawJob>> = wanted.iter().map(|shard| (*shard, Vec::new())).collect();
        let seq = snapshot::read_jobs(&path, |job| {
            if let Some(jobs) = by_shard.get_mut(&job.id.shard()) {
                jobs.push(job);
            }
        });
        (seq, by_shard)
    });
    let (seq, by_shard) = read.await.ok()?;
    let seq = seq.unwrap_or_else(|cause| {
        tracing::warn!(%cause, "the snapshot cannot be read; the shards wait for the store");
        None
    })?;
    if by_shard.values().flatten().any(|job| scripts::is_named_in(job.document.as_bytes())) {
        context.scripts.want();
    }
    let now = context.now();
    for (shard, jobs) in by_shard {
        let after = jobs.iter().filter(|job| job.document.contains("\"@after"));
        let last_ends = after.map(|job| (job.id, now)).collect();
        tracing::warn!(%shard, jobs = jobs.len(), "the store is away: the shard fires what the snapshot has");
        if let Some(inbox) = context.shards.inbox(shard) {
            let _ = inbox.send(ShardMessage::Load { jobs, last_ends, last_nodes: HashMap::new(), all: false }).await;
        }
    }
    Some(seq)
}

async fn bring_changes(context: &Context, seen_seq: &mut u64) -> Result<(), StoreError> {
    loop {
        let (changes, seq) = context.store.job_changes_since(*seen_seq).await?;
        if changes.is_empty() {
            return Ok(());
        }
        let is_script = |job: &Job| matches!(job.document.action, Action::Script(_));
        if changes.iter().any(|change| matches!(change, JobChange::Upsert(job) if is_script(job))) {
            context.scripts.want();
            scripts::bring(context, &context.store).await;
        }
        let mut by_shard: HashMap<ShardId, Vec<JobChange>> = HashMap::new();
        for change in changes {
            let id = match &change {
                JobChange::Upsert(job) => job.id,
                JobChange::Removed(id) => *id,
            };
            by_shard.entry(id.shard()).or_default().push(change);
        }
        for (shard, changes) in by_shard {
            let (done, heard) = oneshot::channel();
            if let Some(inbox) = context.shards.inbox(shard)
                && inbox.send(ShardMessage::Changed(changes, done)).await.is_ok()
            {
                let _ = heard.await;
            }
        }
        *seen_seq = seq;
        context.homes.jobs_changed();
    }
}

/// What people set about nodes, as the store has it now.
pub async fn bring_nodes(context: &Context) {
    match context.store.list_nodes().await {
        Ok(records) => {
            context.nodes.known(records.clone());
            for view in context.nodes.views() {
                if records.iter().any(|record| record.id == view.id) {
                    continue;
                }
                // A connected one may be unknown to the store only because that was away when it came.
                let known = context.store.node(view.id).await;
                if known.is_ok_and(|record| record.is_some_and(|record| record.removed_at.is_some())) {
                    context.sessions.expel(view.id);
                }
                if !view.connected {
                    context.nodes.removed(view.id);
                }
            }
            context.nodes.described(&records);
            if let Ok(credentials) = context.store.list_credentials().await {
                context.credentials.are(credentials);
            }
        }
        Err(cause) => context.store_health.away(context.now(), crate::chain(&cause)),
    }
    context.waiting_runs_may_go().await;
}
