//! What all servers on one coordinator must agree on, kept under `meta`: whose jobs it coordinates, and the TTL. Two servers with
//! different stores would claim each other's fires; with different TTLs one would rescue the runs of a node that another still trusts.

use std::sync::Arc;
use std::time::Duration;

use belfry_coord::{Commit, CoordError, Coordinator, Guard, Write, keys};
use belfry_core::id::SHARD_COUNT;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Meta {
    cluster: String,
    ttl_ms: u64,
    shards: u8,
}

#[derive(Debug, thiserror::Error)]
pub enum Disagreement {
    #[error(
        "this coordinator serves another cluster, whose jobs are in another store; give this one its own database, prefix or chroot"
    )]
    OtherCluster,
    #[error(
        "the servers that live on this coordinator have a TTL of {0:?}; start this one with the same, or stop them all to change it"
    )]
    OtherTtl(Duration),
    #[error(
        "this coordinator has {0} shards, and this version of Belfry knows {SHARD_COUNT}; run the version that the others run"
    )]
    OtherShards(u8),
    #[error("read the coordinator's meta data")]
    Coordinator(#[from] CoordError),
}

pub(crate) const CLUSTER_SETTING: &str = "cluster_id";

pub async fn agree(coordinator: &Arc<dyn Coordinator>, cluster: String, ttl: Duration) -> Result<(), Disagreement> {
    let ours = Meta { cluster, ttl_ms: ttl.as_millis() as u64, shards: SHARD_COUNT };
    loop {
        let entry = coordinator.get(keys::META).await?;
        let known = entry.as_ref().map(|entry| serde_json::from_slice::<Meta>(&entry.value)).transpose();
        let known = known.map_err(|cause| CoordError::Broken(format!("`{}`: {cause}", keys::META)))?;
        let guard = match (&known, entry) {
            (Some(known), _) if *known == ours => return Ok(()),
            (Some(known), _) if known.cluster != ours.cluster => return Err(Disagreement::OtherCluster),
            (Some(known), _) if known.shards != ours.shards => return Err(Disagreement::OtherShards(known.shards)),
            (Some(known), Some(entry)) => {
                let theirs = Duration::from_millis(known.ttl_ms);
                if !coordinator.sole_user() && somebody_lives(coordinator, theirs).await? {
                    return Err(Disagreement::OtherTtl(theirs));
                }
                Guard::At(keys::META.to_owned(), entry.version)
            }
            (_, Some(entry)) => Guard::At(keys::META.to_owned(), entry.version),
            (_, None) => Guard::Absent(keys::META.to_owned()),
        };
        let value = serde_json::to_vec(&ours).map_err(|cause| CoordError::Broken(cause.to_string()))?;
        match coordinator.commit(vec![guard], vec![Write::Put(keys::META.to_owned(), value.into())]).await? {
            Commit::Applied(_) => return Ok(()),
            Commit::Conflict { .. } => {} // another server was quicker; look what it said
        }
    }
}

/// Whether any server beats within its TTL.
async fn somebody_lives(coordinator: &Arc<dyn Coordinator>, ttl: Duration) -> Result<bool, CoordError> {
    let before = coordinator.list(keys::SERVERS).await?;
    tokio::time::sleep(ttl).await;
    let after = coordinator.list(keys::SERVERS).await?;
    Ok(before != after)
}
