//! A server's scheduling part: started, asked, stopped. What the API uses; everything else of this crate is behind it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use belfry_coord::{Clock, Coordinator, Pulse, PulseError, keys};
use belfry_core::job::Timeout;
use belfry_core::run::{Run, RunState};
use belfry_core::state::Values;
use belfry_core::{JobId, NodeId, RunId, ServerId, ShardId, Timestamp, Version};
use belfry_proto::session::{Farewell, FromAgent, Kill, RunKey, ToAgent};
use belfry_store::{JobRef, NodeRecord, RunFilter, Script, SecretHash, Store, StoreError};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;

use crate::context::{Context, ControlConfig, HealthMark, OpenRuns, STATE_BYTES_PER_SHARD_MAX, Shards, WallClock};
use crate::error::ControlError;
use crate::feed::{self, Feed};
use crate::gateway::{self, Door, Sessions};
use crate::grpc::ServerIdentity;
use crate::joins::Credentials;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::peers::{self, Peers};
use crate::seats::Seats;
use crate::shard::ShardMessage;
use crate::snapshot::Snapshot;
use crate::tasks::Tasks;
use crate::view::{ClusterView, Health, KillAnswer, ManualRun, NodeView, Outlook, SavedView, Unrecorded};
use crate::{grpc, heartbeats, homes, leader, meta, scripts, webhooks, wrapped};

/// What fires meanwhile is late by as much.
const STORE_SILENT_MAX: Duration = Duration::from_secs(2);
const WARNING_PATIENCE: Duration = Duration::from_secs(2);
/// Of one job that nodes fired by themselves, in one request.
const LOCAL_KILLS_MAX: usize = 1000;

/// How long a server that stops waits for the store.
const FLUSH_PATIENCE: Duration = Duration::from_secs(10);
/// Of that, before others may have the shards.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(1);

/// Cheap to clone; all clones are the same server.
#[derive(Clone)]
pub struct Control {
    context: Arc<Context>,
    feed: Feed,
    stop: Arc<Mutex<Option<Stop>>>,
}

struct Stop {
    seats: oneshot::Sender<()>,
    given_back: oneshot::Receiver<()>,
    pulse: oneshot::Sender<()>,
    said_so: oneshot::Receiver<()>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("this server cannot join the others")]
    Meta(#[source] meta::Disagreement),
    #[error("the server's heartbeat could not be started")]
    Pulse(#[source] PulseError),
    #[error("the store does not say whose jobs it has, nor which nodes; is it up?")]
    Store(#[source] belfry_store::StoreError),
    #[error("the snapshot {} cannot be read, and the store is away", .0.display())]
    Snapshot(PathBuf, #[source] std::io::Error),
}

/// What a server has to know before it begins.
struct Known {
    cluster: String,
    nodes: Vec<NodeRecord>,
    credentials: Vec<(NodeId, SecretHash)>,
    scripts: Vec<Script>,
    /// It is from the snapshot; why, for people.
    without_store: Option<String>,
}

impl Known {
    /// From the store, or from the snapshot of one that does not answer.
    async fn of(config: &ControlConfig, store: &Store, server: ServerId, now: Timestamp) -> Result<Self, StartError> {
        let asked = async {
            Ok::<_, StoreError>(Self {
                cluster: store.setting_or(meta::CLUSTER_SETTING, &server.to_string(), now).await?,
                nodes: store.list_nodes().await?,
                credentials: store.list_credentials().await?,
                // Brought when a job needs them.
                scripts: Vec::new(),
                without_store: None,
            })
        };
        let cause = match asked.await {
            Err(cause) if cause.is_transient() => cause,
            answer => return answer.map_err(StartError::Store),
        };
        let Some(path) = &config.snapshot else { return Err(StartError::Store(cause)) };
        let read = Snapshot::read(path).map_err(|cause| StartError::Snapshot(path.clone(), cause))?;
        let Some((snapshot, cluster)) =
            read.and_then(|it| it.settings.get(meta::CLUSTER_SETTING).cloned().map(|cluster| (it, cluster)))
        else {
            return Err(StartError::Store(cause));
        };
        let why = format!(
            "{}; this server was started from its snapshot of {}: what was changed since is not known here until the store answers",
            crate::chain(&cause),
            snapshot.taken_at
        );
        let credentials = snapshot.credentials();
        Ok(Self { cluster, nodes: snapshot.nodes, credentials, scripts: snapshot.scripts, without_store: Some(why) })
    }
}

impl Control {
    /// Answers when this server has looked at the seats once and holds its share of what is vacant.
    pub async fn start(
        config: ControlConfig,
        server: ServerId,
        coordinator: Arc<dyn Coordinator>,
        store: Store,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        Self::start_with(Tasks::default(), config, server, coordinator, store, clock).await
    }

    /// `tasks` says in which process: a simulation has several in one.
    pub async fn start_with(
        tasks: Tasks,
        config: ControlConfig,
        server: ServerId,
        coordinator: Arc<dyn Coordinator>,
        store: Store,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let prompt_store = if config.snapshot.is_some() { store.prompt(STORE_SILENT_MAX) } else { store.clone() };
        let known = Known::of(&config, &prompt_store, server, clock.now()).await?;
        meta::agree(&coordinator, known.cluster, config.ttl).await.map_err(StartError::Meta)?;
        let info = peers::info(&config.addresses, None);
        let pulse = Pulse::start(coordinator.clone(), clock.clone(), keys::server(server), config.ttl, info)
            .await
            .map_err(StartError::Pulse)?;
        let context = Arc::new(Context {
            config,
            server,
            started_at: clock.now(),
            coordinator,
            nodes: Nodes::default(),
            sessions: Sessions::default(),
            credentials: Credentials::default(),
            carrier: heartbeats::Carrier::default(),
            peers: Peers::default(),
            recorder: Default::default(),
            live: Live::default(),
            open: OpenRuns::default(),
            shards: Shards::default(),
            homes: Default::default(),
            scripts: Default::default(),
            tasks,
            forgotten: Default::default(),
            late_results: Arc::new(Semaphore::new(gateway::LATE_RESULTS_MAX)),
            wall: WallClock::new(&*clock),
            leader: AtomicBool::new(false),
            coordinator_health: HealthMark::new("coordinator"),
            store_health: HealthMark::new("store"),
            open_per_shard_max: AtomicUsize::new(usize::MAX),
            state_bytes_per_shard_max: AtomicUsize::new(STATE_BYTES_PER_SHARD_MAX),
            stopping: AtomicBool::new(false),
            store,
            prompt_store,
            clock,
        });
        context.nodes.known(known.nodes);
        context.credentials.are(known.credentials);
        context.scripts.are(known.scripts, None);
        if let Some(why) = known.without_store {
            tracing::error!("{why}");
            context.store_health.away(context.now(), why);
        }
        if let Some(path) = context.config.snapshot.clone() {
            context.tasks.spawn("snapshot", crate::snapshot::keep(context.clone(), path));
        }
        let (stop_seats, seats_stopped) = oneshot::channel();
        let (stop_pulse, pulse_stopped) = oneshot::channel();
        let (first, looked) = oneshot::channel();
        let (done, given_back) = oneshot::channel();
        let spawn =
            |name, future: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| context.tasks.spawn(name, future);
        let (last_beat, said_so) = oneshot::channel();
        let shared = context.clone();
        spawn(
            "heartbeat",
            Box::pin(async move {
                keep_pulse(shared, pulse, pulse_stopped).await;
                let _ = last_beat.send(());
            }),
        );
        let shared = context.clone();
        spawn("recorder", Box::pin(async move { shared.recorder.write_all(&shared).await }));
        let shared = context.clone();
        spawn("heartbeats of agents", Box::pin(async move { heartbeats::carry_all(&shared).await }));
        spawn("homes", Box::pin(homes::follow(context.clone())));
        let (seen, beats) = tokio::sync::watch::channel(Vec::new());
        spawn("rescue of nodes", Box::pin(leader::rescue_nodes(context.clone(), seen)));
        spawn("homes of jobs", Box::pin(leader::settle_homes(context.clone(), beats)));
        spawn("removal of old runs", Box::pin(leader::remove_what_is_old(context.clone())));
        spawn("housekeeping", Box::pin(leader::keep_house(context.clone())));
        spawn("wrapped commands", Box::pin(wrapped::look_after(context.clone())));
        if let Some(post) = context.config.post.clone() {
            spawn("webhooks", Box::pin(webhooks::deliver(context.clone(), post)));
        }
        let feed = Feed::start(context.clone());
        let seats = Seats::new(context.clone(), feed.clone());
        spawn(
            "seats",
            Box::pin(async move {
                seats.keep(first, seats_stopped).await;
                let _ = done.send(());
            }),
        );
        let _ = looked.await;
        let stop = Stop { seats: stop_seats, given_back, pulse: stop_pulse, said_so };
        Ok(Self { context, feed, stop: Arc::new(Mutex::new(Some(stop))) })
    }

    /// The session of an agent in this process, which needs no credential.
    pub fn connect_local(&self, orders: mpsc::Sender<ToAgent>, reports: mpsc::Receiver<FromAgent>) {
        let context = self.context.clone();
        self.context.tasks.spawn("local agent", async move {
            let mut reports = ReceiverStream::new(reports);
            let session = async {
                let visitor = gateway::greet(&context, &mut reports, Door::SameProcess).await?;
                gateway::serve(context.clone(), visitor, reports, orders).await
            };
            if let Err(refused) = session.await {
                tracing::error!("the agent of this process was not admitted: {refused}");
            }
        });
    }

    /// Serves agents of other processes.
    pub fn serve_agents(&self, listener: tokio::net::TcpListener, identity: ServerIdentity) {
        let serving = grpc::serve(self.context.clone(), listener, identity);
        self.context.tasks.spawn("agent listener", async move {
            if let Err(cause) = serving.await {
                tracing::error!("the listener for agents ended: {}", crate::chain(&cause));
            }
        });
    }

    pub fn now(&self) -> Timestamp {
        self.context.now()
    }

    /// For jobs that have none of their own.
    pub fn default_timeout(&self) -> Option<Timeout> {
        self.context.config.default_timeout
    }

    /// Beyond it a clock is off.
    pub fn max_clock_skew(&self) -> Duration {
        self.context.config.max_clock_skew
    }

    pub fn live(&self) -> &Live {
        &self.context.live
    }

    /// Fresher than the store, for runs that have not been closed.
    pub fn open_run(&self, run: RunId) -> Option<Run> {
        self.context.open.get(run).map(|run| (*run).clone())
    }

    /// Runs that have not been closed; the store may not have heard of them yet.
    pub fn open_runs(&self, wanted: impl Fn(&Run) -> bool) -> Vec<Run> {
        self.context.open.matching(wanted)
    }

    pub fn nodes(&self) -> Vec<NodeView> {
        let homes = self.context.homes.per_node();
        let mut nodes = self.context.nodes.views();
        for node in &mut nodes {
            node.homes = homes.get(&node.id).copied().unwrap_or(0);
        }
        nodes
    }

    pub fn cluster(&self) -> ClusterView {
        let shards = self.context.shards.views();
        ClusterView {
            server: self.context.server,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: self.context.started_at,
            leader: self.context.leader.load(Ordering::Relaxed),
            jobs: shards.iter().map(|shard| shard.jobs).sum(),
            open_runs: self.context.open.len() as u64,
            servers: self.context.peers.views(),
            shards,
            coordinator: self.context.coordinator_health.get(),
            store: self.context.store_health.get(),
            unrecorded: self.context.recorder.unrecorded(),
        }
    }

    /// Somebody was answered by the store. What waits for it says by itself when it is taken.
    pub fn store_answers(&self) {
        let Unrecorded { runs, output_bytes, .. } = self.context.recorder.unrecorded();
        if (runs, output_bytes) == (0, 0) {
            self.context.store_health.ok();
        }
    }

    pub fn store_does_not_answer(&self, cause: &belfry_store::StoreError) {
        if cause.is_transient() {
            self.context.store_health.away(self.context.now(), crate::chain(cause));
        }
    }

    /// What the coordinator's keeper should see to. None also when it does not answer, which [`Control::cluster`] tells.
    pub async fn coordinator_warning(&self) -> Option<String> {
        let asked = tokio::time::timeout(WARNING_PATIENCE, self.context.coordinator.warning()).await;
        asked.ok()?.ok().flatten()
    }

    /// The run of a wrapped command that has ended and that no server has recorded yet.
    pub async fn unrecorded_wrapped(
        &self,
        name: &str,
        instance: &str,
        claimed_at: Timestamp,
    ) -> Result<Option<Run>, ControlError> {
        wrapped::not_yet_copied(&self.context, name, instance, claimed_at).await
    }

    /// After the store took an edit of jobs: the shards of this server know it when this answers, other servers hear of it.
    pub async fn jobs_changed(&self) {
        self.feed.changes().await;
        self.context.announce(keys::CHANGED_JOBS).await;
    }

    /// After the store took a change of a node: this server knows it when this answers, other servers hear of it.
    pub async fn nodes_changed(&self) {
        feed::bring_nodes(&self.context).await;
        self.context.announce(keys::CHANGED_NODES).await;
    }

    /// After the store took a change of a script: this server knows it when this answers, other servers hear of it.
    pub async fn scripts_changed(&self) {
        scripts::bring(&self.context, &self.context.store).await;
        self.context.announce(keys::CHANGED_SCRIPTS).await;
    }

    /// The run as soon as it is claimed for good, or decided against.
    pub async fn run_now(&self, request: ManualRun) -> Result<Run, ControlError> {
        if let Some(key) = &request.idempotency_key
            && let Some(run) = self.context.store.run_by_key(request.job, key).await.map_err(ControlError::StoreAway)?
        {
            return Ok(self.open_run(run.id).unwrap_or(run));
        }
        let ask =
            |request: ManualRun| self.ask(request.job.shard(), |reply| ShardMessage::RunNow(Box::new(request), reply));
        match ask(request.clone()).await {
            // It may have been saved a moment ago through another server.
            Err(ControlError::NoSuchJob(_)) => {
                self.feed.changes().await;
                ask(request).await
            }
            answer => answer,
        }
    }

    /// What the owner of a job's shard knows of it at an instant; None: it does not have the job.
    pub async fn explain(&self, job: JobId, at: Timestamp) -> Result<Option<Outlook>, ControlError> {
        let ask = || self.ask(job.shard(), |reply| ShardMessage::Explain(job, at, reply));
        match ask().await? {
            // It may have been saved a moment ago through another server.
            None => {
                self.feed.changes().await;
                ask().await
            }
            known => Ok(known),
        }
    }

    /// What a job keeps from run to run.
    pub async fn state(&self, job: JobId) -> Result<SavedView, ControlError> {
        let ask = || self.ask(job.shard(), |reply| ShardMessage::ShowState(job, reply));
        match ask().await {
            // It may have been saved a moment ago through another server.
            Err(ControlError::NoSuchJob(_)) => {
                self.feed.changes().await;
                ask().await
            }
            known => known,
        }
    }

    /// Sets all of it by hand; `expected`: only if it is at this version. Answers when it is in the coordinator.
    pub async fn set_state(
        &self,
        job: JobId,
        values: Values,
        expected: Option<Version>,
    ) -> Result<SavedView, ControlError> {
        let ask = |values: Values| self.ask(job.shard(), |reply| ShardMessage::SetState(job, values, expected, reply));
        match ask(values.clone()).await {
            Err(ControlError::NoSuchJob(_)) => {
                self.feed.changes().await;
                ask(values).await
            }
            set => set,
        }
    }

    pub async fn kill_run(&self, run: RunId, by: &str) -> Result<KillAnswer, ControlError> {
        if let Some(open) = self.context.open.get(run) {
            return self.ask(open.job.shard(), |reply| ShardMessage::KillRun(run, by.to_owned(), reply)).await;
        }
        match self.context.store.run(run).await.map_err(ControlError::StoreAway)? {
            Some(known) if known.state.is_ended() => Ok(KillAnswer::AlreadyEnded),
            Some(known) if known.marks.local => self.kill_local(&known, by),
            Some(known) => Err(ControlError::NotOwned(known.job.shard())),
            None => Err(ControlError::NoSuchRun(run)),
        }
    }

    /// Its node has a session with every server.
    fn kill_local(&self, run: &Run, by: &str) -> Result<KillAnswer, ControlError> {
        let node = run.node.filter(|node| self.node_is_connected(*node));
        let node = node.ok_or_else(|| ControlError::NodeAway(run.node_name.clone().unwrap_or_default()))?;
        let key = Some(RunKey { run: run.id.to_string(), attempt: run.attempt });
        let kill = Kill { key, shard: 0, term: 0, grace_ms: 0, reason: format!("killed by {by}"), local: true };
        self.context.sessions.tell(node, kill.into());
        Ok(KillAnswer::Told)
    }

    /// The name of the node that fires a job by itself at the moment (`run_on: home`).
    pub fn home_of(&self, job: JobId) -> Option<String> {
        let node = self.context.homes.get(job).and_then(|(home, _)| home.node)?;
        Some(self.context.nodes.name(node).unwrap_or_else(|| node.to_string()))
    }

    /// The runs that were told to end, or will not start.
    /// The run that was told to end; the next one starts on another node.
    pub async fn move_service(&self, job: JobId, to: Option<NodeId>, by: &str) -> Result<RunId, ControlError> {
        self.ask(job.shard(), |reply| ShardMessage::MoveService(job, to, by.to_owned(), reply)).await
    }

    pub async fn kill_job(&self, job: JobId, by: &str) -> Result<Vec<RunId>, ControlError> {
        let mut told = self.ask(job.shard(), |reply| ShardMessage::KillJob(job, by.to_owned(), reply)).await?;
        let open = RunState::ALL.into_iter().filter(|state| !state.is_ended()).collect();
        let filter =
            RunFilter { job: Some(JobRef::Id(job)), states: open, limit: LOCAL_KILLS_MAX, ..RunFilter::default() };
        let runs = self.context.store.list_runs(&filter).await.map_err(ControlError::StoreAway)?.items;
        for run in runs.iter().filter(|run| run.marks.local) {
            if self.kill_local(run, by).is_ok() {
                told.push(run.id);
            }
        }
        Ok(told)
    }

    /// Where a request that answered [`ControlError::NotOwned`] has to go. None: to nobody at the moment.
    pub async fn owners_api(&self, shard: ShardId) -> Option<String> {
        let found = peers::owners_api(&self.context, shard).await;
        found.unwrap_or_else(|cause| {
            self.context.coordinator_health.away(self.context.now(), &cause);
            None
        })
    }

    /// The APIs of the other servers that live.
    pub fn other_apis(&self) -> Vec<String> {
        let others = self.context.peers.views().into_iter().filter(|server| server.id != self.context.server);
        others.map(|server| server.api).filter(|api| !api.is_empty()).collect()
    }

    /// Where agents reach the servers that live.
    pub fn addresses_for_agents(&self) -> Vec<String> {
        self.context.peers.for_agents().addresses
    }

    pub fn node_is_connected(&self, node: NodeId) -> bool {
        self.context.nodes.incarnation(node).is_some()
    }

    async fn ask<T>(
        &self,
        shard: ShardId,
        message: impl FnOnce(oneshot::Sender<Result<T, ControlError>>) -> ShardMessage,
    ) -> Result<T, ControlError> {
        let inbox = self.context.shards.inbox(shard).ok_or(ControlError::NotOwned(shard))?;
        let (reply, answer) = oneshot::channel();
        inbox.send(message(reply)).await.map_err(|_| ControlError::NotOwned(shard))?;
        answer.await.map_err(|_| ControlError::NotOwned(shard))?
    }

    /// Nothing new is claimed from now on; what runs goes on and is recorded. Fires that pass follow `misfire` at the next start.
    pub fn stop_claiming(&self) {
        self.context.stopping.store(true, Ordering::Relaxed);
    }

    /// Everything that was heard is written, every seat given back. Call it after the agents had their time to finish.
    pub async fn stop(&self) {
        self.stop_claiming();
        let Some(stop) = self.stop.lock().await.take() else { return };
        // So that whoever takes the shards finds it there. They do not wait for a store that is away, or slow.
        let until = tokio::time::Instant::now() + FLUSH_PATIENCE;
        let is_away = matches!(self.context.store_health.get(), Health::Away { .. });
        let first = if is_away { Duration::ZERO } else { GIVE_BACK_WITHIN };
        let _ = tokio::time::timeout(first, self.context.recorder.flushed()).await;
        self.context.sessions.tell_all(&Farewell { reason: "the server stops".to_owned() }.into());
        let _ = stop.seats.send(());
        let _ = stop.given_back.await;
        let _ = stop.pulse.send(());
        // As long as its heartbeat says nothing of it, the others count it among those that share the shards.
        let _ = stop.said_so.await;
        self.context.announce(keys::VACATED).await;
        if tokio::time::timeout_at(until, self.context.recorder.flushed()).await.is_err() {
            // Nothing is lost: what servers decided is in the coordinator, results are on their agents' disks.
            tracing::warn!("the store is away: what waits for it is recorded by whoever takes the shards next");
        }
    }
}

/// A refused heartbeat means that others hold this server dead and may have taken its shards: the one safe thing is to end at
/// once and begin again under a new id. Its commits are refused already; its agents' runs go on.
async fn keep_pulse(context: Arc<Context>, mut pulse: Pulse, stopped: oneshot::Receiver<()>) {
    let info = || peers::info(&context.config.addresses, context.own_clock_off_ms());
    let dead = tokio::select! {
        dead = pulse.keep(info) => dead,
        _ = stopped => {
            if let Err(cause) = pulse.stop().await {
                tracing::warn!("the last heartbeat was not written: {}", crate::chain(&cause));
            }
            return;
        }
    };
    tracing::error!("{}; the process ends, so that it is started again under a new id", crate::chain(&dead));
    context.tasks.exit_process(70);
}
