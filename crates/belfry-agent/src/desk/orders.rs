//! Orders of servers: taken once, refused, amended, recalled, killed; and started at their instant.

use std::time::Duration;

use belfry_core::planted;
use belfry_core::room::Amounts;
use belfry_core::run::{Outcome, RunState};
use belfry_core::units::Span;
use belfry_proto::session::{Dispatch, Ended, Kill, Recall, Taken, from_agent};
use tokio::sync::watch;

use super::past::{Known, Refusal};
use super::promises::Verdict;
use super::queue::{Kind, Queue};
use super::{Act, Desk, KillOrder, Live, LiveState, Order, SessionId};
use crate::clock::Moment;
use crate::key::Key;
use crate::spool::Space;

pub(super) const LOST_CONTACT: &str = "lost contact with the servers before its start";

impl Desk {
    /// `at` is the boottime at which it came: its start is counted from there.
    pub(super) fn dispatch(&mut self, session: SessionId, dispatch: Dispatch, at: Duration, now: Moment) {
        let Some(key) = Key::from_wire(dispatch.key.as_ref()) else {
            tracing::warn!(key = ?dispatch.key, "an order without a run's id; it is ignored");
            return;
        };
        let is_of_highest_term = self.is_of_highest_term(dispatch.shard, dispatch.term);
        if self.was_taken(key) {
            if is_of_highest_term {
                self.amend(key, session, dispatch, at);
            }
            self.answer_again(key, session);
            return;
        }
        if dispatch.reminder {
            // It has ended so long ago that it is forgotten here: its end is in the store, where the owner finds it.
            tracing::warn!(%key, "a server asks for a run that this node does not know any more; nothing is started");
            return;
        }
        let refusal = match () {
            () if !self.is_for_this_incarnation(&dispatch) => Some(Refusal::OtherIncarnation),
            () if !is_of_highest_term => Some(Refusal::LowerTerm),
            () if self.stopping.is_some() => Some(Refusal::Stopping),
            () if self.space == Space::None => Some(Refusal::SpoolFull),
            () if self.promises.disk_low() => Some(Refusal::DiskLow),
            () => None,
        };
        match refusal {
            Some(refusal) => {
                self.remember_refusal(key, refusal, now);
                self.answer_taken(key, session, refusal.reason());
            }
            None => {
                let job = dispatch.job_id.parse().ok();
                let in_its_way = job.filter(|_| !dispatch.beside).and_then(|job| self.local.why_not_beside(job));
                let kind = if dispatch.service { Kind::Service } else { Kind::Ordered };
                let (name, planned_ms) = (full_name(&dispatch), dispatch.planned_ms);
                let order = self.queues.of(kind).add(key, dispatch, at);
                if self.beats.trust().was_given() && !self.is_trusted(now) {
                    self.wait_for_trust(key, kind, &order, now);
                }
                self.promises.taken(key, order.needs);
                let state = LiveState::Waiting(Box::new(order));
                let (session_of, incarnation) = (Some(session), self.incarnation);
                let live = Live { session: session_of, incarnation, job, name, planned_ms, local: None, kind, state };
                self.live.insert(key, live);
                self.services += u32::from(kind == Kind::Service);
                self.answer_taken(key, session, "");
                match in_its_way {
                    Some(reason) => self.never_start(key, Outcome::Skipped, reason, now),
                    None => job.into_iter().for_each(|job| self.local.went(job, key)),
                }
            }
        }
    }

    /// Whoever sends an order has contact: what was lost is about to be back, so it waits for the next heartbeat that is acknowledged. (What
    /// was here before contact was lost is not started any more: nobody can tell when it would be.)
    fn wait_for_trust(&mut self, key: Key, kind: Kind, order: &Order, now: Moment) {
        if self.until_trusted.is_empty() {
            self.beats.hurry(now.boot);
        }
        self.queues.of(kind).hold(order);
        self.until_trusted.insert(key);
    }

    pub(super) fn trusted_again(&mut self, now: Moment) {
        if !self.is_trusted(now) {
            return;
        }
        for key in std::mem::take(&mut self.until_trusted) {
            if let Some(Live { state: LiveState::Waiting(order), kind, .. }) = self.live.get(&key) {
                self.queues.of(*kind).let_go(key, order);
            }
        }
    }

    /// An order is bound to the incarnation that the claim names: a new one cannot know what the old one started.
    fn is_for_this_incarnation(&self, dispatch: &Dispatch) -> bool {
        dispatch.incarnation == self.incarnation.0 || belfry_core::planted::is("order_for_another_incarnation_taken")
    }

    pub(super) fn is_of_highest_term(&mut self, shard: u32, term: u64) -> bool {
        self.terms.admit(shard, term)
    }

    fn was_taken(&self, key: Key) -> bool {
        let forgets = |known: &Known| planted::is("agent_forgets_taken_runs") && *known == Known::Ended;
        self.live.contains_key(&key)
            || self.peers.is_undelivered(key)
            || self.past.get(key).filter(|known| !forgets(known)).is_some()
    }

    fn remember_refusal(&mut self, key: Key, refusal: Refusal, now: Moment) {
        if planted::is("refusal_not_remembered") {
            return;
        }
        self.past.remember(key, Known::Refused(refusal), now.boot);
    }

    fn amend(&mut self, key: Key, session: SessionId, dispatch: Dispatch, at: Duration) {
        let for_this_incarnation = self.is_for_this_incarnation(&dispatch);
        let Some(live) = self.live.get_mut(&key) else { return };
        if live.session.replace(session) != Some(session) && live.started_at_ms().is_some() {
            // A server takes the end of a run when it was told all that came before, from the beginning.
            self.acts.push(Act::SendSpooled { session, key });
        }
        if let LiveState::Waiting(order) = &mut live.state
            && for_this_incarnation
            && dispatch.revision > order.dispatch.revision
        {
            // A service stays one for the rest of this run, whatever its job has become.
            let queue = self.queues.of(live.kind);
            queue.remove(order);
            **order = queue.add(key, dispatch, at);
            if self.until_trusted.contains(&key) {
                queue.hold(order);
            }
            self.promises.taken(key, order.needs);
        }
    }

    fn answer_taken(&mut self, key: Key, session: SessionId, refused: &str) {
        let live = Some(self.slot_takers());
        let room = self.promises.concern(key).then(|| self.promises.room()).flatten();
        let taken = Taken { key: Some(key.to_wire()), refused: refused.to_owned(), live, room };
        self.send(session, from_agent::Message::Taken(taken));
    }

    /// All that is known of an order that came before.
    fn answer_again(&mut self, key: Key, session: SessionId) {
        let refused = match self.past.get(key) {
            Some(Known::Refused(refusal)) => refusal.reason(),
            Some(Known::Ended) | None => "",
        };
        self.answer_taken(key, session, refused);
        if let Some(started) = self.live.get(&key).and_then(|live| live.said_started(key)) {
            self.send(session, from_agent::Message::Started(started));
        }
        if self.peers.is_undelivered(key) {
            self.acts.push(Act::SendSpooled { session, key });
        }
    }

    pub(super) fn recall(&mut self, session: SessionId, recall: Recall, now: Moment) {
        let Some(key) = self.obeyed(recall.key.as_ref(), recall.shard, recall.term) else { return };
        let outcome = if recall.outcome == "skipped" { Outcome::Skipped } else { Outcome::Cancelled };
        if self.is_waiting(key) {
            self.never_start(key, outcome, recall.reason, now);
        } else if self.was_taken(key) {
            // It came too late, or again: the server does not know how far the run is.
            self.answer_again(key, session);
        } else {
            self.refuse_unseen(key, session, now);
        }
    }

    /// Nobody wants a run whose order was lost on its way here: it may still come, and its server waits for a word.
    fn refuse_unseen(&mut self, key: Key, session: SessionId, now: Moment) {
        self.remember_refusal(key, Refusal::Unwanted, now);
        self.answer_taken(key, session, Refusal::Unwanted.reason());
    }

    pub(super) fn kill(&mut self, session: SessionId, kill: Kill, now: Moment) {
        let of_local = kill.local.then(|| Key::from_wire(kill.key.as_ref())).flatten();
        let of_local = of_local.filter(|key| self.live.get(key).is_some_and(|live| live.local.is_some()));
        let Some(key) = of_local.or_else(|| self.obeyed(kill.key.as_ref(), kill.shard, kill.term)) else { return };
        if self.is_waiting(key) {
            self.never_start(key, Outcome::Cancelled, kill.reason, now);
        } else if let Some(live) = self.live.get(&key) {
            let grace = (kill.grace_ms > 0).then(|| Duration::from_millis(kill.grace_ms));
            live.kill(KillOrder { grace, reason: kill.reason, abandoned: false });
        } else if !kill.local && !self.was_taken(key) {
            self.refuse_unseen(key, session, now);
        }
    }

    fn obeyed(&mut self, key: Option<&belfry_proto::session::RunKey>, shard: u32, term: u64) -> Option<Key> {
        let key = Key::from_wire(key)?;
        if self.is_of_highest_term(shard, term) {
            return Some(key);
        }
        tracing::info!(%key, shard, term, "an order of a server that lost the shard is ignored");
        None
    }

    pub(super) fn is_waiting(&self, key: Key) -> bool {
        self.live.get(&key).is_some_and(|live| matches!(live.state, LiveState::Waiting(_)))
    }

    /// A waiting run ends here, with its reason.
    pub(super) fn never_start(&mut self, key: Key, outcome: Outcome, reason: String, now: Moment) {
        let outcome = RunState::from(outcome).as_str().to_owned();
        self.end_waiting(key, Ended { outcome, reason, ..Default::default() }, now);
    }

    /// A waiting run ends here for the node's own reasons.
    pub(super) fn abandon(&mut self, key: Key, reason: String, now: Moment) {
        let outcome = RunState::Skipped.as_str().to_owned();
        self.end_waiting(key, Ended { outcome, reason, abandoned: true, ..Default::default() }, now);
    }

    fn end_waiting(&mut self, key: Key, ended: Ended, now: Moment) {
        let Some(live) = self.live.get_mut(&key) else { return };
        let LiveState::Waiting(order) = std::mem::replace(&mut live.state, LiveState::Settling { started_at_ms: None })
        else {
            return;
        };
        let local = live.local.as_deref().cloned();
        self.queues.of(live.kind).remove(&order);
        self.until_trusted.remove(&key);
        self.promises.over(key);
        self.acts.push(Act::Keep(Ended { key: Some(key.to_wire()), ended_at_ms: now.wall_ms, local, ..ended }));
    }

    /// Starts what is due, in order, as far as there are slots.
    pub(super) fn start_due(&mut self, now: Moment) {
        while self.beats.trust().was_given()
            && let Some(key) = self.next_ordered(now)
        {
            if !self.is_trusted(now) {
                self.abandon(key, LOST_CONTACT.to_owned(), now);
                continue;
            }
            self.start(key, now);
        }
    }

    fn next_ordered(&self, now: Moment) -> Option<Key> {
        let first = |queue: &Queue| queue.first_due(now.boot, |needs| self.may_go(needs));
        let service = self.may_start().then(|| first(&self.queues.services)).flatten();
        service.or_else(|| self.has_room().then(|| first(&self.queues.ordered)).flatten())
    }

    /// What this node fires by itself needs nobody's trust; whether it had contact is told with it.
    pub(super) fn start_local(&mut self, now: Moment) {
        while self.has_room()
            && let Some(key) = self.queues.local.first_due(now.boot, |needs| self.may_go(needs))
        {
            let cut_off = !self.is_trusted(now);
            if let Some(local) = self.live.get_mut(&key).and_then(|live| live.local.as_deref_mut()) {
                local.cut_off = cut_off;
            }
            self.start(key, now);
        }
    }

    fn start(&mut self, key: Key, now: Moment) {
        let Some(live) = self.live.get_mut(&key) else { return };
        if let LiveState::Waiting(order) = &live.state
            && let Verdict::Never(why) = self.promises.verdict(order.needs)
        {
            let reason = format!("on {}: {why}", self.facts.name);
            return self.never_start(key, Outcome::Skipped, reason, now);
        }
        let (kill, kills) = watch::channel(None);
        let LiveState::Waiting(order) = std::mem::replace(&mut live.state, LiveState::Starting { kill }) else {
            return;
        };
        let local = live.local.clone();
        self.queues.of(live.kind).remove(&order);
        if order.dispatch.exclusive {
            self.exclusive.started(key);
        }
        self.promises.started(key, now.boot);
        self.executing += u32::from(live.kind != Kind::Service);
        self.starting += 1;
        self.acts.push(Act::Start { key, order, local, kills });
    }

    fn is_trusted(&self, now: Moment) -> bool {
        self.beats.trust().may_start(now.boot) || planted::is("start_without_trust")
    }

    fn why_waiting(&self, needs: Amounts) -> String {
        match self.promises.verdict(needs) {
            _ if self.promises.disk_low() => "less free disk than the floor".to_owned(),
            Verdict::Waits(short) => short,
            Verdict::Fits | Verdict::Never(_) if self.has_room() => "its turn did not come".to_owned(),
            Verdict::Fits | Verdict::Never(_) => "no free slot".to_owned(),
        }
    }

    pub(super) fn give_up_overdue(&mut self, now: Moment) {
        while let Some(key) = self.queues.first_to_give_up(now.boot) {
            let Some(Live { state: LiveState::Waiting(order), local, .. }) = self.live.get(&key) else { return };
            if local.is_some() || (self.beats.trust().was_given() && !self.until_trusted.contains(&key)) {
                let waited = Span::from(Duration::from_millis(order.dispatch.start_within_ms));
                let reason = format!("{} on {} for {waited}", self.why_waiting(order.needs), self.facts.name);
                self.never_start(key, Outcome::Skipped, reason, now);
            } else {
                self.abandon(key, LOST_CONTACT.to_owned(), now);
            }
        }
    }
}

pub(super) fn full_name(dispatch: &Dispatch) -> Box<str> {
    format!("{}/{}", dispatch.namespace, dispatch.job).into()
}

impl Live {
    pub(super) fn started_at_ms(&self) -> Option<i64> {
        match &self.state {
            LiveState::Waiting(_) | LiveState::Starting { .. } => None,
            LiveState::Running { at_ms, .. } => Some(*at_ms),
            LiveState::Settling { started_at_ms } => *started_at_ms,
        }
    }
}
