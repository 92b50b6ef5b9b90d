//! The servers of the cluster as this one sees them: who lives, where it is reached, and who owns which shard.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use belfry_coord::{CoordError, Entry, Heartbeat, Life, Seat, keys};
use belfry_core::{ServerId, ShardId};
use belfry_proto::session;

use crate::context::{Addresses, Context};
use crate::cursor::Cursor;
use crate::view::ServerView;

#[derive(Debug, Default)]
pub struct Peers(RwLock<Seen>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    servers: BTreeMap<ServerId, Addresses>,
    owners: BTreeMap<ShardId, ServerId>,
}

impl Peers {
    /// What a look at the coordinator has shown. Agents hear of it when the addresses have changed.
    pub fn saw(&self, context: &Context, alive: &[&Entry], seats: &[Entry]) {
        let servers = alive.iter().filter_map(|entry| {
            let id = entry.key.strip_prefix(keys::SERVERS)?.parse().ok()?;
            Some((id, addresses(entry)?))
        });
        let owners = seats.iter().filter_map(|entry| {
            let shard = ShardId::all().find(|shard| keys::shard(*shard) == entry.key)?;
            Some((shard, Seat::<Cursor>::from_entry(entry).ok()?.owner()?))
        });
        let seen = Seen { servers: servers.collect(), owners: owners.collect() };
        let before = std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), seen);
        if before.servers != self.seen().servers {
            context.sessions.tell_all(&self.for_agents().into());
        }
    }

    pub fn for_agents(&self) -> session::Servers {
        let seen = self.seen();
        let addresses = seen.servers.values().map(|server| server.agents.clone());
        session::Servers { addresses: addresses.filter(|address| !address.is_empty()).collect() }
    }

    pub fn views(&self) -> Vec<ServerView> {
        let seen = self.seen();
        let view = |(id, addresses): (&ServerId, &Addresses)| ServerView {
            id: *id,
            api: addresses.api.clone(),
            agents: addresses.agents.clone(),
            shards: seen.owners.iter().filter(|(_, owner)| *owner == id).map(|(shard, _)| *shard).collect(),
        };
        seen.servers.iter().map(view).collect()
    }

    fn seen(&self) -> Seen {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where the API of a shard's owner is, read anew: what was seen may have moved. None: it is this server, nobody, or one that
/// nobody can reach.
pub async fn owners_api(context: &Context, shard: ShardId) -> Result<Option<String>, CoordError> {
    let seat = Seat::<Cursor>::look(&*context.coordinator, &keys::shard(shard)).await?;
    let Some(owner) = seat.owner().filter(|owner| *owner != context.server) else { return Ok(None) };
    let entry = context.coordinator.get(&keys::server(owner)).await?;
    Ok(entry.as_ref().and_then(addresses).map(|server| server.api).filter(|api| !api.is_empty()))
}

fn addresses(entry: &Entry) -> Option<Addresses> {
    let heartbeat = Heartbeat::decode(entry).ok().filter(|heartbeat| heartbeat.life == Life::Beating)?;
    serde_json::from_value(heartbeat.info.get("addresses")?.clone()).ok()
}
