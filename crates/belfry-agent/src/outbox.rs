//! What waits to be sent through one session. Output may be left to wait in the spool when the session is slow; live
//! output is dropped first; ends of runs are never dropped.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belfry_proto::session::{FromAgent, OutputChunk, from_agent::Message};
use tokio::sync::Notify;

use crate::key::Key;

#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    something_to_send: Notify,
    some_was_sent: Notify,
}

#[derive(Default)]
struct State {
    /// Heartbeats and clock answers: their age matters.
    urgent: VecDeque<FromAgent>,
    items: VecDeque<Item>,
    messages: usize,
    output_bytes: usize,
    /// Runs whose output waits in the spool until their item is reached.
    behind: HashSet<Key>,
}

#[derive(Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on its way to be sent")]
pub(crate) enum Item {
    Message(FromAgent),
    /// What the spool has of a run, its chunks from here on.
    Spooled {
        key: Key,
        from_sequence: u32,
    },
}

const OUTPUT_BYTES_MAX: usize = 2 * 1024 * 1024;
const LIVE_OUTPUT_BYTES_MAX: usize = OUTPUT_BYTES_MAX / 2;
/// A server that does not read its messages is not listened to until it does.
const MESSAGES_BEFORE_DEAF: usize = 20_000;

impl Outbox {
    pub(crate) fn push(&self, message: Message) {
        let mut state = self.lock();
        match message {
            Message::Heartbeat(_) | Message::Clock(_) => state.urgent.push_back(FromAgent { message: Some(message) }),
            Message::Output(chunk) => state.push_output(chunk),
            // The load among the messages that it counts.
            Message::Hello(_)
            | Message::Taken(_)
            | Message::Started(_)
            | Message::Ended(_)
            | Message::Load(_)
            | Message::Host(_)
            | Message::AskJobs(_)
            | Message::DisabledJobs(_)
            | Message::Released(_)
            | Message::SaveState(_) => state.push_message(message),
        }
        drop(state);
        self.something_to_send.notify_one();
    }

    /// All that the spool has of a run will be read when its turn comes.
    pub(crate) fn push_spooled(&self, key: Key) {
        self.lock().items.push_back(Item::Spooled { key, from_sequence: 0 });
        self.something_to_send.notify_one();
    }

    pub(crate) async fn next(&self) -> Item {
        loop {
            if let Some(item) = self.lock().take() {
                self.some_was_sent.notify_one();
                return item;
            }
            self.something_to_send.notified().await;
        }
    }

    pub(crate) fn next_urgent(&self) -> Option<FromAgent> {
        self.lock().urgent.pop_front()
    }

    /// Waits until the other side has read enough to be listened to again.
    pub(crate) async fn until_roomy(&self) {
        while self.lock().messages >= MESSAGES_BEFORE_DEAF {
            self.some_was_sent.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push_message(&mut self, message: Message) {
        self.messages += 1;
        self.items.push_back(Item::Message(FromAgent { message: Some(message) }));
    }

    fn push_output(&mut self, chunk: OutputChunk) {
        let Some(key) = Key::from_wire(chunk.key.as_ref()) else { return };
        let bytes_max = if chunk.live_only { LIVE_OUTPUT_BYTES_MAX } else { OUTPUT_BYTES_MAX };
        let fits = self.output_bytes + chunk.bytes.len() <= bytes_max && !self.behind.contains(&key);
        if fits {
            self.output_bytes += chunk.bytes.len();
            self.push_message(Message::Output(chunk));
        } else if !chunk.live_only && self.behind.insert(key) {
            self.items.push_back(Item::Spooled { key, from_sequence: chunk.sequence });
        }
    }

    fn take(&mut self) -> Option<Item> {
        if let Some(message) = self.urgent.pop_front() {
            return Some(Item::Message(message));
        }
        let item = self.items.pop_front()?;
        match &item {
            Item::Message(message) => {
                self.messages -= 1;
                if let Some(Message::Output(chunk)) = &message.message {
                    self.output_bytes -= chunk.bytes.len();
                }
            }
            // Before it is read: a chunk that comes meanwhile is sent twice rather than never.
            Item::Spooled { key, .. } => drop(self.behind.remove(key)),
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use belfry_core::RunId;
    use belfry_proto::session::{Ended, Heartbeat};
    use bytes::Bytes;

    use super::*;

    fn key() -> Key {
        Key { run: RunId::from_u128(1), attempt: 1 }
    }

    fn chunk(sequence: u32, bytes: usize, live_only: bool) -> Message {
        let key = Some(key().to_wire());
        Message::Output(OutputChunk {
            key,
            sequence,
            bytes: Bytes::from(vec![b'x'; bytes]),
            live_only,
            ..Default::default()
        })
    }

    fn drain(outbox: &Outbox) -> Vec<String> {
        let name = |item| match item {
            Item::Spooled { from_sequence, .. } => format!("spooled from {from_sequence}"),
            Item::Message(message) => match message.message {
                Some(Message::Output(chunk)) if chunk.live_only => "live".to_owned(),
                Some(Message::Output(chunk)) => format!("chunk {}", chunk.sequence),
                Some(Message::Ended(_)) => "ended".to_owned(),
                other => format!("{other:?}"),
            },
        };
        std::iter::from_fn(|| outbox.lock().take()).map(name).collect()
    }

    #[test]
    fn when_nobody_reads_live_output_is_dropped_first_then_kept_output_waits_in_the_spool_and_the_end_is_never_dropped()
    {
        let outbox = Outbox::default();
        outbox.push(chunk(0, LIVE_OUTPUT_BYTES_MAX, false));
        outbox.push(chunk(1, 10, true));
        outbox.push(chunk(1, LIVE_OUTPUT_BYTES_MAX, false));
        outbox.push(chunk(2, 10, false));
        outbox.push(chunk(3, 10, false));
        outbox.push(Message::Ended(Ended::default()));
        assert_eq!(drain(&outbox), ["chunk 0", "chunk 1", "spooled from 2", "ended"]);
        outbox.push(chunk(4, 10, false));
        outbox.push(chunk(5, 10, true));
        assert_eq!(drain(&outbox), ["chunk 4", "live"], "it has caught up");
    }

    #[test]
    fn a_heartbeat_overtakes_what_waits() {
        let outbox = Outbox::default();
        outbox.push(chunk(0, 10, false));
        outbox.push(Message::Heartbeat(Heartbeat { sequence: 7 }));
        let heartbeat = FromAgent { message: Some(Message::Heartbeat(Heartbeat { sequence: 7 })) };
        assert_eq!(outbox.lock().take(), Some(Item::Message(heartbeat)));
    }
}
