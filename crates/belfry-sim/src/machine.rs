//! The machines of a simulation: each runs one server or one agent, and a supervisor that starts it again when it has ended.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use belfry_agent::{Agent, Machine, MemoryDisk, MemoryJournal};
use belfry_control::{Addresses, Control, ControlConfig, Tasks};
use belfry_core::{Incarnation, NodeId, ServerId};
use belfry_sql::InlineSqlite;
use belfry_store::Store;
use tokio::sync::Notify;

use crate::clock::MachineClock;
use crate::coordinator::{Keyspace, RemoteCoordinator, Way};
use crate::process::{Process, ServerProcess};
use crate::programs::PlayedPrograms;
use crate::store::RemoteStore;
use crate::world::{World, beginning};

/// As a supervisor that waits a moment before it starts a program again.
const STARTED_AGAIN_AFTER: Duration = Duration::from_millis(500);

pub struct ServerMachine {
    pub name: String,
    world: Arc<World>,
    pub clock: Arc<MachineClock>,
    pub to_coordinator: Arc<Way>,
    pub to_store: Arc<Way>,
    keyspace: Arc<Keyspace>,
    database: Arc<InlineSqlite>,
    power: Power<Control>,
}

pub struct AgentMachine {
    pub name: String,
    world: Arc<World>,
    pub node: NodeId,
    pub clock: Arc<MachineClock>,
    pub disk: MemoryDisk,
    pub journal: MemoryJournal,
    incarnations: Arc<AtomicU64>,
    slots: u32,
    power: Power<Agent>,
}

/// What runs now, and whether it is to be started again when it ends.
struct Power<T> {
    current: Mutex<(Option<Arc<Process>>, Option<T>)>,
    is_wanted: Mutex<bool>,
    wanted: Notify,
}

impl<T: Clone> Power<T> {
    fn new() -> Self {
        Self { current: Mutex::new((None, None)), is_wanted: Mutex::new(true), wanted: Notify::new() }
    }

    fn current(&self) -> MutexGuard<'_, (Option<Arc<Process>>, Option<T>)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn process(&self) -> Option<Arc<Process>> {
        self.current().0.clone().filter(|process| !process.is_dead())
    }

    fn inhabitant(&self) -> Option<T> {
        let current = self.current();
        current.1.clone().filter(|_| current.0.as_ref().is_some_and(|process| !process.is_dead()))
    }

    fn set_wanted(&self, wanted: bool) {
        *self.is_wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
        self.wanted.notify_one();
    }

    /// Never ends.
    async fn supervise(&self, start: impl Fn(Arc<Process>)) {
        loop {
            while !*self.is_wanted.lock().unwrap_or_else(PoisonError::into_inner) {
                self.wanted.notified().await;
            }
            let process = Process::new();
            self.current().0 = Some(process.clone());
            start(process.clone());
            process.ended().await;
            let former = self.current().1.take();
            drop(former);
            tokio::time::sleep(STARTED_AGAIN_AFTER).await;
        }
    }

    fn kill(&self) {
        self.set_wanted(false);
        if let Some(process) = self.process() {
            process.kill();
        }
    }

    fn stop(&self) {
        if let Some(process) = self.process() {
            process.stop();
        }
    }

    fn go_on(&self) {
        if let Some(process) = self.process() {
            process.go_on();
        }
    }

    fn is_stopped(&self) -> bool {
        self.process().is_some_and(|process| process.is_stopped())
    }
}

macro_rules! powered {
    ($machine:ty) => {
        impl $machine {
            pub fn kill(&self) {
                self.world.trace(format_args!("{} is killed", self.name));
                self.power.kill();
            }

            pub fn start_again(&self) {
                self.power.set_wanted(true);
            }

            pub fn stop(&self) {
                self.world.trace(format_args!("{} is stopped", self.name));
                self.power.stop();
            }

            pub fn go_on(&self) {
                self.world.trace(format_args!("{} goes on", self.name));
                self.power.go_on();
            }

            pub fn is_stopped(&self) -> bool {
                self.power.is_stopped()
            }
        }
    };
}
powered!(ServerMachine);
powered!(AgentMachine);

impl ServerMachine {
    pub fn new(
        world: &Arc<World>,
        name: String,
        clock: Arc<MachineClock>,
        keyspace: &Arc<Keyspace>,
        database: &Arc<InlineSqlite>,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            world: world.clone(),
            clock,
            to_coordinator: Arc::default(),
            to_store: Arc::default(),
            keyspace: keyspace.clone(),
            database: database.clone(),
            power: Power::new(),
        })
    }

    pub fn control(&self) -> Option<Control> {
        self.power.inhabitant()
    }

    pub async fn live(self: Arc<Self>) {
        let this = self.clone();
        self.power
            .supervise(move |process| {
                let this = this.clone();
                process.clone().run(Box::pin(async move {
                    match this.start(process.clone()).await {
                        Ok(control) => this.power.current().1 = Some(control),
                        Err(cause) => {
                            this.world.trace(format_args!("{} does not start: {cause:#}", this.name));
                            process.kill();
                        }
                    }
                }));
            })
            .await;
    }

    async fn start(&self, process: Arc<Process>) -> anyhow::Result<Control> {
        let random = u128::from(self.world.dice().next());
        let id = ServerId::new(belfry_coord::Clock::now(self.clock.as_ref()), random);
        self.world.trace(format_args!("{} starts as {id}", self.name));
        let coordinator = RemoteCoordinator {
            world: self.world.clone(),
            keyspace: self.keyspace.clone(),
            way: self.to_coordinator.clone(),
            server: self.name.clone(),
        };
        let database =
            RemoteStore { world: self.world.clone(), database: self.database.clone(), way: self.to_store.clone() };
        let store = Store::open(Arc::new(database)).await?;
        let config = ControlConfig {
            ttl: self.world.ttl,
            addresses: Addresses { api: self.name.clone(), agents: self.name.clone() },
            ..ControlConfig::default()
        };
        let tasks = Tasks::on(Arc::new(ServerProcess(process)));
        Ok(Control::start_with(tasks, config, id, Arc::new(coordinator), store, self.clock.clone()).await?)
    }

    /// As SIGTERM: what it holds is given back, then it ends.
    pub fn stop_gracefully(&self) {
        let (Some(process), Some(control)) = (self.power.process(), self.control()) else { return };
        self.world.trace(format_args!("{} stops by itself", self.name));
        process.clone().run(Box::pin(async move {
            control.stop().await;
            process.kill();
        }));
    }
}

impl AgentMachine {
    pub fn new(world: &Arc<World>, index: usize, slots: u32, clock: Arc<MachineClock>) -> Arc<Self> {
        Arc::new(Self {
            name: format!("agent{index}"),
            world: world.clone(),
            node: NodeId::new(beginning(), index as u128 + 1),
            clock,
            disk: MemoryDisk::default(),
            journal: MemoryJournal::default(),
            incarnations: Arc::default(),
            slots,
            power: Power::new(),
        })
    }

    pub fn agent(&self) -> Option<Agent> {
        self.power.inhabitant()
    }

    pub async fn live(self: Arc<Self>) {
        let this = self.clone();
        self.power
            .supervise(move |process| {
                if this.clock.is_off() {
                    this.world.witness().astray.insert(this.node);
                }
                let (incarnations, spawning) = (this.incarnations.clone(), process.clone());
                let (world, name) = (this.world.clone(), this.name.clone());
                let machine = Machine {
                    node: this.node,
                    name: this.name.clone(),
                    slots: this.slots,
                    clock: this.clock.clone(),
                    disk: this.disk.clone(),
                    journal: this.journal.clone(),
                    programs: Arc::new(PlayedPrograms {
                        world: this.world.clone(),
                        process: process.clone(),
                        clock: this.clock.clone(),
                        longest: Duration::from_secs(12),
                    }),
                    incarnations: Box::new(move || {
                        let new = Incarnation(incarnations.fetch_add(1, Ordering::Relaxed) + 1);
                        world.trace(format_args!("{name} is incarnation {new}"));
                        new
                    }),
                    spawn: Arc::new(move |future| spawning.run(future)),
                };
                let agent = Agent::start_simulated(machine).expect("a simulated agent starts");
                this.power.current().1 = Some(agent);
            })
            .await;
    }
}
