//! The server's side of the sessions with agents: who is connected, what is told to them, and what they report. It decides
//! nothing about runs; each report goes to the run's shard.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belfry_coord::keys;
use belfry_core::attempt::Attempt;
use belfry_core::id::Slot;
use belfry_core::run::{
    Ended as EndedFacts, Event, Held, Marks, Outcome, OutputFacts, Run, RunState, Trigger, Usage, Verdict,
};
use belfry_core::state::Saves;
use belfry_core::{Fence, Incarnation, NodeId, RunId, ShardId, Timestamp};
use belfry_proto::session::{self, FromAgent, Hello, ToAgent, from_agent};
use belfry_store::{NodeRecord, OutputChunk, StoreError, Stream};
use futures_util::{Stream as Incoming, StreamExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::context::Context;
use crate::heartbeats::{self, Beat, Registered};
use crate::homes;
use crate::joins::{self, NotLetIn};
use crate::machine;
use crate::nodes::{Arrival, Said};
use crate::shard::{NodeReport, ShardMessage};
use crate::view::Health;

/// Orders that may wait for a slow agent; the ones beyond it are sent again by the shards.
pub const ORDERS_WAITING_MAX: usize = 32_768;
/// What the store has room for.
const NAME_CHARS_MAX: usize = 128;
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// Results of runs that this server does not own and that wait for the store.
pub const LATE_RESULTS_MAX: usize = 1_000;
/// What ended later is still in nearly every history, and its owner about to write it down.
const HISTORY_AT_LEAST: Duration = Duration::from_secs(3600);
const CLOCK_ASKED_EVERY: Duration = Duration::from_secs(10);

/// Connected agents by node. An agent may have several sessions for a while, or when it knows this server by two addresses: the
/// newest is used, and the one before it when that ends.
#[derive(Debug, Default)]
pub struct Sessions {
    by_node: Mutex<HashMap<NodeId, Vec<Session>>>,
    last_number: AtomicU64,
}

#[derive(Clone, Debug)]
struct Session {
    number: u64,
    incarnation: Incarnation,
    orders: mpsc::Sender<ToAgent>,
    expelled: CancellationToken,
    /// What the agent had when it said hello, for shards that are loaded later.
    report: Arc<NodeReport>,
}

/// Whether an order is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Yes,
    /// Not now; it will be sent again.
    NotNow,
    /// The incarnation that it was meant for is gone; it was not sent and never will be.
    OtherIncarnation,
}

impl Sessions {
    pub fn order(&self, node: NodeId, incarnation: Incarnation, order: ToAgent) -> Sent {
        match self.lock().get(&node).and_then(|sessions| sessions.last()) {
            None => Sent::NotNow,
            Some(session) if session.incarnation != incarnation => Sent::OtherIncarnation,
            Some(session) => match session.orders.try_send(order) {
                Ok(()) => Sent::Yes,
                Err(_) => Sent::NotNow,
            },
        }
    }

    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.lock().get(&node)?.last().map(|session| session.incarnation)
    }

    /// What concerns no incarnation in particular; lost if the agent is not there.
    pub fn tell(&self, node: NodeId, message: ToAgent) {
        if let Some(session) = self.lock().get(&node).and_then(|sessions| sessions.last()) {
            let _ = session.orders.try_send(message);
        }
    }

    pub fn tell_all(&self, message: &ToAgent) {
        for session in self.lock().values().flatten() {
            let _ = session.orders.try_send(message.clone());
        }
    }

    /// What each connected agent has said.
    pub fn reports(&self) -> Vec<Arc<NodeReport>> {
        self.lock().values().filter_map(|sessions| sessions.last()).map(|session| session.report.clone()).collect()
    }

    /// None: a later incarnation has a session here, so this one is over, however long its hello was on its way.
    fn open(&self, report: Arc<NodeReport>, orders: mpsc::Sender<ToAgent>) -> Option<(u64, CancellationToken)> {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let mut sessions = self.lock();
        let of_node = sessions.entry(report.node).or_default();
        if of_node.iter().any(|session| session.incarnation > report.incarnation) {
            return None;
        }
        // What another incarnation has opened tells nothing any more.
        of_node.retain(|session| session.incarnation == report.incarnation);
        let expelled = CancellationToken::new();
        of_node.push(Session { number, incarnation: report.incarnation, orders, expelled: expelled.clone(), report });
        Some((number, expelled))
    }

    /// A removed node has no session any more.
    pub fn expel(&self, node: NodeId) {
        self.lock().get(&node).into_iter().flatten().for_each(|session| session.expelled.cancel());
    }

    /// True if the node has no session any more.
    fn close(&self, node: NodeId, number: u64) -> bool {
        let mut sessions = self.lock();
        let Some(of_node) = sessions.get_mut(&node) else { return false };
        let was_open = of_node.iter().any(|session| session.number == number);
        of_node.retain(|session| session.number != number);
        let is_gone = of_node.is_empty();
        if is_gone {
            sessions.remove(&node);
        }
        was_open && is_gone
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<NodeId, Vec<Session>>> {
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a session was not opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionRefused {
    #[error("the agent did not introduce itself")]
    NoHello,
    #[error("hello: {0}")]
    BadHello(String),
    #[error(transparent)]
    NotLetIn(#[from] NotLetIn),
    #[error("the coordinator or the store does not answer")]
    NotNow,
}

/// Where an agent comes in. Only the one of this process needs no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    SameProcess,
    Network,
}

/// An agent that has introduced itself and may come in.
pub struct Visitor {
    hello: Hello,
    report: Arc<NodeReport>,
    door: Door,
}

/// Reads the first message of an agent and decides whether it may come in.
pub async fn greet(
    context: &Context,
    incoming: &mut (impl Incoming<Item = FromAgent> + Unpin),
    door: Door,
) -> Result<Visitor, SessionRefused> {
    let first = tokio::time::timeout(HELLO_WITHIN, incoming.next()).await.ok().flatten();
    let Some(from_agent::Message::Hello(hello)) = first.and_then(|m| m.message) else {
        return Err(SessionRefused::NoHello);
    };
    admit(context, hello, door).await
}

/// Serves one agent until its stream ends, or the node is removed. The stream and the orders may be a channel in this process or gRPC.
/// An agent whose heartbeat was refused says hello again on the same stream, as a new incarnation.
pub async fn serve(
    context: Arc<Context>,
    mut visitor: Visitor,
    mut incoming: impl Incoming<Item = FromAgent> + Send + Unpin,
    orders: mpsc::Sender<ToAgent>,
) -> Result<(), SessionRefused> {
    let door = visitor.door;
    loop {
        let Visitor { hello, report, .. } = &visitor;
        let next = match welcome(&context, hello, report, &orders).await? {
            None => refuse_heartbeats(&mut incoming, &orders).await,
            Some((number, expelled)) => {
                let mut talk = Conversation { context: &context, report, orders: orders.clone(), clock_asked: None };
                let again = tokio::select! {
                    again = talk.until_hello(&mut incoming) => again,
                    () = expelled.cancelled() => None,
                };
                if context.sessions.close(report.node, number) {
                    context.nodes.left(report.node, report.incarnation);
                    info!(node = %hello.name, "node disconnected");
                }
                again
            }
        };
        match next {
            Some(hello) => visitor = admit(&context, hello, door).await?,
            None => return Ok(()),
        }
    }
}

/// The number of the session, and what ends it from this side. None: the incarnation is dead, and gets no session before it says hello
/// as a new one.
async fn welcome(
    context: &Context,
    hello: &Hello,
    report: &Arc<NodeReport>,
    orders: &mpsc::Sender<ToAgent>,
) -> Result<Option<(u64, CancellationToken)>, SessionRefused> {
    let ttl_ms = context.config.ttl.as_millis() as u64;
    let record = register(context, hello, report).await?;
    let opened = record.and_then(|record| Some((record, context.sessions.open(report.clone(), orders.clone())?)));
    let Some((record, opened)) = opened else {
        info!(node = %hello.name, "the node was held dead; it has to join as a new incarnation");
        let _ = orders.send(session::Welcome { server: context.server.to_string(), ttl_ms }.into()).await;
        return Ok(None);
    };
    context.nodes.arrived(Arrival {
        record,
        incarnation: report.incarnation,
        runs_as: hello.runs_as.clone(),
        slots: hello.slots,
        says: Said {
            live: hello.live.unwrap_or(hello.running.len() as u32),
            spool_full: hello.spool_full,
            disk_low: hello.disk_low,
            room: hello.room.map(machine::room),
        },
        running: report.running.iter().map(|(run, _)| *run).collect(),
        at: context.now(),
    });
    let _ = orders.send(session::Welcome { server: context.server.to_string(), ttl_ms }.into()).await;
    let _ = orders.send(context.peers.for_agents().into()).await;
    let (slots, running, finished) = (hello.slots, hello.running.len(), hello.finished.len());
    info!(node = %hello.name, "node connected: {slots} slots, {running} running, {finished} results of orders to deliver");
    for (_, inbox) in context.shards.all() {
        let _ = inbox.send(ShardMessage::NodeArrived(report.clone())).await;
    }
    Ok(Some(opened))
}

/// Answers each heartbeat of a dead incarnation, which so learns that it is one, until it says hello again. None: the stream has ended.
async fn refuse_heartbeats(
    incoming: &mut (impl Incoming<Item = FromAgent> + Unpin),
    orders: &mpsc::Sender<ToAgent>,
) -> Option<Hello> {
    loop {
        match incoming.next().await?.message? {
            from_agent::Message::Hello(hello) => return Some(hello),
            from_agent::Message::Heartbeat(beat) => {
                let refusal = session::HeartbeatAck { sequence: beat.sequence, accepted: false };
                orders.send(refusal.into()).await.ok()?;
            }
            // Its results come again with the next hello.
            from_agent::Message::Taken(_)
            | from_agent::Message::Started(_)
            | from_agent::Message::Output(_)
            | from_agent::Message::Ended(_)
            | from_agent::Message::Clock(_)
            | from_agent::Message::Load(_)
            | from_agent::Message::Host(_)
            | from_agent::Message::AskJobs(_)
            | from_agent::Message::DisabledJobs(_)
            | from_agent::Message::Released(_)
            | from_agent::Message::SaveState(_) => {}
        }
    }
}

async fn admit(context: &Context, hello: Hello, door: Door) -> Result<Visitor, SessionRefused> {
    let bad = |what: &str| SessionRefused::BadHello(format!("{what} cannot be read"));
    let keys = |keys: &[session::RunKey]| -> Result<HashSet<(RunId, u32)>, SessionRefused> {
        keys.iter().map(|key| key.run.parse().map(|run| (run, key.attempt)).map_err(|_| bad("a run id"))).collect()
    };
    let report = Arc::new(NodeReport {
        node: hello.node.parse().map_err(|_| bad("the node id"))?,
        name: hello.name.clone(),
        incarnation: Incarnation(hello.incarnation),
        running: keys(&hello.running)?,
        finished: keys(&hello.finished)?,
    });
    if door == Door::Network {
        joins::check(context, report.node, &hello.credential).await?;
    }
    let is_name =
        |name: &str| !name.is_empty() && name.chars().count() <= NAME_CHARS_MAX && !name.contains(char::is_control);
    if !is_name(&hello.name) || hello.version.chars().count() > NAME_CHARS_MAX {
        return Err(SessionRefused::BadHello(format!(
            "the name of a node has 1 to {NAME_CHARS_MAX} characters, and no control characters; start the agent with another `--name`"
        )));
    }
    Ok(Visitor { hello, report, door })
}

/// The heartbeat key names the new incarnation before anyone is told of it: from then on the old one is gone for everybody.
async fn register(context: &Context, hello: &Hello, report: &NodeReport) -> Result<Option<NodeRecord>, SessionRefused> {
    let now = context.now();
    let registered = heartbeats::register(context, report).await.map_err(|cause| {
        warn!(node = %hello.name, "the node cannot be registered: {cause}");
        SessionRefused::NotNow
    })?;
    if registered == Registered::Dead {
        return Ok(None);
    }
    // What it fired alone is marked by the homes as they are now, and hints of them may be on their way.
    homes::look(context).await.map_err(|cause| {
        context.coordinator_health.away(context.now(), &cause);
        SessionRefused::NotNow
    })?;
    let said = NodeRecord {
        id: report.node,
        name: hello.name.clone(),
        labels: hello.labels.clone().into_iter().collect(),
        weight: 1,
        slots: None,
        draining: false,
        excluded: false,
        version: hello.version.clone(),
        incarnation: report.incarnation,
        first_seen: now,
        removed_at: None,
    };
    let saved = match context.prompt_store.upsert_node(&said).await {
        Ok(()) => context.prompt_store.node(report.node).await,
        Err(cause) => Err(cause),
    };
    match saved {
        Ok(Some(record)) if record.removed_at.is_some() => Err(NotLetIn::Removed(report.node).into()),
        Ok(record) => Ok(Some(record.unwrap_or(said))),
        Err(cause) => {
            // Firing never waits for the store: the node works with what is known of it here, or what it says of itself.
            context.store_health.away(now, crate::chain(&cause));
            Ok(Some(context.nodes.as_set(said)))
        }
    }
}

struct Conversation<'a> {
    context: &'a Arc<Context>,
    report: &'a NodeReport,
    orders: mpsc::Sender<ToAgent>,
    clock_asked: Option<(u64, Duration)>,
}

impl Conversation<'_> {
    /// None: the stream has ended.
    async fn until_hello(&mut self, incoming: &mut (impl Incoming<Item = FromAgent> + Unpin)) -> Option<Hello> {
        let mut ask_clock = tokio::time::interval(CLOCK_ASKED_EVERY);
        let mut doubts = self.context.wall.doubts();
        loop {
            tokio::select! {
                message = incoming.next() => match message?.message? {
                    from_agent::Message::Hello(hello) => return Some(hello),
                    message => self.hear(message).await,
                },
                _ = ask_clock.tick() => self.ask_clock(),
                Ok(()) = doubts.changed() => self.ask_clock(),
            }
        }
    }

    async fn hear(&mut self, message: from_agent::Message) {
        match message {
            from_agent::Message::Hello(_) => {} // begins a new conversation, see `until_hello`
            from_agent::Message::Heartbeat(beat) => {
                self.context.nodes.heard(self.report.node, self.context.now());
                let beat = Beat {
                    node: self.report.node,
                    incarnation: self.report.incarnation,
                    sequence: beat.sequence,
                    answer: self.orders.clone(),
                };
                heartbeats::carry(self.context, beat);
            }
            from_agent::Message::Taken(taken) => {
                let refused = (!taken.refused.is_empty()).then_some(taken.refused);
                if let Some((run, _)) = parse(taken.key.clone()) {
                    let room = taken.room.map(machine::room);
                    self.context.nodes.answered(self.report.node, run, refused.is_none(), taken.live, room);
                }
                let from = (self.report.node, self.report.incarnation);
                self.to_shard(taken.key, |run, attempt| ShardMessage::Taken { run, attempt, from, refused }).await;
            }
            from_agent::Message::Started(session::Started { key, at_ms, local: Some(facts), overdue_at_ms }) => {
                self.know_homes(&facts).await;
                let event = Event::Started { at: instant(at_ms), attempt: 1 };
                if let Some(mut run) = self.local_run(key, &facts)
                    && run.on(event).is_ok()
                {
                    if let Some(at) = overdue_at_ms.map(instant) {
                        let _ = run.on(Event::Overdue { at, attempt: 1 });
                    }
                    self.context.live.changed(&Arc::new(run.clone()));
                    self.context.recorder.local_run(self.context, run);
                }
            }
            from_agent::Message::Started(started) => {
                let at = instant(started.at_ms);
                let from = self.report.node;
                self.to_shard(started.key.clone(), |run, attempt| ShardMessage::Happened {
                    run,
                    from,
                    event: Event::Started { at, attempt },
                })
                .await;
                if let Some(at) = started.overdue_at_ms.map(instant) {
                    self.to_shard(started.key, |run, attempt| ShardMessage::Happened {
                        run,
                        from,
                        event: Event::Overdue { at, attempt },
                    })
                    .await;
                }
            }
            from_agent::Message::Output(chunk) => self.output(chunk),
            from_agent::Message::Ended(ended) => self.ended(ended).await,
            from_agent::Message::Released(released) => {
                if let Ok(job) = released.job.parse() {
                    let (context, node) = (self.context.clone(), self.report.node);
                    // It waits for the coordinator, and the agent's heartbeats must not.
                    self.context.tasks.spawn("home released", async move {
                        homes::released(&context, node, job, released.home_term, released.cursor_ms).await;
                    });
                }
            }
            from_agent::Message::SaveState(mut save) => {
                let from = self.report.node;
                // One who does not own the run says nothing: the agent asks others.
                self.to_shard(save.key.take(), |run, attempt| ShardMessage::Saves {
                    run,
                    attempt,
                    from,
                    saves: saves(save),
                })
                .await;
            }
            from_agent::Message::Clock(answer) => {
                if self.clock_answered(&answer) {
                    self.context.waiting_runs_may_go().await;
                }
            }
            from_agent::Message::Load(load) => {
                let said = Said {
                    live: load.live,
                    spool_full: load.spool_full,
                    disk_low: load.disk_low,
                    room: load.room.map(machine::room),
                };
                if self.context.nodes.told_load(self.report.node, said) {
                    self.context.waiting_runs_may_go().await;
                }
            }
            from_agent::Message::AskJobs(ask) => {
                for (shard, inbox) in self.context.shards.all() {
                    if ask.shard.is_none_or(|wanted| wanted == u32::from(shard.0)) {
                        let _ = inbox.send(ShardMessage::AsksJobs(self.report.node, ask.token)).await;
                    }
                }
            }
            from_agent::Message::DisabledJobs(said) => {
                let jobs = said.jobs.into_iter().filter_map(|job| Some((job.id.parse().ok()?, job.name)));
                self.context.nodes.disabled(self.report.node, jobs.collect());
            }
            from_agent::Message::Host(said) => {
                self.context.nodes.measured(self.report.node, machine::host(said), self.context.now());
            }
        }
    }

    async fn to_shard(&self, key: Option<session::RunKey>, message: impl FnOnce(RunId, u32) -> ShardMessage) {
        let Some((run, attempt)) = parse(key) else { return };
        if let Some(open) = self.context.open.get(run)
            && let Some(inbox) = self.context.shards.inbox(open.job.shard())
        {
            let _ = inbox.send(message(run, attempt)).await;
        }
    }

    fn output(&self, chunk: session::OutputChunk) {
        let Some((run, attempt)) = parse(chunk.key) else { return };
        let open = self.context.open.get(run);
        if open
            .as_ref()
            .is_some_and(|open| open.attempt == attempt && open.node.is_some_and(|at| at != self.report.node))
        {
            warn!(%run, node = %self.report.name, "the node sends output of what another node runs; it is ignored");
            return;
        }
        let started = open.and_then(|open| open.started_at).unwrap_or_else(|| self.context.now());
        let chunk_kept = OutputChunk {
            run,
            attempt,
            seq: chunk.sequence.into(),
            stream: if chunk.stream == 2 { Stream::Stderr } else { Stream::Stdout },
            offset: chunk.offset,
            at: started.saturating_add(Duration::from_millis(chunk.at_ms)).unwrap_or(Timestamp::MAX),
            bytes: chunk.bytes.into(),
            dropped_bytes: chunk.dropped,
        };
        self.context.recorder.chunk(self.context, chunk_kept, chunk.live_only);
    }

    async fn ended(&self, ended: session::Ended) {
        let Some((run, attempt)) = parse(ended.key.clone()) else { return };
        if belfry_core::planted::is("acknowledged_on_receipt") {
            let keys = ended.key.clone().into_iter().collect();
            let _ = self.orders.try_send(session::Stored { keys }.into());
        }
        if !self.context.recorder.takes_end(self.context, run, attempt, ended.chunks, self.report.node) {
            return;
        }
        if let Some(facts) = &ended.local {
            if self.context.recorder.takes_local_end(self.context, run, attempt, self.report.node) {
                self.know_homes(facts).await;
                self.local_ended(ended.key.clone(), facts, &ended);
            }
            return;
        }
        let Some(facts) = ended_facts(ended, attempt) else {
            warn!(%run, node = %self.report.name, "a result with an unknown outcome is ignored; is the agent newer than this server?");
            return;
        };
        if let Some(open) = self.context.open.get(run)
            && let Some(inbox) = self.context.shards.inbox(open.job.shard())
        {
            self.context.nodes.ended(self.report.node, run);
            let event = Event::Ended(facts);
            let _ = inbox.send(ShardMessage::Happened { run, from: self.report.node, event }).await;
            return;
        }
        let late = Late {
            context: self.context.clone(),
            node: self.report.node,
            node_name: self.report.name.clone(),
            orders: self.orders.clone(),
        };
        // Beyond the bound it is not heard: the agent keeps it, and says it again.
        let Ok(place) = self.context.late_results.clone().try_acquire_owned() else { return };
        // It waits for the store, and the agent's heartbeats must not.
        self.context.tasks.spawn("result of a run that is not owned here", async move {
            let _until_done = place;
            if let Err(cause) = late.ended(run, facts).await {
                // The agent says it again.
                late.context.store_health.away(late.context.now(), crate::chain(&cause));
            }
        });
    }

    /// A run of a home is marked by the homes as they are. They were read after the node registered here; since then they can have been given
    /// away only when it was held dead, as one is that was paused: it goes on where it was, and tells before it hears of that.
    async fn know_homes(&self, facts: &session::LocalRun) {
        let context = self.context;
        if facts.home_term == 0 || heartbeats::has_beaten_lately(context, self.report.node, self.report.incarnation) {
            return;
        }
        // While the coordinator is away to this server, what it knows has to do: nobody's history waits for that.
        if matches!(context.coordinator_health.get(), Health::Away { .. }) {
            return;
        }
        let why = match tokio::time::timeout(context.config.ttl / 4, homes::look(context)).await {
            Ok(Ok(())) => return,
            Ok(Err(cause)) => cause.to_string(),
            Err(_) => "the homes could not be read in time".to_owned(),
        };
        context.coordinator_health.away(context.now(), why);
    }

    /// A run that the node fired by itself: whoever hears of it records it. None: it is not the node's to tell.
    fn local_run(&self, key: Option<session::RunKey>, facts: &session::LocalRun) -> Option<Run> {
        let (id, attempt) = parse(key)?;
        let job = facts.job_id.parse().ok()?;
        let planned = instant(facts.planned_ms);
        if id != RunId::of(job, planned, Slot::Node(self.report.node)) {
            warn!(run = %id, node = %self.report.name, "the node tells of a run that is not its own; it is ignored");
            return None;
        }
        let twice = facts.home_term > 0
            && self.context.homes.may_have_run_twice(job, self.report.node, facts.home_term, planned);
        let claimed_at = instant(facts.claimed_at_ms);
        let mut run = Run {
            id,
            job,
            namespace: facts.namespace.clone(),
            job_name: facts.job.clone(),
            revision: facts.revision,
            planned,
            trigger: Trigger::Schedule,
            state: RunState::Claimed,
            reason: None,
            attempt: 0,
            next_attempt_at: None,
            node: None,
            node_name: None,
            incarnation: None,
            fence: Fence(facts.fence),
            claimed_at,
            dispatched_at: None,
            started_at: None,
            ended_at: None,
            exit_code: None,
            signal: None,
            late: false,
            marks: Marks { local: true, cut_off: facts.cut_off, may_have_run_twice: twice },
            usage: Usage::default(),
            output: OutputFacts::default(),
            overdue_at: None,
            placement: None,
            script: None,
        };
        run.on(Event::Dispatched {
            at: claimed_at,
            node: self.report.node,
            node_name: self.report.name.clone(),
            incarnation: Incarnation(facts.incarnation),
            attempt,
        })
        .ok()?;
        Some(run)
    }

    fn local_ended(&self, key: Option<session::RunKey>, facts: &session::LocalRun, ended: &session::Ended) {
        let Some(mut run) = self.local_run(key, facts) else { return };
        let (id, attempt) = (run.id, run.attempt);
        // Only the node itself can know that what it fired was cut off with it.
        let event = if ended.outcome == RunState::Lost.as_str() {
            let reason = ended.reason.clone();
            Some(Event::Decided { at: instant(ended.ended_at_ms), verdict: Verdict::Lost, reason })
        } else {
            ended_facts(ended.clone(), attempt).map(Event::Ended)
        };
        match event.map(|event| run.on(event)) {
            Some(Ok(())) => {
                self.context.live.changed(&Arc::new(run.clone()));
                self.context.recorder.run(run);
            }
            Some(Err(_)) | None => {
                warn!(run = %id, node = %self.report.name, "a result with an unknown outcome is ignored; is the agent newer than this server?")
            }
        }
    }

    fn ask_clock(&mut self) {
        let token = self.clock_asked.map_or(1, |(token, _)| token + 1);
        self.clock_asked = Some((token, self.context.clock.boottime()));
        let _ = self.orders.try_send(session::ClockQuestion { token }.into());
    }

    /// The agent answered somewhere between question and now; half of the way is the best guess. True if that may let waiting runs go.
    fn clock_answered(&mut self, answer: &session::ClockAnswer) -> bool {
        let Some((_, asked)) = self.clock_asked.filter(|(token, _)| *token == answer.token) else { return false };
        let way = self.context.clock.boottime().saturating_sub(asked);
        if way > Duration::from_secs(2) {
            return false; // too slow to say anything
        }
        // To the wall clock as it is now, which may have stepped since the question, and whether it is believed or not.
        let offset = answer.now_ms + (way.as_millis() / 2) as i64 - self.context.wall_now().as_millisecond();
        let skew_max_ms = self.context.config.max_clock_skew.as_millis() as i64;
        let is_right_again = self.context.nodes.clock_measured(self.report.node, offset, skew_max_ms);
        self.tell_time(answer, skew_max_ms);
        is_right_again
    }

    /// What the node fires by itself goes by what most clocks agree on, where its own does not. While this server's is doubted it has no say.
    fn tell_time(&self, answer: &session::ClockAnswer, skew_max_ms: i64) {
        let hears = answer.boot_ms > 0 && self.context.trusts_clock();
        let off = hears.then(|| self.context.nodes.clock_off_most_ms(self.report.node, skew_max_ms)).flatten();
        if let Some(off) = off {
            let booted_at_ms = answer.now_ms - off - answer.boot_ms as i64;
            let _ = self.orders.try_send(session::AgreedTime { booted_at_ms, within_ms: skew_max_ms as u64 }.into());
        }
    }
}

/// A result of a run that this server does not own.
struct Late {
    context: Arc<Context>,
    node: NodeId,
    node_name: String,
    orders: mpsc::Sender<ToAgent>,
}

impl Late {
    /// Of a run that is closed it corrects `lost`, or the agent only missed that it was stored. What another server owns is put where
    /// its owner finds it, who alone knows whether another attempt follows. A run that the store does not know belongs to a shard
    /// that another server owns, or will own; nothing is acknowledged then.
    async fn ended(&self, run: RunId, mut ended: EndedFacts) -> Result<(), StoreError> {
        let store = &self.context.store;
        let attempt = ended.attempt;
        let Some(known) = store.run(run).await? else {
            if self.was_removed_from_history(run, &ended).await? {
                self.is_stored(run, attempt);
            }
            return Ok(());
        };
        if !known.state.is_ended() || attempt != known.attempt {
            let mut row = Attempt::ended(&known, &ended);
            row.node = Some(self.node);
            row.node_name = Some(self.node_name.clone());
            // With it the output is complete.
            self.context.recorder.flushed().await;
            store.record_attempts(&[row]).await?;
        }
        // Read again: its owner may have given it up meanwhile. It looks for this row after that, so one of the two sees the other.
        let Some(mut known) = store.run(run).await? else { return Ok(()) };
        if known.state == RunState::Lost && ended.saves.take().is_some() {
            ended.not_saved(&["the run had been given up as lost before it said what to keep".to_owned()]);
        }
        if known.state == RunState::Lost && known.on(Event::Ended(ended)).is_ok() {
            self.context.recorder.run(known);
        } else {
            self.is_stored(run, attempt);
        }
        Ok(())
    }

    fn is_stored(&self, run: RunId, attempt: u32) {
        let keys = vec![session::RunKey { run: run.to_string(), attempt }];
        let _ = self.orders.try_send(session::Stored { keys }.into());
    }

    /// Nobody has it open, and it ended long ago: it was given up as lost, and the record of that was removed since. A node that was away
    /// for long would otherwise tell its results for ever, and take no work when they fill its spool.
    async fn was_removed_from_history(&self, run: RunId, ended: &EndedFacts) -> Result<bool, StoreError> {
        let long_ago = self.context.now().saturating_sub(HISTORY_AT_LEAST).unwrap_or(Timestamp::MIN);
        // A missed fire is claimed long after its instant; nothing ends before it is claimed.
        if run >= RunId::first_at(long_ago) || ended.ended_at >= long_ago {
            return Ok(false);
        }
        let key = (run, ended.attempt);
        for shard in ShardId::all() {
            match self.context.coordinator.get(&keys::open_run(shard, run)).await {
                Ok(None) => {}
                Ok(Some(_)) => {
                    self.context.forgotten.is_known(key);
                    return Ok(false);
                }
                Err(cause) => {
                    self.context.coordinator_health.away(self.context.now(), &cause);
                    return Ok(false);
                }
            }
        }
        // After that: whoever closed it since the first question has told the store before.
        if self.context.store.run(run).await?.is_some() {
            return Ok(false);
        }
        Ok(self.context.forgotten.is_unknown_still(key, self.context.clock.boottime()))
    }
}

fn parse(key: Option<session::RunKey>) -> Option<(RunId, u32)> {
    let key = key?;
    Some((key.run.parse().ok()?, key.attempt))
}

fn instant(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MIN)
}

fn ended_facts(ended: session::Ended, attempt: u32) -> Option<EndedFacts> {
    let outcome = match ended.outcome.as_str() {
        "succeeded" => Outcome::Succeeded,
        "failed" => Outcome::Failed,
        "timed_out" => Outcome::TimedOut,
        "killed" => Outcome::Killed,
        "skipped" => Outcome::Skipped,
        "cancelled" => Outcome::Cancelled,
        _ => return None,
    };
    Some(EndedFacts {
        attempt,
        outcome,
        reason: (!ended.reason.is_empty()).then_some(ended.reason),
        started_at: ended.started_at_ms.map(instant),
        ended_at: instant(ended.ended_at_ms),
        exit_code: ended.exit_code,
        signal: ended.signal,
        abandoned: ended.abandoned,
        usage: Usage {
            cpu_ms: ended.cpu_ms,
            max_rss_bytes: ended.max_rss_bytes,
            left_behind: ended.left_behind,
            held: Held::from_bits(ended.held),
        },
        output: OutputFacts { bytes: ended.output_bytes, dropped_bytes: ended.dropped_bytes },
        saves: ended.saves.map(|save| Box::new(saves(save))),
        script: (!ended.script.is_empty()).then_some(ended.script),
        overdue_at: ended.overdue_at_ms.map(instant),
    })
}

fn saves(save: session::SaveState) -> Saves {
    Saves { sequence: save.sequence, changes: save.changes.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(incarnation: u64) -> Arc<NodeReport> {
        let (running, finished) = (HashSet::new(), HashSet::new());
        let (node, name) = (NodeId::from_u128(1), "n".to_owned());
        Arc::new(NodeReport { node, name, incarnation: Incarnation(incarnation), running, finished })
    }

    /// Registering takes its time: who registered first may be the last to open its session.
    #[test]
    fn an_older_incarnation_does_not_take_the_place_of_a_later_one() {
        let sessions = Sessions::default();
        let (orders, mut heard) = mpsc::channel(4);
        assert!(sessions.open(report(5), orders).is_some());
        let (late, _) = mpsc::channel(4);
        assert!(sessions.open(report(4), late).is_none());
        let order = || ToAgent::from(session::Farewell { reason: String::new() });
        assert_eq!(sessions.order(NodeId::from_u128(1), Incarnation(5), order()), Sent::Yes);
        assert!(heard.try_recv().is_ok());
        let (next, _next) = mpsc::channel(4);
        assert!(sessions.open(report(6), next).is_some());
        assert_eq!(sessions.order(NodeId::from_u128(1), Incarnation(5), order()), Sent::OtherIncarnation);
    }
}
