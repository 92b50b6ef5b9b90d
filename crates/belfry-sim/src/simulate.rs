//! One seed: three servers, three to five agents, ten minutes, in one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belfry_sql::InlineSqlite;
use belfry_store::Store;

use crate::clock::MachineClock;
use crate::coordinator::Keyspace;
use crate::dice::Dice;
use crate::faults::{Cast, has_server_steps};
use crate::machine::{AgentMachine, ServerMachine};
use crate::network::connect_all;
use crate::verdict;
use crate::witness::{BELIEVED_OFF, Wrong};
use crate::workload::Workload;
use crate::world::{World, spawn};

const LASTS: Duration = Duration::from_secs(600);
const SERVERS: usize = 3;
/// Clocks' rates agree within 10 %: half of it to either side.
const DRIFT_PPM_MAX: u64 = 40_000;

pub struct Report {
    pub seed: u64,
    pub ttl: Duration,
    pub fires: usize,
    pub starts: usize,
    pub takeovers: u64,
    pub marked_lost: u64,
    pub faults: BTreeMap<&'static str, u64>,
    pub states: BTreeMap<String, u64>,
    pub wrong: Vec<Wrong>,
    /// The same for the same seed, for ever.
    pub trace: u64,
    pub events: u64,
}

/// To be called in a fresh thread, whose randomness was seeded.
pub fn simulate(seed: u64, print_trace: bool) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(live(seed, print_trace))
}

async fn live(seed: u64, print_trace: bool) -> anyhow::Result<Report> {
    let mut dice = Dice::new(seed);
    let ttl = Duration::from_secs(dice.one_of(&[2, 4, 6, 8, 10]));
    let world = Arc::new(World::new(seed, ttl, print_trace));
    let workload = Workload::new(seed, &mut dice);
    world.witness().one_at_a_time = workload.one_at_a_time();
    world.witness().local = workload.local_overlaps();
    let database = Arc::new(InlineSqlite::new()?);
    workload.save(&Store::open(database.clone()).await?).await?;
    let keyspace = Keyspace::new(world.clone());
    let mut clock = || {
        let drift = dice.below(2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64;
        MachineClock::new(world.clone(), Duration::from_secs(1000 + dice.below(100_000)), drift)
    };
    let servers: Vec<_> =
        (0..SERVERS).map(|n| ServerMachine::new(&world, format!("server{n}"), clock(), &keyspace, &database)).collect();
    let clocks: Vec<_> = (0..5).map(|_| clock()).collect();
    // Where work waits for a slot it starts late, and nobody can be blamed.
    let is_cramped = dice.chance(30);
    let slots = if is_cramped { 2 } else { 100 };
    let agents: Vec<_> = clocks
        .into_iter()
        .take(3 + dice.below(3) as usize)
        .enumerate()
        .map(|(n, clock)| AgentMachine::new(&world, n, slots, clock))
        .collect();
    let wires = connect_all(&world, &agents, &servers);
    servers.iter().for_each(|server| spawn(server.clone().live()));
    agents.iter().for_each(|agent| spawn(agent.clone().live()));
    let cast = Cast { world: world.clone(), servers, agents, wires };
    let early_max = if has_server_steps(seed) { BELIEVED_OFF } else { Duration::ZERO };
    cast.suffer(seed).await;
    tokio::time::sleep(LASTS.saturating_sub(world.elapsed())).await;
    let (tally, wrong) = verdict::judge(&world, &workload, &database, &cast.agents, !is_cramped, early_max).await?;
    let (trace, events) = world.trace_hash();
    let witness = world.witness();
    Ok(Report {
        seed,
        ttl,
        fires: tally.fires,
        starts: witness.starts.len() + witness.local_starts.len(),
        takeovers: witness.takeovers,
        marked_lost: witness.marked_lost,
        faults: witness.faults.clone(),
        states: tally.states,
        wrong,
        trace,
        events,
    })
}
