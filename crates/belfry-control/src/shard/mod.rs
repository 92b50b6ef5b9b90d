//! One owned shard: a single task that holds its jobs and open runs and decides about them. All of its writes go through one seat
//! (`belfry_coord::Held`), one commit at a time; what piles up meanwhile goes into the next one.
//!
//! The files follow a run's life: `load` (what was open when the shard was taken), `claim` (due fires, commits), `go` (overlap,
//! placement, dispatch), `report` (what agents say), `ask` (what people want), `edit` (changed jobs).

mod ask;
mod claim;
mod edit;
mod go;
mod load;
mod report;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use belfry_coord::Held;
use belfry_core::run::{Event, Run, Verdict};
use belfry_core::{Incarnation, JobId, NodeId, RunId, ShardId, Term, Timestamp, Version};
use belfry_store::{JobChange, RawJob};
use tokio::sync::{mpsc, oneshot};

use crate::context::Context;
use crate::cursor::Cursor;
use crate::error::ControlError;
use crate::job_table::JobTable;
use crate::open_run::OpenRecord;
use crate::view::{KillAnswer, ManualRun, ShardView};

pub(crate) use claim::Committed;

const INBOX_MAX: usize = 4096;
/// The end of a run that an agent told another server is found after this.
const LOOK_INTO_STORE_EVERY: Duration = Duration::from_secs(5);
/// No sleep is longer: a step of the wall clock is noticed within this.
const SLEEP_MAX: Duration = Duration::from_secs(1);

/// What a shard is told.
#[derive(Debug)]
pub enum ShardMessage {
    /// All jobs of the shard, and when the last run ended of those that fire after it; nothing fires before they are here.
    Load {
        jobs: Vec<RawJob>,
        last_ends: HashMap<JobId, Timestamp>,
    },
    Changed(Vec<JobChange>, oneshot::Sender<()>),
    RunNow(Box<ManualRun>, oneshot::Sender<Result<Run, ControlError>>),
    KillRun(RunId, String, oneshot::Sender<Result<KillAnswer, ControlError>>),
    KillJob(JobId, String, oneshot::Sender<Result<Vec<RunId>, ControlError>>),
    NodeArrived(Arc<NodeReport>),
    NodeLost(NodeId, Incarnation),
    /// Something about the nodes changed that may let a waiting run go.
    NodesChanged,
    Taken {
        run: RunId,
        attempt: u32,
        refused: Option<String>,
    },
    Happened {
        run: RunId,
        event: Event,
    },
    /// The store has the end of these runs.
    Recorded(Vec<RunId>),
    /// The store has the end of these runs, which another server was told.
    FoundEnded(Vec<Run>),
    /// Finish what can be finished, give the seat up, and end.
    Release,
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
    /// A decision is on its way into the coordinator.
    Deciding,
    /// Ended or decided; the store is being told.
    Recording,
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
    /// Decided while a commit was on its way; done when it is answered.
    then: Option<(Verdict, String)>,
    /// By whom it is being killed; its node is told until it ends.
    kill: Option<String>,
    /// When the order last went on its way; none: the node's session had no room, or there was none.
    order_sent: Option<Timestamp>,
    /// Counted in its node's load.
    booked: bool,
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
    open: HashMap<RunId, Open>,
    /// Open runs of a job, oldest first.
    by_job: HashMap<JobId, Vec<RunId>>,
    /// Runs whose key is to be written or removed, in order.
    to_commit: VecDeque<RunId>,
    commit_soon: Option<Timestamp>,
    /// Runs that wait for their instant to be judged.
    to_judge: BinaryHeap<Reverse<(Timestamp, RunId)>>,
    homeless: BTreeSet<RunId>,
    look_again_at: Timestamp,
    look_into_store_at: Timestamp,
    releasing: bool,
}

impl Shard {
    /// The inbox of the shard, and the task that serves it.
    pub fn open(
        context: Arc<Context>,
        id: ShardId,
        seat: Held<Cursor>,
    ) -> (mpsc::Sender<ShardMessage>, impl Future<Output = Left>) {
        let (inbox, messages) = mpsc::channel(INBOX_MAX);
        let shard = Self {
            id,
            term: seat.term(),
            cursor: *seat.extra(),
            seat: Some(seat),
            jobs: JobTable::default(),
            loaded: false,
            open: HashMap::new(),
            by_job: HashMap::new(),
            to_commit: VecDeque::new(),
            commit_soon: None,
            to_judge: BinaryHeap::new(),
            homeless: BTreeSet::new(),
            look_again_at: context.now(),
            look_into_store_at: context.now(),
            releasing: false,
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
            self.look();
            if commit.is_none() {
                if self.releasing && self.to_commit.is_empty() {
                    return self.release().await;
                }
                commit = self.next_commit();
            }
        }
    }

    fn hear(&mut self, message: ShardMessage) {
        match message {
            ShardMessage::Load { jobs, last_ends } => self.load(jobs, &last_ends),
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
            ShardMessage::NodeArrived(report) => self.node_arrived(&report),
            ShardMessage::NodeLost(node, incarnation) => self.node_lost(node, incarnation),
            ShardMessage::NodesChanged => self.try_homeless(),
            ShardMessage::Taken { run, attempt, refused } => self.taken(run, attempt, refused),
            ShardMessage::Happened { run, event } => self.happened(run, event),
            ShardMessage::Recorded(runs) => self.recorded(&runs),
            ShardMessage::FoundEnded(runs) => self.found_ended(runs),
            ShardMessage::Release => self.releasing = true,
        }
    }

    /// What time has brought about.
    fn look(&mut self) {
        let now = self.context.now();
        if self.loaded && !self.releasing && !self.context.is_stopping() {
            self.claim_due(now);
        }
        self.judge_due(now);
        if now >= self.look_again_at {
            self.look_again_at = next_look(now);
            self.try_homeless();
            self.send_again();
            self.look_into_store(now);
            self.show();
        }
    }

    fn sleep_for(&mut self) -> Duration {
        let now = self.context.now();
        let mut until = self.look_again_at;
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
        self.context.shards.show(ShardView {
            shard: self.id,
            term: self.term,
            jobs: self.jobs.len() as u64,
            open_runs: self.open.len() as u64,
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
            // Its node was named in a commit that never happened: nothing will give the place back but this.
            let never_named = matches!(open.stage, Stage::Claiming | Stage::Placing);
            if let Some(bound) = open.record.bound.filter(|_| open.booked && never_named) {
                self.context.nodes.freed(bound.node, bound.incarnation);
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
