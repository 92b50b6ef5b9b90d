//! The desk: every decision of a node, made from events and the time they come with. It does nothing itself: what is to be
//! done comes out as acts, in order. The loop around it is `desk_loop`.

mod asked;
mod exclusive;
mod local;
mod orders;
mod past;
mod peers;
mod promises;
mod queue;
mod results;
mod sessions;
mod terms;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use belfry_core::room::{Amounts, Host};
use belfry_core::{Incarnation, JobId, NodeId};
use belfry_proto::session::{Ended, FromAgent, LocalJobs, LocalRun, SaveState, Started, from_agent, to_agent};
use tokio::sync::watch;

use crate::clock::Moment;
use crate::key::Key;
use crate::local::{Claim, Local, ToWrite};
use crate::local_api::{Asker, Question};
use crate::spool::Space;
use crate::trust::{Heartbeats, Trust};
use asked::Asked;
pub(crate) use exclusive::CUT_OFF;
use exclusive::Exclusive;
pub(crate) use local::boot_id;
use past::Past;
pub(crate) use peers::SessionId;
use peers::{Peers, RESEND_AFTER};
use promises::{Promises, Verdict};
pub(crate) use queue::Order;
use queue::{Kind, Queue, Queues};
use terms::Terms;

/// What the servers are told about this node.
#[derive(Clone, Debug)]
pub(crate) struct NodeFacts {
    pub node: NodeId,
    pub name: String,
    pub labels: BTreeMap<String, String>,
    pub slots: u32,
    pub runs_as: String,
    pub credential: String,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "messages of servers are the rule, and none is kept")]
pub(crate) enum Event {
    Opened {
        session: SessionId,
    },
    /// `at`: the boottime at which the message came.
    Received {
        session: SessionId,
        message: to_agent::Message,
        at: Duration,
    },
    Closed {
        session: SessionId,
    },
    /// The program runs.
    Started {
        key: Key,
        at_ms: i64,
    },
    /// It takes longer than its job wants, and goes on.
    Overdue {
        key: Key,
        at_ms: i64,
    },
    /// Nothing of the run executes any more, or ever will; its end is on its way to the spool.
    Exited {
        key: Key,
    },
    /// What a run wrote of its job's state; `again`: it was sent before, and nobody answered.
    Saves {
        save: SaveState,
        again: bool,
    },
    /// These may be sent: the spool has them, or they are output that only followers want.
    Written(Vec<FromAgent>),
    /// The disk has what was to be known of local jobs.
    LocalWritten {
        ticket: u64,
    },
    /// What the spool has room for.
    Space(Space),
    /// What the machine has.
    Measured(Box<Host>),
    /// By the local API.
    Asked(Question, Asker),
    /// No new work from now on.
    Drain {
        reason: String,
    },
    /// End everything that still runs.
    EndAll {
        reason: String,
    },
}

#[derive(Debug)]
pub(crate) enum Act {
    Send {
        session: SessionId,
        message: from_agent::Message,
    },
    /// All that the spool has of a run.
    SendSpooled {
        session: SessionId,
        key: Key,
    },
    Start {
        key: Key,
        order: Box<Order>,
        /// Of a run that this node fired by itself.
        local: Option<Box<LocalRun>>,
        kills: watch::Receiver<Option<KillOrder>>,
    },
    Keep(Ended),
    KeepLocal(ToWrite),
    Forget(Vec<Key>),
}

/// An order to end the tree of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KillOrder {
    /// `None`: the job's own.
    pub grace: Option<Duration>,
    pub reason: String,
    /// The node ends it for reasons of its own.
    pub abandoned: bool,
}

/// What others want to know of a desk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub incarnation: u64,
    /// Taken, and its end is not in the spool yet.
    pub live: usize,
    pub undelivered: usize,
    pub sessions: usize,
    /// No new work is taken.
    pub stopping: bool,
}

pub(crate) struct Desk {
    facts: NodeFacts,
    incarnation: Incarnation,
    next_incarnation: Box<dyn FnMut() -> Incarnation + Send>,
    terms: Terms,
    past: Past,
    live: HashMap<Key, Live>,
    queues: Queues,
    /// Those that came while contact was lost.
    until_trusted: BTreeSet<Key>,
    local: Local,
    /// Jobs that servers told before the time was known.
    early_jobs: Vec<(SessionId, LocalJobs)>,
    exclusive: Exclusive,
    /// Held dead: this incarnation is told to the servers when nothing exclusive of the former one is left.
    hello_is_due: bool,
    /// Runs that hold a slot.
    executing: u32,
    /// Of `live`, those that take none.
    services: u32,
    /// Of these, the ones whose program does not run yet.
    starting: u32,
    peers: Peers,
    beats: Heartbeats,
    stopping: Option<String>,
    space: Space,
    promises: Promises,
    asked: Asked,
    next_resend: Duration,
    acts: Vec<Act>,
}

/// A run from its taking to the moment when the spool has its end.
struct Live {
    /// Where its order came from last, or who was chosen since.
    session: Option<SessionId>,
    incarnation: Incarnation,
    job: Option<JobId>,
    /// `namespace/name`
    name: Box<str>,
    planned_ms: i64,
    /// What servers do not know of a run that this node fired by itself.
    local: Option<Box<LocalRun>>,
    kind: Kind,
    state: LiveState,
}

enum LiveState {
    Waiting(Box<Order>),
    Starting {
        kill: watch::Sender<Option<KillOrder>>,
    },
    Running {
        at_ms: i64,
        overdue_at_ms: Option<i64>,
        kill: watch::Sender<Option<KillOrder>>,
    },
    /// It executes no more, or never did.
    Settling {
        started_at_ms: Option<i64>,
    },
}

/// Below what the spawner has on the way at once, so that a start never waits after its trust was checked.
const STARTING_MAX: u32 = 200;

impl Desk {
    /// `finished`: what the spool has of former incarnations; `fired_here`: of these, what they had fired by themselves.
    pub(crate) fn new(
        facts: NodeFacts,
        mut next_incarnation: Box<dyn FnMut() -> Incarnation + Send>,
        trust: Trust,
        (finished, fired_here): (Vec<Key>, Vec<Key>),
        (local, cut_off): (Local, Vec<Claim>),
        now: Moment,
    ) -> Desk {
        let mut peers = Peers::default();
        finished.into_iter().for_each(|key| peers.deliver(key, None, now.boot));
        fired_here.into_iter().for_each(|key| peers.was_fired_here(key));
        let mut desk = Desk {
            facts,
            incarnation: next_incarnation(),
            next_incarnation,
            terms: Terms::default(),
            past: Past::default(),
            live: HashMap::new(),
            queues: Queues::default(),
            until_trusted: BTreeSet::new(),
            local,
            early_jobs: Vec::new(),
            exclusive: Exclusive::default(),
            hello_is_due: false,
            executing: 0,
            services: 0,
            starting: 0,
            peers,
            beats: Heartbeats::new(trust),
            stopping: None,
            space: Space::default(),
            promises: Promises::default(),
            asked: Asked::new(now),
            next_resend: now.boot + RESEND_AFTER,
            acts: Vec::new(),
        };
        desk.was_cut_off(cut_off, now);
        desk
    }

    pub(crate) fn load(&self) -> Load {
        Load {
            incarnation: self.incarnation.0,
            live: self.live.len(),
            undelivered: self.peers.undelivered(),
            sessions: self.peers.all().len(),
            stopping: self.stopping.is_some(),
        }
    }

    pub(crate) fn on(&mut self, event: Event, now: Moment) {
        match event {
            Event::Opened { session } => self.opened(session),
            Event::Received { session, message, at } => self.received(session, message, at, now),
            Event::Closed { session } => self.closed(session, now),
            Event::Started { key, at_ms } => self.started(key, at_ms),
            Event::Overdue { key, at_ms } => self.overdue(key, at_ms),
            Event::Exited { key } => self.exited(key),
            Event::Saves { save, again } => self.save_state(save, again),
            Event::Written(messages) => self.written(messages, now),
            Event::LocalWritten { ticket } => self.local_written(ticket, now),
            Event::Space(space) => self.has_space(space),
            Event::Measured(host) => self.measured(host, now),
            Event::Asked(question, asker) => self.asked(question, asker, now),
            Event::Drain { reason } => self.drain(reason, now),
            Event::EndAll { reason } => self.end_all(&reason),
        }
    }

    /// What is due by the clock alone. To be called after events and at `next_wake`.
    pub(crate) fn tick(&mut self, now: Moment) {
        self.beat(now);
        self.end_exclusive_in_time(now);
        self.fire_local(now);
        self.start_local(now);
        self.start_due(now);
        self.give_up_overdue(now);
        self.give_up_fetches(now);
        if self.promises.take_changed() {
            self.tell_load();
        }
        if now.boot >= self.next_resend {
            self.next_resend = now.boot + RESEND_AFTER / 4;
            for (key, session) in self.peers.overdue(now.boot) {
                self.acts.push(Act::SendSpooled { session, key });
            }
        }
    }

    /// The boottime of the next `tick` that would do something.
    pub(crate) fn next_wake(&self) -> Option<Duration> {
        let has_trust = self.beats.trust().was_given();
        let next = |queue: &Queue, may: bool| may.then(|| queue.next_due(|needs| self.may_go(needs))).flatten();
        let all = [
            next(&self.queues.ordered, self.has_room() && has_trust),
            next(&self.queues.local, self.has_room()),
            next(&self.queues.services, self.may_start() && has_trust),
            self.queues.next_give_up(),
            self.local.wake(),
            self.beats.next_at(),
            (self.peers.undelivered() > 0).then_some(self.next_resend),
            self.exclusive.next_wake(self.beats.last_moments()),
            self.asked.next_wake(),
        ];
        all.into_iter().flatten().min()
    }

    pub(crate) fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    fn has_room(&self) -> bool {
        self.executing < self.facts.slots && self.may_start()
    }

    fn may_start(&self) -> bool {
        self.starting < STARTING_MAX && !self.promises.disk_low()
    }

    /// What the node has of what takes slots.
    fn slot_takers(&self) -> u32 {
        (self.live.len() as u32).saturating_sub(self.services)
    }

    /// There is room for it, or never will be.
    fn may_go(&self, needs: Amounts) -> bool {
        !matches!(self.promises.verdict(needs), Verdict::Waits(_))
    }

    fn send(&mut self, session: SessionId, message: from_agent::Message) {
        self.acts.push(Act::Send { session, message });
    }

    /// The servers hear at once, so that little is refused when there is no room, and work comes as soon as there is.
    fn has_space(&mut self, space: Space) {
        if std::mem::replace(&mut self.space, space) == space {
            return;
        }
        match space {
            Space::Enough => tracing::info!("the spool has room again: work is taken"),
            Space::Scarce | Space::None => tracing::warn!(
                "the spool is nearly full of results that no server has stored, and no new work is taken; see whether servers and store are up, or raise --spool-max"
            ),
        }
        self.tell_load();
    }

    fn measured(&mut self, host: Box<Host>, now: Moment) {
        if self.promises.measured(host, now.boot) {
            match self.promises.disk_low() {
                true => tracing::warn!(
                    "there is less free disk than the floor, and no new work is taken; make room, or lower --disk-floor"
                ),
                false => tracing::info!("there is enough free disk again: work is taken"),
            }
        }
        self.peers.all_ready().into_iter().for_each(|session| self.tell_host(session));
        self.tell_load();
    }

    fn drain(&mut self, reason: String, now: Moment) {
        let end = format!("the agent on {} stops: {reason}", self.facts.name);
        self.stopping = Some(reason);
        for key in self.waiting() {
            self.abandon(key, end.clone(), now);
        }
        self.drop_claimed(&end, now);
        // They would never end by themselves, and start elsewhere when they have ended here.
        for live in self.live.values().filter(|live| live.kind == Kind::Service) {
            live.kill(KillOrder { grace: None, reason: end.clone(), abandoned: true });
        }
    }

    fn end_all(&mut self, reason: &str) {
        let reason = format!("the agent on {} stops: {reason}", self.facts.name);
        for live in self.live.values() {
            live.kill(KillOrder { grace: None, reason: reason.clone(), abandoned: true });
        }
    }

    /// Runs that have not started.
    fn waiting(&self) -> Vec<Key> {
        let waits = |live: &Live| matches!(live.state, LiveState::Waiting(_));
        let mut keys: Vec<Key> = self.live.iter().filter(|(_, live)| waits(live)).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }
}

impl Live {
    /// What servers are told of its start; None: its program does not run yet, or never did.
    fn said_started(&self, key: Key) -> Option<Started> {
        let overdue_at_ms = match self.state {
            LiveState::Running { overdue_at_ms, .. } => overdue_at_ms,
            LiveState::Waiting(_) | LiveState::Starting { .. } | LiveState::Settling { .. } => None,
        };
        let local = self.local.as_deref().cloned();
        Some(Started { key: Some(key.to_wire()), at_ms: self.started_at_ms()?, local, overdue_at_ms })
    }

    /// Whoever executes it hears of it; one who is already gone needs not.
    fn kill(&self, order: KillOrder) {
        match &self.state {
            LiveState::Starting { kill } | LiveState::Running { kill, .. } => drop(kill.send(Some(order))),
            LiveState::Waiting(_) | LiveState::Settling { .. } => {}
        }
    }
}
