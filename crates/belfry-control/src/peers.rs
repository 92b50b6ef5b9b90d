//! The servers of the cluster as this one sees them: who lives, where it is reached, and who owns which shard.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use belfry_coord::{CoordError, Heartbeat, Life, Seat, keys};
use belfry_core::cursor::Cursor;
use belfry_core::{ServerId, ShardId, Term};
use belfry_proto::session;
use serde::{Deserialize, Serialize};

use crate::context::{Addresses, Context};
use crate::view::ServerView;

#[derive(Debug, Default)]
pub struct Peers(RwLock<Seen>);

#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    servers: BTreeMap<ServerId, Info>,
    owners: BTreeMap<ShardId, (ServerId, Term)>,
    leader: Option<ServerId>,
}

impl Peers {
    /// What a look at the coordinator has shown. Agents hear of it when the addresses have changed.
    pub fn saw(
        &self,
        context: &Context,
        servers: BTreeMap<ServerId, Info>,
        owners: BTreeMap<ShardId, (ServerId, Term)>,
    ) {
        let mut seen = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let leader = seen.leader;
        let before = std::mem::replace(&mut *seen, Seen { servers, owners, leader });
        let have_moved = !before.servers.values().map(Info::addresses).eq(seen.servers.values().map(Info::addresses));
        drop(seen);
        if have_moved {
            context.sessions.tell_all(&self.for_agents().into());
        }
    }

    pub fn saw_leader(&self, leader: Option<ServerId>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).leader = leader;
    }

    pub fn for_agents(&self) -> session::Servers {
        let seen = self.seen();
        let addresses = seen.servers.values().map(|server| server.addresses.agents.clone());
        session::Servers { addresses: addresses.filter(|address| !address.is_empty()).collect() }
    }

    pub fn views(&self) -> Vec<ServerView> {
        let seen = self.seen();
        let view = |(id, info): (&ServerId, &Info)| ServerView {
            id: *id,
            api: info.addresses.api.clone(),
            agents: info.addresses.agents.clone(),
            clock_off_ms: info.clock_off_ms,
            leader: seen.leader == Some(*id),
            shards: seen
                .owners
                .iter()
                .filter(|(_, (owner, _))| owner == id)
                .map(|(shard, (_, term))| (*shard, *term))
                .collect(),
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
    let info = entry.and_then(|entry| Info::of(Heartbeat::decode(&entry).ok()?));
    Ok(info.map(|server| server.addresses.api).filter(|api| !api.is_empty()))
}

/// What a server says of itself with each heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    version: String,
    addresses: Addresses,
    /// Its clock is off by this, so it takes no part in firing.
    #[serde(default)]
    pub clock_off_ms: Option<i64>,
}

impl Info {
    /// None: it does not live, or does not speak this version's words.
    pub fn of(heartbeat: Heartbeat) -> Option<Self> {
        serde_json::from_value(heartbeat.info).ok().filter(|_| heartbeat.life == Life::Beating)
    }

    fn addresses(&self) -> &Addresses {
        &self.addresses
    }
}

pub fn info(addresses: &Addresses, clock_off_ms: Option<i64>) -> serde_json::Value {
    let info = Info { version: env!("CARGO_PKG_VERSION").to_owned(), addresses: addresses.clone(), clock_off_ms };
    serde_json::to_value(info).unwrap_or_default()
}
