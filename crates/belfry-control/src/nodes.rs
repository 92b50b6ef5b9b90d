//! The nodes as this server sees them: who is connected, with how much work. Placement reads it and books what it chose; the lock
//! is held for the choice alone.

use std::sync::{Mutex, MutexGuard, PoisonError};

use belfry_core::job::{Placement, Select};
use belfry_core::place::{Candidate, Placed, place};
use belfry_core::{Incarnation, NodeId, RunId, Timestamp};
use belfry_store::NodeRecord;

use crate::open_run::Bound;
use crate::view::NodeView;

/// How many runs a node keeps ready behind its slots: it starts them without asking when a slot is free.
const BACKLOG_PER_NODE: u32 = 20_000;

#[derive(Debug, Default)]
pub struct Nodes {
    board: Mutex<Vec<Node>>,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub candidate: Candidate,
    /// As the agent was started; the store may say otherwise.
    own_slots: u32,
    pub version: String,
    pub runs_as: String,
    pub connected_since: Option<Timestamp>,
    pub last_heartbeat: Option<Timestamp>,
    pub clock_offset_ms: Option<i64>,
}

/// What an agent said of itself when it connected.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub record: NodeRecord,
    pub incarnation: Incarnation,
    pub runs_as: String,
    pub slots: u32,
    pub load: u32,
    pub at: Timestamp,
}

impl Nodes {
    /// Nodes that have joined before, not connected yet.
    pub fn known(&self, records: Vec<NodeRecord>) {
        let mut board = self.lock();
        for record in records {
            if !board.iter().any(|node| node.candidate.id == record.id) {
                board.push(Node::absent(&record));
            }
        }
    }

    pub fn arrived(&self, arrival: Arrival) {
        let mut board = self.lock();
        let index = board.iter().position(|node| node.candidate.id == arrival.record.id).unwrap_or_else(|| {
            board.push(Node::absent(&arrival.record));
            board.len() - 1
        });
        let node = &mut board[index];
        node.own_slots = arrival.slots;
        node.describe(&arrival.record);
        node.candidate.incarnation = arrival.incarnation;
        node.candidate.load = arrival.load;
        node.candidate.connected = true;
        node.runs_as = arrival.runs_as;
        node.connected_since = Some(arrival.at);
        node.last_heartbeat = Some(arrival.at);
    }

    /// Only the incarnation that left: a newer one may have arrived before its session was seen to end.
    pub fn left(&self, id: NodeId, incarnation: Incarnation) {
        self.with(id, |node| {
            if node.candidate.incarnation == incarnation {
                node.candidate.connected = false;
                node.connected_since = None;
            }
        });
    }

    /// Weight, labels, slots, draining or excluded were changed in the store.
    pub fn described(&self, records: &[NodeRecord]) {
        for record in records {
            self.with(record.id, |node| node.describe(record));
        }
    }

    pub fn removed(&self, id: NodeId) {
        self.lock().retain(|node| node.candidate.id != id);
    }

    pub fn heard(&self, id: NodeId, at: Timestamp) {
        self.with(id, |node| node.last_heartbeat = Some(at));
    }

    pub fn clock_measured(&self, id: NodeId, offset_ms: i64, skew_max_ms: i64) {
        self.with(id, |node| {
            node.clock_offset_ms = Some(offset_ms);
            node.candidate.clock_off = offset_ms.abs() > skew_max_ms;
        });
    }

    /// Chooses and books one run; [`Nodes::freed`] gives it back.
    pub fn place(
        &self,
        select: &Select,
        rule: Placement,
        run: RunId,
        wanted: Option<NodeId>,
        not_on: &[(NodeId, Incarnation)],
    ) -> Result<Bound, String> {
        let mut board = self.lock();
        let mut candidates: Vec<&mut Candidate> = board.iter_mut().map(|node| &mut node.candidate).collect();
        match place(select, rule, run, wanted, not_on, &mut candidates) {
            Placed::On(index) => {
                let chosen = &mut *candidates[index];
                chosen.load += 1;
                Ok(Bound {
                    node: chosen.id,
                    node_name: chosen.name.clone(),
                    incarnation: chosen.incarnation,
                    attempt: 1,
                })
            }
            Placed::Nowhere(unfit) => Err(Placed::why_nowhere(&unfit)),
        }
    }

    pub fn freed(&self, id: NodeId, incarnation: Incarnation) {
        self.with(id, |node| {
            if node.candidate.incarnation == incarnation {
                node.candidate.load = node.candidate.load.saturating_sub(1);
            }
        });
    }

    pub fn incarnation(&self, id: NodeId) -> Option<Incarnation> {
        self.lock()
            .iter()
            .find(|node| node.candidate.id == id && node.candidate.connected)
            .map(|node| node.candidate.incarnation)
    }

    pub fn views(&self) -> Vec<NodeView> {
        let mut views: Vec<NodeView> = self.lock().iter().map(Node::view).collect();
        views.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
        views
    }

    fn with(&self, id: NodeId, change: impl FnOnce(&mut Node)) {
        if let Some(node) = self.lock().iter_mut().find(|node| node.candidate.id == id) {
            change(node);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Node>> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    fn absent(record: &NodeRecord) -> Self {
        let mut node = Self {
            candidate: Candidate {
                id: record.id,
                name: String::new(),
                incarnation: Incarnation(0),
                labels: Default::default(),
                weight: 1,
                slots: 0,
                backlog: BACKLOG_PER_NODE,
                load: 0,
                connected: false,
                draining: false,
                excluded: false,
                clock_off: false,
                credit: 0,
            },
            own_slots: 0,
            version: String::new(),
            runs_as: String::new(),
            connected_since: None,
            last_heartbeat: None,
            clock_offset_ms: None,
        };
        node.describe(record);
        node
    }

    fn describe(&mut self, record: &NodeRecord) {
        self.candidate.name.clone_from(&record.name);
        self.candidate.labels.clone_from(&record.labels);
        self.candidate.weight = record.weight;
        self.candidate.slots = record.slots.unwrap_or(self.own_slots);
        self.candidate.draining = record.draining;
        self.candidate.excluded = record.excluded;
        self.version.clone_from(&record.version);
    }

    fn view(&self) -> NodeView {
        let candidate = &self.candidate;
        NodeView {
            id: candidate.id,
            name: candidate.name.clone(),
            version: self.version.clone(),
            labels: candidate.labels.clone(),
            weight: candidate.weight,
            slots: candidate.slots,
            load: candidate.load,
            draining: candidate.draining,
            excluded: candidate.excluded,
            connected: candidate.connected,
            incarnation: candidate.incarnation,
            connected_since: self.connected_since,
            last_heartbeat: self.last_heartbeat,
            clock_offset_ms: self.clock_offset_ms,
            runs_as: self.runs_as.clone(),
        }
    }
}
