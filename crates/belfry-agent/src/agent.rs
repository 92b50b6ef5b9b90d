//! The agent as its program sees it: start, connect, drain.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use belfry_core::policy::Policy;
use belfry_core::{Incarnation, NodeId};
use belfry_exec::{Cgroups, Deadline, Spawner, current_user};
use belfry_proto::session::{FromAgent, ToAgent};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::alarm::Alarm;
use crate::clock::{Clock, SystemClock};
use crate::desk::{Desk, Event, Load, NodeFacts, boot_id};
use crate::desk_loop::{self, INBOX_MAX, Inbox};
use crate::host::Probe;
use crate::identity::{self, FolderLock};
use crate::local::{Journal, Kept, Local};
use crate::logins::Logins;
use crate::membership::Membership;
use crate::own_time::NodeClock;
use crate::policy::PolicyFile;
use crate::prepare::default_account;
use crate::run_logs::{RunLogs, RunLogsConfig};
use crate::session::{MESSAGES_IN_FLIGHT_MAX, Node};
use crate::spool::{Place, Spool};
use crate::state::Fifos;
use crate::tasks::Tasks;
use crate::trust::Trust;
use crate::{AgentConfig, AgentError, host, leftovers, remote};

/// A running agent. Clones are the same agent; when the last one is dropped it ends as if it had been killed.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

struct Inner {
    node: Arc<Node>,
    load: watch::Receiver<Load>,
    quit_time: Duration,
    _stops_tasks: DropGuard,
    /// None in a simulation.
    folder: Option<Folder>,
}

/// The data folder, held by its lock, and what is in it of the cluster.
pub(crate) struct Folder {
    path: PathBuf,
    /// None: only the server of the same process knows the node.
    membership: Option<Membership>,
    _lock: FolderLock,
}

/// A session inside one process.
pub struct LocalLink {
    pub to_agent: mpsc::Sender<ToAgent>,
    pub from_agent: mpsc::Receiver<FromAgent>,
}

/// Beyond `quit_time`, for trees that were told to end, and for results on their way.
const END_TIME_MAX: Duration = Duration::from_secs(30);
const DELIVERY_TIME_MAX: Duration = Duration::from_secs(3);
const LOCAL_MESSAGES_MAX: usize = 32_768;

impl Agent {
    /// Returns when nothing of a former incarnation is left and its results are found again. Needs a tokio runtime.
    pub async fn start(config: AgentConfig) -> Result<Agent, AgentError> {
        Agent::start_with_clock(config, Arc::new(SystemClock)).await
    }

    pub async fn start_with_clock(config: AgentConfig, clock: Arc<dyn Clock>) -> Result<Agent, AgentError> {
        let lock = identity::lock_folder(&config.data_dir)?;
        if let Some(token) = &config.join {
            Membership::join(&config.data_dir, token, &config.name, clock.now()).await.map_err(AgentError::Join)?;
        }
        let membership = Membership::load(&config.data_dir);
        let id = identity::node_id(&config.data_dir, clock.now())?;
        let incarnations = {
            let (clock, data_dir) = (Arc::clone(&clock), config.data_dir.clone());
            let mut last = Incarnation(0);
            Box::new(move || {
                last = identity::new_incarnation(&data_dir, last, clock.now());
                last
            })
        };
        let flags = Policy {
            allow_root: config.allow_root.then_some(true),
            default_user: config.default_user,
            ..Policy::default()
        };
        let policy = PolicyFile::open(config.policy, flags).map_err(AgentError::Policy)?;
        let logins = Logins::new(current_user());
        let now_policy = policy.current().map_err(AgentError::Policy)?;
        let default = default_account(&logins, &now_policy, clock.boottime()).await;
        let runs_as = default.map_err(|cause| AgentError::DefaultUser { cause })?.login.user;
        let (sender, inbox) = mpsc::channel(INBOX_MAX);
        let spool = open_spool(config.data_dir.join("spool"), config.spool_max_bytes, sender.clone())?;
        let facts = NodeFacts {
            node: id,
            name: config.name.clone(),
            labels: config.labels,
            slots: config.slots,
            runs_as: runs_as.clone(),
            credential: membership.as_ref().map(|member| member.credential.clone()).unwrap_or_default(),
        };
        let program = config.zygote.program.clone();
        let no_zygote = |cause| AgentError::Zygote { program: program.clone(), cause };
        let deadline = Deadline::new().map_err(&no_zygote)?;
        let trust = Trust::with(deadline.clone());
        let (journal, kept) = open_journal(&config.data_dir, sender.clone())?;
        let clock = NodeClock::new(clock);
        let (now, finished) = (clock.now(), spool.finished());
        let local = Local::new(id, kept, &boot_id(), &finished, now);
        let mut desk = Desk::new(facts, incarnations, trust.clone(), (finished, spool.fired_here()), local, now);
        let (probe, host) = Probe::new(&config.data_dir, config.disk_floor_bytes).measure_aside(now.boot).await;
        if let Some(host) = host {
            desk.on(Event::Measured(Box::new(host)), now);
        }
        end_leftovers(id, Incarnation(desk.load().incarnation)).await;
        let cgroups = open_cgroups(id).await;
        let fifos = Fifos::open(&config.data_dir, id);
        let spawner = Spawner::start(config.zygote, deadline).map_err(&no_zygote)?;
        let run_logs = config.run_logs.map(open_run_logs).transpose()?;
        let alarm = Alarm::new().map_err(|cause| AgentError::Alarm { cause })?;
        let stop = CancellationToken::new();
        let node = Arc::new(Node {
            id,
            name: config.name,
            runs_as,
            policy,
            cgroups,
            clock,
            spool: Place::Disk(spool),
            journal,
            run_logs,
            programs: Arc::new(spawner),
            logins,
            trust,
            tasks: Tasks::new(stop.clone()),
            inbox: sender,
            servers: watch::Sender::default(),
            last_session: AtomicU64::new(0),
            fifos: Some(fifos),
            saves: Default::default(),
        });
        if node.run_logs.is_some() {
            let node = Arc::clone(&node);
            // Fate: ends with the agent; it has no way to fail.
            Arc::clone(&node).tasks.spawn("run-logs-prune", async move {
                if let Some(logs) = &node.run_logs {
                    logs.prune(&node.clock).await;
                }
            });
        }
        let folder = Folder { path: config.data_dir, membership, _lock: lock };
        // Fate: ends with the agent.
        node.tasks.spawn("host", host::keep_measuring(Arc::clone(&node), probe));
        Ok(Agent::begin(desk, node, alarm, inbox, stop, config.quit_time, Some(folder)))
    }

    /// The desk begins its work.
    pub(crate) fn begin(
        desk: Desk,
        node: Arc<Node>,
        alarm: Alarm,
        inbox: mpsc::Receiver<Inbox>,
        stop: CancellationToken,
        quit_time: Duration,
        folder: Option<Folder>,
    ) -> Agent {
        let (load_sender, load) = watch::channel(desk.load());
        // Fate: ends with the agent; it has no way to fail.
        node.tasks.spawn("desk", desk_loop::run(desk, Arc::clone(&node), alarm, inbox, load_sender));
        let inner = Inner { node, load, quit_time, _stops_tasks: stop.drop_guard(), folder };
        Agent { inner: Arc::new(inner) }
    }

    pub fn node(&self) -> NodeId {
        self.inner.node.id
    }

    /// The current one: an agent that was held dead goes on as a new incarnation.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.inner.load.borrow().incarnation)
    }

    /// The user that jobs without `as.user` run as, by the policy that the agent started with.
    pub fn runs_as(&self) -> &str {
        &self.inner.node.runs_as
    }

    /// A session with a server in the same process. It ends when either end of the link is dropped.
    pub fn connect_local(&self) -> LocalLink {
        let (to_agent, incoming) = mpsc::channel(LOCAL_MESSAGES_MAX);
        let (outgoing, from_agent) = mpsc::channel(MESSAGES_IN_FLIGHT_MAX);
        let node = Arc::clone(&self.inner.node);
        // Fate: ends with the link; whoever holds it may connect again.
        self.inner.node.tasks.spawn("local-session", async move {
            node.serve(ReceiverStream::new(incoming), outgoing).await;
        });
        LocalLink { to_agent, from_agent }
    }

    /// Keeps a session with each server of the cluster that it has joined, until `shutdown`: those named here, else those known from
    /// before, and all that they name.
    pub async fn run_remote(&self, servers: Vec<String>, shutdown: CancellationToken) -> Result<(), AgentError> {
        let Inner { node, folder, .. } = &*self.inner;
        let folder = folder.as_ref().ok_or(AgentError::NotJoined)?;
        let membership = folder.membership.as_ref().ok_or(AgentError::NotJoined)?;
        let servers = if servers.is_empty() { membership.servers.clone() } else { servers };
        let servers = servers.iter().map(|text| remote::address(text)).collect::<Result<_, _>>()?;
        remote::keep_sessions(Arc::clone(node), membership.tls(), servers, folder.path.clone(), shutdown).await;
        Ok(())
    }

    pub(crate) async fn tell(&self, event: Event) {
        self.inner.node.tell(event).await;
    }

    /// Takes no new work, lets runs end by themselves for `quit_time`, ends the rest, and gets results on their way. What
    /// cannot be delivered now stays in the spool for the next start.
    pub async fn drain(&self, reason: &str) {
        let node = &self.inner.node;
        let mut load = self.inner.load.clone();
        node.tell(Event::Drain { reason: reason.to_owned() }).await;
        let idle = |load: &Load| load.stopping && load.live == 0;
        if tokio::time::timeout(self.inner.quit_time, load.wait_for(idle)).await.is_err() {
            tracing::info!(runs = load.borrow().live, "the time to quit is over; what still runs is ended");
            node.tell(Event::EndAll { reason: reason.to_owned() }).await;
            if tokio::time::timeout(END_TIME_MAX, load.wait_for(idle)).await.is_err() {
                tracing::warn!(runs = load.borrow().live, "some runs do not end; they go with the agent");
            }
        }
        node.spool.flush().await;
        node.fifos.iter().for_each(Fifos::close);
        let delivered = |load: &Load| load.undelivered == 0 || load.sessions == 0;
        drop(tokio::time::timeout(DELIVERY_TIME_MAX, load.wait_for(delivered)).await);
    }
}

fn open_spool(folder: PathBuf, max_bytes: u64, desk: mpsc::Sender<Inbox>) -> Result<Spool, AgentError> {
    let hand_on = move |messages| drop(desk.blocking_send(Inbox::Event(Event::Written(messages))));
    Spool::open(&folder, max_bytes, Box::new(hand_on)).map_err(|cause| AgentError::Spool { path: folder, cause })
}

fn open_journal(folder: &Path, desk: mpsc::Sender<Inbox>) -> Result<(Journal, Kept), AgentError> {
    let written = move |ticket| drop(desk.blocking_send(Inbox::Event(Event::LocalWritten { ticket })));
    let failed = |cause| AgentError::Spool { path: folder.to_owned(), cause };
    Journal::open(folder, Box::new(written)).map_err(failed)
}

fn open_run_logs(config: RunLogsConfig) -> Result<RunLogs, AgentError> {
    let path = config.folder.clone();
    RunLogs::start(config).map_err(|cause| AgentError::RunLogs { path, cause })
}

async fn open_cgroups(node: NodeId) -> Arc<Cgroups> {
    let opened = tokio::task::spawn_blocking(move || Cgroups::open(&format!("belfry-{node}"))).await;
    let cgroups = opened.unwrap_or_default();
    if !cgroups.why_not().is_empty() {
        let why_not = cgroups.why_not().join("; ");
        tracing::info!(
            "limits of whole trees are held by the kernel's limits of each process, as far as they go ({why_not})"
        );
    }
    Arc::new(cgroups)
}

async fn end_leftovers(node: NodeId, incarnation: Incarnation) {
    let ended = tokio::task::spawn_blocking(move || leftovers::end_leftovers(node, incarnation)).await;
    match ended {
        Ok(0) | Err(_) => {}
        Ok(processes) => tracing::warn!(processes, "ended what a former start of this agent left running"),
    }
}
