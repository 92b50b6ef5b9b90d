//! A coordinator that misbehaves on demand or by a seed, as real ones do: answers lost, requests lost, commits that arrive
//! late, old reads, absence. For tests of everything above the trait; never part of a running server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use crate::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Write};

/// What befalls one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Applied; the caller hears nothing.
    LoseAnswer,
    /// Not applied; the caller hears nothing.
    LoseRequest,
    /// The caller hears nothing; applied when [`Faulty::let_ghosts_through`] is called, or by the seed.
    Ghost,
    /// Late commits arrive right before it.
    Overtaken,
    Delay(Duration),
    /// Refused at once: known not to have happened.
    Away,
}

pub struct Faulty {
    inner: Arc<dyn Coordinator>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    planned: VecDeque<Fault>,
    ghosts: Vec<(Vec<Guard>, Vec<Write>)>,
    away: bool,
    /// Below a prefix.
    old: Option<(String, Vec<Entry>)>,
    old_lists: u64,
    seed: Option<u64>,
    commits: u64,
}

impl Faulty {
    /// Behaves until told otherwise.
    pub fn new(inner: Arc<dyn Coordinator>) -> Self {
        Self { inner, state: Mutex::default() }
    }

    /// Half of the commits meet a fault; the same seed gives the same faults in the same order of commits.
    pub fn seeded(inner: Arc<dyn Coordinator>, seed: u64) -> Self {
        let faulty = Self::new(inner);
        faulty.state().seed = Some(seed);
        faulty
    }

    /// The next commits meet these faults, one each, in this order.
    pub fn plan(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().planned.extend(faults);
    }

    /// No operation gets through until it is set back.
    pub fn set_away(&self, away: bool) {
        self.state().away = away;
    }

    /// From now on reads show the keys as they are now, until [`Self::read_fresh`].
    pub async fn read_old(&self) -> Result<(), CoordError> {
        self.read_old_below("").await
    }

    /// The same for keys that begin with a prefix: two reads may be answered by members that are behind by more and by less.
    pub async fn read_old_below(&self, prefix: &str) -> Result<(), CoordError> {
        let now = self.inner.list(prefix).await?;
        self.state().old = Some((prefix.to_owned(), now));
        Ok(())
    }

    /// Lists that were old.
    pub fn old_lists(&self) -> u64 {
        self.state().old_lists
    }

    pub fn read_fresh(&self) {
        self.state().old = None;
    }

    /// Late commits arrive now, oldest first. Returns what became of each.
    pub async fn let_ghosts_through(&self) -> Result<Vec<Commit>, CoordError> {
        let ghosts = std::mem::take(&mut self.state().ghosts);
        let mut outcomes = vec![];
        for (guards, writes) in ghosts {
            outcomes.push(self.inner.commit(guards, writes).await?);
        }
        Ok(outcomes)
    }

    /// Commits that were asked for, whatever became of them.
    pub fn commits(&self) -> u64 {
        self.state().commits
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn here(&self) -> Result<(), CoordError> {
        if self.state().away { Err(CoordError::Away("cut off by the test".into())) } else { Ok(()) }
    }
}

impl State {
    fn next_fault(&mut self) -> (Fault, bool) {
        self.commits += 1;
        if let Some(fault) = self.planned.pop_front() {
            return (fault, fault == Fault::Overtaken);
        }
        let Some(seed) = &mut self.seed else { return (Fault::None, false) };
        let dice = split_mix(seed);
        let fault = match dice % 16 {
            0..8 => Fault::None,
            8..10 => Fault::LoseAnswer,
            10..12 => Fault::LoseRequest,
            12..14 => Fault::Ghost,
            14 => Fault::Delay(Duration::from_millis(dice >> 8 & 3)),
            _ => Fault::Away,
        };
        (fault, (dice >> 32).is_multiple_of(4))
    }
}

fn split_mix(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[async_trait]
impl Coordinator for Faulty {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.here()?;
        if let Some((_, old)) = self.state().old.as_ref().filter(|(below, _)| key.starts_with(below)) {
            return Ok(old.iter().find(|entry| entry.key == key).cloned());
        }
        self.inner.get(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        self.here()?;
        {
            let mut state = self.state();
            let old = state.old.as_ref().filter(|(below, _)| prefix.starts_with(below));
            let old = old.map(|(_, old)| old.iter().filter(|entry| entry.key.starts_with(prefix)).cloned().collect());
            if let Some(old) = old {
                state.old_lists += 1;
                return Ok(old);
            }
        }
        self.inner.list(prefix).await
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        let (fault, ghosts_first) = self.state().next_fault();
        if ghosts_first {
            self.let_ghosts_through().await?;
        }
        self.here()?;
        match fault {
            Fault::None | Fault::Overtaken => self.inner.commit(guards, writes).await,
            Fault::LoseAnswer => {
                self.inner.commit(guards, writes).await?;
                Err(CoordError::Unknown)
            }
            Fault::LoseRequest => Err(CoordError::Unknown),
            Fault::Ghost => {
                self.state().ghosts.push((guards, writes));
                Err(CoordError::Unknown)
            }
            Fault::Delay(by) => {
                tokio::time::sleep(by).await;
                self.inner.commit(guards, writes).await
            }
            Fault::Away => Err(CoordError::Away("cut off by the test".into())),
        }
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        self.here()?;
        self.inner.watch(prefix).await
    }

    fn sole_user(&self) -> bool {
        self.inner.sole_user()
    }
}
