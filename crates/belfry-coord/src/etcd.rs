//! The coordinator on etcd: a commit is one transaction of etcd, and versions are revisions of its keyspace.
//!
//! No lease is used, and watches are only hints: both had bugs in versions that people run. No write is sent twice unless
//! the first surely was not heard.

mod address;
mod failure;
mod housekeeping;
mod listing;
mod members;
mod watching;

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use belfry_core::Version;
use bytes::Bytes;
use etcd_client::{Compare, CompareOp, GetOptions, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};

pub use housekeeping::Quota;

use self::failure::{Failure, out_of_space, stale_token};
use self::housekeeping::Tidied;
use self::members::{Members, kv};
use crate::coordinator::check_commit;
use crate::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Write};

/// No key was ever written at this revision: a guard on it never holds. etcd takes 0 for "absent".
const NEVER: i64 = i64::MAX;

pub struct EtcdCoordinator {
    members: Arc<Members>,
    /// Before every key of ours.
    keys: String,
    /// Written by commits that find nothing to delete: they would not move the revision, and versions must grow.
    touched: String,
    /// None: nothing was compacted by this process yet.
    tidied: Mutex<Option<Tidied>>,
    /// What etcd was started with, as the URL says.
    configured_quota: Option<u64>,
}

impl EtcdCoordinator {
    /// `etcd://[user:password@]h1:2379,h2:2379/prefix`; with TLS `etcds://` or `?tls=true`, and `ca`, `cert`, `key` as files; `quota` as etcd was
    /// started with, which versions before 3.6 do not tell.
    /// Makes one request, so that wrong addresses and rights are known now.
    pub async fn connect(url: &str) -> Result<Self, CoordError> {
        let address = address::read(url).await?;
        let coordinator = Self {
            members: Arc::new(Members::new(address.hosts, address.options)),
            keys: format!("/{}/k/", address.prefix),
            touched: format!("/{}/touched", address.prefix),
            tidied: Mutex::new(None),
            configured_quota: address.quota_bytes,
        };
        coordinator.get("meta").await?;
        Ok(coordinator)
    }

    fn name(&self, key: &str) -> String {
        format!("{}{key}", self.keys)
    }

    /// None: the guards held, but there was nothing to delete.
    async fn transact(&self, guards: &[Guard], writes: &[Write], touch: bool) -> Result<Option<Commit>, CoordError> {
        let before = self.members.newest_seen();
        let sent = self.members.send(|client| {
            let (mut kv, transaction) = (kv(client), self.transaction(guards, writes, touch));
            async move { kv.txn(transaction).await }
        });
        match sent.await {
            Ok(answer) => {
                let revision = self.members.saw(answer.header());
                if !answer.succeeded() {
                    return conflict(guards, &answer).map(Some);
                }
                if !changed_something(&answer) {
                    return Ok(None);
                }
                revision.and_then(version).map(|version| Some(Commit::Applied(version))).ok_or(CoordError::Unknown)
            }
            Err(Failure::NotHeard(why)) => Err(CoordError::Away(why)),
            Err(Failure::Refused(why)) => Err(CoordError::Broken(why)),
            Err(Failure::StaleToken(why)) => Err(CoordError::Broken(stale_token(&why))),
            Err(Failure::NoSpace(said)) => Err(self.refused_for_space(before, writes, &said).await),
            Err(Failure::Open(why) | Failure::NoSuchRevision(why) | Failure::AnswerTooLarge(why)) => {
                tracing::debug!("etcd leaves open whether a commit happened: {why}");
                Err(CoordError::Unknown)
            }
        }
    }

    fn transaction(&self, guards: &[Guard], writes: &[Write], touch: bool) -> Txn {
        let guarded = |guard: &Guard| self.name(guard.key());
        let compare = |guard: &Guard| match guard {
            Guard::Absent(_) => Compare::create_revision(guarded(guard), CompareOp::Equal, 0),
            Guard::At(_, version) => Compare::mod_revision(guarded(guard), CompareOp::Equal, revision(*version)),
        };
        let write = |write: &Write| match write {
            Write::Put(key, value) => TxnOp::put(self.name(key), value.to_vec(), None),
            Write::Delete(key) => TxnOp::delete(self.name(key), None),
        };
        let look = |guard: &Guard| TxnOp::get(guarded(guard), Some(GetOptions::new().with_keys_only()));
        let mut operations: Vec<TxnOp> = writes.iter().map(write).collect();
        if touch {
            operations.push(TxnOp::put(self.touched.clone(), "", None));
        }
        let compares: Vec<Compare> = guards.iter().map(compare).collect();
        let looks: Vec<TxnOp> = guards.iter().map(look).collect();
        Txn::new().when(compares).and_then(operations).or_else(looks)
    }

    /// etcd says "no space" both when it refuses a commit and when it applied the one that fills the database. Refused it
    /// surely was when the keyspace stands where it stood before, or a key that it puts is older than that.
    async fn refused_for_space(&self, before: i64, writes: &[Write], said: &str) -> CoordError {
        let put = writes.iter().find(|write| matches!(write, Write::Put(..)));
        let key = put.map_or_else(|| self.touched.clone(), |put| self.name(put.key()));
        let look = self.members.ask(|client| {
            let (mut kv, key) = (kv(client), key.clone());
            async move { kv.get(key, Some(GetOptions::new().with_keys_only())).await }
        });
        let Ok(found) = look.await else { return CoordError::Unknown };
        let stands = self.members.saw(found.header()).is_some_and(|now| now == before);
        if stands || found.kvs().first().is_some_and(|kv| kv.mod_revision() <= before) {
            CoordError::Full(out_of_space(said))
        } else {
            CoordError::Unknown
        }
    }
}

#[async_trait]
impl Coordinator for EtcdCoordinator {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        let name = self.name(key);
        let asked = self.members.ask(|client| {
            let (mut kv, name) = (kv(client), name.clone());
            async move { kv.get(name, None).await }
        });
        let mut found = asked.await.map_err(Failure::of_read)?;
        self.members.saw(found.header());
        found.take_kvs().into_iter().next().map(|kv| entry(&self.keys, kv)).transpose()
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        let found = listing::all_with(&self.members, &self.name(prefix)).await?;
        found.into_iter().map(|kv| entry(&self.keys, kv)).collect()
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        check_commit(&guards, &writes)?;
        match self.transact(&guards, &writes, false).await? {
            Some(commit) => Ok(commit),
            // Not in the first place: a full etcd takes no put, but still deletes.
            None => self.transact(&guards, &writes, true).await?.ok_or(CoordError::Unknown),
        }
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        watching::watch(self.members.clone(), self.name(prefix)).await
    }

    async fn tidy(&self) -> Result<(), CoordError> {
        self.keep_small().await
    }

    async fn room_bytes(&self) -> Result<Option<u64>, CoordError> {
        self.limit_bytes().await.map(Some)
    }

    async fn warning(&self) -> Result<Option<String>, CoordError> {
        Ok(self.quota().await?.warning(self.configured_quota))
    }
}

/// Without user and password.
impl fmt::Debug for EtcdCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.members.addresses();
        f.debug_struct("EtcdCoordinator").field("members", &members).field("keys", &self.keys).finish_non_exhaustive()
    }
}

fn revision(version: Version) -> i64 {
    i64::try_from(version.0).ok().filter(|revision| *revision > 0).unwrap_or(NEVER)
}

fn version(revision: i64) -> Option<Version> {
    u64::try_from(revision).ok().map(Version)
}

fn changed_something(answer: &TxnResponse) -> bool {
    answer.op_responses().iter().any(|done| match done {
        TxnOpResponse::Put(_) => true,
        TxnOpResponse::Delete(deleted) => deleted.deleted() > 0,
        TxnOpResponse::Get(_) | TxnOpResponse::Txn(_) => false,
    })
}

/// The answer shows each guarded key as it was when the guards were judged.
fn conflict(guards: &[Guard], answer: &TxnResponse) -> Result<Commit, CoordError> {
    let failed = guards.iter().zip(answer.op_responses()).find(|(guard, look)| {
        let TxnOpResponse::Get(found) = look else { return false };
        match (guard, found.kvs().first()) {
            (Guard::Absent(_), found) => found.is_some(),
            (Guard::At(..), None) => true,
            (Guard::At(_, version), Some(kv)) => kv.mod_revision() != revision(*version),
        }
    });
    match failed {
        Some((guard, _)) => Ok(Commit::Conflict { key: guard.key().to_owned() }),
        None => Err(CoordError::Broken("etcd refused a commit whose guards all hold".into())),
    }
}

fn entry(keys: &str, kv: KeyValue) -> Result<Entry, CoordError> {
    let version = version(kv.mod_revision()).ok_or_else(|| CoordError::Broken("a revision below zero".into()))?;
    let (name, value) = kv.into_key_value();
    let name = String::from_utf8(name).map_err(|_| CoordError::Broken("a key that is not UTF-8".into()))?;
    let key = name.strip_prefix(keys).ok_or_else(|| CoordError::Broken("a key that was not asked for".into()))?;
    Ok(Entry { key: key.to_owned(), value: Bytes::from(value), version })
}

/// The first key after all that begin with `prefix`, which is never empty. UTF-8 never has a byte 0xFF, so the last byte can
/// always grow.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
