//! Heartbeats of servers that are gone. Each start makes one, its id never comes again, and everybody reads all of them at every look: here it
//! is said which may be removed.
//!
//! **Why nobody who lives loses his.** The removal guards the version that was seen, so a single beat in between refuses it, and one that is
//! late or comes twice does nothing. That version is its last word, an hour old; or it stood still for a week in which a beat would have been
//! heard: in the same lists the looker's own beats went on, never a TTL apart, so that commits came through and lists were new. Whatever else
//! (a coordinator that is away, takes no commits, or answers with old lists; a looker that stood still) begins the time anew. Who was cut off
//! for all of the week was held dead after a TTL already, and everything it had was free to be taken; now its next beat is refused, and it
//! begins again under a new id. Who takes a seat from it guards that its heartbeat is absent ([`Vacancy::OwnerGone`](crate::Vacancy)), which it
//! stays.

use std::time::Duration;

use belfry_core::Version;

use crate::{Commit, CoordError, Coordinator, Entry, Guard, Observer, WRITES_PER_COMMIT_MAX, Write};

const AFTER_END: Duration = Duration::from_secs(3600);
const AFTER_SILENCE: Duration = Duration::from_secs(7 * 86_400);

/// What one server sees of those that are gone.
pub struct Former {
    /// The heartbeat of the one who looks.
    own: String,
    ttl: Duration,
    after_end: Duration,
    after_silence: Duration,
    observer: Observer,
    /// The own beat that was seen last, and when.
    heard: Option<(Version, Duration)>,
}

impl Former {
    /// `sole`: nobody else can use the coordinator, so all others are gone by proof.
    pub fn new(own: String, ttl: Duration, sole: bool) -> Self {
        let (after_end, after_silence) = if sole { Default::default() } else { (AFTER_END, AFTER_SILENCE) };
        Self { own, ttl, after_end, after_silence, observer: Observer::new(after_silence), heard: None }
    }

    /// A complete list of the heartbeats, and the boottime **after** it was answered. What may be removed, as much as one commit takes.
    pub fn look(&mut self, entries: &[Entry], boottime: Duration) -> Vec<(String, Version)> {
        let Some(own) = entries.iter().find(|entry| entry.key == self.own) else { return vec![] };
        if self.heard.is_some_and(|(version, _)| own.version <= version) {
            return vec![];
        }
        if self.heard.is_none_or(|(_, at)| boottime.saturating_sub(at) > self.ttl) {
            self.observer = Observer::new(self.after_silence);
        }
        self.heard = Some((own.version, boottime));
        self.observer.observe(entries, boottime);
        let mut gone = self.observer.gone(boottime, self.after_end);
        gone.retain(|(key, _)| *key != self.own);
        gone.truncate(WRITES_PER_COMMIT_MAX);
        gone
    }
}

/// All of them, or none when one has beaten since.
pub async fn remove(coordinator: &dyn Coordinator, gone: Vec<(String, Version)>) -> Result<Commit, CoordError> {
    let writes = gone.iter().map(|(key, _)| Write::Delete(key.clone())).collect();
    let guards = gone.into_iter().map(|(key, version)| Guard::At(key, version)).collect();
    coordinator.commit(guards, writes).await
}
