//! The life of sessions: hello, welcome, heartbeats, farewell; and the end of an incarnation.

use std::time::Duration;

use belfry_proto::HELLO_KEYS_MAX;
use belfry_proto::session::{ClockAnswer, Heartbeat, HeartbeatAck, Hello, Load, RunKey, Welcome, from_agent, to_agent};

use super::orders::LOST_CONTACT;
use super::{Act, Desk, SessionId, promises};
use crate::clock::Moment;
use crate::key::Key;
use crate::spool::Space;
use crate::trust::Answer;

/// A server that says less means this.
const TTL_MIN: Duration = Duration::from_millis(100);

impl Desk {
    pub(super) fn opened(&mut self, session: SessionId) {
        self.peers.open(session);
        if !self.hello_is_due {
            self.say_hello(session);
        }
    }

    pub(super) fn received(&mut self, session: SessionId, message: to_agent::Message, at: Duration, now: Moment) {
        match message {
            to_agent::Message::Welcome(welcome) => self.welcomed(session, &welcome, now),
            to_agent::Message::Heartbeat(ack) => self.heartbeat_answered(&ack, now),
            to_agent::Message::Dispatch(dispatch) => self.dispatch(session, dispatch, at, now),
            to_agent::Message::Recall(recall) => self.recall(session, recall, now),
            to_agent::Message::Kill(kill) => self.kill(session, kill, now),
            to_agent::Message::Stored(stored) => self.stored(&stored.keys),
            to_agent::Message::LocalJobs(jobs) => self.local_jobs(session, jobs, now),
            to_agent::Message::AgreedTime(_) => self.knows_the_time(now),
            to_agent::Message::SendAgain(again) => self.send_again(session, &again.keys, now),
            to_agent::Message::Clock(question) => {
                self.send(
                    session,
                    from_agent::Message::Clock(ClockAnswer {
                        token: question.token,
                        now_ms: now.shown_ms,
                        boot_ms: now.boot.as_millis() as u64,
                    }),
                );
            }
            to_agent::Message::Farewell(farewell) => {
                tracing::info!(reason = farewell.reason, "a server says farewell");
                self.peers.silence(session);
                self.move_on_from(session, now);
            }
            // The sessions' own business, see `session`.
            to_agent::Message::Servers(_) | to_agent::Message::StateSaved(_) => {}
        }
    }

    pub(super) fn closed(&mut self, session: SessionId, now: Moment) {
        self.peers.close(session);
        self.move_on_from(session, now);
    }

    fn say_hello(&mut self, session: SessionId) {
        let current = self.incarnation;
        let mut running: Vec<Key> =
            self.live.iter().filter(|(_, live)| live.incarnation == current).map(|(key, _)| *key).collect();
        running.sort_unstable();
        let finished = self.peers.finished_orders(HELLO_KEYS_MAX.saturating_sub(running.len()));
        let wire = |keys: Vec<Key>| keys.into_iter().map(Key::to_wire).collect::<Vec<RunKey>>();
        self.send(
            session,
            from_agent::Message::Hello(Hello {
                node: self.facts.node.to_string(),
                name: self.facts.name.clone(),
                incarnation: current.0,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                labels: self.facts.labels.clone().into_iter().collect(),
                slots: self.facts.slots,
                running: wire(running),
                finished: wire(finished),
                runs_as: self.facts.runs_as.clone(),
                credential: self.facts.credential.clone(),
                live: Some(self.slot_takers()),
                spool_full: self.space != Space::Enough,
                disk_low: self.promises.disk_low(),
                room: self.promises.room(),
            }),
        );
    }

    fn welcomed(&mut self, session: SessionId, welcome: &Welcome, now: Moment) {
        self.peers.welcome(session, Duration::from_millis(welcome.ttl_ms).max(TTL_MIN));
        self.tell_host(session);
        if self.local.disabled().next().is_some() {
            self.tell_disabled_to(session);
        }
        self.beats.hurry(now.boot);
        self.hand_over_stranded(now);
    }

    fn move_on_from(&mut self, session: SessionId, now: Moment) {
        if self.peers.is_carrier(session) {
            self.beats.hurry(now.boot);
        }
        self.hand_over_stranded(now);
    }

    /// Runs and results whose session is gone go to one that lives, with all that the spool has of them.
    fn hand_over_stranded(&mut self, now: Moment) {
        for (key, session) in self.peers.reassign(now.boot) {
            self.acts.push(Act::SendSpooled { session, key });
        }
        let Some(any) = self.peers.route(None) else { return };
        let mut adopted = Vec::new();
        for (key, live) in &mut self.live {
            if live.session.is_none_or(|session| !self.peers.is_ready(session)) {
                live.session = Some(any);
                adopted.push((*key, live.said_started(*key)));
            }
        }
        adopted.sort_unstable_by_key(|(key, ..)| *key);
        for (key, started) in adopted {
            if let Some(started) = started {
                self.send(any, from_agent::Message::Started(started));
                self.acts.push(Act::SendSpooled { session: any, key });
            }
        }
    }

    pub(super) fn beat(&mut self, now: Moment) {
        if self.beats.next_at().is_none_or(|at| at > now.boot) {
            return;
        }
        let beats = &self.beats;
        match self.peers.carrier(|session| beats.is_silent(session)) {
            Some((session, ttl)) => {
                let sequence = self.beats.send(session, ttl, now.boot);
                self.send(session, from_agent::Message::Heartbeat(Heartbeat { sequence }));
                self.tell_load();
                self.sync_in_time(now);
            }
            None => self.beats.pause(),
        }
    }

    /// To every server: one that orders nothing at the moment would else go by what it heard long ago.
    pub(super) fn tell_load(&mut self) {
        let load = Load {
            live: self.slot_takers(),
            spool_full: self.space != Space::Enough,
            disk_low: self.promises.disk_low(),
            room: self.promises.room(),
        };
        for session in self.peers.all_ready() {
            self.send(session, from_agent::Message::Load(load));
        }
    }

    /// The machine as it was measured last.
    pub(super) fn tell_host(&mut self, session: SessionId) {
        if let Some(host) = self.promises.host().map(promises::host_to_wire) {
            self.send(session, from_agent::Message::Host(host));
        }
    }

    fn heartbeat_answered(&mut self, ack: &HeartbeatAck, now: Moment) {
        match self.beats.answered(ack.sequence, ack.accepted, now.boot) {
            Answer::Renewed => self.trusted_again(now),
            Answer::Unknown => {}
            Answer::Refused => self.become_new_incarnation(now),
        }
    }

    /// The servers hold this incarnation dead. What has not started never will; what is exclusive ends before the servers are
    /// told of a new incarnation; what else runs goes on, and its result is reported late.
    fn become_new_incarnation(&mut self, now: Moment) {
        let former = self.incarnation;
        self.beats.start_over();
        for key in self.waiting() {
            if self.live.get(&key).is_some_and(|live| live.local.is_none()) {
                self.abandon(key, LOST_CONTACT.to_owned(), now);
            }
        }
        self.end_exclusive_at_once();
        self.incarnation = (self.next_incarnation)();
        tracing::warn!(%former, new = %self.incarnation, "the servers held this node dead; it joins again as a new incarnation");
        // Servers heard nothing of what was said in the name of a dead incarnation.
        for session in self.peers.all() {
            self.peers.silence(session);
        }
        self.live.values_mut().for_each(|live| live.session = None);
        self.hello_is_due = true;
        self.say_hello_when_nothing_exclusive_is_left();
    }

    pub(super) fn say_hello_when_nothing_exclusive_is_left(&mut self) {
        if self.hello_is_due && self.exclusive.is_empty() {
            self.hello_is_due = false;
            for session in self.peers.all() {
                self.say_hello(session);
            }
        }
    }
}
