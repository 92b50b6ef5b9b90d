//! Sessions between agents and servers: two streams whose messages keep their order, are delayed, held up while the way is cut, and
//! lost when the session breaks. Sessions are opened again for ever, as agents do.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::machine::{AgentMachine, ServerMachine};
use crate::world::{World, spawn};

/// As gRPC's keep-alive: two silent intervals of 5 s.
const BREAKS_AFTER: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_secs(1);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Messages on the wire; the rest waits at the sender.
const ON_THE_WIRE_MAX: usize = 256;

/// The way between one agent and one server.
pub struct Wire {
    world: Arc<World>,
    condition: watch::Sender<Condition>,
    /// Since when nothing gets through in one direction at least.
    held_up_since: Mutex<Option<Duration>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub to_server_cut: bool,
    pub to_agent_cut: bool,
    pub slow: Duration,
    /// A session that is open when this grows is broken.
    pub resets: u64,
}

#[derive(Clone, Copy)]
enum Direction {
    ToServer,
    ToAgent,
}

impl Condition {
    fn is_cut(self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.to_server_cut,
            Direction::ToAgent => self.to_agent_cut,
        }
    }
}

impl Wire {
    pub fn new(world: Arc<World>) -> Arc<Self> {
        Arc::new(Self { world, condition: watch::Sender::default(), held_up_since: Mutex::default() })
    }

    pub fn set(&self, change: impl FnOnce(&mut Condition)) {
        self.condition.send_modify(change);
    }

    fn get(&self) -> Condition {
        *self.condition.borrow()
    }

    fn travel(&self) -> Duration {
        self.world.dice().ms(0, 3) + self.get().slow
    }

    /// Never ends.
    pub async fn keep_session(self: Arc<Self>, agent: Arc<AgentMachine>, server: Arc<ServerMachine>) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let condition = self.get();
            if !condition.to_server_cut
                && !condition.to_agent_cut
                && let Some(here) = agent.agent()
                && let Some(there) = server.control()
            {
                let link = here.connect_local();
                let (orders, from_server) = mpsc::channel(ON_THE_WIRE_MAX * 128);
                let (to_server, reports) = mpsc::channel(ON_THE_WIRE_MAX);
                there.connect_local(orders, reports);
                drop((here, there));
                let began = self.world.elapsed();
                let up = self.carry(link.from_agent, to_server, Direction::ToServer);
                let down = self.carry(from_server, link.to_agent, Direction::ToAgent);
                tokio::select! {
                    biased;
                    () = up => {}
                    () = down => {}
                    () = self.breaks(&agent, &server, condition.resets) => {}
                }
                if self.world.elapsed() - began > Duration::from_secs(1) {
                    backoff = BACKOFF_MIN;
                }
            }
            let wait = self.world.dice().ms(backoff.as_millis() as u64 / 2, backoff.as_millis() as u64);
            tokio::time::sleep(wait).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn carry<T>(&self, mut from: mpsc::Receiver<T>, to: mpsc::Sender<T>, direction: Direction) {
        let mut condition = self.condition.subscribe();
        let mut some = Vec::new();
        while from.recv_many(&mut some, ON_THE_WIRE_MAX).await > 0 {
            tokio::time::sleep(self.travel()).await;
            // What is lost on the way is sent again until it arrives.
            if condition.wait_for(|condition| !condition.is_cut(direction)).await.is_err() {
                return;
            }
            for message in some.drain(..) {
                if to.send(message).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Somebody resets it, or keep-alive goes unanswered for too long.
    async fn breaks(&self, agent: &AgentMachine, server: &ServerMachine, resets: u64) {
        let mut condition = self.condition.subscribe();
        loop {
            let reset = condition.wait_for(|condition| condition.resets != resets);
            if tokio::time::timeout(LOOK_EVERY, reset).await.is_ok() {
                return;
            }
            let now = self.get();
            let held_up = now.to_server_cut || now.to_agent_cut || agent.is_stopped() || server.is_stopped();
            let mut since = self.held_up_since.lock().unwrap_or_else(PoisonError::into_inner);
            match *since {
                _ if !held_up => *since = None,
                None => *since = Some(self.world.elapsed()),
                Some(since) if self.world.elapsed() - since >= BREAKS_AFTER => return,
                Some(_) => {}
            }
        }
    }
}

/// Every agent keeps a session with every server.
pub fn connect_all(
    world: &Arc<World>,
    agents: &[Arc<AgentMachine>],
    servers: &[Arc<ServerMachine>],
) -> Vec<Vec<Arc<Wire>>> {
    let wire = |agent: &Arc<AgentMachine>, server: &Arc<ServerMachine>| {
        let wire = Wire::new(world.clone());
        spawn(wire.clone().keep_session(agent.clone(), server.clone()));
        wire
    };
    agents.iter().map(|agent| servers.iter().map(|server| wire(agent, server)).collect()).collect()
}
