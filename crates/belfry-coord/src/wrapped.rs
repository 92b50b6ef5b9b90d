//! Records of wrapped commands under their keys, for the hosts that run them and for servers that look on: read, given up, marked, removed.
//! Each write guards the version that was seen; whoever holds the record and wrote meanwhile is never overruled.

use belfry_core::wrapped::Record;
use belfry_core::{Timestamp, Version};

use crate::{Commit, CoordError, Coordinator, Entry, Guard, Heartbeat, Life, WRITES_PER_COMMIT_MAX, Write};

/// Holders count their beats from random numbers: none takes this one for its own.
const BEAT_OF_NOBODY: u64 = 0;

pub fn encode(record: &Record) -> serde_json::Value {
    serde_json::to_value(record).expect("texts and numbers")
}

/// The record that lies under a key, and whether its holder has said its last word.
pub fn decode(entry: &Entry) -> Result<(Record, Life), CoordError> {
    let heartbeat = Heartbeat::decode(entry)?;
    let record = serde_json::from_value(heartbeat.info)
        .map_err(|cause| CoordError::Broken(format!("`{}` cannot be read: {cause}", entry.key)))?;
    Ok((record, heartbeat.life))
}

/// Its host is dead, and it must not start again. `at`: the version that stood still. A conflict: it lives, or another was quicker.
pub async fn give_up(
    coordinator: &dyn Coordinator,
    key: &str,
    record: Record,
    at: Version,
    now: Timestamp,
) -> Result<Commit, CoordError> {
    let lost = Heartbeat { beat: BEAT_OF_NOBODY, life: Life::Lost, info: encode(&record.given_up(now)) };
    let put = Write::Put(key.to_owned(), lost.encode()?);
    coordinator.commit(vec![Guard::At(key.to_owned(), at)], vec![put]).await
}

/// Servers have these in their history. Whose word it was stays, so that a holder whose last word was not answered still finds it.
pub async fn mark_copied(coordinator: &dyn Coordinator, entries: &[&Entry]) -> Result<(), CoordError> {
    for some in entries.chunks(WRITES_PER_COMMIT_MAX) {
        let mark = |entry: &&Entry| {
            let (record, _) = decode(entry)?;
            let marked = encode(&Record { copied: true, ..record });
            let heartbeat = Heartbeat { info: marked, ..Heartbeat::decode(entry)? };
            Ok(Write::Put(entry.key.clone(), heartbeat.encode()?))
        };
        let writes = some.iter().map(mark).collect::<Result<_, CoordError>>()?;
        let _looked_at_again: Commit = coordinator.commit(guards(some), writes).await?;
    }
    Ok(())
}

pub async fn remove(coordinator: &dyn Coordinator, entries: &[&Entry]) -> Result<(), CoordError> {
    for some in entries.chunks(WRITES_PER_COMMIT_MAX) {
        let writes = some.iter().map(|entry| Write::Delete(entry.key.clone())).collect();
        let _looked_at_again: Commit = coordinator.commit(guards(some), writes).await?;
    }
    Ok(())
}

/// One that is written meanwhile is not as it was seen.
fn guards(entries: &[&Entry]) -> Vec<Guard> {
    entries.iter().map(|entry| Guard::At(entry.key.clone(), entry.version)).collect()
}
