//! What every part of a server shares.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use belfry_coord::{Clock, Coordinator, Write};
use belfry_core::id::SHARD_COUNT;
use belfry_core::job::Timeout;
use belfry_core::run::Run;
use belfry_core::{RunId, ServerId, ShardId, Timestamp, due};
use belfry_store::Store;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::forgotten::Forgotten;
use crate::gateway::Sessions;
use crate::heartbeats::Carrier;
use crate::homes::Homes;
use crate::joins::Credentials;
use crate::live::Live;
use crate::nodes::Nodes;
use crate::peers::Peers;
use crate::recorder::Recorder;
use crate::scripts::Scripts;
use crate::shard::ShardMessage;
use crate::tasks::Tasks;
use crate::view::{Health, ShardView};
use crate::webhooks::Post;

/// Few knobs; each has a safe default.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// How long a party may be silent before it is held dead. Default 10s, at least 2s.
    pub ttl: Duration,
    /// A node whose clock is further off gets no work. Default 2s.
    pub max_clock_skew: Duration,
    /// Where others reach this server.
    pub addresses: Addresses,
    /// The leader asks the coordinator to tidy up; on etcd that compacts old revisions. Default true.
    pub tidy: bool,
    /// Ended runs of jobs without their own `retention.age` are removed after this. Default 30d.
    pub retention_age: Duration,
    /// … and beyond so many a job. Default 10,000.
    pub retention_runs: u32,
    /// Output that waits in memory for the store; what is beyond it waits on the agents' disks. Default 64 MiB.
    pub unrecorded_output_bytes_max: usize,
    /// Where a copy of what firing needs is kept, for a start or a takeover while the store is away. Default: nowhere.
    pub snapshot: Option<PathBuf>,
    /// Runs and attempts that wait in memory for the store; beyond it no fire is claimed, and beyond half of it what nodes fired by themselves
    /// waits on their disks. Default 200,000.
    pub unrecorded_runs_max: usize,
    /// For jobs that have no `timeout`, except services. Default: none.
    pub default_timeout: Option<Timeout>,
    /// Who carries what webhooks are told. Default: nobody, and nothing is delivered.
    pub post: Option<Arc<dyn Post>>,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            max_clock_skew: Duration::from_secs(2),
            addresses: Addresses::default(),
            tidy: true,
            retention_age: Duration::from_secs(30 * 86_400),
            retention_runs: 10_000,
            unrecorded_output_bytes_max: 64 << 20,
            unrecorded_runs_max: 200_000,
            snapshot: None,
            default_timeout: None,
            post: None,
        }
    }
}

/// Told to the other servers with the heartbeat, and by them to their agents and callers. Empty: nobody is to come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Addresses {
    pub api: String,
    pub agents: String,
}

pub struct Context {
    pub config: ControlConfig,
    pub server: ServerId,
    pub started_at: Timestamp,
    pub coordinator: Arc<dyn Coordinator>,
    pub clock: Arc<dyn Clock>,
    pub store: Store,
    /// For what firing waits for. With a snapshot to go by it says soon that the store does not answer.
    pub prompt_store: Store,
    pub nodes: Nodes,
    pub sessions: Sessions,
    pub credentials: Credentials,
    pub carrier: Carrier,
    pub peers: Peers,
    pub recorder: Recorder,
    pub live: Live,
    pub open: OpenRuns,
    pub shards: Shards,
    pub homes: Homes,
    pub scripts: Scripts,
    pub tasks: Tasks,
    pub late_results: Arc<Semaphore>,
    pub forgotten: Forgotten,
    pub wall: WallClock,
    pub leader: AtomicBool,
    pub coordinator_health: HealthMark,
    pub store_health: HealthMark,
    /// Runs that a shard may have open at the same time.
    pub open_per_shard_max: AtomicUsize,
    /// Saved state of a shard's jobs, beyond which nothing more is saved.
    pub state_bytes_per_shard_max: AtomicUsize,
    /// Set once: nothing new is claimed any more.
    pub stopping: AtomicBool,
}

/// What an open run takes in a coordinator, with some of what it was before.
const OPEN_RUN_BYTES: u64 = 1024;
/// Of a coordinator that has no bound of its own: it is in the memory of a shard's owner as well.
pub const STATE_BYTES_PER_SHARD_MAX: usize = 32 << 20;

/// More than the longest pause between two tries of an agent to connect. They are asked for the time at once.
const AGENTS_ARE_BACK_WITHIN: Duration = Duration::from_secs(15);

impl Context {
    /// While the wall clock is doubted, the time goes on as it did before the step: what is planned then is written down, and others act by it.
    pub fn now(&self) -> Timestamp {
        let (now, wall) = self.look_at_clock();
        let believed_ms = self.since_boot_ms() + wall.believed_booted_at_ms;
        Timestamp::from_millisecond(believed_ms).ok().filter(|_| wall.doubted).unwrap_or(now)
    }

    /// For what is planned and then written down: of a server that does not know the time, what it took over was left before now.
    pub fn now_or_earlier(&self, left_at: Timestamp) -> Timestamp {
        if self.knows_the_time() { self.now() } else { self.now().min(left_at) }
    }

    /// False: it has just started, by a clock that may be off as far as it likes.
    pub fn knows_the_time(&self) -> bool {
        let (_, wall) = self.look_at_clock();
        !wall.doubted || wall.unconfirmed_since.is_none()
    }

    /// A hint for the other servers, which look by themselves anyway.
    pub async fn announce(&self, key: &str) {
        let stamp = self.now().as_nanosecond().to_string();
        let put = Write::Put(key.to_owned(), stamp.into());
        if let Err(cause) = self.coordinator.commit(Vec::new(), vec![put]).await {
            self.coordinator_health.away(self.now(), &cause);
        }
    }

    /// After a node has come to take what it did not take before.
    pub async fn waiting_runs_may_go(&self) {
        for (_, inbox) in self.shards.all() {
            let _ = inbox.send(ShardMessage::NodesChanged).await;
        }
    }

    /// By how much this server's clock is off those of its agents, if it is off too far to fire anything.
    pub fn own_clock_off_ms(&self) -> Option<i64> {
        let offsets = self.nodes.clock_offsets_ms();
        let off = if self.wall.lock().doubted {
            belfry_core::skew::others_offset_ms(offsets).map(|others| -others)
        } else {
            Some(belfry_core::skew::own_offset_ms(offsets))
        };
        off.filter(|off| off.unsigned_abs() > self.config.max_clock_skew.as_millis() as u64)
    }

    /// Whether fires may be decided by the wall clock. One that steps is not believed, from the very first reading after it, until agents whose
    /// clocks were asked for since then agree with it: an hour ahead would pass over an hour of fires for ever.
    pub fn trusts_clock(&self) -> bool {
        !self.look_at_clock().1.doubted
    }

    /// As it stands, believed or not. Whoever measures others by it sees its steps as well.
    pub fn wall_now(&self) -> Timestamp {
        self.look_at_clock().0
    }

    /// A server that has just started knows no time but its clock's. If the shard that it takes was left at quite another one, either nobody
    /// fired for so long or the clock is wrong: agents say which. When none is there although they had time to come, the clock is believed.
    pub fn compare_clock(&self, left_at: Timestamp) {
        let (now, mut wall) = self.look_at_clock();
        let apart_ms = now.as_millisecond() - left_at.as_millisecond();
        if wall.unconfirmed_since.is_some() && !wall.doubted && apart_ms.abs() > due::ON_TIME_MS {
            tracing::info!(
                "this server has just started, and a shard was left {apart_ms} ms ago by its clock; it fires when an agent agrees with that clock"
            );
            wall.doubted = true;
        }
    }

    /// The wall clock's own word, and what is thought of it.
    fn look_at_clock(&self) -> (Timestamp, std::sync::MutexGuard<'_, WallState>) {
        let skew_ms = self.config.max_clock_skew.as_millis() as i64;
        let mut wall = self.wall.lock();
        // One right after the other: what is paused in between takes the pause for a step.
        let now = self.clock.now();
        let since_boot = self.clock.boottime();
        let step_ms = now.as_millisecond() - since_boot.as_millis() as i64 - wall.booted_at_ms;
        wall.booted_at_ms += step_ms;
        if step_ms.abs() > skew_ms {
            tracing::warn!(
                "the wall clock of this server stepped by {step_ms} ms; it fires nothing until its agents agree with it"
            );
            // What nobody ever agreed with is no time to go on by.
            if wall.unconfirmed_since.is_some() {
                wall.unconfirmed_since = Some(since_boot);
                wall.believed_booted_at_ms = wall.booted_at_ms;
            }
            wall.doubted = true;
            self.nodes.forget_clocks();
            self.wall.doubts.send_modify(|count| *count += 1);
        } else if wall.doubted || wall.unconfirmed_since.is_some() {
            let is_alone =
                wall.unconfirmed_since.is_some_and(|since| since_boot.saturating_sub(since) >= AGENTS_ARE_BACK_WITHIN);
            let is_right = match belfry_core::skew::others_offset_ms(self.nodes.clock_offsets_ms()) {
                Some(off) => off.abs() <= skew_ms,
                None => is_alone,
            };
            if is_right {
                if wall.doubted {
                    tracing::info!("the agents agree with the clock of this server, or there are none; it fires");
                }
                wall.doubted = false;
                wall.unconfirmed_since = None;
            }
        }
        if !wall.doubted {
            wall.believed_booted_at_ms = wall.booted_at_ms;
        }
        (now, wall)
    }

    fn since_boot_ms(&self) -> i64 {
        self.clock.boottime().as_millis() as i64
    }

    /// Open runs take at most half of what the coordinator has room for, all shards together, and saved state an eighth: one that is full
    /// lets nobody fire.
    pub async fn learn_room(&self) {
        match self.coordinator.room_bytes().await {
            Ok(Some(bytes)) => {
                let runs = bytes / 2 / OPEN_RUN_BYTES / u64::from(SHARD_COUNT);
                self.open_per_shard_max.store(usize::try_from(runs.max(1)).unwrap_or(usize::MAX), Ordering::Relaxed);
                let state = usize::try_from(bytes / 8 / u64::from(SHARD_COUNT)).unwrap_or(usize::MAX);
                self.state_bytes_per_shard_max.store(state.min(STATE_BYTES_PER_SHARD_MAX), Ordering::Relaxed);
            }
            Ok(None) => {}
            Err(cause) => self.coordinator_health.away(self.now(), &cause),
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// The wall clock beside one that never steps.
#[derive(Debug)]
pub struct WallClock {
    state: Mutex<WallState>,
    /// Counts the steps; whoever can ask others for the time does so at each.
    doubts: watch::Sender<u64>,
}

#[derive(Debug)]
struct WallState {
    /// By the last reading; a step changes it.
    booted_at_ms: i64,
    /// By the last reading that was believed.
    believed_booted_at_ms: i64,
    doubted: bool,
    /// Of a server that has just started: nobody has agreed with its clock yet.
    unconfirmed_since: Option<Duration>,
}

impl WallClock {
    pub fn new(clock: &dyn Clock) -> Self {
        let since_boot = clock.boottime();
        let booted_at_ms = clock.now().as_millisecond() - since_boot.as_millis() as i64;
        let state = WallState {
            booted_at_ms,
            believed_booted_at_ms: booted_at_ms,
            doubted: false,
            unconfirmed_since: Some(since_boot),
        };
        Self { state: Mutex::new(state), doubts: watch::Sender::new(0) }
    }

    pub fn doubts(&self) -> watch::Receiver<u64> {
        self.doubts.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, WallState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runs that this server owns and that have not been closed, as fresh as they are.
#[derive(Debug, Default)]
pub struct OpenRuns(RwLock<HashMap<RunId, Arc<Run>>>);

impl OpenRuns {
    pub fn get(&self, run: RunId) -> Option<Arc<Run>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&run).cloned()
    }

    /// Those that a reader wants to see beside what the store has.
    pub fn matching(&self, wanted: impl Fn(&Run) -> bool) -> Vec<Run> {
        let open = self.0.read().unwrap_or_else(PoisonError::into_inner);
        open.values().filter(|run| wanted(run)).map(|run| (**run).clone()).collect()
    }

    pub fn put(&self, run: Arc<Run>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(run.id, run);
    }

    pub fn remove(&self, run: RunId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&run);
    }

    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The owned shards' inboxes and what they last said of themselves.
#[derive(Debug, Default)]
pub struct Shards {
    inboxes: RwLock<HashMap<ShardId, mpsc::Sender<ShardMessage>>>,
    views: Mutex<HashMap<ShardId, ShardView>>,
}

impl Shards {
    pub fn open(&self, shard: ShardId, inbox: mpsc::Sender<ShardMessage>) {
        self.inboxes.write().unwrap_or_else(PoisonError::into_inner).insert(shard, inbox);
    }

    pub fn close(&self, shard: ShardId) {
        self.inboxes.write().unwrap_or_else(PoisonError::into_inner).remove(&shard);
        self.views.lock().unwrap_or_else(PoisonError::into_inner).remove(&shard);
    }

    pub fn inbox(&self, shard: ShardId) -> Option<mpsc::Sender<ShardMessage>> {
        self.inboxes.read().unwrap_or_else(PoisonError::into_inner).get(&shard).cloned()
    }

    pub fn all(&self) -> Vec<(ShardId, mpsc::Sender<ShardMessage>)> {
        self.inboxes
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(id, inbox)| (*id, inbox.clone()))
            .collect()
    }

    pub fn show(&self, view: ShardView) {
        self.views.lock().unwrap_or_else(PoisonError::into_inner).insert(view.shard, view);
    }

    pub fn views(&self) -> Vec<ShardView> {
        let mut views: Vec<_> = self.views.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        views.sort_by_key(|view| view.shard);
        views
    }
}

/// Whether something that the server needs answers; logs the change once.
#[derive(Debug)]
pub struct HealthMark {
    what: &'static str,
    state: Mutex<Option<(Timestamp, String)>>,
}

impl HealthMark {
    pub fn new(what: &'static str) -> Self {
        Self { what, state: Mutex::default() }
    }

    pub fn ok(&self) {
        if self.state.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            tracing::info!("the {} answers again", self.what);
        }
    }

    pub fn away(&self, now: Timestamp, message: impl std::fmt::Display) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_none() {
            tracing::warn!("the {} does not answer: {message}; trying again until it does", self.what);
            *state = Some((now, message.to_string()));
        }
    }

    pub fn get(&self) -> Health {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Health::Ok,
            Some((since, message)) => Health::Away { since: *since, message: message.clone() },
        }
    }
}
