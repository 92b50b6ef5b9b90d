//! Homes of jobs (`run_on: home`): every server follows them, the leader assigns them. What is right is in `core/homes.rs`.
//!
//! A home is a key of its own, written under the guard of its own version, which is also its term: two leaders that disagree for a
//! moment each make a choice that would do, and one of them is refused. A node that lives is asked to let go and says how far it
//! came before the job is given to another, so a move starts nothing twice. One that is held dead is not asked: its fires after the
//! last one that the store knows are the next home's, and what it may have run in the meantime is marked when it comes in.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use belfry_coord::{Commit, CoordError, Guard, Heartbeat, Life, Watch, Write, keys};
use belfry_core::homes::{Dwelling, Home, Homeless, Move, plan};
use belfry_core::job::RunOn;
use belfry_core::room::Amounts;
use belfry_core::{Job, JobId, NodeId, Timestamp, Version};
use belfry_store::StoreError;
use bytes::Bytes;
use tokio::sync::Mutex;

use crate::context::Context;
use crate::shard::ShardMessage;

/// Some backends hint at every change of anything.
const LOOKS_APART: Duration = Duration::from_secs(1);
/// What no hint told of is found after this.
const LOOK_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub struct Homes {
    by_job: RwLock<HashMap<JobId, (Home, Version)>>,
    /// Jobs may have come, gone or changed since the leader read them.
    jobs_changed: AtomicBool,
    /// When the last look began, on the boottime clock.
    looked_at: Mutex<Option<Duration>>,
}

impl Homes {
    pub fn get(&self, job: JobId) -> Option<(Home, Version)> {
        self.by_job.read().unwrap_or_else(PoisonError::into_inner).get(&job).copied()
    }

    /// Nodes by how many homes they are.
    pub fn per_node(&self) -> HashMap<NodeId, u32> {
        let homes = self.by_job.read().unwrap_or_else(PoisonError::into_inner);
        let mut counts = HashMap::new();
        for node in homes.values().filter_map(|(home, _)| home.node) {
            *counts.entry(node).or_default() += 1;
        }
        counts
    }

    pub fn jobs_changed(&self) {
        self.jobs_changed.store(true, Ordering::Relaxed);
    }

    /// Whether another node may have run this fire as well: the job was taken from one that was held dead, and this was that home.
    pub fn may_have_run_twice(&self, job: JobId, node: NodeId, term: u64, planned: Timestamp) -> bool {
        self.get(job)
            .is_some_and(|(home, version)| home.may_have_run_twice(version.0, node, term, planned.as_millisecond()))
    }

    /// True if something is not as it was.
    fn are(&self, homes: HashMap<JobId, (Home, Version)>) -> bool {
        let mut known = self.by_job.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *known != homes;
        *known = homes;
        changed
    }
}

/// Never ends.
pub async fn follow(context: Arc<Context>) {
    // Hints only: the look every 10 s finds what a broken watch does not tell.
    let mut watch = Watch::on(context.coordinator.clone(), keys::HOMES);
    loop {
        if let Err(cause) = look(&context).await {
            context.coordinator_health.away(context.now(), &cause);
        }
        tokio::time::sleep(LOOKS_APART).await;
        tokio::select! {
            () = watch.changed() => {}
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// What was written before the call is known after it.
pub async fn look(context: &Context) -> Result<(), CoordError> {
    let asked_at = context.clock.boottime();
    // One at a time: what was read earlier must not come after what was read later. All who waited are served by one.
    let mut looked_at = context.homes.looked_at.lock().await;
    if looked_at.is_some_and(|at| at > asked_at) {
        return Ok(());
    }
    let began = context.clock.boottime();
    let entries = context.coordinator.list(keys::HOMES).await?;
    let homes = entries.iter().filter_map(|entry| {
        let job = entry.key.strip_prefix(keys::HOMES)?.parse().ok()?;
        match serde_json::from_slice(&entry.value) {
            Ok(home) => Some((job, (home, entry.version))),
            Err(cause) => {
                tracing::error!(key = %entry.key, "a home cannot be read and is left alone; was it written by a newer Belfry? {cause}");
                None
            }
        }
    });
    let changed = context.homes.are(homes.collect());
    *looked_at = Some(began);
    drop(looked_at);
    if changed {
        for (_, inbox) in context.shards.all() {
            let _ = inbox.send(ShardMessage::HomesChanged).await;
        }
    }
    Ok(())
}

/// The leader's part.
#[derive(Default)]
pub struct Assigner {
    jobs: Vec<Job>,
    read: bool,
}

impl Assigner {
    /// `beating`: the nodes whose heartbeat is not marked as lost.
    pub async fn assign(&mut self, context: &Context, beating: &HashSet<NodeId>) -> Result<(), CoordError> {
        if context.homes.jobs_changed.swap(false, Ordering::Relaxed) || !self.read {
            match context.store.jobs_that_run_on(RunOn::Home).await {
                Ok(jobs) => {
                    self.jobs = jobs;
                    self.read = true;
                }
                Err(cause) => {
                    // With those that were read before; one that was removed since has no home again soon.
                    context.homes.jobs_changed();
                    context.store_health.away(context.now(), crate::chain(&cause));
                }
            }
        }
        if self.jobs.is_empty() && context.homes.per_node().is_empty() || !self.read {
            return Ok(());
        }
        look(context).await?;
        let homes: HashMap<JobId, (Home, Version)> =
            context.homes.by_job.read().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted: HashMap<JobId, &Job> = self.jobs.iter().map(|job| (job.id, job)).collect();
        for (job, (_, version)) in homes.iter().filter(|(job, _)| !wanted.contains_key(job)) {
            let key = keys::home(*job);
            context.coordinator.commit(vec![Guard::At(key.clone(), *version)], vec![Write::Delete(key)]).await?;
        }
        let nodes = context.nodes.candidates().into_iter();
        let nodes: Vec<Dwelling> = nodes.map(|node| Dwelling { alive: beating.contains(&node.id), node }).collect();
        let jobs: Vec<Homeless> = self.jobs.iter().map(homeless).collect();
        let plain = homes.iter().map(|(job, (home, _))| (*job, *home)).collect();
        let moves = plan(&jobs, &nodes, &plain);
        let any = !moves.is_empty();
        let mut store_is_away = false;
        for step in moves {
            match step {
                Move::Release { job } => {
                    let Some((home, _)) = homes.get(&job) else { continue };
                    put(context, job, homes.get(&job), Home { leaving: true, ..*home }, None).await?;
                }
                Move::Assign { job, node } => {
                    let Some(definition) = wanted.get(&job) else { continue };
                    let old = homes.get(&job);
                    if store_is_away && old.is_some_and(|(home, _)| home.node.is_some()) {
                        continue; // it would be asked, and let the others wait
                    }
                    let Ok(dead) = held_dead(context, old).await? else { continue };
                    match after(context, definition, old).await {
                        Ok(home) => put(context, job, old, Home { node: Some(node), ..home }, dead).await?,
                        // Where its fires were left off is not known, and they must not run again.
                        Err(cause) => {
                            context.store_health.away(context.now(), crate::chain(&cause));
                            store_is_away = true;
                        }
                    }
                }
            }
        }
        if any { look(context).await } else { Ok(()) }
    }
}

fn homeless(job: &Job) -> Homeless {
    let document = &job.document;
    Homeless {
        job: job.id,
        select: document.select.clone(),
        needs: document.needs.as_ref().map(Amounts::from).unwrap_or_default(),
        placement: document.placement,
    }
}

/// What the next home begins with. A former one that did not let go was held dead.
async fn after(context: &Context, job: &Job, old: Option<&(Home, Version)>) -> Result<Home, StoreError> {
    let counts_from_ms = job.counts_from.as_millisecond();
    let Some((old, term)) = old else { return Ok(Home { from_ms: counts_from_ms, ..Home::default() }) };
    let mut next = Home { node: None, leaving: false, from_ms: old.from_ms.max(counts_from_ms), ..*old };
    if old.node.is_some() {
        let last = context.store.last_scheduled(job.id).await?.map(Timestamp::as_millisecond);
        next.from_ms = last.map_or(next.from_ms, |last| last.max(next.from_ms));
        next.contested_from_ms = Some(old.contested_from_ms.map_or(next.from_ms, |first| first.min(next.from_ms)));
        next.contested_to = Some(term.0);
    }
    Ok(next)
}

/// It is back, and is asked to let go.
struct Back;

/// What keeps a home that was held dead from coming back unseen while its job is given away: a server that lets it in afterwards knows
/// the new home, and marks what the old one fired.
async fn held_dead(
    context: &Context,
    old: Option<&(Home, Version)>,
) -> Result<Result<Option<Guard>, Back>, CoordError> {
    let Some(node) = old.and_then(|(home, _)| home.node) else { return Ok(Ok(None)) };
    let key = keys::node(node);
    let Some(entry) = context.coordinator.get(&key).await? else { return Ok(Ok(Some(Guard::Absent(key)))) };
    let beats = Heartbeat::decode(&entry).is_ok_and(|heartbeat| heartbeat.life == Life::Beating);
    Ok(if beats { Err(Back) } else { Ok(Some(Guard::At(key, entry.version))) })
}

/// Somebody who was quicker is seen at the next look.
async fn put(
    context: &Context,
    job: JobId,
    old: Option<&(Home, Version)>,
    home: Home,
    unless: Option<Guard>,
) -> Result<(), CoordError> {
    let key = keys::home(job);
    let guard = match old {
        Some((_, version)) => Guard::At(key.clone(), *version),
        None => Guard::Absent(key.clone()),
    };
    let guards = unless.into_iter().chain([guard]).collect();
    let value = Bytes::from(serde_json::to_vec(&home).expect("numbers and ids are always JSON"));
    match context.coordinator.commit(guards, vec![Write::Put(key, value)]).await? {
        Commit::Applied(_) => match home {
            Home { leaving: true, .. } => tracing::info!(%job, "its home is asked to let go of it"),
            Home { node: Some(node), .. } => tracing::info!(%job, %node, "the job has a home"),
            Home { node: None, .. } => {}
        },
        Commit::Conflict { .. } => {}
    }
    Ok(())
}

/// A node has let go of a job: nobody fires it until the leader gives it to another.
pub async fn released(context: &Context, node: NodeId, job: JobId, term: u64, cursor_ms: i64) {
    let Some((home, version)) = context.homes.get(job) else { return };
    if version.0 != term || home.node != Some(node) || !home.leaving {
        return;
    }
    let vacant = Home { node: None, leaving: false, from_ms: home.from_ms.max(cursor_ms), ..home };
    let done = async {
        put(context, job, Some(&(home, version)), vacant, None).await?;
        look(context).await
    };
    if let Err(cause) = done.await {
        context.coordinator_health.away(context.now(), &cause);
    }
}
