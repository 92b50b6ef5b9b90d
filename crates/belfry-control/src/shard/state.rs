//! What jobs keep from run to run. The owner of a job's shard is the only one that writes it, with the shard's own commits, and has it in
//! memory: so the next order of the job carries what was written before, and a job that keeps nothing costs nothing.
//!
//! **Why nothing is lost at the end of a run.** What a run wrote last comes with its end. The end is not acted on, so not acknowledged
//! either, before the commit that carries the state is answered; its agent tells it to the next owner if this one is gone by then.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::atomic::Ordering;

use belfry_coord::{Entry, Guard, Write, keys};
use belfry_core::job::RunOn;
use belfry_core::run::{Ended, Event};
use belfry_core::state::{self, Saved, Saves, Took, Values};
use belfry_core::{JobId, NodeId, RunId, Version};
use belfry_proto::session::{RunKey, StateSaved};
use tokio::sync::oneshot;

use super::Shard;
use crate::error::ControlError;
use crate::view::SavedView;

/// In one commit, beside the runs'.
const STATES_PER_COMMIT_MAX: usize = 16;
/// With what JSON adds, and with the runs, below what a commit may have.
const STATE_BYTES_PER_COMMIT_MAX: usize = 256 * 1024;

/// The saved state of a shard's jobs.
#[derive(Default)]
pub(super) struct States {
    known: HashMap<JobId, Known>,
    to_commit: BTreeSet<JobId>,
    bytes: usize,
}

#[derive(Default)]
struct Known {
    saved: Saved,
    /// Of the key; none before it was first written.
    version: Option<Version>,
    /// It is on its way into the coordinator.
    in_flight: bool,
    removed: bool,
    /// Who is told when the next commit is answered.
    waiting: Vec<Waiting>,
}

/// Who waits for a commit.
pub(super) enum Waiting {
    /// The agent whose run wrote it.
    Agent {
        node: NodeId,
        saved: StateSaved,
    },
    /// The end of the run that wrote it.
    End {
        run: RunId,
        from: NodeId,
        ended: Box<Ended>,
    },
    Person(oneshot::Sender<Result<SavedView, ControlError>>),
}

impl Waiting {
    fn repeats(&self, before: &Waiting) -> bool {
        match (self, before) {
            (Waiting::Agent { node, saved }, Waiting::Agent { node: earlier_node, saved: earlier }) => {
                node == earlier_node && saved.key == earlier.key && saved.sequence == earlier.sequence
            }
            (Waiting::End { run, from, ended }, Waiting::End { run: of, from: earlier_node, ended: earlier }) => {
                run == of && from == earlier_node && ended.attempt == earlier.attempt
            }
            (Waiting::Agent { .. } | Waiting::End { .. } | Waiting::Person(_), _) => false,
        }
    }
}

/// A state that a commit writes, with those who wait for it.
pub(super) struct Committing {
    job: JobId,
    waiting: Vec<Waiting>,
}

impl States {
    pub(super) fn read(&mut self, entry: &Entry) {
        let Some(job) = keys::state_of(&entry.key) else { return };
        match serde_json::from_slice::<Saved>(&entry.value) {
            Ok(saved) => {
                self.bytes += saved.bytes();
                self.known.insert(job, Known { saved, version: Some(entry.version), ..Known::default() });
            }
            Err(cause) => {
                tracing::error!(key = %entry.key, "a saved state cannot be read and is left alone; was it written by a newer Belfry? {cause}");
            }
        }
    }

    pub(super) fn values(&self, job: JobId) -> Option<&Values> {
        self.known.get(&job).filter(|known| !known.removed).map(|known| &known.saved.values)
    }

    pub(super) fn is_settled(&self) -> bool {
        self.to_commit.is_empty()
    }

    fn view(&self, job: JobId) -> SavedView {
        let known = self.known.get(&job).filter(|known| !known.removed);
        SavedView {
            values: known.map(|known| known.saved.values.clone()).unwrap_or_default(),
            version: known.and_then(|known| known.version).unwrap_or(Version(0)),
        }
    }

    fn change(&mut self, job: JobId, change: impl FnOnce(&mut Saved)) {
        let known = self.known.entry(job).or_default();
        let before = known.saved.bytes();
        change(&mut known.saved);
        self.bytes = (self.bytes + known.saved.bytes()).saturating_sub(before);
        self.to_commit.insert(job);
    }

    /// What the next commit writes: guards, writes, and who waits.
    pub(super) fn next_commit(&mut self) -> (Vec<Guard>, Vec<Write>, Vec<Committing>) {
        let (mut guards, mut writes, mut committing) = (Vec::new(), Vec::new(), Vec::new());
        let mut bytes = 0;
        while committing.len() < STATES_PER_COMMIT_MAX
            && let Some(job) = self.to_commit.first().copied()
        {
            let Some(known) = self.known.get_mut(&job) else {
                self.to_commit.remove(&job);
                continue;
            };
            bytes += known.saved.bytes();
            if bytes > STATE_BYTES_PER_COMMIT_MAX && !committing.is_empty() {
                break;
            }
            self.to_commit.remove(&job);
            known.in_flight = true;
            let key = keys::state(job);
            guards.push(match known.version {
                None => Guard::Absent(key.clone()),
                Some(version) => Guard::At(key.clone(), version),
            });
            writes.push(if known.removed {
                Write::Delete(key)
            } else {
                let value = serde_json::to_vec(&known.saved).expect("words and numbers are always JSON");
                Write::Put(key, value.into())
            });
            committing.push(Committing { job, waiting: std::mem::take(&mut known.waiting) });
        }
        (guards, writes, committing)
    }

    fn committed(&mut self, job: JobId, version: Version) {
        let Some(known) = self.known.get_mut(&job) else { return };
        known.in_flight = false;
        known.version = Some(version);
        if known.removed && !self.to_commit.contains(&job) {
            self.bytes = self.bytes.saturating_sub(known.saved.bytes());
            self.known.remove(&job);
        }
    }
}

impl Shard {
    /// What a run wrote while it goes.
    pub(super) fn save(&mut self, id: RunId, attempt: u32, from: NodeId, saves: &Saves) {
        // Heard before the jobs are here, it is said again.
        if !self.loaded {
            return;
        }
        let Some(open) = self.open.get(&id) else { return };
        let job = open.run.job;
        let (refused, is_new) = self.take(id, attempt, from, saves);
        if !refused.is_empty() {
            tracing::warn!(run = %id, "some of what the run saved was refused: {}", refused.join("; "));
        }
        let key = Some(RunKey { run: id.to_string(), attempt });
        let saved = StateSaved { key, sequence: saves.sequence, refused };
        if is_new || self.is_being_saved(job) {
            self.wait_for_save(job, Waiting::Agent { node: from, saved });
        } else {
            self.context.sessions.tell(from, saved.into());
        }
    }

    /// The end of a run, without what it wrote last. None: that is being saved first, and the end is heard again then.
    pub(super) fn end_after_saving(&mut self, id: RunId, from: NodeId, mut ended: Ended) -> Option<Ended> {
        let Some(saves) = ended.saves.take() else { return Some(ended) };
        let Some(job) = self.open.get(&id).map(|open| open.run.job) else { return Some(ended) };
        let (refused, is_new) = self.take(id, ended.attempt, from, &saves);
        if !refused.is_empty() {
            ended.not_saved(&refused);
        }
        if !is_new && !self.is_being_saved(job) {
            return Some(ended);
        }
        self.wait_for_save(job, Waiting::End { run: id, from, ended: Box::new(ended) });
        None
    }

    /// What of it was refused, and whether there is something new to be committed.
    fn take(&mut self, id: RunId, attempt: u32, from: NodeId, saves: &Saves) -> (Vec<String>, bool) {
        let Some(open) = self.open.get(&id) else { return (Vec::new(), false) };
        let (job, fence, newest) = (open.run.job, open.run.fence, open.run.attempt);
        if open.run.node != Some(from) || attempt != newest {
            return (vec![format!("attempt {newest} of the run has begun since, and only that one saves")], false);
        }
        match self.jobs.get(job).map(|slot| slot.run_on) {
            None => return (vec!["the job was removed".to_owned()], false),
            Some(RunOn::Each | RunOn::Home) => return (vec![ONLY_ONE.to_owned()], false),
            Some(RunOn::One) => {}
        }
        if !self.has_room_for_state() && saves.changes.values().any(|value| !value.is_empty()) {
            return (vec![ControlError::NoRoomForState.to_string()], false);
        }
        let mut saved = self.states.known.get(&job).map(|known| known.saved.clone()).unwrap_or_default();
        match saved.save(fence, saves) {
            Took::New { refused } => {
                self.states.change(job, |known| *known = saved);
                self.commit_soon = Some(jiff::Timestamp::MIN);
                (refused, true)
            }
            Took::Again => (Vec::new(), false),
            Took::Stale { newer } => {
                let why = format!("stale: its fence is {fence}, and a run with fence {newer} has saved since");
                (vec![why], false)
            }
        }
    }

    fn has_room_for_state(&self) -> bool {
        self.states.bytes <= self.context.state_bytes_per_shard_max.load(Ordering::Relaxed)
    }

    fn is_being_saved(&self, job: JobId) -> bool {
        self.states.to_commit.contains(&job) || self.states.known.get(&job).is_some_and(|known| known.in_flight)
    }

    fn wait_for_save(&mut self, job: JobId, waiting: Waiting) {
        if let Some(known) = self.states.known.get_mut(&job) {
            // Agents say everything again until they are answered, and the coordinator may be away for long.
            known.waiting.retain(|before| !waiting.repeats(before));
            known.waiting.push(waiting);
            self.states.to_commit.insert(job);
            self.commit_soon = Some(jiff::Timestamp::MIN);
        }
    }

    pub(super) fn states_committed(&mut self, states: Vec<Committing>, version: Version) {
        for Committing { job, waiting } in states {
            self.states.committed(job, version);
            for waiting in waiting {
                match waiting {
                    Waiting::Agent { node, saved } => self.context.sessions.tell(node, saved.into()),
                    Waiting::End { run, from, ended } => self.happened(run, from, Event::Ended(*ended)),
                    Waiting::Person(reply) => drop(reply.send(Ok(self.states.view(job)))),
                }
            }
        }
    }

    pub(super) fn show_state(&self, job: JobId) -> Result<SavedView, ControlError> {
        if !self.loaded {
            return Err(ControlError::NotOwned(self.id));
        }
        self.jobs.get(job).ok_or(ControlError::NoSuchJob(job))?;
        Ok(self.states.view(job))
    }

    /// By hand: all values. The fence stays, so what a run that is going writes after it counts again.
    pub(super) fn set_state(
        &mut self,
        job: JobId,
        mut values: Values,
        expected: Option<Version>,
        reply: oneshot::Sender<Result<SavedView, ControlError>>,
    ) {
        values.retain(|_, value| !value.is_empty());
        match self.may_set_state(job, &values, expected) {
            Ok(()) => {
                self.states.change(job, |saved| saved.values = values);
                self.wait_for_save(job, Waiting::Person(reply));
            }
            Err(cause) => drop(reply.send(Err(cause))),
        }
    }

    fn may_set_state(&self, job: JobId, values: &Values, expected: Option<Version>) -> Result<(), ControlError> {
        if !self.loaded || self.releasing {
            return Err(ControlError::NotOwned(self.id));
        }
        let slot = self.jobs.get(job).ok_or(ControlError::NoSuchJob(job))?;
        if slot.run_on != RunOn::One {
            return Err(ControlError::NotKept(ONLY_ONE.to_owned()));
        }
        let current = self.states.view(job).version;
        // What is on its way has no version yet, and is newer than what anybody has read.
        if expected.is_some_and(|expected| expected != current || self.is_being_saved(job)) {
            return Err(ControlError::StateChanged(current));
        }
        if !self.has_room_for_state() && !values.is_empty() {
            return Err(ControlError::NoRoomForState);
        }
        match state::merge(&mut Values::new(), values).into_iter().next() {
            Some(why) => Err(ControlError::NotKept(why)),
            None => Ok(()),
        }
    }

    /// What a job kept goes with it.
    pub(super) fn forget_state(&mut self, job: JobId) {
        if let Some(known) = self.states.known.get_mut(&job) {
            known.removed = true;
            self.states.to_commit.insert(job);
            self.commit_soon = Some(jiff::Timestamp::MIN);
        }
    }

    /// Of jobs that were removed while nobody had the shard. `there`: all that the store has.
    pub(super) fn forget_states_except(&mut self, there: &HashSet<JobId>) {
        let gone: Vec<JobId> = self.states.known.keys().filter(|job| !there.contains(job)).copied().collect();
        gone.into_iter().for_each(|job| self.forget_state(job));
    }
}

const ONLY_ONE: &str = "state is saved for jobs with `run_on: one`; on nodes that fire by themselves a job keeps files";
