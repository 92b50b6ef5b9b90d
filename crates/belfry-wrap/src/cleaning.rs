//! Records that nobody needs any more are removed by whoever comes by, about once an hour for each name.

use std::time::Duration;

use belfry_coord::wrapped::{decode, give_up, remove};
use belfry_coord::{Commit, CoordError, Entry, keys};
use belfry_core::Timestamp;
use belfry_core::wrapped::{Record, Rule};
use jiff::SignedDuration;

use crate::instance::Instance;
use crate::signals::Signals;

const EVERY: SignedDuration = SignedDuration::from_hours(1);
/// Whoever called the wrapper waits for it.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What fails here is left to the next one; so is all of it when the wrapper is asked to end. `in_a_hurry`: nobody is waited for to be silent.
pub(crate) async fn clean(instance: &Instance, signals: &Signals, in_a_hurry: bool) {
    let cleaned = tokio::select! {
        biased;
        () = signals.come() => return,
        cleaned = try_clean(instance, in_a_hurry) => cleaned,
    };
    if let Err(cause) = cleaned {
        tracing::debug!(%cause, "old records stay until the next look");
    }
}

async fn try_clean(instance: &Instance, in_a_hurry: bool) -> Result<(), CoordError> {
    let now = instance.clock.now();
    let (mut shared, guard) = instance.shared().await?;
    // One that is far ahead was written by a clock that was wrong.
    if shared.cleaned_at.is_some_and(|at| now.duration_since(at).abs() < EVERY) {
        return Ok(());
    }
    shared.cleaned_at = Some(now);
    // Of several who come at once, one looks.
    match instance.coordinator.commit(vec![guard], vec![instance.put_shared(&shared)]).await? {
        Commit::Applied(_) => {}
        Commit::Conflict { .. } => return Ok(()),
    }
    let all = remove_stale(instance, now).await?;
    if in_a_hurry { Ok(()) } else { give_up_silent(instance, &all, now).await }
}

/// All records of the name, as they were before.
async fn remove_stale(instance: &Instance, now: Timestamp) -> Result<Vec<Entry>, CoordError> {
    let coordinator = &*instance.coordinator;
    let has_servers = coordinator.get(keys::META).await?.is_some();
    let all = coordinator.list(&keys::wrapped_of_name(&instance.name)).await?;
    let is_stale = |entry: &&Entry| match decode(entry) {
        Ok((record, _)) if has_servers => record.is_stale_beside_servers(now),
        Ok((record, _)) => record.is_stale(now),
        Err(_) => false,
    };
    remove(coordinator, &all.iter().filter(is_stale).collect::<Vec<_>>()).await?;
    let seats = coordinator.list(&keys::wrapped_seats(&instance.name)).await?;
    let is_over = |seat: &&Entry| {
        let of = |entry: &Entry| keys::is_seat_of(&seat.key, &entry.key);
        !all.iter().filter(|entry| of(entry)).any(|entry| decode(entry).is_ok_and(|(record, _)| !record.has_ended()))
    };
    remove(coordinator, &seats.iter().filter(is_over).collect::<Vec<_>>()).await?;
    // Where there are servers their leader does it.
    if !has_servers {
        coordinator.tidy().await?;
    }
    Ok(all)
}

/// What seems to run for longer than records are kept, and was never waited for: its host may have died long ago. It takes one TTL to know.
async fn give_up_silent(instance: &Instance, all: &[Entry], now: Timestamp) -> Result<(), CoordError> {
    let long_ago = |record: &Record| {
        let age_s = now.as_second().saturating_sub(record.claimed_at.as_second());
        !record.has_ended() && record.rule != Rule::LongLived && age_s > record.keep_s.try_into().unwrap_or(i64::MAX)
    };
    let suspects: Vec<(&Entry, Record)> = all
        .iter()
        .filter_map(|entry| decode(entry).ok().map(|(record, _)| (entry, record)))
        .filter(|(_, record)| long_ago(record) && record.silence() <= SILENCE_MAX)
        .collect();
    let Some(silence) = suspects.iter().map(|(_, record)| record.silence()).max() else { return Ok(()) };
    tokio::time::sleep(silence + silence / 4).await;
    for (entry, record) in suspects {
        // Refused if it was written since it was read.
        give_up(&*instance.coordinator, &entry.key, record, entry.version, now).await?;
    }
    Ok(())
}
