//! Carries the heartbeats of agents into the coordinator, many in one commit, and answers each: accepted, or dead by definition.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use belfry_coord::{Commit, CoordError, Entry, Guard, Heartbeat, Life, WRITES_PER_COMMIT_MAX, Write, keys};
use belfry_core::{Incarnation, NodeId, Version};
use belfry_proto::session::{HeartbeatAck, ToAgent};
use tokio::sync::{Notify, mpsc};

use crate::context::Context;
use crate::shard::NodeReport;

/// Heartbeats that come within this go into one commit.
const GATHER: Duration = Duration::from_millis(20);
const REGISTER_TRIES: u32 = 5;
const COMMIT_TRIES: u32 = 4;

/// A heartbeat on its way. The agent's trust counts from its own send, so a late commit costs trust, never safety.
pub struct Beat {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub sequence: u64,
    pub answer: mpsc::Sender<ToAgent>,
}

/// Beats that wait to be carried: at most one a node, the newest.
#[derive(Default)]
pub struct Carrier {
    waiting: Mutex<HashMap<NodeId, Beat>>,
    versions: Mutex<HashMap<NodeId, LastBeat>>,
    wake: Notify,
}

/// Of a node, as far as this server knows.
#[derive(Clone, Copy)]
struct LastBeat {
    incarnation: Incarnation,
    version: Version,
    count: u64,
    /// When this server began to carry it, on the boottime clock. None: another one did.
    carried_at: Option<Duration>,
}

/// What became of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registered {
    Yes,
    /// This incarnation was marked lost and its runs were given up, or a later one has registered: it never comes back.
    Dead,
}

/// Names the incarnation in the node's key. Guarded by the version that was read, so of two claimants of one id only one wins.
pub async fn register(context: &Context, report: &NodeReport) -> Result<Registered, CoordError> {
    let key = keys::node(report.node);
    for _ in 0..REGISTER_TRIES {
        let before = context.coordinator.get(&key).await?;
        if before.as_ref().is_some_and(|entry| is_dead(entry, report.incarnation)) {
            // Only its own: a later incarnation may be carried by this very server.
            context
                .carrier
                .versions()
                .retain(|node, last| *node != report.node || last.incarnation != report.incarnation);
            return Ok(Registered::Dead);
        }
        let guard = before.as_ref().map_or(Guard::Absent(key.clone()), |entry| Guard::At(key.clone(), entry.version));
        let beat =
            Heartbeat { beat: 1, life: Life::Beating, info: serde_json::json!({ "incarnation": report.incarnation }) };
        let put = Write::Put(key.clone(), beat.encode()?);
        let carried_at = Some(context.clock.boottime());
        match context.coordinator.commit(vec![guard], vec![put]).await {
            Ok(Commit::Applied(version)) => {
                let last = LastBeat { incarnation: report.incarnation, version, count: 1, carried_at };
                context.carrier.versions().insert(report.node, last);
                return Ok(Registered::Yes);
            }
            Ok(Commit::Conflict { .. }) => {}
            // Looks again: registering twice is harmless, the incarnation is the same.
            Err(cause) if cause.is_transient() => tokio::time::sleep(GATHER).await,
            Err(cause) => return Err(cause),
        }
    }
    Err(CoordError::Away(format!("node {} could not be registered", report.name)))
}

/// Incarnations grow; a hello may have been under way for long while a later one registered through another server.
fn is_dead(entry: &Entry, incarnation: Incarnation) -> bool {
    let Ok(heartbeat) = Heartbeat::decode(entry) else { return false };
    let known = heartbeat.info.get("incarnation").and_then(serde_json::Value::as_u64).map(Incarnation);
    known.is_some_and(|known| known > incarnation || (known == incarnation && heartbeat.life == Life::Lost))
}

/// So lately that nobody can have held this incarnation dead since: that takes a TTL after the last beat.
pub fn has_beaten_lately(context: &Context, node: NodeId, incarnation: Incarnation) -> bool {
    let last = context.carrier.versions().get(&node).copied();
    let carried_at = last.filter(|last| last.incarnation == incarnation).and_then(|last| last.carried_at);
    carried_at.is_some_and(|at| context.clock.boottime().saturating_sub(at) < context.config.ttl / 2)
}

pub fn carry(context: &Context, beat: Beat) {
    context.carrier.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(beat.node, beat);
    context.carrier.wake.notify_one();
}

/// Never ends.
pub async fn carry_all(context: &Context) {
    let carrier = &context.carrier;
    loop {
        carrier.wake.notified().await;
        tokio::time::sleep(GATHER).await;
        let beats: Vec<Beat> =
            carrier.waiting.lock().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, beat)| beat).collect();
        for some in beats.chunks(WRITES_PER_COMMIT_MAX) {
            commit(context, some).await;
        }
    }
}

/// A node's key moves on when another server carries its beat or registers it. What is known here is then read anew and the commit
/// made again: nodes that change their carrier keep neither each other nor all the rest waiting until they are held dead.
async fn commit(context: &Context, beats: &[Beat]) {
    let mut beats: Vec<&Beat> = beats.iter().collect();
    for attempt in 0..COMMIT_TRIES {
        let carried = compose(context, &beats);
        if carried.writes.is_empty() {
            return;
        }
        let carried_at = Some(context.clock.boottime());
        // A member that has lost its leader with the commit on its way keeps it for seconds, when others could be committed long since.
        let asked = context.coordinator.commit(carried.guards, carried.writes);
        match tokio::time::timeout(patience(context), asked).await.unwrap_or(Err(CoordError::Unknown)) {
            Ok(Commit::Applied(version)) => {
                context.coordinator_health.ok();
                for (beat, count) in carried.beats {
                    let last = LastBeat { incarnation: beat.incarnation, version, count, carried_at };
                    context.carrier.versions().insert(beat.node, last);
                    answer(beat, true);
                }
                return;
            }
            Ok(Commit::Conflict { key }) => {
                beats.clear();
                for (beat, _) in carried.beats {
                    // Where one has moved on there may be many, as when a server has stopped.
                    let in_question = attempt > 0 || keys::node(beat.node) == key;
                    if !in_question || look(context, beat).await != Some(Known::Dead) {
                        beats.push(beat);
                    }
                }
            }
            Err(cause) if cause.outcome_unknown() => {
                for (beat, _) in carried.beats {
                    if look(context, beat).await.is_none() {
                        return;
                    }
                }
                return;
            }
            Err(cause) => return context.coordinator_health.away(context.now(), &cause),
        }
    }
}

#[derive(Default)]
struct Carried<'a> {
    guards: Vec<Guard>,
    writes: Vec<Write>,
    beats: Vec<(&'a Beat, u64)>,
}

/// Who is known to be dead is told so.
fn compose<'a>(context: &Context, beats: &[&'a Beat]) -> Carried<'a> {
    let mut carried = Carried::default();
    for beat in beats {
        let known = context.carrier.versions().get(&beat.node).copied();
        match known {
            Some(last) if last.incarnation == beat.incarnation => {
                let record = Heartbeat {
                    beat: last.count + 1,
                    life: Life::Beating,
                    info: serde_json::json!({ "incarnation": last.incarnation }),
                };
                let Ok(value) = record.encode() else { continue };
                let key = keys::node(beat.node);
                carried.guards.push(Guard::At(key.clone(), last.version));
                carried.writes.push(Write::Put(key, value));
                carried.beats.push((beat, last.count + 1));
            }
            // Another incarnation of this node has registered, or it was marked lost.
            Some(_) | None => answer(beat, false),
        }
    }
    carried
}

/// The next beat of a node comes after this.
fn patience(context: &Context) -> Duration {
    context.config.ttl / 4
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Alive,
    /// Somebody said so; it was told.
    Dead,
}

/// Learns what the key is now: a beat of ours that was applied after all, or one that another server carried. None: nobody answers.
async fn look(context: &Context, beat: &Beat) -> Option<Known> {
    let key = keys::node(beat.node);
    let entry = match tokio::time::timeout(patience(context), context.coordinator.get(&key)).await.ok()? {
        Ok(entry) => entry,
        Err(cause) => {
            context.coordinator_health.away(context.now(), &cause);
            return None;
        }
    };
    let known = context.carrier.versions().get(&beat.node).copied();
    if entry.as_ref().zip(known).is_some_and(|(entry, last)| entry.version < last.version) {
        return Some(Known::Alive); // a read that is older than what is known says nothing
    }
    let heartbeat = entry.as_ref().and_then(|entry| Heartbeat::decode(entry).ok());
    let same = heartbeat.as_ref().is_some_and(|heartbeat| {
        heartbeat.life == Life::Beating
            && heartbeat.info.get("incarnation") == Some(&serde_json::json!(beat.incarnation))
    });
    match (entry, heartbeat) {
        (Some(entry), Some(heartbeat)) if same => {
            let (incarnation, version, count) = (beat.incarnation, entry.version, heartbeat.beat);
            context.carrier.versions().insert(beat.node, LastBeat { incarnation, version, count, carried_at: None });
            Some(Known::Alive)
        }
        _ => {
            context.carrier.versions().remove(&beat.node);
            answer(beat, false);
            Some(Known::Dead)
        }
    }
}

fn answer(beat: &Beat, accepted: bool) {
    let _ = beat.answer.try_send(HeartbeatAck { sequence: beat.sequence, accepted }.into());
}

impl Carrier {
    fn versions(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, LastBeat>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
