//! What an owner writes: every commit goes through [`Held`], which guards the seat's version and rewrites the seat's key.
//!
//! **Why two owners never both succeed.** Each commit of an owner holds the guard "seat at version v" and writes the seat,
//! so it moves v on. Of all commits that were ever sent with guard v, whoever sent them and however late they arrive, at
//! most one applies. A taking is such a commit too, so after it every commit of the former owner, also one that is still on
//! its way, is refused. Nothing here depends on time; heartbeats only decide **when** a taking is fair to its former owner.
//! Without the guard `a_deposed_owner_is_refused` fails; without the rewriting of the seat's key
//! `ghost_never_applies_after_a_later_commit` does (conformance, every backend).

use std::sync::Arc;

use belfry_core::{Term, Version, planted};

use crate::ownership::{Extra, Record};
use crate::{Commit, CoordError, Coordinator, Guard, WRITES_PER_COMMIT_MAX, Write};

/// Writes that one [`Held::commit`] may carry beside the seat's own.
pub const HELD_WRITES_MAX: usize = WRITES_PER_COMMIT_MAX - 1;

#[derive(Clone, Debug, thiserror::Error)]
pub enum HeldError {
    /// Someone else owns the seat: drop everything of it and reload.
    #[error("`{0}` has another owner now")]
    Deposed(String),
    /// A guard of the caller's did not hold; nothing was written. The seat may be lost as well: the next commit tells.
    #[error("`{0}` is not as it was read")]
    Refused(String),
    /// A former commit's outcome is unknown: call [`Held::resolve`] before anything else.
    #[error("an earlier commit to `{0}` may have happened; look first")]
    Unresolved(String),
    #[error("commit to `{key}`")]
    Commit {
        key: String,
        #[source]
        cause: CoordError,
    },
}

/// What became of a commit whose answer was lost. Final either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    Applied(Version),
    /// It has not happened and never will.
    NotApplied,
}

/// A seat that is held: the only way to write under it.
pub struct Held<X> {
    coordinator: Arc<dyn Coordinator>,
    key: String,
    version: Version,
    record: Record<X>,
    nonce_last: u64,
    deposed: bool,
    doubt: Option<Doubt>,
}

/// Commits of unknown outcome, by nonce. All guard the version that is held, so at most one of them ever applies.
struct Doubt {
    asked: u64,
    barriers: Vec<u64>,
}

impl<X: Extra> Held<X> {
    pub(crate) fn new(coordinator: Arc<dyn Coordinator>, key: String, version: Version, record: Record<X>) -> Self {
        Self { coordinator, key, version, nonce_last: record.nonce, record, deposed: false, doubt: None }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn term(&self) -> Term {
        self.record.term
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn extra(&self) -> &X {
        &self.record.extra
    }

    pub fn is_unresolved(&self) -> bool {
        self.doubt.is_some()
    }

    /// One commit under this seat: guards the seat, rewrites it with `extra`, and moves on to the new version. At most
    /// [`HELD_WRITES_MAX`] writes.
    pub async fn commit(&mut self, extra: X, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Version, HeldError> {
        let next = Record { nonce: self.nonce_last + 1, extra, ..self.record.clone() };
        self.send(next, guards, writes).await
    }

    /// Gives the seat up, so that another may take it at once. The term stays and grows with the next taking.
    pub async fn release(&mut self) -> Result<(), HeldError> {
        let next = Record { nonce: self.nonce_last + 1, owner: None, ..self.record.clone() };
        self.send(next, vec![], vec![]).await?;
        self.deposed = true;
        Ok(())
    }

    /// Settles a commit whose outcome is unknown, before anything else is written: looks whether its nonce is in the seat;
    /// if not, writes a barrier at the same version, after which the commit can no longer arrive.
    pub async fn resolve(&mut self) -> Result<Resolved, HeldError> {
        let resolved = self.settle().await;
        // The doubt stays while an error leaves it open, and when this future is dropped half-way.
        if !matches!(resolved, Err(HeldError::Commit { .. })) {
            self.doubt = None;
        }
        resolved
    }

    async fn send(
        &mut self,
        next: Record<X>,
        mut guards: Vec<Guard>,
        mut writes: Vec<Write>,
    ) -> Result<Version, HeldError> {
        if self.deposed {
            return Err(HeldError::Deposed(self.key.clone()));
        }
        if self.doubt.is_some() {
            return Err(HeldError::Unresolved(self.key.clone()));
        }
        if !planted::is("commit_without_guards") {
            guards.insert(0, Guard::At(self.key.clone(), self.version));
        }
        if writes.is_empty() || !planted::is("seat_not_rewritten") {
            writes.push(Write::Put(self.key.clone(), next.encode().map_err(|cause| self.failed(cause))?));
        }
        self.nonce_last = next.nonce;
        // In doubt while it is on its way: if this future is dropped half-way, the next call is `Unresolved`.
        self.doubt = Some(Doubt { asked: next.nonce, barriers: vec![] });
        let outcome = self.coordinator.commit(guards, writes).await;
        if !matches!(&outcome, Err(cause) if cause.outcome_unknown()) {
            self.doubt = None;
        }
        match outcome {
            Ok(Commit::Applied(version)) => {
                // Nothing moved the seat on, so its version is what it was.
                let moved_to = if planted::is("seat_not_rewritten") { self.version } else { version };
                self.moved_on(moved_to, next);
                Ok(version)
            }
            Ok(Commit::Conflict { key }) if key == self.key => Err(self.depose()),
            Ok(Commit::Conflict { key }) => Err(HeldError::Refused(key)),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    async fn settle(&mut self) -> Result<Resolved, HeldError> {
        if planted::is("commit_repeated_without_looking") {
            // Whoever wrote the seat last, and whatever: the commit is sent again on top of it.
            let entry = self.coordinator.get(&self.key).await.map_err(|cause| self.failed(cause))?;
            self.version = entry.map_or(self.version, |entry| entry.version);
            return Ok(Resolved::NotApplied);
        }
        if let Some(resolved) = self.look().await? {
            return Ok(resolved);
        }
        let Some(doubt) = &mut self.doubt else { return Ok(Resolved::NotApplied) };
        if planted::is("no_barrier_before_the_next_commit") {
            return Ok(Resolved::NotApplied);
        }
        self.nonce_last += 1;
        let barrier = Record { nonce: self.nonce_last, ..self.record.clone() };
        doubt.barriers.push(barrier.nonce);
        let put = Write::Put(self.key.clone(), barrier.encode().map_err(|cause| self.failed(cause))?);
        match self.coordinator.commit(vec![Guard::At(self.key.clone(), self.version)], vec![put]).await {
            Ok(Commit::Applied(version)) => {
                self.moved_on(version, barrier);
                Ok(Resolved::NotApplied)
            }
            Ok(Commit::Conflict { .. }) => match self.look().await? {
                Some(resolved) => Ok(resolved),
                None => Err(self.failed(CoordError::Away("it answers with old values".into()))),
            },
            Err(cause) => Err(self.failed(cause)),
        }
    }

    /// None: the seat looks as it was before the commit in doubt, or the read is stale.
    async fn look(&mut self) -> Result<Option<Resolved>, HeldError> {
        let Some(doubt) = &self.doubt else { return Ok(Some(Resolved::NotApplied)) };
        let entry = self.coordinator.get(&self.key).await.map_err(|cause| self.failed(cause))?;
        let Some(entry) = entry.filter(|entry| entry.version > self.version) else { return Ok(None) };
        let found: Record<X> = Record::decode(&entry).map_err(|cause| self.failed(cause))?;
        let by_us = found.term == self.record.term && (found.owner == self.record.owner || found.owner.is_none());
        if by_us && found.nonce == doubt.asked {
            self.deposed = found.owner.is_none();
            return Ok(Some(Resolved::Applied(self.moved_on(entry.version, found))));
        }
        if by_us && doubt.barriers.contains(&found.nonce) {
            self.moved_on(entry.version, found);
            return Ok(Some(Resolved::NotApplied));
        }
        Err(self.depose())
    }

    fn moved_on(&mut self, version: Version, record: Record<X>) -> Version {
        self.version = version;
        self.record = record;
        version
    }

    fn depose(&mut self) -> HeldError {
        self.deposed = true;
        HeldError::Deposed(self.key.clone())
    }

    fn failed(&self, cause: CoordError) -> HeldError {
        HeldError::Commit { key: self.key.clone(), cause }
    }
}

impl<X> std::fmt::Debug for Held<X> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({} at {}, term {})", self.key, self.version, self.record.term)
    }
}
