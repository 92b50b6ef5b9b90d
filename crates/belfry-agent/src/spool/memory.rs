//! A spool for simulation: what is written is in memory and outlives the agent, as a disk does; what was submitted and is not
//! written yet goes with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_proto::session::{Ended, FromAgent, OutputChunk, from_agent};
use tokio::sync::Notify;

use super::record::{Kind, is_kept, key_of};
use crate::desk::Event;
use crate::key::Key;
use crate::session::Node;

/// Clones are the same disk. An agent that is started on it finds what a former one could not deliver.
#[derive(Clone, Default)]
pub struct MemoryDisk(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    runs: BTreeMap<Key, Vec<FromAgent>>,
    ends: Vec<Ended>,
}

#[derive(Default)]
pub(crate) struct MemorySpool {
    disk: MemoryDisk,
    submitted: Mutex<Vec<FromAgent>>,
    something_submitted: Notify,
}

/// From the submission to the kernel's hands.
const WRITE_TIME: Duration = Duration::from_millis(1);

impl MemoryDisk {
    /// Every end that was ever written, also those that are forgotten since.
    pub fn ends_ever_written(&self) -> Vec<Ended> {
        self.lock().ends.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Written> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemorySpool {
    pub(crate) fn open(disk: MemoryDisk) -> MemorySpool {
        disk.lock()
            .runs
            .retain(|_, records| records.last().and_then(key_of).is_some_and(|(_, kind)| kind != Kind::Chunk));
        MemorySpool { disk, ..MemorySpool::default() }
    }

    pub(crate) fn finished(&self) -> Vec<Key> {
        self.disk.lock().runs.keys().copied().collect()
    }

    pub(crate) fn fired_here(&self) -> Vec<Key> {
        let written = self.disk.lock();
        let is_local = |message: &FromAgent| key_of(message).is_some_and(|(_, kind)| kind == Kind::EndOfLocal);
        let fired_here = written.runs.iter().filter(|(_, records)| records.last().is_some_and(is_local));
        fired_here.map(|(key, _)| *key).collect()
    }

    pub(super) fn pass_on(&self, chunk: OutputChunk) {
        self.submit(from_agent::Message::Output(chunk));
    }

    pub(super) fn keep_end(&self, ended: Ended) {
        self.submit(from_agent::Message::Ended(ended));
    }

    pub(super) fn forget(&self, keys: &[Key]) {
        let mut written = self.disk.lock();
        keys.iter().for_each(|key| drop(written.runs.remove(key)));
    }

    pub(super) fn read(&self, key: Key, from_sequence: u32) -> Vec<FromAgent> {
        let written = self.disk.lock();
        let records = written.runs.get(&key).map_or([].as_slice(), Vec::as_slice);
        records.get(from_sequence as usize..).unwrap_or_default().to_vec()
    }

    fn submit(&self, message: from_agent::Message) {
        self.submitted().push(FromAgent { message: Some(message) });
        self.something_submitted.notify_one();
    }

    fn submitted(&self) -> MutexGuard<'_, Vec<FromAgent>> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never ends.
    pub(crate) async fn write_all(&self, node: &Node) {
        loop {
            self.something_submitted.notified().await;
            tokio::time::sleep(WRITE_TIME).await;
            let messages = std::mem::take(&mut *self.submitted());
            {
                let mut written = self.disk.lock();
                for message in messages.iter().filter(|message| is_kept(message)) {
                    let Some((key, _)) = key_of(message) else { continue };
                    written.runs.entry(key).or_default().push(message.clone());
                    if let Some(from_agent::Message::Ended(ended)) = &message.message {
                        written.ends.push(ended.clone());
                    }
                }
            }
            node.tell(Event::Written(messages)).await;
        }
    }
}
