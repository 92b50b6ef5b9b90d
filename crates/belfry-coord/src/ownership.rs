//! Leadership and shards: one record a seat, taken by a guarded commit, its term growing with each taking. Decides whether
//! a taking is fair to the former owner; what an owner then writes goes through [`Held`].

use std::sync::Arc;
use std::time::Duration;

use belfry_core::{ServerId, Term, Version};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::observer::{Liveness, Observer};
use crate::{Commit, CoordError, Coordinator, Entry, Guard, Held, Write, keys};

/// What a seat's record can carry besides its owner: a shard's cursor, or nothing.
pub trait Extra: Serialize + DeserializeOwned + Clone + Send + Sync {}
impl<X: Serialize + DeserializeOwned + Clone + Send + Sync> Extra for X {}

/// What lies under a seat's key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record<X> {
    /// None: released.
    pub owner: Option<ServerId>,
    pub term: Term,
    /// Counts the owner's commits within the term; with owner and term it names one commit for ever.
    pub nonce: u64,
    pub extra: X,
}

impl<X: Extra> Record<X> {
    pub(crate) fn decode(entry: &Entry) -> Result<Self, CoordError> {
        serde_json::from_slice(&entry.value)
            .map_err(|cause| CoordError::Broken(format!("seat `{}`: {cause}", entry.key)))
    }

    pub(crate) fn encode(&self) -> Result<Bytes, CoordError> {
        let text = serde_json::to_vec(self).map_err(|cause| CoordError::Broken(format!("seat: {cause}")))?;
        Ok(Bytes::from(text))
    }
}

/// A seat as it was read; possibly stale.
#[derive(Clone, Debug)]
pub struct Seat<X> {
    pub key: String,
    pub held: Option<(Version, Record<X>)>,
}

/// Why nobody is wronged when a seat is taken. The commit guards what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vacancy {
    NeverHeld,
    Released,
    /// Held by the taker itself: a taking whose answer was lost, or a [`Held`] that was dropped.
    Mine,
    /// No other process can use the coordinator, so the recorded owner is gone.
    SoleUser,
    /// The owner's heartbeat stood still for a TTL, or says that it ended.
    OwnerSilent {
        heartbeat: String,
        at: Version,
    },
    /// The owner's heartbeat was removed; ids never come again.
    OwnerGone {
        heartbeat: String,
    },
}

impl<X: Extra> Seat<X> {
    pub async fn look(coordinator: &dyn Coordinator, key: &str) -> Result<Self, CoordError> {
        let entry = coordinator.get(key).await?;
        let held = entry.map(|entry| Ok::<_, CoordError>((entry.version, Record::decode(&entry)?))).transpose()?;
        Ok(Self { key: key.to_owned(), held })
    }

    pub fn from_entry(entry: &Entry) -> Result<Self, CoordError> {
        Ok(Self { key: entry.key.clone(), held: Some((entry.version, Record::decode(entry)?)) })
    }

    pub fn owner(&self) -> Option<ServerId> {
        self.held.as_ref().and_then(|(_, record)| record.owner)
    }

    /// Whether `me` may take it now, and by what right. None: its owner lives, or nothing is known yet.
    pub fn vacancy(&self, me: ServerId, sole_user: bool, servers: &Observer, boottime: Duration) -> Option<Vacancy> {
        let Some((_, record)) = &self.held else { return Some(Vacancy::NeverHeld) };
        let Some(owner) = record.owner else { return Some(Vacancy::Released) };
        if owner == me {
            return Some(Vacancy::Mine);
        }
        if sole_user {
            return Some(Vacancy::SoleUser);
        }
        let heartbeat = keys::server(owner);
        match servers.liveness(&heartbeat, boottime) {
            Liveness::NotLooked | Liveness::Alive => None,
            Liveness::Absent => Some(Vacancy::OwnerGone { heartbeat }),
            Liveness::StoodStill(at) | Liveness::Ended(at) => Some(Vacancy::OwnerSilent { heartbeat, at }),
        }
    }

    /// Takes the seat with the next term; what the record carried stays, `first` is for a seat that was never held. After
    /// an unknown outcome look again: if the taking was applied the seat is [`Vacancy::Mine`].
    pub async fn take(
        self,
        coordinator: Arc<dyn Coordinator>,
        me: ServerId,
        by: Vacancy,
        first: X,
    ) -> Result<Taking<X>, CoordError> {
        self.take_with_mark(coordinator, me, by, first, None).await
    }

    /// The same commit writes a mark: a list that shows it at the version of the taking, or at a later one, has all that former owners
    /// wrote, since what they send later is refused.
    pub async fn take_with_mark(
        self,
        coordinator: Arc<dyn Coordinator>,
        me: ServerId,
        by: Vacancy,
        first: X,
        mark: Option<String>,
    ) -> Result<Taking<X>, CoordError> {
        let (seat, term, extra) = match self.held {
            None => (Guard::Absent(self.key.clone()), Term(1), first),
            Some((version, old)) => (Guard::At(self.key.clone(), version), Term(old.term.0 + 1), old.extra),
        };
        let mut guards = vec![seat];
        guards.extend(match by {
            Vacancy::NeverHeld | Vacancy::Released | Vacancy::Mine | Vacancy::SoleUser => None,
            Vacancy::OwnerSilent { heartbeat, at } => Some(Guard::At(heartbeat, at)),
            Vacancy::OwnerGone { heartbeat } => Some(Guard::Absent(heartbeat)),
        });
        if belfry_core::planted::is("takeover_unguarded") {
            guards.truncate(1);
        }
        let record = Record { owner: Some(me), term, nonce: 0, extra };
        let mut writes = vec![Write::Put(self.key.clone(), record.encode()?)];
        writes.extend(mark.map(|mark| Write::Put(mark, term.to_string().into())));
        Ok(match coordinator.commit(guards, writes).await? {
            Commit::Applied(version) => Taking::Taken(Held::new(coordinator, self.key, version, record)),
            Commit::Conflict { key } => Taking::Refused { key },
        })
    }
}

#[derive(Debug)]
pub enum Taking<X> {
    Taken(Held<X>),
    /// Someone was quicker (the seat's key), or its owner lives (its heartbeat's key).
    Refused {
        key: String,
    },
}
