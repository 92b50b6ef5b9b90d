//! The protocol as states and steps. Versions are small numbers; time is only "a TTL has passed since this heartbeat".

use super::explorer::System;

/// What the safety of the protocol rests on. Each can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Every commit of an owner guards its seat's version.
    SeatGuard,
    /// Every commit of an owner rewrites its seat's key.
    SeatRewritten,
    /// A commit of unknown outcome is looked at before it is repeated.
    LookBeforeRepeating,
    /// A write to an open run guards the version that was read.
    RunGuard,
    /// A node is named by a commit before it gets the order.
    NodeNamed,
    /// An order is for one incarnation.
    IncarnationBinding,
    /// An incarnation takes a fire once.
    TakenOnce,
    /// Nothing is started when trust has ended.
    TrustCheck,
    /// Trust counts from the send of the heartbeat that was acknowledged.
    TrustFromSend,
    /// A node is marked lost only at the heartbeat that stood still.
    LostGuard,
}

impl Rule {
    pub const ALL: [Rule; 10] = [
        Rule::SeatGuard,
        Rule::SeatRewritten,
        Rule::LookBeforeRepeating,
        Rule::RunGuard,
        Rule::NodeNamed,
        Rule::IncarnationBinding,
        Rule::TakenOnce,
        Rule::TrustCheck,
        Rule::TrustFromSend,
        Rule::LostGuard,
    ];
}

/// All of them hold but one at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rules {
    pub off: Option<Rule>,
}

impl Rules {
    fn hold(self, rule: Rule) -> bool {
        self.off != Some(rule)
    }
}

const SERVERS: usize = 2;
const NODES: usize = 2;
pub const FIRES: usize = 2;

const TERMS_MAX: u8 = 2;
const BEATS_MAX: u8 = 2;
const ORDERS_MAX: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rules: Rules,
    /// How many of the fires come.
    fires: usize,
    /// How much may still go wrong on this way.
    failures_left: u8,
    calm: bool,
    seat: Seat,
    runs: [Key; FIRES],
    heartbeats: [Beat; NODES],
    servers: [Server; SERVERS],
    nodes: [Node; NODES],
    orders: Vec<Order>,
    /// Commits that were sent, not answered, and may still arrive.
    late: Vec<Commit>,
    /// The store: the fire has its end there.
    ended: [bool; FIRES],
    starts: [u8; FIRES],
    broken: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Seat {
    owner: Option<u8>,
    term: u8,
    version: u8,
    /// Fires before it are claimed.
    cursor: u8,
}

/// `open/<run>`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Key {
    /// Of all the versions that it has had.
    last: u8,
    now: Run,
    /// What an old read shows.
    before: Run,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Run {
    version: u8,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Unclaimed,
    Unbound,
    Bound {
        node: u8,
        incarnation: u8,
    },
    /// Decided against, or closed after its end.
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Beat {
    beat: u8,
    incarnation: u8,
    lost: bool,
    /// A TTL has passed since the beat of this number.
    stale_up_to: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    /// Some: it believes that it owns the shard.
    holds: Option<Holds>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Holds {
    term: u8,
    seat: u8,
    cursor: u8,
    runs: [Run; FIRES],
    /// Sent, and not answered; its number.
    doubt: Option<Commit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    incarnation: u8,
    taken: [bool; FIRES],
    waits: [bool; FIRES],
    /// The beat that trust is counted from; none without trust.
    trusted: Option<u8>,
    /// With trust from the reply: whether it is given at all.
    believes: bool,
    /// The beat whose answer is on its way.
    answer: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Order {
    fire: u8,
    node: u8,
    incarnation: u8,
}

/// One write of an owner: a run's key, and with a claim the cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Commit {
    by: u8,
    term: u8,
    seat: u8,
    fire: u8,
    run: u8,
    to: To,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum To {
    Claim { bound: Option<(u8, u8)> },
    Bind { node: u8, incarnation: u8 },
    Over,
}

/// What becomes of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Answered,
    AnswerLost,
    Late,
}

#[derive(Clone, Debug)]
pub enum Step {
    Take { server: usize, old_read: bool },
    ServerCrashes { server: usize },
    Send { server: usize, fire: usize, what: What, fate: Fate },
    Resolve { server: usize },
    LateArrives { which: usize },
    Dispatch { server: usize, fire: usize },
    DispatchUnnamed { server: usize, fire: usize, node: usize },
    Deliver { which: usize },
    Start { node: usize, fire: usize },
    End { node: usize, fire: usize },
    Beat { node: usize },
    Answer { node: usize },
    TtlPasses { node: usize, beat: u8 },
    MarkLost { node: usize, seen: u8 },
    NodeCrashes { node: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Claim {
        node: usize,
    },
    /// It has to wait behind another run of its job.
    ClaimUnbound,
    Bind {
        node: usize,
    },
    DecideLost,
    Close,
}

impl State {
    /// `fires`: how many of [`FIRES`] come; `failures_max`: how much may go wrong on one way.
    pub fn new(rules: Rules, fires: usize, failures_max: u8) -> Self {
        let node = Node {
            incarnation: 1,
            taken: [false; FIRES],
            waits: [false; FIRES],
            trusted: Some(1),
            believes: true,
            answer: None,
        };
        Self {
            rules,
            fires: fires.min(FIRES),
            failures_left: failures_max,
            calm: failures_max == 0,
            seat: Seat::default(),
            runs: Default::default(),
            heartbeats: [Beat { beat: 1, incarnation: 1, ..Beat::default() }; NODES],
            servers: Default::default(),
            nodes: [node; NODES],
            orders: Vec::new(),
            late: Vec::new(),
            ended: [false; FIRES],
            starts: [0; FIRES],
            broken: None,
        }
    }

    fn may_fail(&self) -> bool {
        self.failures_left > 0
    }

    /// The seat's version after it. Versions are counted per key: nothing compares those of two.
    fn apply(&mut self, commit: Commit) -> Option<u8> {
        let guard_holds = self.seat.version == commit.seat || !self.rules.hold(Rule::SeatGuard);
        let key = &self.runs[commit.fire as usize];
        let run_guard = self.rules.hold(Rule::RunGuard) || matches!(commit.to, To::Claim { .. });
        if !guard_holds || run_guard && key.now.version != commit.run {
            return None;
        }
        let key = &mut self.runs[commit.fire as usize];
        key.before = key.now;
        key.last += 1;
        key.now.version = key.last;
        key.now.stage = match commit.to {
            To::Claim { bound: Some((node, incarnation)) } | To::Bind { node, incarnation } => {
                Stage::Bound { node, incarnation }
            }
            To::Claim { bound: None } => Stage::Unbound,
            To::Over => Stage::Over,
        };
        if let To::Over = commit.to {
            // A key that was removed is absent again; only the cursor remembers it.
            key.now.version = 0;
        }
        if self.rules.hold(Rule::SeatRewritten) {
            self.seat.version += 1;
            self.seat.owner = Some(commit.by);
            self.seat.term = commit.term;
            if let To::Claim { .. } = commit.to {
                self.seat.cursor = self.seat.cursor.max(commit.fire + 1);
            }
        }
        Some(self.seat.version)
    }

    /// The owner knows that its commit happened.
    fn settled(&mut self, commit: Commit, version: u8) {
        let rewritten = self.rules.hold(Rule::SeatRewritten);
        let stage = self.runs[commit.fire as usize].now;
        let Some(holds) = &mut self.servers[commit.by as usize].holds else { return };
        holds.doubt = None;
        if rewritten {
            holds.seat = version;
        }
        holds.runs[commit.fire as usize] = stage;
        if let To::Claim { .. } = commit.to {
            holds.cursor = commit.fire + 1;
        }
    }

    fn send(&mut self, commit: Commit, fate: Fate) {
        let by = commit.by as usize;
        match fate {
            Fate::Answered => match self.apply(commit) {
                Some(version) => self.settled(commit, version),
                None => self.servers[by].holds = None,
            },
            Fate::AnswerLost => {
                self.failures_left -= 1;
                self.apply(commit);
                self.doubt(by, commit);
            }
            Fate::Late => {
                self.failures_left -= 1;
                self.late.push(commit);
                self.late.sort_unstable();
                self.doubt(by, commit);
            }
        }
    }

    fn doubt(&mut self, server: usize, commit: Commit) {
        if let Some(holds) = &mut self.servers[server].holds {
            holds.doubt = Some(commit);
        }
    }

    fn commit(&self, server: usize, fire: usize, what: What) -> Option<Commit> {
        let holds = self.servers[server].holds?;
        let run = holds.runs[fire];
        let alive = |node: usize| {
            let beat = self.heartbeats[node];
            (!beat.lost).then_some((node as u8, beat.incarnation))
        };
        let to = match what {
            What::Claim { node } => {
                if holds.cursor as usize != fire || run.version != 0 {
                    return None;
                }
                To::Claim { bound: Some(alive(node)?) }
            }
            What::ClaimUnbound => {
                // The first has nobody to wait behind.
                if fire == 0 || holds.cursor as usize != fire || run.version != 0 {
                    return None;
                }
                To::Claim { bound: None }
            }
            What::Bind { node } => {
                let (node, incarnation) = alive(node)?;
                if run.stage != Stage::Unbound {
                    return None;
                }
                To::Bind { node, incarnation }
            }
            What::DecideLost => {
                let Stage::Bound { node, incarnation } = run.stage else { return None };
                let beat = self.heartbeats[node as usize];
                if self.ended[fire] || !(beat.lost || beat.incarnation > incarnation) {
                    return None;
                }
                To::Over
            }
            What::Close => {
                if !self.ended[fire] || !matches!(run.stage, Stage::Bound { .. }) {
                    return None;
                }
                To::Over
            }
        };
        Some(Commit { by: server as u8, term: holds.term, seat: holds.seat, fire: fire as u8, run: run.version, to })
    }

    fn resolve(&mut self, server: usize) {
        let Some(holds) = self.servers[server].holds else { return };
        let Some(commit) = holds.doubt else { return };
        if !self.rules.hold(Rule::LookBeforeRepeating) {
            // Sent again on top of whatever is there.
            let again = Commit { seat: self.seat.version, run: self.runs[commit.fire as usize].now.version, ..commit };
            return match self.apply(again) {
                Some(version) => self.settled(again, version),
                None => self.servers[server].holds = None,
            };
        }
        let mine = self.seat.owner == Some(server as u8) && self.seat.term == holds.term;
        let was_applied = mine && self.seat.version != holds.seat;
        let unchanged = self.seat.version == holds.seat;
        if was_applied {
            let version = self.seat.version;
            self.settled(commit, version);
        } else if unchanged {
            // A barrier: after it the late one is refused.
            self.seat.version += u8::from(self.rules.hold(Rule::SeatRewritten));
            if let Some(holds) = &mut self.servers[server].holds {
                holds.doubt = None;
                holds.seat = self.seat.version;
            }
        } else {
            self.servers[server].holds = None;
        }
    }

    fn start(&mut self, node: usize, fire: usize) {
        let Node { incarnation, trusted, believes, .. } = self.nodes[node];
        let beat = self.heartbeats[node];
        let is_trusted = if self.rules.hold(Rule::TrustFromSend) {
            trusted.is_some_and(|trusted| trusted > beat.stale_up_to)
        } else {
            believes
        };
        self.nodes[node].waits[fire] = false;
        if !is_trusted && self.rules.hold(Rule::TrustCheck) {
            // It never starts, and says so.
            self.ended[fire] = true;
            return;
        }
        self.starts[fire] += 1;
        if self.starts[fire] > 1 {
            self.broken = Some("a fire was started twice");
        }
        let named = Stage::Bound { node: node as u8, incarnation };
        if beat.lost && beat.incarnation == incarnation && self.runs[fire].now.stage != named {
            self.broken = Some("started after its node was marked lost and the fire was decided otherwise");
        }
    }
}

impl System for State {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for server in 0..SERVERS {
            match &self.servers[server].holds {
                None => {
                    // A takeover is a failure's consequence; the first taking is none.
                    let first = self.seat.owner.is_none() && server == 0;
                    if self.seat.term < TERMS_MAX && (first || self.seat.owner.is_some() && self.may_fail()) {
                        steps.push(Step::Take { server, old_read: false });
                        if self.runs.iter().any(|key| key.before != key.now) && self.may_fail() {
                            steps.push(Step::Take { server, old_read: true });
                        }
                    }
                }
                Some(holds) if holds.doubt.is_some() => steps.push(Step::Resolve { server }),
                Some(holds) => {
                    for fire in 0..self.fires {
                        let mut whats = vec![What::DecideLost, What::Close, What::ClaimUnbound];
                        whats.extend((0..NODES).flat_map(|node| [What::Claim { node }, What::Bind { node }]));
                        for what in whats {
                            if self.commit(server, fire, what).is_none() {
                                continue;
                            }
                            steps.push(Step::Send { server, fire, what, fate: Fate::Answered });
                            if self.may_fail() {
                                steps.push(Step::Send { server, fire, what, fate: Fate::AnswerLost });
                                steps.push(Step::Send { server, fire, what, fate: Fate::Late });
                            }
                        }
                        let bound = matches!(holds.runs[fire].stage, Stage::Bound { .. });
                        if bound && !self.ended[fire] && self.orders.len() < ORDERS_MAX {
                            steps.push(Step::Dispatch { server, fire });
                        }
                        let unnamed = holds.runs[fire].stage == Stage::Unbound && !self.rules.hold(Rule::NodeNamed);
                        if unnamed && !self.ended[fire] && self.orders.len() < ORDERS_MAX {
                            steps.extend((0..NODES).map(|node| Step::DispatchUnnamed { server, fire, node }));
                        }
                    }
                    if self.may_fail() {
                        steps.push(Step::ServerCrashes { server });
                    }
                }
            }
        }
        steps.extend((0..self.late.len()).map(|which| Step::LateArrives { which }));
        steps.extend((0..self.orders.len()).map(|which| Step::Deliver { which }));
        for node in 0..NODES {
            let (here, beat) = (&self.nodes[node], &self.heartbeats[node]);
            for fire in 0..self.fires {
                if here.waits[fire] {
                    steps.push(Step::Start { node, fire });
                } else if here.taken[fire] && self.starts[fire] > 0 && !self.ended[fire] {
                    steps.push(Step::End { node, fire });
                }
            }
            if here.answer.is_some() {
                steps.push(Step::Answer { node });
            }
            // What befalls a node befalls the first: the other is like it.
            if self.may_fail() && node == 0 {
                if beat.beat < BEATS_MAX && !beat.lost && beat.incarnation == here.incarnation {
                    steps.push(Step::Beat { node });
                }
                // Any version may have been read, and looked at for a TTL.
                for seen in beat.stale_up_to + 1..=beat.beat {
                    steps.push(Step::TtlPasses { node, beat: seen });
                }
                if here.incarnation == 1 {
                    steps.push(Step::NodeCrashes { node });
                }
            }
            let guarded = self.rules.hold(Rule::LostGuard);
            if !beat.lost && beat.stale_up_to > 0 && (!guarded || beat.stale_up_to == beat.beat) {
                steps.push(Step::MarkLost { node, seen: beat.stale_up_to });
            }
        }
        steps
    }

    fn after(&self, step: &Step) -> Self {
        let mut next = self.clone();
        match *step {
            Step::Take { server, old_read } => {
                let failures = u8::from(next.seat.owner.is_some()) + u8::from(old_read);
                next.failures_left = next.failures_left.saturating_sub(failures);
                let version = next.seat.version + 1;
                next.seat = Seat { owner: Some(server as u8), term: next.seat.term + 1, version, ..next.seat };
                let runs = next.runs.map(|key| if old_read { key.before } else { key.now });
                next.servers[server].holds =
                    Some(Holds { term: next.seat.term, seat: version, cursor: next.seat.cursor, runs, doubt: None });
            }
            Step::ServerCrashes { server } => {
                next.failures_left -= 1;
                next.servers[server].holds = None;
            }
            Step::Send { server, fire, what, fate } => {
                if let Some(commit) = next.commit(server, fire, what) {
                    next.send(commit, fate);
                }
            }
            Step::Resolve { server } => next.resolve(server),
            Step::LateArrives { which } => {
                let commit = next.late.remove(which);
                next.apply(commit);
            }
            Step::Dispatch { server, fire } => {
                if let Some(holds) = next.servers[server].holds
                    && let Stage::Bound { node, incarnation } = holds.runs[fire].stage
                {
                    next.orders.push(Order { fire: fire as u8, node, incarnation });
                    next.orders.sort_unstable();
                    next.orders.dedup();
                }
            }
            Step::DispatchUnnamed { fire, node, .. } => {
                let incarnation = next.heartbeats[node].incarnation;
                next.orders.push(Order { fire: fire as u8, node: node as u8, incarnation });
                next.orders.sort_unstable();
                next.orders.dedup();
            }
            Step::Deliver { which } => {
                let order = next.orders.remove(which);
                let (fire, rules) = (order.fire as usize, next.rules);
                let node = &mut next.nodes[order.node as usize];
                let is_for_me = node.incarnation == order.incarnation || !rules.hold(Rule::IncarnationBinding);
                let is_new = !node.taken[fire] || !rules.hold(Rule::TakenOnce) && !node.waits[fire];
                if is_for_me && is_new {
                    node.taken[fire] = true;
                    node.waits[fire] = true;
                }
            }
            Step::Start { node, fire } => next.start(node, fire),
            Step::End { fire, .. } => next.ended[fire] = true,
            Step::Beat { node } => {
                next.heartbeats[node].beat += 1;
                next.nodes[node].answer = Some(next.heartbeats[node].beat);
            }
            Step::Answer { node } => {
                let here = &mut next.nodes[node];
                here.trusted = here.answer.take();
                here.believes = true;
            }
            Step::TtlPasses { node, beat } => {
                next.failures_left -= 1;
                next.heartbeats[node].stale_up_to = beat;
                // What was believed at that time has ended, whichever way it is counted.
                if next.nodes[node].trusted.is_some_and(|trusted| trusted <= beat) {
                    next.nodes[node].believes = false;
                }
            }
            Step::MarkLost { node, .. } => next.heartbeats[node].lost = true,
            Step::NodeCrashes { node } => {
                next.failures_left -= 1;
                let here = &mut next.nodes[node];
                here.incarnation += 1;
                (here.taken, here.waits) = ([false; FIRES], [false; FIRES]);
                let beat = &mut next.heartbeats[node];
                *beat =
                    Beat { beat: beat.beat + 1, incarnation: here.incarnation, lost: false, stale_up_to: beat.beat };
                (here.trusted, here.believes, here.answer) = (Some(beat.beat), true, None);
            }
        }
        next
    }

    fn broken(&self) -> Option<String> {
        self.broken.map(str::to_owned)
    }

    fn is_undisturbed(&self) -> bool {
        self.calm
    }

    fn undone(&self) -> Option<String> {
        let open = (0..self.fires).find(|fire| self.runs[*fire].now.stage != Stage::Over)?;
        Some(format!("fire {open} is not decided though nothing failed"))
    }
}
