//! An agent without a machine under it: time, disk, programs and the process itself are a simulation's. Everything that decides is
//! the same as in every other agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use belfry_core::policy::Policy;
use belfry_core::{Incarnation, NodeId};
use belfry_exec::current_user;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::alarm::Alarm;
use crate::desk::{Desk, NodeFacts};
use crate::desk_loop::INBOX_MAX;
use crate::local::{Journal, Local};
use crate::logins::Logins;
use crate::own_time::NodeClock;
use crate::policy::PolicyFile;
use crate::session::Node;
use crate::spool::{MemorySpool, Place};
use crate::tasks::Tasks;
use crate::trust::Trust;
use crate::{Agent, AgentError, Clock, MemoryDisk, MemoryJournal, Programs, Spawn};

/// What a simulated agent stands on.
pub struct Machine {
    pub node: NodeId,
    pub name: String,
    pub slots: u32,
    pub clock: Arc<dyn Clock>,
    pub disk: MemoryDisk,
    pub journal: MemoryJournal,
    pub programs: Arc<dyn Programs>,
    /// Each greater than every one before it.
    pub incarnations: Box<dyn FnMut() -> Incarnation + Send>,
    /// Where its futures run; whoever drops them all has killed the agent.
    pub spawn: Spawn,
}

const QUIT_TIME: Duration = Duration::from_secs(5);

impl Agent {
    pub fn start_simulated(machine: Machine) -> Result<Agent, AgentError> {
        let Machine { node: id, name, slots, clock, disk, journal, programs, incarnations, spawn } = machine;
        let policy = Policy { allow_root: Some(true), ..Policy::default() };
        let policy = PolicyFile::open(None, policy).map_err(AgentError::Policy)?;
        let logins = Logins::new(current_user());
        let runs_as = logins.own().login.user.clone();
        let (sender, inbox) = mpsc::channel(INBOX_MAX);
        let spool = MemorySpool::open(disk);
        let facts = NodeFacts {
            node: id,
            name: name.clone(),
            labels: BTreeMap::new(),
            slots,
            runs_as: runs_as.clone(),
            credential: String::new(),
        };
        let trust = Trust::default();
        let (journal, kept) = Journal::in_memory(&journal);
        let clock = NodeClock::new(clock);
        let (now, finished) = (clock.now(), spool.finished());
        // A simulated machine boots once.
        let local = Local::new(id, kept, "", &finished, now);
        let desk = Desk::new(facts, incarnations, trust.clone(), (finished, spool.fired_here()), local, now);
        let stop = CancellationToken::new();
        let node = Arc::new(Node {
            id,
            name,
            runs_as,
            policy,
            cgroups: Arc::default(),
            clock,
            spool: Place::Memory(spool),
            journal,
            run_logs: None,
            programs,
            logins,
            trust,
            tasks: Tasks::on(spawn, stop.clone()),
            inbox: sender,
            servers: watch::Sender::default(),
            last_session: AtomicU64::new(0),
            fifos: None,
            saves: Default::default(),
        });
        let writer = Arc::clone(&node);
        // Fate: ends with the agent; what it has not written by then is lost.
        node.tasks.spawn("spool-writer", async move {
            if let Place::Memory(spool) = &writer.spool {
                spool.write_all(&writer).await;
            }
        });
        Ok(Agent::begin(desk, node, Alarm::simulated(), inbox, stop, QUIT_TIME, None))
    }
}
