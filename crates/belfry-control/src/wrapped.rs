//! The leader's look at wrapped commands (`dcron`), which run without any server: what ended is copied into history, what died is written
//! down as lost, what is copied and old is removed. It starts and stops none of them, and commits nothing where there are none.
//!
//! Exactly once: a run's id comes from its record, so a record that is copied again is the same row; and it is marked once it was copied, so
//! that history which was pruned does not come back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use belfry_coord::wrapped::{decode, give_up, mark_copied, remove};
use belfry_coord::{Commit, CoordError, Entry, Liveness, Observer, WRITES_PER_COMMIT_MAX, Watch, keys};
use belfry_core::Timestamp;
use belfry_core::run::Run;
use belfry_core::wrapped::Record;
use tokio::time::Instant;

use crate::ControlError;
use crate::context::Context;

/// For one record, asked for by somebody who waits.
const ASKED_PATIENCE: Duration = Duration::from_secs(3);
/// While there is something to watch or to copy; never more often.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// While there is nothing, unless a hint says otherwise: there may be thousands of records that are kept for late hosts, and on some
/// backends each is a read.
const LOOK_EVERY_WHEN_IDLE: Duration = Duration::from_secs(60);
/// Looks take no more than this part of the time.
const PAUSE_PER_LOOK: u32 = 20;

/// Never ends.
pub async fn look_after(context: Arc<Context>) {
    let mut holders = Holders::default();
    let closed = || Watch::on(context.coordinator.clone(), keys::WRAPPED);
    let mut watch = closed();
    loop {
        if !context.leader.load(Ordering::Relaxed) {
            (holders, watch) = (Holders::default(), closed());
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        }
        // Before the look, so that what is written after it is told.
        let is_open = watch.open().await;
        let began = Instant::now();
        let looked = look_once(&context, &mut holders).await;
        let is_idle = matches!(looked, Ok(Left::Nothing)) && is_open;
        if let Err(cause) = looked {
            context.coordinator_health.away(context.now(), &cause);
        }
        let pause = LOOK_EVERY.max(began.elapsed() * PAUSE_PER_LOOK).min(LOOK_EVERY_WHEN_IDLE);
        tokio::time::sleep(pause).await;
        if is_idle {
            let _or_it_was_a_minute = tokio::time::timeout(LOOK_EVERY_WHEN_IDLE - pause, watch.changed()).await;
        }
    }
}

/// What a look leaves to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nothing,
    /// Somebody runs something and may die, or history lacks what could not be copied.
    Something,
}

/// One observer for each length of silence: every record says its own.
#[derive(Default)]
struct Holders(BTreeMap<Duration, Observer>);

async fn look_once(context: &Context, holders: &mut Holders) -> Result<Left, CoordError> {
    let entries = context.coordinator.list(keys::WRAPPED).await?;
    let boottime = context.clock.boottime();
    // What cannot be read was written by a newer version: it is left to that one.
    let records: Vec<(&Entry, Record)> =
        entries.iter().filter_map(|entry| decode(entry).ok().map(|(record, _)| (entry, record))).collect();
    write_down_lost(context, holders, &records, boottime).await?;
    let are_all_copied = copy(context, &records).await?;
    let now = context.now();
    let is_done = |entry, record: &Record| !record.is_to_be_copied() || run_of(entry, record).is_none();
    let old = records.iter().filter(|(entry, record)| record.is_stale(now) && is_done(entry, record));
    remove(&*context.coordinator, &old.map(|(entry, _)| *entry).collect::<Vec<_>>()).await?;
    let is_open = records.iter().any(|(_, record)| record.lost_after().is_some());
    Ok(if is_open || !are_all_copied { Left::Something } else { Left::Nothing })
}

async fn write_down_lost(
    context: &Context,
    holders: &mut Holders,
    records: &[(&Entry, Record)],
    boottime: Duration,
) -> Result<(), CoordError> {
    let mut by_silence: BTreeMap<Duration, Vec<&(&Entry, Record)>> = BTreeMap::new();
    for record in records {
        if let Some(silence) = record.1.lost_after() {
            by_silence.entry(silence).or_default().push(record);
        }
    }
    holders.0.retain(|silence, _| by_silence.contains_key(silence));
    for (silence, held) in by_silence {
        let observer = holders.0.entry(silence).or_insert_with(|| Observer::new(silence));
        observer.observe(&held.iter().map(|(entry, _)| (*entry).clone()).collect::<Vec<_>>(), boottime);
        for (entry, record) in held {
            let Liveness::StoodStill(version) = observer.liveness(&entry.key, boottime) else { continue };
            // An old list does not say what is to be written.
            if version != entry.version {
                continue;
            }
            let (coordinator, now) = (&*context.coordinator, context.now());
            if let Commit::Applied(_) = give_up(coordinator, &entry.key, record.clone(), version, now).await? {
                let (host, key) = (&record.host, &entry.key);
                tracing::warn!("what was silent for {silence:?} is written down as lost: {key}, held by {host}");
            }
        }
    }
    Ok(())
}

/// The store first, the mark after it. With the store away they stay as they are until the next look: false.
async fn copy(context: &Context, records: &[(&Entry, Record)]) -> Result<bool, CoordError> {
    let mut are_all_copied = true;
    let fresh = records.iter().filter(|(_, record)| record.is_to_be_copied());
    let (entries, runs): (Vec<&Entry>, Vec<_>) =
        fresh.filter_map(|(entry, record)| Some((*entry, run_of(entry, record)?))).unzip();
    for (entries, runs) in entries.chunks(WRITES_PER_COMMIT_MAX).zip(runs.chunks(WRITES_PER_COMMIT_MAX)) {
        match context.store.record_runs(runs).await {
            Ok(()) => mark_copied(&*context.coordinator, entries).await?,
            Err(cause) if cause.is_transient() => {
                context.store_health.away(context.now(), crate::chain(&cause));
                return Ok(false);
            }
            // What it does not take stays; the rest is not to blame.
            Err(cause) => {
                tracing::error!("wrapped commands are not in the history: {}", crate::chain(&cause));
                are_all_copied = false;
                continue;
            }
        }
        for run in runs {
            context.live.changed(&Arc::new(run.clone()));
        }
    }
    Ok(are_all_copied)
}

/// What an instance that has ended becomes in history, before the leader has copied it. None: servers have copied it, or there is no such
/// record on this coordinator.
pub(crate) async fn not_yet_copied(
    context: &Context,
    name: &str,
    instance: &str,
    claimed_at: Timestamp,
) -> Result<Option<Run>, ControlError> {
    let key = keys::wrapped(name, instance);
    let asked = tokio::time::timeout(ASKED_PATIENCE, context.coordinator.get(&key)).await;
    let entry = asked.map_err(|_| ControlError::CoordinatorAway)?.map_err(|_| ControlError::CoordinatorAway)?;
    let Some((record, _)) = entry.and_then(|entry| decode(&entry).ok()) else { return Ok(None) };
    // Another host has taken it over since: then it is another run.
    let is_meant = record.claimed_at.as_millisecond() == claimed_at.as_millisecond();
    Ok(if is_meant && record.is_to_be_copied() { record.run(name, instance) } else { None })
}

fn run_of(entry: &Entry, record: &Record) -> Option<Run> {
    let (name, instance) = keys::wrapped_of(&entry.key)?;
    record.run(&name, &instance)
}
