//! What executions report, on its way to a server: started, output, ended.

use belfry_proto::session::{Ended, FromAgent, OutputChunk, SaveState, from_agent};

use super::past::Known;
use super::queue::Kind;
use super::{Act, Desk, LiveState, SessionId};
use crate::clock::Moment;
use crate::key::Key;

impl Desk {
    pub(super) fn started(&mut self, key: Key, at_ms: i64) {
        let Some(live) = self.live.get_mut(&key) else { return };
        let LiveState::Starting { kill } = &live.state else { return };
        live.state = LiveState::Running { at_ms, overdue_at_ms: None, kill: kill.clone() };
        self.starting -= 1;
        self.say_started(key);
    }

    /// Said with its start, which is said again to whoever has missed it. Its end says it too.
    pub(super) fn overdue(&mut self, key: Key, at_ms: i64) {
        if let Some(LiveState::Running { overdue_at_ms, .. }) = self.live.get_mut(&key).map(|live| &mut live.state) {
            *overdue_at_ms = Some(at_ms);
            self.say_started(key);
        }
    }

    fn say_started(&mut self, key: Key) {
        let Some(live) = self.live.get(&key) else { return };
        if let (Some(session), Some(started)) = (self.peers.route(live.session), live.said_started(key)) {
            self.send(session, from_agent::Message::Started(started));
        }
    }

    pub(super) fn exited(&mut self, key: Key) {
        self.promises.over(key);
        let Some(live) = self.live.get_mut(&key) else { return };
        let started_at_ms = live.started_at_ms();
        let takes_slot = u32::from(live.kind != Kind::Service);
        match std::mem::replace(&mut live.state, LiveState::Settling { started_at_ms }) {
            LiveState::Starting { .. } => {
                self.starting -= 1;
                self.executing -= takes_slot;
            }
            LiveState::Running { .. } => self.executing -= takes_slot,
            LiveState::Waiting(_) | LiveState::Settling { .. } => {}
        }
    }

    pub(super) fn written(&mut self, messages: Vec<FromAgent>, now: Moment) {
        for message in messages {
            match message.message {
                Some(from_agent::Message::Output(chunk)) => self.forward_output(chunk),
                Some(from_agent::Message::Ended(ended)) => self.ended(ended, now),
                Some(
                    from_agent::Message::Hello(_)
                    | from_agent::Message::Heartbeat(_)
                    | from_agent::Message::Taken(_)
                    | from_agent::Message::Started(_)
                    | from_agent::Message::Clock(_)
                    | from_agent::Message::Load(_)
                    | from_agent::Message::Host(_)
                    | from_agent::Message::AskJobs(_)
                    | from_agent::Message::DisabledJobs(_)
                    | from_agent::Message::Released(_)
                    | from_agent::Message::SaveState(_),
                )
                | None => {}
            }
        }
    }

    /// To the run's own server; `again`: to all, the run may have another owner by now.
    pub(super) fn save_state(&mut self, save: SaveState, again: bool) {
        let live = Key::from_wire(save.key.as_ref()).and_then(|key| self.live.get(&key));
        let sessions = match self.peers.route(live.and_then(|live| live.session)) {
            Some(session) if !again => vec![session],
            Some(_) | None => self.peers.all_ready(),
        };
        for session in sessions {
            self.send(session, from_agent::Message::SaveState(save.clone()));
        }
    }

    fn forward_output(&mut self, chunk: OutputChunk) {
        let live = Key::from_wire(chunk.key.as_ref()).and_then(|key| self.live.get(&key));
        if let Some(session) = live.and_then(|live| live.session) {
            self.send(session, from_agent::Message::Output(chunk));
        }
    }

    /// The spool has the end: from here on the run is a result to deliver.
    fn ended(&mut self, ended: Ended, now: Moment) {
        let Some(key) = Key::from_wire(ended.key.as_ref()) else { return };
        self.exited(key);
        let live = self.live.remove(&key);
        self.services -= u32::from(live.as_ref().is_some_and(|live| live.kind == Kind::Service));
        let own_session = live.as_ref().and_then(|live| live.session);
        if let Some(live) = &live {
            self.remember_task(key, live, &ended);
        }
        let of_local = ended.local.as_ref().and_then(|local| local.job_id.parse().ok());
        if let Some(job) = of_local.or(live.and_then(|live| live.job)) {
            self.local_ended(job, key, &ended, now);
        }
        self.past.remember(key, Known::Ended, now.boot);
        let session = self.peers.route(own_session);
        self.peers.deliver(key, session, now.boot);
        if ended.local.is_some() {
            self.peers.was_fired_here(key);
        }
        match session {
            Some(session) if own_session == Some(session) => self.send(session, from_agent::Message::Ended(ended)),
            // This server has seen nothing of it so far.
            Some(session) => self.acts.push(Act::SendSpooled { session, key }),
            None => {}
        }
        self.exclusive.ended(key);
        self.say_hello_when_nothing_exclusive_is_left();
    }

    /// The server has not taken the end, because it had no room for what came before it.
    pub(super) fn send_again(&mut self, session: SessionId, keys: &[belfry_proto::session::RunKey], now: Moment) {
        for key in keys.iter().filter_map(|key| Key::from_wire(Some(key))) {
            if self.peers.is_undelivered(key) {
                self.peers.deliver(key, Some(session), now.boot);
                self.acts.push(Act::SendSpooled { session, key });
            }
        }
    }

    pub(super) fn stored(&mut self, keys: &[belfry_proto::session::RunKey]) {
        let keys: Vec<Key> = keys.iter().filter_map(|key| Key::from_wire(Some(key))).collect();
        keys.iter().for_each(|key| self.peers.delivered(*key));
        self.acts.push(Act::Forget(keys));
    }
}
