//! One owned shard: a single task that holds its jobs and open runs and decides about them. All of its writes go through one seat
//! (`belfry_coord::Held`), one commit at a time; what piles up meanwhile goes into the next one.
//!
//! The files follow a run's life: `load` (what was open when the shard was taken), `claim` (due fires, commits), `go` (overlap,
//! placement, dispatch), `local` (what nodes fire by themselves), `report` (what agents say), `retry` (between two attempts), `ask` (what people want), `explain` (what people
//! wonder), `edit` (changed jobs), `service` (what always runs), `state` (what jobs keep from run to run).

mod ask;
mod claim;
mod edit;
mod explain;
mod go;
mod load;
mod local;
mod report;
mod retry;
mod service;
mod state;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belfry_coord::Held;
use belfry_core::cursor::Cursor;
use belfry_core::job_table::{Firer, JobTable};
use belfry_core::place::LastNode;
use belfry_core::run::{Ended, Event, Run, Verdict};
use belfry_core::state::{Saves, Values};
use belfry_core::{Incarnation, JobId, NodeId, RunId, ShardId, Term, Timestamp, Version};
use belfry_store::{JobChange, RawJob};
use tokio::sync::{mpsc, oneshot};

use crate::context::Context;
use crate::error::ControlError;
use crate::open_run::OpenRecord;
use crate::view::{KillAnswer, ManualRun, Outlook, SavedView, ShardView};

pub(crate) use claim::Committed;
pub(crate) use retry::Found;

const INBOX_MAX: usize = 4096;
/// The end of a run that an agent told another server is found after this.
const LOOK_INTO_STORE_EVERY: Duration = Duration::from_secs(5);
/// Between two looks whether the clock of this server is right again.
const SLEEP_IN_DOUBT: Duration = Duration::from_millis(100);
/// No sleep is longer: a step of the wall clock is noticed within this.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What a shard is told.
#[derive(Debug)]
pub enum ShardMessage {
    /// All jobs of the shard, when the last run ended of those that fire after it, and where the sticky ones were; nothing fires
    /// before they are here.
    Load {
        jobs: Vec<RawJob>,
        last_ends: HashMap<JobId, Timestamp>,
        last_nodes: HashMap<JobId, LastNode>,
        /// From the store itself: a job that is not among them is gone. A snapshot may be older than a job.
        all: bool,
    },
    /// What changed since the snapshot that the jobs were loaded from has been told.
    HeardAll,
    /// Fires that a former owner may have left, and that nobody has recorded.
    LeftBehind(Vec<(JobId, Timestamp)>),
    Changed(Vec<JobChange>, oneshot::Sender<()>),
    RunNow(Box<ManualRun>, oneshot::Sender<Result<Run, ControlError>>),
    KillRun(RunId, String, oneshot::Sender<Result<KillAnswer, ControlError>>),
    KillJob(JobId, String, oneshot::Sender<Result<Vec<RunId>, ControlError>>),
    /// Where to, if somebody says so; and who says it.
    MoveService(JobId, Option<NodeId>, String, oneshot::Sender<Result<RunId, ControlError>>),
    /// What the owner knows of a job at an instant. None: it does not have the job.
    Explain(JobId, Timestamp, oneshot::Sender<Result<Option<Outlook>, ControlError>>),
    /// What a job keeps from run to run.
    ShowState(JobId, oneshot::Sender<Result<SavedView, ControlError>>),
    /// All of it, set by hand, if it is at this version.
    SetState(JobId, Values, Option<Version>, oneshot::Sender<Result<SavedView, ControlError>>),
    NodeArrived(Arc<NodeReport>),
    NodesGone(Arc<HashMap<NodeId, Gone>>),
    /// Something about the nodes changed that may let a waiting run go.
    NodesChanged,
    /// The node wants to hear its own jobs of this shard as a whole list, with this token.
    AsksJobs(NodeId, u64),
    /// Jobs have other homes.
    HomesChanged,
    Taken {
        run: RunId,
        attempt: u32,
        from: (NodeId, Incarnation),
        refused: Option<String>,
    },
    Happened {
        run: RunId,
        from: NodeId,
        event: Event,
    },
    /// A run that goes wrote this of its job's state.
    Saves {
        run: RunId,
        attempt: u32,
        from: NodeId,
        saves: Saves,
    },
    /// The store has the end of these runs.
    Recorded(Vec<RunId>),
    /// The store has the attempt after which these runs wait.
    WaitRecorded(Vec<RunId>),
    /// What another server was told and has put into the store.
    Found(Box<Found>),
    /// Finish what can be finished, give the seat up, and end.
    Release,
    /// The coordinator shows a greater term: end.
    Deposed,
}

/// The incarnations of a node before its newest one are over, for good; and so is that one when it is marked lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    pub newest: Incarnation,
    pub is_lost: bool,
}

/// What an agent has, as it said when it connected.
#[derive(Debug)]
pub struct NodeReport {
    pub node: NodeId,
    pub name: String,
    pub incarnation: Incarnation,
    pub running: HashSet<(RunId, u32)>,
    pub finished: HashSet<(RunId, u32)>,
}

/// Where an open run stands. What is being committed is not touched until the commit is answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Stage {
    /// The claim is on its way.
    Claiming,
    /// Waits behind other runs of its job; `judged`: its instant has come and it may wait on.
    Behind {
        judged: bool,
    },
    /// No node can take it; why.
    Homeless(String),
    /// The commit that names its node is on its way.
    Placing,
    /// Its node has been told, or will be; `taken`: it said so.
    Dispatched {
        taken: bool,
    },
    Running,
    /// To be given up as lost unless the store has its end; why.
    Asking {
        why: String,
    },
    /// The plan of the next attempt is on its way into the coordinator.
    Planning,
    /// Until the time of the next attempt.
    Waiting,
    /// A decision is on its way into the coordinator.
    Deciding,
    /// Ended or decided; the store is being told.
    Recording,
    /// The store has it as lost, and is asked whether another server was told its end meanwhile.
    LastLook,
    /// The store has it; the key is being removed.
    Closing,
}

pub(crate) struct Open {
    record: OpenRecord,
    run: Run,
    /// Of the key; none before the claim is committed.
    version: Option<Version>,
    stage: Stage,
    start_at: Timestamp,
    not_on: Vec<(NodeId, Incarnation)>,
    /// Of a service that somebody has moved.
    goes: service::Next,
    /// Its node ended it, or did not start it, for reasons of its own.
    abandoned: bool,
    /// Decided while a commit was on its way; done when it is answered.
    then: Option<(Verdict, String)>,
    /// By whom it is being killed; its node is told until it ends.
    kill: Option<String>,
    /// Why it is not to start any more, though its node was ordered to start it; the node is told until it answers.
    recalled: Option<&'static str>,
    /// When the order last went on its way, on the clock that never steps; none: the node's session had no room, or there was none.
    order_sent: Option<Duration>,
    /// The attempt that was recorded as ordered for servers which may be told its end.
    recorded_for_others: Option<u32>,
    /// The cursor that this claim moves to.
    cursor: Option<Cursor>,
    reply: Option<oneshot::Sender<Result<Run, ControlError>>>,
}

/// Why the task of a shard ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Left {
    Released,
    /// Somebody else owns it, or a key was not as it was read: whoever takes it next reloads everything.
    Deposed,
}

pub struct Shard {
    context: Arc<Context>,
    id: ShardId,
    term: Term,
    /// None while a commit is on its way.
    seat: Option<Held<Cursor>>,
    /// Up to here fires have been planned; what is committed is in the seat.
    cursor: Cursor,
    jobs: JobTable,
    loaded: bool,
    /// Jobs of open runs that the snapshot lacks, or has older than a run of theirs: nothing follows from that until the store tells.
    outdated: HashSet<JobId>,
    /// The cursor at the taking, until all is told that changed since the snapshot that the jobs are from.
    unheard_from: Option<Cursor>,
    open: HashMap<RunId, Open>,
    /// Open runs of a job, oldest first.
    by_job: HashMap<JobId, Vec<RunId>>,
    /// Runs whose key is to be written or removed, in order.
    to_commit: VecDeque<RunId>,
    commit_soon: Option<Timestamp>,
    /// Runs that wait for their instant to be judged.
    to_judge: BinaryHeap<Reverse<(Timestamp, RunId)>>,
    homeless: BTreeSet<RunId>,
    /// Where the sticky jobs were placed last.
    last_nodes: HashMap<JobId, LastNode>,
    look_again_at: Timestamp,
    look_into_store_at: Timestamp,
    /// What the store had when the shard was taken, and what agents said since: judged when the jobs, and so their rules, are here.
    found: Found,
    /// The commit that took the shard.
    taken_by: Version,
    early: HashMap<(RunId, u32), (NodeId, Ended)>,
    local: local::Local,
    services: service::Services,
    states: state::States,
    /// It was said that no more runs may be open.
    was_full: bool,
    releasing: bool,
    deposed: bool,
}

impl Shard {
    /// The inbox of the shard, and the task that serves it.
    pub fn open(
        context: Arc<Context>,
        id: ShardId,
        seat: Held<Cursor>,
    ) -> (mpsc::Sender<ShardMessage>, impl Future<Output = Left>) {
        let (inbox, messages) = mpsc::channel(INBOX_MAX);
        let seat_version = seat.version();
        let shard = Self {
            id,
            term: seat.term(),
            cursor: *seat.extra(),
            seat: Some(seat),
            jobs: JobTable::new(Firer::Shard),
            loaded: false,
            outdated: HashSet::new(),
            unheard_from: None,
            open: HashMap::new(),
            by_job: HashMap::new(),
            to_commit: VecDeque::new(),
            commit_soon: None,
            to_judge: BinaryHeap::new(),
            homeless: BTreeSet::new(),
            last_nodes: HashMap::new(),
            look_again_at: context.now(),
            look_into_store_at: context.now(),
            found: Found::default(),
            taken_by: seat_version,
            early: HashMap::new(),
            local: local::Local::default(),
            services: service::Services::default(),
            states: state::States::default(),
            was_full: false,
            releasing: false,
            deposed: false,
            context,
        };
        (inbox, shard.serve(messages))
    }

    async fn serve(mut self, mut messages: mpsc::Receiver<ShardMessage>) -> Left {
        if self.recover().await.is_err() {
            return self.leave(Left::Deposed);
        }
        let mut commit: Option<std::pin::Pin<Box<dyn Future<Output = Committed> + Send>>> = None;
        loop {
            let sleep = tokio::time::sleep(self.sleep_for());
            tokio::select! {
                biased;
                committed = async { commit.as_mut().expect("checked").await }, if commit.is_some() => {
                    commit = None;
                    if let Err(left) = self.settle(committed) {
                        return self.leave(left);
                    }
                }
                message = messages.recv() => match message {
                    Some(message) => {
                        self.hear(message);
                        // What has piled up is heard before anything is committed, so that one commit carries it all.
                        while let Ok(message) = messages.try_recv() {
                            self.hear(message);
                        }
                    }
                    None => self.releasing = true,
                },
                () = sleep => {}
            }
            if self.deposed {
                return self.leave(Left::Deposed);
            }
            self.look();
            if commit.is_none() {
                if self.releasing && self.to_commit.is_empty() && self.states.is_settled() {
                    return self.release().await;
                }
                commit = self.next_commit();
            }
        }
    }

    fn hear(&mut self, message: ShardMessage) {
        match message {
            ShardMessage::Load { jobs, last_ends, last_nodes, all } => {
                if all {
                    self.forget_states_except(&jobs.iter().map(|job| job.id).collect());
                }
                self.load(jobs, &last_ends, last_nodes, all);
                if all {
                    self.look_behind(self.cursor);
                }
            }
            ShardMessage::HeardAll => self.heard_all(),
            ShardMessage::LeftBehind(left) => self.claim_left_behind(left),
            ShardMessage::Changed(changes, done) => {
                self.edit(changes);
                let _ = done.send(());
            }
            ShardMessage::RunNow(request, reply) => self.run_now(*request, reply),
            ShardMessage::KillRun(run, by, reply) => {
                let _ = reply.send(self.kill_run(run, &by));
            }
            ShardMessage::KillJob(job, by, reply) => {
                let _ = reply.send(Ok(self.kill_job(job, &by)));
            }
            ShardMessage::MoveService(job, to, by, reply) => {
                let _ = reply.send(self.move_service(job, to, &by));
            }
            ShardMessage::Explain(job, at, reply) => {
                let _ = reply.send(self.explain(job, at));
            }
            ShardMessage::ShowState(job, reply) => {
                let _ = reply.send(self.show_state(job));
            }
            ShardMessage::SetState(job, values, expected, reply) => self.set_state(job, values, expected, reply),
            // Both are looked at when the jobs are here.
            ShardMessage::NodeArrived(_) | ShardMessage::NodesGone(..) if !self.loaded => {}
            ShardMessage::NodeArrived(report) => {
                self.local.arrived(report.node);
                self.node_arrived(&report);
            }
            ShardMessage::NodesGone(nodes) => self.nodes_gone(&nodes),
            ShardMessage::AsksJobs(node, token) => self.local.asked(node, token),
            ShardMessage::NodesChanged => {
                self.local.changed();
                self.keep_services();
                self.try_homeless();
            }
            ShardMessage::HomesChanged => self.local.changed(),
            ShardMessage::Taken { run, attempt, from, refused } => self.taken(run, attempt, from, refused),
            ShardMessage::Happened { run, from, event: Event::Ended(ended) } if !self.loaded => {
                self.early.insert((run, ended.attempt), (from, ended));
            }
            ShardMessage::Happened { run, from, event } => self.happened(run, from, event),
            ShardMessage::Saves { run, attempt, from, saves } => self.save(run, attempt, from, &saves),
            ShardMessage::Recorded(runs) => self.recorded(&runs),
            ShardMessage::WaitRecorded(runs) => self.wait_recorded(&runs),
            ShardMessage::Found(found) => self.found(*found),
            ShardMessage::Release => self.releasing = true,
            ShardMessage::Deposed => self.deposed = true,
        }
    }

    /// What time has brought about.
    fn look(&mut self) {
        let now = self.context.now();
        self.follow_clock_back(now);
        let trusted = self.context.trusts_clock();
        if self.loaded && !self.releasing && !self.context.is_stopping() && trusted {
            self.claim_due(now);
        }
        if trusted {
            self.judge_due(now);
        }
        self.tell_local();
        if now >= self.look_again_at {
            self.look_again_at = next_look(now);
            self.try_homeless();
            self.send_again();
            if self.loaded {
                self.look_into_store(now);
            }
            self.show();
        }
    }

    /// Of a clock that was an hour ahead and was set right: what is to be done soon must not wait for that hour.
    fn follow_clock_back(&mut self, now: Timestamp) {
        self.look_again_at = self.look_again_at.min(next_look(now));
        self.commit_soon = self.commit_soon.map(|at| at.min(claim::by_and_by(now)));
        // Else one is on its way.
        if self.look_into_store_at != Timestamp::MAX {
            self.look_into_store_at = self.look_into_store_at.min(report::next_look_into_store(now));
        }
    }

    fn sleep_for(&mut self) -> Duration {
        let now = self.context.now();
        let mut until = self.look_again_at;
        if !self.context.trusts_clock() {
            return SLEEP_IN_DOUBT;
        }
        if self.loaded && !self.releasing && !self.context.is_stopping() && self.may_claim_more() {
            until = self.jobs.peek().map_or(until, |(at, _)| until.min(claim::wake_for(at)));
        }
        if let Some(Reverse((at, _))) = self.to_judge.peek() {
            until = until.min(*at);
        }
        if let Some(at) = self.commit_soon.filter(|_| self.seat.is_some()) {
            until = until.min(at);
        }
        let wait = until.duration_since(now);
        wait.try_into().map_or(Duration::ZERO, |wait: Duration| wait.min(SLEEP_MAX))
    }

    /// The run changed: whoever looks sees it.
    fn publish(&self, run: RunId) {
        if let Some(open) = self.open.get(&run) {
            let run = Arc::new(open.run.clone());
            self.context.live.changed(&run);
            self.context.open.put(run);
        }
    }

    fn show(&mut self) {
        let next_fire = self.jobs.peek().map(|(at, _)| at);
        if self.is_full() != self.was_full {
            self.was_full = self.is_full();
            let (shard, open) = (self.id, self.open.len());
            if self.was_full {
                tracing::warn!(%shard, "{open} runs are open, and the coordinator has room for no more: what is due waits until some are closed");
            } else {
                tracing::info!(%shard, "the coordinator has room again: fires are claimed");
            }
        }
        self.context.shards.show(ShardView {
            shard: self.id,
            term: self.term,
            jobs: self.jobs.len() as u64,
            open_runs: self.open.len() as u64,
            full: self.was_full,
            next_fire,
        });
    }

    async fn release(mut self) -> Left {
        if let Some(mut seat) = self.seat.take()
            && let Err(cause) = seat.release().await
        {
            tracing::warn!(shard = %self.id, "the shard could not be released, its next owner waits for a TTL: {}", crate::chain(&cause));
        }
        self.leave(Left::Released)
    }

    fn leave(self, left: Left) -> Left {
        self.context.shards.close(self.id);
        for (id, open) in self.open {
            self.context.open.remove(id);
            // An order that goes out all the same is counted by the node itself.
            if let Some(bound) = open.record.bound {
                self.context.nodes.void(bound.node, id);
            }
            if let Some(reply) = open.reply {
                let _ = reply.send(Err(ControlError::NotOwned(self.id)));
            }
        }
        left
    }
}

/// All shards look at one moment of each second, so that an idle server wakes once for them and not sixteen times; not at its
/// beginning, when most fires are due.
fn next_look(now: Timestamp) -> Timestamp {
    const MOMENT_MS: i64 = 300;
    let second_ms = (now.as_millisecond() - MOMENT_MS).div_euclid(1000) + 1;
    Timestamp::from_millisecond(second_ms * 1000 + MOMENT_MS).unwrap_or(Timestamp::MAX)
}
