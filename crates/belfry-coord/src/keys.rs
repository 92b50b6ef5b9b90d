//! Where things lie in the coordinator: the one place that spells a key.

use belfry_core::id::SHARD_COUNT;
use belfry_core::{JobId, NodeId, RunId, ServerId, ShardId};

pub const META: &str = "meta";
pub const LEADER: &str = "leader";
/// Heartbeats of servers.
pub const SERVERS: &str = "servers/";
pub const SHARDS: &str = "shards/";
/// Heartbeats of nodes.
pub const NODES: &str = "nodes/";
pub const HOMES: &str = "homes/";
/// What edits bump, so that other servers look at the store.
pub const CHANGED: &str = "changed/";
/// Bumped at each edit of a job.
pub const CHANGED_JOBS: &str = "changed/jobs";
/// Bumped at each change of a node by people.
pub const CHANGED_NODES: &str = "changed/nodes";
/// Bumped at each change of a stored script.
pub const CHANGED_SCRIPTS: &str = "changed/scripts";

/// Bumped by whoever gave shards back, so that the others need not wait for their next look.
pub const VACATED: &str = "vacated";

const STATE: &str = "state-";

/// Instances of wrapped commands: one key each, which is the heartbeat of whoever holds it.
pub const WRAPPED: &str = "wrap/run/";

pub fn server(id: ServerId) -> String {
    format!("{SERVERS}{id}")
}

pub fn shard(shard: ShardId) -> String {
    format!("{SHARDS}{:02}", shard.0)
}

/// Whose seat a key is.
pub fn shard_of(key: &str) -> Option<ShardId> {
    let number = key.strip_prefix(SHARDS)?.parse().ok()?;
    (number < SHARD_COUNT).then_some(ShardId(number))
}

/// All runs of a shard that are claimed and not ended.
pub fn open_runs(shard: ShardId) -> String {
    format!("open/{:02}/", shard.0)
}

/// Beside them, written by whoever takes the shard.
pub fn taken(shard: ShardId) -> String {
    format!("open/{:02}/taken", shard.0)
}

pub fn open_run(shard: ShardId, run: RunId) -> String {
    format!("open/{:02}/{run}", shard.0)
}

pub fn node(id: NodeId) -> String {
    format!("{NODES}{id}")
}

pub fn home(job: JobId) -> String {
    format!("{HOMES}{job}")
}

/// What a job keeps from run to run. Beside the shard's open runs: whoever takes the shard reads both in one list.
pub fn state(job: JobId) -> String {
    format!("open/{:02}/{STATE}{job}", job.shard().0)
}

/// Whose saved state a key holds.
pub fn state_of(key: &str) -> Option<JobId> {
    key.rsplit('/').next()?.strip_prefix(STATE)?.parse().ok()
}

/// An instance of a wrapped command; the one of a long-lived process has no instance.
pub fn wrapped(name: &str, instance: &str) -> String {
    format!("{WRAPPED}{}/{}", one_part(name), one_part(instance))
}

/// Name and instance of a key that [`wrapped`] made.
pub fn wrapped_of(key: &str) -> Option<(String, String)> {
    let (name, instance) = key.strip_prefix(WRAPPED)?.split_once('/')?;
    Some((as_it_was(name), as_it_was(instance)))
}

/// All instances of one name.
pub fn wrapped_of_name(name: &str) -> String {
    format!("{WRAPPED}{}/", one_part(name))
}

/// The seats of those who wait for an instance. One folder a name: ZooKeeper's folders are never removed.
pub fn wrapped_seat(name: &str, instance: &str, seat: u32) -> String {
    format!("wrap/seat/{}/{seat}@{}", one_part(name), one_part(instance))
}

/// All seats of one name.
pub fn wrapped_seats(name: &str) -> String {
    format!("wrap/seat/{}/", one_part(name))
}

/// Whether a seat is one for this instance, both of the same name.
pub fn is_seat_of(seat: &str, instance: &str) -> bool {
    let last = |key: &str| key.rsplit('/').next().unwrap_or_default().to_owned();
    last(seat).split_once('@').is_some_and(|(_, of)| of == last(instance))
}

/// What all instances of a name share.
pub fn wrapped_shared(name: &str) -> String {
    format!("wrap/name/{}", one_part(name))
}

/// People choose names and formats: a slash in one must not make another key of it.
fn one_part(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}

fn as_it_was(part: &str) -> String {
    part.replace("%2F", "/").replace("%25", "%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_wrapped_commands_are_told_apart_and_read_back() {
        assert_ne!(wrapped("a/b", "c"), wrapped("a", "b/c"));
        for (name, instance) in [("db.backup", "2026-11-17_0230"), ("a%2Fb/c", "11/17/26 %"), ("loop", "")] {
            assert_eq!(wrapped_of(&wrapped(name, instance)), Some((name.to_owned(), instance.to_owned())));
            let seat = wrapped_seat(name, instance, 2);
            assert!(seat.starts_with(&wrapped_seats(name)));
            assert!(is_seat_of(&seat, &wrapped(name, instance)) && !is_seat_of(&seat, &wrapped(name, "other")));
        }
    }
}
