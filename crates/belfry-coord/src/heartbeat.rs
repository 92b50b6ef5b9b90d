//! The owner's side of liveness: a key that its owner rewrites every TTL/4. Decides whether its owner is still held alive;
//! never judges others.

use std::sync::Arc;
use std::time::Duration;

use belfry_core::Version;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Clock, Commit, CoordError, Coordinator, Entry, Guard, Trust, Write};

/// Beats of unknown outcome that are remembered; an older one no longer renews trust, which has ended by then anyway.
const UNANSWERED_MAX: usize = 16;

/// What lies under a heartbeat's key. Its version is what observers watch; `beat` tells the owner which beat it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub beat: u64,
    pub life: Life,
    /// What others want to know of the party: address, incarnation, …
    #[serde(default)]
    pub info: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    Beating,
    /// Said by the party itself, after it gave up what it held.
    Stopped,
    /// Said by an observer, after a full TTL of silence. Final.
    Lost,
}

impl Heartbeat {
    pub fn decode(entry: &Entry) -> Result<Self, CoordError> {
        serde_json::from_slice(&entry.value)
            .map_err(|cause| CoordError::Broken(format!("heartbeat `{}`: {cause}", entry.key)))
    }

    pub fn encode(&self) -> Result<Bytes, CoordError> {
        let text = serde_json::to_vec(self).map_err(|cause| CoordError::Broken(format!("heartbeat: {cause}")))?;
        Ok(Bytes::from(text))
    }
}

#[derive(Clone, Debug, thiserror::Error)]
pub enum PulseError {
    /// Another party wrote the key: this one is dead by definition. It ends what is exclusive and begins again under a new
    /// id or incarnation.
    #[error("heartbeat `{0}` was refused: this party is held dead")]
    Dead(String),
    /// What was to be written with the beat was refused, and so was the beat; the party lives.
    #[error("`{0}` is not as it was read")]
    Refused(String),
    #[error("renew heartbeat `{key}`")]
    Renew {
        key: String,
        #[source]
        cause: CoordError,
    },
}

/// How a key is taken that others have held before, or hold no more.
pub struct FirstBeat {
    pub guard: Guard,
    pub from: u64,
    pub info: serde_json::Value,
    /// In the same commit.
    pub writes: Vec<Write>,
}

enum Looked {
    /// A beat of ours was applied; its version is taken over.
    OwnBeat,
    /// Nothing newer than what is known; the read may be old.
    Stale,
    Gone,
}

/// Keeps one party alive. Its key is its own, since ids are new at each start; or several hold it one after the other, see [`Pulse::take`].
pub struct Pulse {
    coordinator: Arc<dyn Coordinator>,
    clock: Arc<dyn Clock>,
    key: String,
    record: Heartbeat,
    version: Version,
    /// The beat that `version` is of.
    beat_known: u64,
    trust: Trust,
    /// Number and send time of beats since the last known one whose outcome is not known.
    unanswered: Vec<(u64, Duration)>,
    dead: bool,
}

impl Pulse {
    /// The first beat. An error leaves nothing to keep; take a new id and start again.
    pub async fn start(
        coordinator: Arc<dyn Coordinator>,
        clock: Arc<dyn Clock>,
        key: String,
        ttl: Duration,
        info: serde_json::Value,
    ) -> Result<Self, PulseError> {
        let record = Heartbeat { beat: 1, life: Life::Beating, info };
        let t_send = clock.boottime();
        let failed = |cause| PulseError::Renew { key: key.clone(), cause };
        let put = Write::Put(key.clone(), record.encode().map_err(failed)?);
        match coordinator.commit(vec![Guard::Absent(key.clone())], vec![put]).await.map_err(failed)? {
            Commit::Applied(version) => Ok(Self::of(coordinator, clock, key, ttl, record, version, t_send)),
            Commit::Conflict { key } => Err(PulseError::Dead(key)),
        }
    }

    /// The first beat of one of several who hold a key one after the other. Each counts its beats from a random number of its own, `from`, so
    /// that nobody takes another's for its own. None: another one has it. After an error ask again **with the same number and guard**: it
    /// may have happened, or may still happen, and is then found.
    pub async fn take(
        coordinator: Arc<dyn Coordinator>,
        clock: Arc<dyn Clock>,
        first: FirstBeat,
        ttl: Duration,
    ) -> Result<Option<Self>, PulseError> {
        let FirstBeat { guard, from, info, writes } = first;
        let key = guard.key().to_owned();
        let before = if let Guard::At(_, version) = guard { Some(version) } else { None };
        let record = Heartbeat { beat: from, life: Life::Beating, info };
        let t_send = clock.boottime();
        let failed = |cause| PulseError::Renew { key: key.clone(), cause };
        let put = Write::Put(key.clone(), record.encode().map_err(failed)?);
        let commit = coordinator.commit(vec![guard], [put].into_iter().chain(writes).collect());
        let unknown = Err(CoordError::Unknown);
        match tokio::time::timeout(ttl / 4, commit).await.unwrap_or(unknown).map_err(failed)? {
            Commit::Applied(version) => Ok(Some(Self::of(coordinator, clock, key, ttl, record, version, t_send))),
            Commit::Conflict { .. } => {
                let get = tokio::time::timeout(ttl / 4, coordinator.get(&key)).await;
                let entry = get.unwrap_or(Err(CoordError::Unknown)).map_err(failed)?;
                // The refusal proves that somebody wrote it, perhaps we; what was read before that says nothing.
                let entry = entry.filter(|entry| before.is_none_or(|before| entry.version > before));
                let entry = entry.ok_or_else(|| failed(CoordError::Away("it answers with old values".into())))?;
                let is_own = Heartbeat::decode(&entry).is_ok_and(|found| found.beat == from);
                // Taken by an earlier call, nobody knows when: there is no trust before the next beat.
                let own = is_own.then_some(entry.version);
                Ok(own.map(|version| Self::of(coordinator, clock, key, ttl, record, version, Duration::ZERO)))
            }
        }
    }

    fn of(
        coordinator: Arc<dyn Coordinator>,
        clock: Arc<dyn Clock>,
        key: String,
        ttl: Duration,
        record: Heartbeat,
        version: Version,
        t_send: Duration,
    ) -> Self {
        let trust = Trust::new(ttl);
        trust.renew(t_send);
        let beat_known = record.beat;
        Self { coordinator, clock, key, record, version, beat_known, trust, unanswered: vec![], dead: false }
    }

    /// Of the last beat that is known to have been applied.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What the next beats say.
    pub fn set_info(&mut self, info: serde_json::Value) {
        self.record.info = info;
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn trust(&self) -> Trust {
        self.trust.clone()
    }

    /// Beats every TTL/4, each with what `info` says then, until a beat is refused, and says so once. Errors on the way are logged and tried again: if they
    /// last, trust ends by itself.
    pub async fn keep(&mut self, info: impl Fn() -> serde_json::Value) -> PulseError {
        let every = self.trust.ttl() / 4;
        loop {
            self.record.info = info();
            match self.beat().await {
                Ok(()) => tokio::time::sleep(every).await,
                Err(dead @ (PulseError::Dead(_) | PulseError::Refused(_))) => return dead,
                Err(PulseError::Renew { key, cause }) => {
                    tracing::warn!(%key, error = %cause, "heartbeat not renewed; trying again");
                    tokio::time::sleep(every / 4).await;
                }
            }
        }
    }

    /// One beat, guarded by the version of the last. Gives up waiting after TTL/4; such a beat may still arrive, and when
    /// it has, the next beat finds it.
    pub async fn beat(&mut self) -> Result<(), PulseError> {
        self.beat_with(vec![], vec![]).await
    }

    /// A beat that writes something else too, in the same commit: who is held dead writes nothing.
    pub async fn beat_with(&mut self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<(), PulseError> {
        self.write(Life::Beating, guards, writes).await
    }

    /// Graceful end: observers need not wait. Give up what is held before this.
    pub async fn stop(mut self) -> Result<(), PulseError> {
        self.stop_with(vec![], vec![]).await
    }

    /// As above. After an error it may be asked again: the same word said twice is said once.
    pub async fn stop_with(&mut self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<(), PulseError> {
        self.write(Life::Stopped, guards, writes).await?;
        self.trust.end();
        Ok(())
    }

    async fn write(&mut self, life: Life, guards: Vec<Guard>, writes: Vec<Write>) -> Result<(), PulseError> {
        if self.dead {
            return Err(PulseError::Dead(self.key.clone()));
        }
        if !self.unanswered.is_empty() {
            // Whatever it finds: the guard below decides.
            self.look().await?;
        }
        // A second time only where a beat of our own came in between, which leaves none that could do so again.
        loop {
            self.record.beat += 1;
            let record = Heartbeat { life, ..self.record.clone() };
            let value = record.encode().map_err(|cause| self.failed(cause))?;
            let own = Guard::At(self.key.clone(), self.version);
            let guards = [own].into_iter().chain(guards.iter().cloned()).collect();
            let put = Write::Put(self.key.clone(), value);
            let writes = [put].into_iter().chain(writes.iter().cloned()).collect();
            let t_send = self.clock.boottime();
            let commit = self.coordinator.commit(guards, writes);
            match tokio::time::timeout(self.trust.ttl() / 4, commit).await.unwrap_or(Err(CoordError::Unknown)) {
                Ok(Commit::Applied(version)) => {
                    let from_the_reply = belfry_core::planted::is("trust_from_reply");
                    self.known(version, record.beat, if from_the_reply { self.clock.boottime() } else { t_send });
                    return Ok(());
                }
                Ok(Commit::Conflict { key }) if key != self.key => return Err(PulseError::Refused(key)),
                // Only a beat of our own that arrived late can excuse a refusal.
                Ok(Commit::Conflict { .. }) if self.unanswered.is_empty() => return Err(self.die()),
                Ok(Commit::Conflict { .. }) => match self.look().await? {
                    // It said what was true when it was sent, not what is to be said now.
                    Looked::OwnBeat => {}
                    Looked::Gone => return Err(self.die()),
                    Looked::Stale => return Err(self.failed(CoordError::Away("it answers with old values".into()))),
                },
                Err(cause) => {
                    if cause.outcome_unknown() {
                        if self.unanswered.len() == UNANSWERED_MAX {
                            self.unanswered.remove(0);
                        }
                        self.unanswered.push((record.beat, t_send));
                    }
                    return Err(self.failed(cause));
                }
            }
        }
    }

    /// Finds out whether an unanswered beat was applied. All of them guard the same version, so at most one was.
    async fn look(&mut self) -> Result<Looked, PulseError> {
        let get = tokio::time::timeout(self.trust.ttl() / 4, self.coordinator.get(&self.key)).await;
        let timed_out = || Err(CoordError::Away("no answer in time".into()));
        let entry = get.unwrap_or_else(|_| timed_out()).map_err(|cause| self.failed(cause))?;
        let Some(entry) = entry else { return Ok(Looked::Gone) };
        if entry.version <= self.version {
            return Ok(Looked::Stale);
        }
        let found = Heartbeat::decode(&entry).map_err(|cause| self.failed(cause))?;
        let is_own = self.beat_known < found.beat && found.beat <= self.record.beat;
        if !is_own || found.life == Life::Lost {
            return Err(self.die());
        }
        // A beat too old to be remembered moves the version on, but renews nothing.
        let sent = self.unanswered.iter().find(|(beat, _)| *beat == found.beat);
        let t_send = sent.map_or(Duration::ZERO, |(_, t_send)| *t_send);
        self.known(entry.version, found.beat, t_send);
        Ok(Looked::OwnBeat)
    }

    fn known(&mut self, version: Version, beat: u64, t_send: Duration) {
        (self.version, self.beat_known) = (version, beat);
        self.unanswered.clear();
        self.trust.renew(t_send);
    }

    fn die(&mut self) -> PulseError {
        self.dead = true;
        self.trust.end();
        PulseError::Dead(self.key.clone())
    }

    fn failed(&self, cause: CoordError) -> PulseError {
        PulseError::Renew { key: self.key.clone(), cause }
    }
}
