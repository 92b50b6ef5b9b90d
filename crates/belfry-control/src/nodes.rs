//! The nodes as this server sees them: who is connected, with how much work. Placement reads it and books what it chose; the lock
//! is held for the choice alone. A node's load is what it says itself, from the orders of all servers, and what this server has
//! ordered since; so is what runs can have of its memory, processors and disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use belfry_core::place::{Asked, Candidate, Decision, place};
use belfry_core::room::{Amounts, Host, Room};
use belfry_core::{Incarnation, JobId, NodeId, RunId, Timestamp};
use belfry_store::NodeRecord;

use crate::open_run::Bound;
use crate::view::NodeView;

/// How many runs a node keeps ready behind its slots: it starts them without asking when a slot is free.
const BACKLOG_PER_NODE: u32 = 20_000;

#[derive(Debug, Default)]
pub struct Nodes {
    board: Mutex<Vec<Node>>,
    /// A run was turned away for want of room since waiting runs were last told of some.
    turned_away: AtomicBool,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub candidate: Candidate,
    /// As the agent was started; the store may say otherwise.
    own_slots: u32,
    /// As people have set them.
    set_slots: Option<u32>,
    /// Runs that it has, as it said last.
    told: u32,
    /// What runs can have of it, as it said last.
    told_room: Option<Room>,
    /// Booked here, and it has not said that it has them; with what each needs.
    awaited: HashMap<RunId, Amounts>,
    awaited_needs: Amounts,
    /// The machine as it was measured last, and when that was heard.
    host: Option<(Host, Timestamp)>,
    /// Jobs that are switched off there by its local API, with their names.
    disabled: BTreeMap<JobId, String>,
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
    pub says: Said,
    /// Of the runs that it has, those of this incarnation.
    pub running: HashSet<RunId>,
    pub at: Timestamp,
}

/// What a node says of itself again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Runs that it has.
    pub live: u32,
    pub spool_full: bool,
    pub disk_low: bool,
    pub room: Option<Room>,
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

    /// The record of a node that comes while the store does not answer: what people have set stays as it is known here.
    pub fn as_set(&self, mut said: NodeRecord) -> NodeRecord {
        self.with(said.id, |node| {
            let known = &node.candidate;
            said.labels.clone_from(&known.labels);
            (said.weight, said.slots) = (known.weight, node.set_slots);
            (said.draining, said.excluded) = (known.draining, known.excluded);
        });
        said
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
        if node.candidate.incarnation != arrival.incarnation {
            node.awaited.clear();
        }
        node.candidate.incarnation = arrival.incarnation;
        node.awaited.retain(|run, _| !arrival.running.contains(run));
        node.awaited_needs = node.awaited.values().fold(Amounts::NONE, |sum, needs| sum.plus(*needs));
        node.says(arrival.says);
        // It says them anew, if there are any.
        node.disabled.clear();
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

    /// True if that may let waiting runs go.
    pub fn clock_measured(&self, id: NodeId, offset_ms: i64, skew_max_ms: i64) -> bool {
        let mut is_right_again = false;
        self.with(id, |node| {
            let is_off = offset_ms.abs() > skew_max_ms;
            is_right_again = node.candidate.clock_off && !is_off;
            node.clock_offset_ms = Some(offset_ms);
            node.candidate.clock_off = is_off;
        });
        is_right_again
    }

    /// What was measured says nothing any more: this server's own clock is in doubt.
    pub fn forget_clocks(&self) {
        for node in self.lock().iter_mut() {
            node.clock_offset_ms = None;
            node.candidate.clock_off = false;
        }
    }

    /// Of the connected ones, against this server's clock.
    pub fn clock_offsets_ms(&self) -> Vec<i64> {
        let board = self.lock();
        board.iter().filter(|node| node.candidate.connected).filter_map(|node| node.clock_offset_ms).collect()
    }

    /// How far the clock of this one is off what most agree on: those of the connected ones, and this server's. None: they are divided.
    pub fn clock_off_most_ms(&self, id: NodeId, skew_max_ms: i64) -> Option<i64> {
        let board = self.lock();
        let known = board.iter().filter(|node| node.candidate.connected || node.candidate.id == id);
        let (own, others): (Vec<_>, Vec<_>) =
            known.filter_map(|node| Some((node.candidate.id, node.clock_offset_ms?))).partition(|(of, _)| *of == id);
        let (_, own) = own.first()?;
        let others = others.iter().map(|(_, offset)| offset).chain([&0]);
        belfry_core::skew::off_most_ms(others.map(|offset| offset - own), skew_max_ms)
    }

    /// Chooses and books one run until its node says that it has it; [`Nodes::void`] gives the place back.
    pub fn place(&self, asked: &Asked<'_>) -> (Option<Bound>, Decision) {
        let mut board = self.lock();
        let mut candidates: Vec<&mut Candidate> = board.iter_mut().map(|node| &mut node.candidate).collect();
        let (chosen, decision) = place(asked, &mut candidates);
        let bound = chosen.map(|index| {
            let node = &mut board[index];
            node.awaits(asked.run, asked.needs);
            Bound {
                node: node.candidate.id,
                node_name: node.candidate.name.clone(),
                incarnation: node.candidate.incarnation,
                attempt: 1,
                exclusive: false,
            }
        });
        if bound.is_none() && !asked.needs.is_none() {
            self.turned_away.store(true, Ordering::Relaxed);
        }
        (bound, decision)
    }

    /// What [`Nodes::place`] would do now, without doing it: the name of the node, and why.
    pub fn would_place(&self, asked: &Asked<'_>) -> (Option<String>, Decision) {
        let mut copies = self.candidates();
        let (chosen, decision) = place(asked, &mut copies.iter_mut().collect::<Vec<_>>());
        (chosen.map(|index| copies[index].name.clone()), decision)
    }

    /// The node has answered an order. `live`: how many runs it has, and `room`: what is free with this one, if it says so.
    pub fn answered(&self, id: NodeId, run: RunId, was_taken: bool, live: Option<u32>, room: Option<Room>) {
        self.with(id, |node| {
            let is_new = node.awaits_no_more(run) && was_taken;
            node.told = live.unwrap_or(node.told + u32::from(is_new));
            node.told_room = room.or(node.told_room);
            node.count();
        });
    }

    /// True if that may let waiting runs go.
    pub fn told_load(&self, id: NodeId, said: Said) -> bool {
        let mut takes_work_again = false;
        let mut has_more_room = false;
        self.with(id, |node| {
            let before = node.told_room.map(|room| room.free).unwrap_or_default();
            has_more_room = said.room.is_some_and(|room| !room.free.minus(before).is_none());
            takes_work_again =
                (node.candidate.spool_full && !said.spool_full) || (node.candidate.disk_low && !said.disk_low);
            node.says(said);
        });
        takes_work_again || (has_more_room && self.turned_away.swap(false, Ordering::Relaxed))
    }

    /// The jobs that are switched off there by its local API, all of them.
    pub fn disabled(&self, id: NodeId, jobs: BTreeMap<JobId, String>) {
        self.with(id, |node| node.disabled = jobs);
    }

    /// The nodes on which a job is switched off.
    pub fn with_disabled(&self, job: JobId) -> Vec<NodeId> {
        let board = self.lock();
        board.iter().filter(|node| node.disabled.contains_key(&job)).map(|node| node.candidate.id).collect()
    }

    /// The machine was measured anew.
    pub fn measured(&self, id: NodeId, host: Host, at: Timestamp) {
        self.with(id, |node| node.host = Some((host, at)));
    }

    /// The node has said that a run ended, and not yet how many it has since.
    pub fn ended(&self, id: NodeId, run: RunId) {
        self.with(id, |node| {
            let was_counted = !node.awaits_no_more(run);
            node.told = node.told.saturating_sub(u32::from(was_counted));
            node.count();
        });
    }

    /// The order will not go to this node, or needs no waiting for.
    pub fn void(&self, id: NodeId, run: RunId) {
        self.with(id, |node| {
            node.awaits_no_more(run);
            node.count();
        });
    }

    pub fn incarnation(&self, id: NodeId) -> Option<Incarnation> {
        self.lock()
            .iter()
            .find(|node| node.candidate.id == id && node.candidate.connected)
            .map(|node| node.candidate.incarnation)
    }

    pub fn name(&self, id: NodeId) -> Option<String> {
        self.lock().iter().find(|node| node.candidate.id == id).map(|node| node.candidate.name.clone())
    }

    pub fn candidate(&self, id: NodeId) -> Option<Candidate> {
        self.lock().iter().find(|node| node.candidate.id == id).map(|node| node.candidate.clone())
    }

    pub fn candidates(&self) -> Vec<Candidate> {
        self.lock().iter().map(|node| node.candidate.clone()).collect()
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
                spool_full: false,
                disk_low: false,
                room: None,
                credit: 0,
            },
            own_slots: 0,
            set_slots: None,
            told: 0,
            told_room: None,
            awaited: HashMap::new(),
            awaited_needs: Amounts::NONE,
            host: None,
            disabled: BTreeMap::new(),
            version: String::new(),
            runs_as: String::new(),
            connected_since: None,
            last_heartbeat: None,
            clock_offset_ms: None,
        };
        node.describe(record);
        node
    }

    fn says(&mut self, said: Said) {
        self.told = said.live;
        self.told_room = said.room;
        self.candidate.spool_full = said.spool_full;
        self.candidate.disk_low = said.disk_low;
        self.count();
    }

    fn awaits(&mut self, run: RunId, needs: Amounts) {
        self.awaits_no_more(run);
        self.awaited.insert(run, needs);
        self.awaited_needs = self.awaited_needs.plus(needs);
        self.count();
    }

    /// False: it did not await it.
    fn awaits_no_more(&mut self, run: RunId) -> bool {
        let needs = self.awaited.remove(&run);
        self.awaited_needs = self.awaited_needs.minus(needs.unwrap_or_default());
        needs.is_some()
    }

    fn count(&mut self) {
        self.candidate.load = self.told.saturating_add(self.awaited.len() as u32);
        self.candidate.room = self.told_room.map(|room| room.less(self.awaited_needs));
    }

    fn describe(&mut self, record: &NodeRecord) {
        self.candidate.name.clone_from(&record.name);
        self.candidate.labels.clone_from(&record.labels);
        self.candidate.weight = record.weight;
        self.set_slots = record.slots;
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
            homes: 0,
            draining: candidate.draining,
            excluded: candidate.excluded,
            spool_full: candidate.spool_full,
            disk_low: candidate.disk_low,
            clock_off: candidate.clock_off,
            room: candidate.room,
            host: self.host.clone(),
            disabled_jobs: self.disabled.clone(),
            connected: candidate.connected,
            incarnation: candidate.incarnation,
            connected_since: self.connected_since,
            last_heartbeat: self.last_heartbeat,
            clock_offset_ms: self.clock_offset_ms,
            runs_as: self.runs_as.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use belfry_core::id::Slot;
    use belfry_core::job::{Placement, Select};

    use super::*;

    fn arrive(nodes: &Nodes, weight: u32, live: u32, running: &[RunId]) -> NodeId {
        let id = NodeId::from_u128(weight.into());
        let record = NodeRecord {
            id,
            name: "n".into(),
            labels: Default::default(),
            weight,
            slots: None,
            draining: false,
            excluded: false,
            version: String::new(),
            incarnation: Incarnation(1),
            first_seen: Timestamp::MIN,
            removed_at: None,
        };
        let (running, at) = (running.iter().copied().collect(), Timestamp::MIN);
        nodes.arrived(Arrival {
            record,
            incarnation: Incarnation(1),
            runs_as: String::new(),
            slots: 9,
            says: Said { live, ..Said::default() },
            running,
            at,
        });
        id
    }

    fn asked(job: JobId, run: RunId, planned: Timestamp, select: &Select) -> Asked<'_> {
        Asked {
            job,
            run,
            planned,
            select,
            needs: Amounts::NONE,
            rule: Placement::Weighted,
            wanted: None,
            refused_by: &[],
            last: None,
            named_max: 3,
            takes_slot: true,
        }
    }

    fn says(live: u32) -> Said {
        Said { live, ..Said::default() }
    }

    fn book(nodes: &Nodes, job: JobId, second: i64) -> (RunId, Bound) {
        let planned = Timestamp::from_second(second).unwrap();
        let run = RunId::of(job, planned, Slot::Only);
        let select = Select::default();
        (run, nodes.place(&asked(job, run, planned, &select)).0.expect("a node"))
    }

    fn booked(nodes: &Nodes, second: i64) -> RunId {
        book(nodes, JobId::from_u128(1), second).0
    }

    fn load(nodes: &Nodes) -> u32 {
        nodes.views()[0].load
    }

    /// As three servers place that share sixteen shards: each goes round by itself, and hears of the others' runs only by what the
    /// nodes say.
    #[test]
    fn ten_nodes_get_runs_in_proportion_to_their_weights_from_three_servers() {
        const FIRES: i64 = 10_000;
        let servers: Vec<Nodes> = (0..3).map(|_| Nodes::default()).collect();
        for (nodes, weight) in servers.iter().flat_map(|nodes| (1..=10).map(move |weight| (nodes, weight))) {
            arrive(nodes, weight, 0, &[]);
        }
        let mut placed = [0u32; 10];
        for n in 0..FIRES {
            // Each job fires but a few times.
            let job = JobId::from_u128(n as u128 % 2_000);
            let server = &servers[usize::from(job.shard().0) % servers.len()];
            let (run, bound) = book(server, job, n / 2_000);
            placed[bound.node.as_u128() as usize - 1] += 1;
            server.answered(bound.node, run, true, Some(1), None);
            for nodes in &servers {
                nodes.told_load(bound.node, says(0));
            }
        }
        for (count, weight) in placed.iter().zip(1..) {
            let share = f64::from(*count) * 55.0 / FIRES as f64 / f64::from(weight);
            assert!((share - 1.0).abs() < 0.02, "weight {weight}: {share} of its share, {placed:?}");
        }
    }

    #[test]
    fn the_load_is_what_the_node_says_and_what_it_has_not_heard_of() {
        let nodes = Nodes::default();
        let id = arrive(&nodes, 1, 2, &[]);
        let (a, b) = (booked(&nodes, 1), booked(&nodes, 2));
        assert_eq!(load(&nodes), 4);
        nodes.answered(id, a, true, Some(5), None); // the other servers ordered two more
        assert_eq!(load(&nodes), 6);
        nodes.told_load(id, says(3));
        assert_eq!(load(&nodes), 4, "b is still on its way");
        nodes.ended(id, a);
        assert_eq!(load(&nodes), 3);
        nodes.answered(id, b, false, Some(2), None);
        assert_eq!(load(&nodes), 2);
        nodes.void(id, b);
        assert_eq!(load(&nodes), 2);
    }

    #[test]
    fn a_node_without_room_for_results_gets_no_run_until_it_says_that_it_has_some() {
        let nodes = Nodes::default();
        let id = arrive(&nodes, 1, 0, &[]);
        let run = RunId::from_u128(1);
        let select = Select::default();
        let asked = asked(JobId::from_u128(1), run, Timestamp::MIN, &select);
        assert!(!nodes.told_load(id, Said { spool_full: true, ..says(0) }), "it has none now");
        let (bound, decision) = nodes.place(&asked);
        assert!(bound.is_none());
        assert_eq!(
            decision.why_nowhere(),
            "no node can take it (n: its spool is full until the store takes its results)"
        );
        assert!(!nodes.views()[0].takes_work());
        assert!(nodes.told_load(id, says(0)), "waiting runs may go");
        assert!(nodes.place(&asked).0.is_some());
    }

    #[test]
    fn a_node_whose_clock_is_off_gets_no_run_until_it_is_right_again() {
        let nodes = Nodes::default();
        let id = arrive(&nodes, 1, 0, &[]);
        let select = Select::default();
        let asked = asked(JobId::from_u128(1), RunId::from_u128(1), Timestamp::MIN, &select);
        assert!(!nodes.clock_measured(id, -2_001, 2_000));
        let (bound, decision) = nodes.place(&asked);
        assert!(bound.is_none());
        assert_eq!(decision.why_nowhere(), "no node can take it (n: its clock is off)");
        let view = &nodes.views()[0];
        assert!(view.clock_off && !view.takes_work());
        assert!(nodes.clock_measured(id, 1_999, 2_000), "waiting runs may go");
        assert!(!nodes.clock_measured(id, 3, 2_000), "nothing new");
        assert!(nodes.views()[0].takes_work() && nodes.place(&asked).0.is_some());
    }

    #[test]
    fn what_other_servers_ordered_does_not_stay_for_ever() {
        let nodes = Nodes::default();
        let id = arrive(&nodes, 1, 7, &[]);
        assert_eq!(load(&nodes), 7);
        nodes.told_load(id, says(0));
        assert_eq!(load(&nodes), 0);
        // A new session: what it took meanwhile is counted once.
        let (a, b) = (booked(&nodes, 1), booked(&nodes, 2));
        arrive(&nodes, 1, 1, &[a]);
        assert_eq!(load(&nodes), 2);
        // An agent that does not count is counted.
        nodes.answered(id, b, true, None, None);
        assert_eq!(load(&nodes), 2);
        nodes.ended(id, b);
        assert_eq!(load(&nodes), 1);
    }

    #[test]
    fn what_is_on_its_way_to_a_node_has_its_room_already() {
        const GIB: u64 = 1 << 30;
        let nodes = Nodes::default();
        let id = arrive(&nodes, 1, 0, &[]);
        let memory = |gib: u64| Amounts { memory: gib * GIB, ..Amounts::NONE };
        let has = |gib| Said { room: Some(Room { total: memory(8), free: memory(gib) }), ..says(0) };
        let select = Select::default();
        let needy = |run| {
            let any = asked(JobId::from_u128(1), RunId::from_u128(run), Timestamp::MIN, &select);
            nodes.place(&Asked { needs: memory(2), ..any })
        };
        assert!(needy(1).1.why_nowhere().contains("it has not said what it has free"));
        assert!(nodes.told_load(id, has(5)), "one was turned away");
        assert!(needy(1).0.is_some() && needy(2).0.is_some());
        assert!(needy(3).1.why_nowhere().contains("n (needs 2GiB memory, has 1GiB free): too little is free"));
        // The first is taken: what the node says counts it in, and the second is still on its way.
        nodes.answered(id, RunId::from_u128(1), true, Some(1), has(3).room);
        assert!(needy(3).0.is_none());
        nodes.void(id, RunId::from_u128(2));
        assert!(needy(3).0.is_some(), "its room was given back");
        assert!(needy(4).0.is_none());
        assert!(!nodes.told_load(id, has(2)), "no more than before");
        assert!(nodes.told_load(id, has(6)), "more, and one was turned away");
        assert!(!nodes.told_load(id, has(7)), "more, and nobody waits");
        assert!(!nodes.told_load(id, Said { disk_low: true, ..has(7) }));
        assert!(needy(4).1.why_nowhere().contains("less free disk than its floor"));
        assert!(nodes.told_load(id, has(7)), "it takes work again");
    }
}
