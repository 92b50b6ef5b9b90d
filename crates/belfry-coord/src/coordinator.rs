//! The four operations that everything about ownership and claims stands on, and what a backend must promise. Holds the
//! limits that all backends share; talks to none of them.

use std::collections::HashSet;

use async_trait::async_trait;
use belfry_core::Version;
use belfry_sql::SqlError;
use bytes::Bytes;

use crate::Hints;

/// etcd takes 128 operations a transaction; the rest is reserve.
pub const WRITES_PER_COMMIT_MAX: usize = 100;
/// Guards are counted apart from writes.
pub const GUARDS_PER_COMMIT_MAX: usize = 120;
/// The longest key that every SQL database can index.
pub const KEY_BYTES_MAX: usize = 512;
/// Keys and values of one commit: ZooKeeper takes 1 MiB a request, etcd 1.5 MiB.
pub const COMMIT_BYTES_MAX: usize = 900 * 1024;

/// Promises of every backend; `conformance` checks them.
///
/// - `commit` is one linearizable transaction: when every guard holds, all writes happen, else none.
/// - The version it returns is greater than that of every commit before it, across the whole keyspace; each key it put
///   carries that version.
/// - `get` and `list` return what some commit left, but may be stale; one `list` is complete and sorted by key.
/// - `watch` gives hints: they may be late, spurious, merged, or missing. Whoever needs the truth lists at least every 10 s.
/// - An error with [`CoordError::outcome_unknown`] leaves open whether the commit happened, **or will happen later**; after
///   any other error it has not happened and never will.
#[async_trait]
pub trait Coordinator: Send + Sync + 'static {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError>;

    /// Every key that begins with `prefix`, byte for byte; no character is a wildcard.
    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError>;

    /// Deleting a key that is absent does nothing and is no conflict.
    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError>;

    /// Hints of changes after this call returned.
    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError>;

    /// Housekeeping that the leader asks for every few seconds; the backend knows when there is something to do. etcd compacts old
    /// revisions every 5 minutes, and sooner when much was written.
    async fn tidy(&self) -> Result<(), CoordError> {
        Ok(())
    }

    /// Bytes that it takes at most, where it has such a bound and knows it.
    async fn room_bytes(&self) -> Result<Option<u64>, CoordError> {
        Ok(None)
    }

    /// What whoever keeps it should see to before it becomes a failure, in a sentence.
    async fn warning(&self) -> Result<Option<String>, CoordError> {
        Ok(None)
    }

    /// True only when a lock of the operating system proves that no other process can use this coordinator. Every owner of
    /// a former process is then dead by proof, and there is no TTL to wait for.
    fn sole_user(&self) -> bool {
        false
    }
}

/// A key as it was read; `version` is the commit that last wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub key: String,
    pub value: Bytes,
    pub version: Version,
}

/// What must hold for a commit to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    Absent(String),
    At(String, Version),
}

impl Guard {
    pub fn key(&self) -> &str {
        match self {
            Guard::Absent(key) | Guard::At(key, _) => key,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    Put(String, Bytes),
    Delete(String),
}

impl Write {
    pub fn key(&self) -> &str {
        match self {
            Write::Put(key, _) | Write::Delete(key) => key,
        }
    }

    /// What it counts towards the bytes of its commit.
    pub fn bytes(&self) -> usize {
        self.key().len() + if let Write::Put(_, value) = self { value.len() } else { 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    Applied(Version),
    /// The guard on this key did not hold; nothing was written.
    Conflict {
        key: String,
    },
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum CoordError {
    #[error("coordinator is away: {0}")]
    Away(String),
    #[error("no room left in the coordinator: {0}")]
    Full(String),
    #[error("the coordinator did not answer in time; the commit may have happened, or may still happen")]
    Unknown,
    #[error("a commit of {count} {what}; at most {most} are allowed")]
    TooMany { what: &'static str, count: usize, most: usize },
    #[error("a commit without writes decides nothing")]
    NoWrites,
    #[error("key `{0}` is written twice in one commit")]
    WrittenTwice(String),
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes and no zero byte: `{0}`")]
    BadKey(String),
    #[error("coordinator: {0}")]
    Broken(String),
}

impl CoordError {
    /// Trying again later may help. With [`Self::outcome_unknown`] look first.
    pub fn is_transient(&self) -> bool {
        match self {
            CoordError::Away(_) | CoordError::Full(_) | CoordError::Unknown => true,
            CoordError::TooMany { .. }
            | CoordError::NoWrites
            | CoordError::WrittenTwice(_)
            | CoordError::BadKey(_)
            | CoordError::Broken(_) => false,
        }
    }

    /// The commit may have happened, or may still happen.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, CoordError::Unknown)
    }
}

impl From<SqlError> for CoordError {
    fn from(error: SqlError) -> Self {
        match error {
            SqlError::Away(cause) => CoordError::Away(cause),
            SqlError::TooSlow(_) => CoordError::Away(error.to_string()),
            SqlError::Full(cause) => CoordError::Full(cause),
            SqlError::Unknown => CoordError::Unknown,
            SqlError::Broken(cause) => CoordError::Broken(cause),
        }
    }
}

/// The limits, checked before anything is sent, so that every backend refuses the same commits.
pub(crate) fn check_commit(guards: &[Guard], writes: &[Write]) -> Result<(), CoordError> {
    let too_many = |what, count, most| Err(CoordError::TooMany { what, count, most });
    if writes.len() > WRITES_PER_COMMIT_MAX {
        return too_many("writes", writes.len(), WRITES_PER_COMMIT_MAX);
    }
    if guards.len() > GUARDS_PER_COMMIT_MAX {
        return too_many("guards", guards.len(), GUARDS_PER_COMMIT_MAX);
    }
    if writes.is_empty() {
        return Err(CoordError::NoWrites);
    }
    let mut written = HashSet::with_capacity(writes.len());
    let mut bytes = 0;
    for write in writes {
        if !written.insert(write.key()) {
            return Err(CoordError::WrittenTwice(write.key().to_owned()));
        }
        bytes += write.bytes();
    }
    if bytes > COMMIT_BYTES_MAX {
        return too_many("bytes", bytes, COMMIT_BYTES_MAX);
    }
    let keys = written.into_iter().chain(guards.iter().map(Guard::key));
    match keys.into_iter().find(|key| key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0')) {
        Some(key) => Err(CoordError::BadKey(key.chars().take(64).collect())),
        None => Ok(()),
    }
}
