//! What goes wrong, when and for how long, by the dice; and the moment from which nothing does any more.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::LAG_MAX;
use crate::dice::Dice;
use crate::machine::{AgentMachine, ServerMachine};
use crate::network::Wire;
use crate::workload::instant;
use crate::world::{World, spawn};

/// Faults begin after this, so that the cluster has begun to work.
const CALM_UNTIL: Duration = Duration::from_secs(20);
/// The last fault is healed here at the latest.
pub const HEALED_AT: Duration = Duration::from_secs(7 * 60);

/// Of each agent's clock, so that no two agree on a time that is wrong: that would pass for right.
const STEPS_PERCENT: [i64; 5] = [100, 150, 240, 980, 1500];
/// A step that a node goes by at once.
const BELIEVED_STEP_MS: i64 = 2_000;
/// A node that has started, or goes on.
const WELL_AGAIN_WITHIN: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Cast {
    pub world: Arc<World>,
    pub servers: Vec<Arc<ServerMachine>>,
    pub agents: Vec<Arc<AgentMachine>>,
    /// By agent, then by server.
    pub wires: Vec<Vec<Arc<Wire>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillServer,
    KillAllServers,
    StopServerGracefully,
    PauseServer,
    KillAgent,
    PauseAgent,
    CutOneWire,
    CutAgentOff,
    ResetSession,
    SlowWires,
    CutCoordinator,
    CoordinatorAway,
    FlakyCoordinator,
    OldReads,
    StoreAway,
    FlakyStore,
    StepClock,
}

use Fault::*;

const FAULTS: [Fault; 17] = [
    KillServer,
    KillAllServers,
    StopServerGracefully,
    PauseServer,
    KillAgent,
    PauseAgent,
    CutOneWire,
    CutAgentOff,
    ResetSession,
    SlowWires,
    CutCoordinator,
    CoordinatorAway,
    FlakyCoordinator,
    OldReads,
    StoreAway,
    FlakyStore,
    StepClock,
];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            KillServer => "kill a server",
            KillAllServers => "kill all servers",
            StopServerGracefully => "stop a server gracefully",
            PauseServer => "pause a server",
            KillAgent => "kill an agent",
            PauseAgent => "pause an agent",
            CutOneWire => "cut a wire",
            CutAgentOff => "cut an agent off",
            ResetSession => "reset a session",
            SlowWires => "slow wires",
            CutCoordinator => "cut a server from the coordinator",
            CoordinatorAway => "coordinator away",
            FlakyCoordinator => "lost and late commits",
            OldReads => "old reads",
            StoreAway => "store away",
            FlakyStore => "lost answers of the store",
            StepClock => "step a wall clock",
        }
    }
}

/// By how much a server's clock steps. None of it is what agents' clocks are off by, or nobody could say who is right. The smallest is
/// believed, as is every one below `max_clock_skew`.
const SERVER_STEPS_MS: [i64; 6] = [-7_200_000, -30_000, -1_500, 1_500, 30_000, 7_200_000];

/// The others of the first thousand stay as they were.
pub fn has_server_steps(seed: u64) -> bool {
    seed % 4 == 1 || seed > 1000
}

impl Cast {
    /// Ends when everything is healed.
    pub async fn suffer(&self, seed: u64) {
        if has_server_steps(seed) {
            let dice = Dice::new(seed.rotate_left(32));
            tokio::join!(self.suffer_faults(), self.step_server_clocks(dice));
        } else {
            self.suffer_faults().await;
        }
    }

    async fn suffer_faults(&self) {
        tokio::time::sleep(CALM_UNTIL).await;
        // Some seeds meet few kinds of faults often, others all of them.
        let kinds: Vec<Fault> = {
            let mut dice = self.world.dice();
            let keep = dice.one_of(&[25, 50, 100]);
            FAULTS.into_iter().filter(|_| dice.chance(keep)).collect()
        };
        let pace = self.world.dice().one_of(&[4_000, 10_000, 25_000]);
        while self.world.elapsed() < HEALED_AT && !kinds.is_empty() {
            let (wait, fault) = {
                let mut dice = self.world.dice();
                (dice.ms(500, pace), dice.one_of(&kinds))
            };
            tokio::time::sleep(wait.min(HEALED_AT.saturating_sub(self.world.elapsed()))).await;
            let left = HEALED_AT.saturating_sub(self.world.elapsed());
            let lasts = duration(self.world.ttl, &mut self.world.dice()).min(left);
            if lasts.is_zero() {
                break;
            }
            self.world.trace(format_args!("fault: {} for {lasts:?}", fault.name()));
            self.world.witness().fault(fault.name());
            self.inject(fault, lasts);
        }
        tokio::time::sleep(HEALED_AT.saturating_sub(self.world.elapsed()) + Duration::from_millis(1)).await;
        self.heal();
    }

    /// Beside the other faults, by dice of its own.
    async fn step_server_clocks(&self, mut dice: Dice) {
        const FAULT: &str = "step a server's wall clock";
        tokio::time::sleep(CALM_UNTIL).await;
        let pace = dice.one_of(&[10_000, 25_000, 60_000]);
        loop {
            tokio::time::sleep(dice.ms(500, pace)).await;
            let left = HEALED_AT.saturating_sub(self.world.elapsed());
            let lasts = duration(self.world.ttl, &mut dice).min(left);
            if lasts.is_zero() {
                return;
            }
            let server = self.servers[dice.below(self.servers.len() as u64) as usize].clone();
            let off_ms = dice.one_of(&SERVER_STEPS_MS);
            self.world.trace(format_args!("fault: {FAULT} of {} by {off_ms} ms for {lasts:?}", server.name));
            self.world.witness().fault(FAULT);
            server.clock.step_to(off_ms);
            later(lasts, move || server.clock.step_to(0));
        }
    }

    fn inject(&self, fault: Fault, lasts: Duration) {
        let server = self.any(&self.servers);
        let agent = self.any(&self.agents);
        match fault {
            KillServer => {
                server.kill();
                later(lasts, move || server.start_again());
            }
            KillAllServers => {
                self.servers.iter().for_each(|server| server.kill());
                let servers = self.servers.clone();
                later(lasts, move || servers.iter().for_each(|server| server.start_again()));
            }
            StopServerGracefully => server.stop_gracefully(),
            PauseServer => {
                server.stop();
                later(lasts, move || server.go_on());
            }
            KillAgent => {
                agent.kill();
                self.unwell(&agent, lasts);
                later(lasts, move || agent.start_again());
            }
            PauseAgent => {
                agent.stop();
                self.unwell(&agent, lasts);
                later(lasts, move || agent.go_on());
            }
            CutOneWire => self.cut(vec![self.any(&self.any(&self.wires))], lasts),
            CutAgentOff => self.cut(self.any(&self.wires), lasts),
            ResetSession => self.any(&self.any(&self.wires)).set(|wire| wire.resets += 1),
            SlowWires => {
                let slow = self.world.dice().ms(100, 3000);
                let wires = self.any(&self.wires);
                wires.iter().for_each(|wire| wire.set(|wire| wire.slow = slow));
                later(lasts, move || wires.iter().for_each(|wire| wire.set(|wire| wire.slow = Duration::ZERO)));
            }
            CutCoordinator => self.cut_coordinator(vec![server], lasts),
            CoordinatorAway => self.cut_coordinator(self.servers.clone(), lasts),
            FlakyCoordinator => {
                let (lose, delay) = {
                    let mut dice = self.world.dice();
                    (dice.below(40), dice.below(30))
                };
                server.to_coordinator.set(|way| (way.lose_answers, way.delay_commits) = (lose, delay));
                later(lasts, move || {
                    server.to_coordinator.set(|way| (way.lose_answers, way.delay_commits) = (0, 0));
                });
            }
            OldReads => {
                let lag = self.world.dice().ms(100, LAG_MAX.as_millis() as u64 - 1000);
                server.to_coordinator.set(|way| way.lag = lag);
                later(lasts, move || server.to_coordinator.set(|way| way.lag = Duration::ZERO));
            }
            StoreAway => {
                let cut: Vec<_> = if self.world.dice().chance(50) { self.servers.clone() } else { vec![server] };
                cut.iter().for_each(|server| server.to_store.set(|way| way.cut = true));
                later(lasts, move || cut.iter().for_each(|server| server.to_store.set(|way| way.cut = false)));
            }
            FlakyStore => {
                server.to_store.set(|way| way.lose_answers = 30);
                later(lasts, move || server.to_store.set(|way| way.lose_answers = 0));
            }
            StepClock => {
                let off: i64 = {
                    let mut dice = self.world.dice();
                    dice.one_of(&[-3_600_000, -5_000, -1_000, 1_000, 5_000, 3_600_000])
                };
                let number = self.agents.iter().position(|it| Arc::ptr_eq(it, &agent)).expect("one of them");
                let off = off * STEPS_PERCENT[number] / 100;
                agent.clock.step_to(off);
                if off.abs() <= BELIEVED_STEP_MS {
                    self.unwell(&agent, lasts);
                }
                later(lasts, move || agent.clock.step_to(0));
            }
        }
    }

    fn unwell(&self, agent: &AgentMachine, lasts: Duration) {
        let until = self.world.elapsed() + lasts + WELL_AGAIN_WITHIN;
        self.world.witness().unwell(agent.node, self.world.wall(), instant(until));
    }

    fn cut(&self, wires: Vec<Arc<Wire>>, lasts: Duration) {
        let ways = self.world.dice().below(3);
        for wire in &wires {
            wire.set(|wire| {
                wire.to_server_cut = ways != 1;
                wire.to_agent_cut = ways != 2;
            });
        }
        later(lasts, move || {
            wires.iter().for_each(|wire| wire.set(|wire| (wire.to_server_cut, wire.to_agent_cut) = (false, false)));
        });
    }

    fn cut_coordinator(&self, servers: Vec<Arc<ServerMachine>>, lasts: Duration) {
        let refuses = self.world.dice().chance(50);
        servers.iter().for_each(|server| server.to_coordinator.set(|way| (way.cut, way.refuses) = (true, refuses)));
        later(lasts, move || {
            servers.iter().for_each(|server| server.to_coordinator.set(|way| way.cut = false));
        });
    }

    fn any<T: Clone>(&self, some: &[T]) -> T {
        some[self.world.dice().below(some.len() as u64) as usize].clone()
    }

    fn heal(&self) {
        self.world.trace(format_args!("all is healed"));
        for server in &self.servers {
            server.clock.step_to(0);
            server.to_coordinator.set(|way| *way = Default::default());
            server.to_store.set(|way| *way = Default::default());
            server.go_on();
            server.start_again();
        }
        for agent in &self.agents {
            agent.clock.step_to(0);
            agent.go_on();
            agent.start_again();
        }
        for wire in self.wires.iter().flatten() {
            wire.set(|wire| (wire.to_server_cut, wire.to_agent_cut, wire.slow) = (false, false, Duration::ZERO));
        }
    }
}

/// Around the TTL, where things are decided; sometimes much longer.
fn duration(ttl: Duration, dice: &mut Dice) -> Duration {
    let ttl = ttl.as_millis() as u64;
    match dice.below(10) {
        0..3 => dice.ms(50, ttl / 2),
        3..8 => dice.ms(ttl / 2, ttl * 3),
        _ => dice.ms(ttl, 30_000),
    }
}

fn later(after: Duration, what: impl FnOnce() + Send + 'static) {
    spawn(async move {
        tokio::time::sleep(after).await;
        what();
    });
}
