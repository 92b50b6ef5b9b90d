//! Judges what became of a job's fires by three things that know nothing of each other: what was due (the oracle), what happened
//! (the witness) and what Belfry says (its records). What was done to Belfry excuses what it was the cause of, and nothing else.

mod by_nodes;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use belfry_core::job::MisfirePolicy;
use jiff::{SignedDuration, Timestamp};

use crate::client::Run;
use crate::witness::{Line, Mark};

/// How far ahead of its instant a fire may be claimed, with room for a busy machine.
const LOOK_AHEAD: SignedDuration = SignedDuration::from_millis(1200);
/// What a run printed or returned is on disk this soon after its end; what was cut within it may be lost.
const DURABLE_WITHIN: SignedDuration = SignedDuration::from_millis(1500);
/// A process may still start, and come to its end, in the moment between the death of Belfry and its own.
const AFTERLIFE: SignedDuration = SignedDuration::from_millis(300);
/// Clocks of shell and kernel differ by less.
const CLOCK_GRAIN: SignedDuration = SignedDuration::from_millis(2);
/// What was missed is caught up or skipped this soon after all is well again.
const CAUGHT_UP_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// All that is known of one job.
pub struct Case<'a> {
    pub job: &'a str,
    pub due: &'a [Timestamp],
    pub witness: &'a [Line],
    pub records: &'a [Run],
    pub firer: Firer<'a>,
    pub promise: Promise,
    /// Two of its runs never go at once.
    pub overlap_forbidden: bool,
    /// None: lateness is not judged, for the machine may be busy.
    pub late_after: Option<SignedDuration>,
    pub troubles: &'a [Trouble],
    /// When which incarnation of a node was marked lost: half a TTL after it may have started anything, at least.
    pub marked_lost: &'a [MarkedLost],
}

/// Who fires a job. What was done to others is no excuse for whoever does it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firer<'a> {
    /// The server that owns its shard.
    Server,
    /// This node, by itself (`run_on: each`); the case has what became of the job's fires there.
    Node { name: &'a str, misfire: MisfirePolicy },
    /// One node at a time, by itself, and another when it is held dead (`run_on: home`).
    Home { misfire: MisfirePolicy },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    AtMostOnce,
    /// Every fire comes to its end, with a start on another node where the first one was lost.
    AtLeastOnce,
}

/// Something that was done to Belfry, and until when it lasted.
#[derive(Clone, Debug)]
pub struct Trouble {
    pub from: Timestamp,
    pub to: Timestamp,
    pub of: TroubleOf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TroubleOf {
    /// Runs may be lost wherever they are.
    Everything,
    /// The machine may have been busy with something else: anything may be late, and nodes may be held dead.
    Slowness,
    Node(String, Harm),
    /// Servers and what they stand on: fires may be late or missed, but no run is lost.
    Servers,
}

/// What was done to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    Killed,
    /// Held dead, while it goes on as soon as it may.
    Paused,
    /// From all servers. It is held dead, and goes on with what is its own.
    CutOff,
    /// It starts nothing, and loses nothing.
    DiskFull,
}

#[derive(Clone, Debug)]
pub struct MarkedLost {
    pub node: String,
    pub incarnation: u64,
    pub at: Timestamp,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    StartedTwice(String),
    StartedEarly(String),
    /// Later than the time that a takeover takes, with nothing to excuse it.
    StartedLate(String),
    /// After its node was marked lost.
    StartedAsZombie(String),
    NeverDue(String),
    /// Beside another run of a job that forbids it.
    Overlapping(String),
    Unaccounted(String),
    /// It ran, and nothing in history says so.
    Unrecorded(String),
    RecordedTwice(String),
    NotEnded(String),
    RecordContradictsWitness(String),
    LostWithoutCause(String),
    SkippedWithoutCause(String),
    /// Nobody ran it, although nobody had asked for that.
    CancelledWithoutCause(String),
    /// Promised at least once, and not done.
    NotDone(String),
    FenceDoesNotGrow(String),
    /// A node started what it had missed, against the job's rule.
    MissedAndStarted(String),
    /// Its record says that it may have run twice, and nothing was wrong.
    MarkedWithoutCause(String),
}

impl Fault {
    /// For the columns of a table.
    pub const KINDS: [&'static str; 18] = [
        "doubled",
        "early",
        "late",
        "zombie",
        "never due",
        "overlapping",
        "unaccounted",
        "unrecorded",
        "recorded twice",
        "not ended",
        "record wrong",
        "lost without cause",
        "skipped without cause",
        "cancelled without cause",
        "not done",
        "fence",
        "missed and started",
        "marked without cause",
    ];

    pub fn kind(&self) -> &'static str {
        match self {
            Fault::StartedTwice(_) => "doubled",
            Fault::StartedEarly(_) => "early",
            Fault::StartedLate(_) => "late",
            Fault::StartedAsZombie(_) => "zombie",
            Fault::NeverDue(_) => "never due",
            Fault::Overlapping(_) => "overlapping",
            Fault::Unaccounted(_) => "unaccounted",
            Fault::Unrecorded(_) => "unrecorded",
            Fault::RecordedTwice(_) => "recorded twice",
            Fault::NotEnded(_) => "not ended",
            Fault::RecordContradictsWitness(_) => "record wrong",
            Fault::LostWithoutCause(_) => "lost without cause",
            Fault::SkippedWithoutCause(_) => "skipped without cause",
            Fault::CancelledWithoutCause(_) => "cancelled without cause",
            Fault::NotDone(_) => "not done",
            Fault::FenceDoesNotGrow(_) => "fence",
            Fault::MissedAndStarted(_) => "missed and started",
            Fault::MarkedWithoutCause(_) => "marked without cause",
        }
    }
}

/// How the fires ended, for people.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub BTreeMap<String, usize>);

impl Trouble {
    /// For all of Belfry, in one moment.
    pub fn at(instant: Timestamp) -> Self {
        Self { from: instant, to: instant, of: TroubleOf::Everything }
    }

    fn meets(&self, from: Timestamp, to: Timestamp) -> bool {
        self.from <= to && from <= self.to
    }

    /// What a node fires by itself is lost with its process, and by nothing else.
    fn can_lose_runs_on(&self, node: Option<&str>, firer: Firer<'_>) -> bool {
        match &self.of {
            TroubleOf::Everything => true,
            TroubleOf::Slowness => firer == Firer::Server,
            TroubleOf::Node(_, Harm::Paused | Harm::CutOff) if firer != Firer::Server => false,
            TroubleOf::Node(name, Harm::Killed | Harm::Paused | Harm::CutOff) => node.is_none_or(|node| node == name),
            TroubleOf::Node(_, Harm::DiskFull) | TroubleOf::Servers => false,
        }
    }

    /// Where the machine may be slow a server may not come to read the homes anew before it records what a former one fired.
    fn can_leave_unmarked(&self, record: &Run) -> bool {
        matches!(self.of, TroubleOf::Slowness)
            && self.meets(record.planned - CAUGHT_UP_WITHIN, record.planned + CAUGHT_UP_WITHIN)
    }

    /// A fire may be late, or be missed.
    fn can_hold_up(&self, firer: Firer<'_>) -> bool {
        match (firer, &self.of) {
            (Firer::Server | Firer::Home { .. }, _)
            | (Firer::Node { .. }, TroubleOf::Everything | TroubleOf::Slowness) => true,
            (Firer::Node { .. }, TroubleOf::Node(_, Harm::CutOff) | TroubleOf::Servers) => false,
            (Firer::Node { name, .. }, TroubleOf::Node(of, Harm::Killed | Harm::Paused | Harm::DiskFull)) => name == of,
        }
    }
}

pub fn judge(case: &Case<'_>, tally: &mut Tally) -> Vec<Fault> {
    let mut faults = Vec::new();
    started_once(case, &mut faults);
    started_in_time(case, &mut faults);
    every_fire_has_one_record(case, &mut faults);
    every_run_has_a_record(case, &mut faults);
    for record in case.records {
        *tally.0.entry(record.state.clone()).or_default() += 1;
        record_agrees(case, record, &mut faults);
    }
    if case.overlap_forbidden {
        none_overlap(case, &mut faults);
    }
    fences_grow(case, &mut faults);
    by_nodes::fired_by_the_rules(case, &mut faults);
    faults
}

/// Every fire has a record, and every run.
pub fn is_settled(case: &Case<'_>) -> bool {
    let recorded: BTreeSet<Timestamp> = case.records.iter().map(|record| record.planned).collect();
    case.due.iter().all(|due| recorded.contains(due)) && case.unrecorded().is_empty()
}

impl Case<'_> {
    fn starts(&self) -> impl Iterator<Item = &Line> {
        self.witness.iter().filter(|line| line.mark == Mark::Started)
    }

    fn line(&self, run: &str, attempt: u32, mark: Mark) -> Option<&Line> {
        self.witness.iter().find(|line| line.run == run && line.attempt == attempt && line.mark == mark)
    }

    fn unrecorded(&self) -> Vec<&Line> {
        let known: BTreeSet<&str> = self.records.iter().map(|record| record.id.as_str()).collect();
        self.starts().filter(|line| !known.contains(line.run.as_str())).collect()
    }

    /// What could have held up or passed over a fire of it.
    fn holdups(&self) -> impl Iterator<Item = &Trouble> {
        self.troubles.iter().filter(|trouble| trouble.can_hold_up(self.firer))
    }

    /// Of this run another node may have run the fire as well, and its record says so, or cannot be held to say so.
    fn is_marked(&self, run: &str) -> bool {
        let may_be_silent = |record: &Run| self.troubles.iter().any(|trouble| trouble.can_leave_unmarked(record));
        let mut of_run = self.records.iter().filter(|record| record.id == run);
        matches!(self.firer, Firer::Home { .. })
            && of_run.any(|record| record.may_have_run_twice() || may_be_silent(record))
    }
}

fn started_once(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut by_attempt: BTreeMap<(&str, u32), usize> = BTreeMap::new();
    let mut by_instant: BTreeMap<Timestamp, Vec<&Line>> = BTreeMap::new();
    for line in case.starts() {
        *by_attempt.entry((&line.run, line.attempt)).or_default() += 1;
        by_instant.entry(line.planned).or_default().push(line);
    }
    let attempts = by_attempt.into_iter().filter(|(_, count)| *count > 1);
    faults.extend(attempts.map(|((run, attempt), count)| {
        Fault::StartedTwice(format!("run {run}, attempt {attempt} of {}: {count} times", case.job))
    }));
    for (planned, mut lines) in by_instant {
        lines.retain(|line| !case.is_marked(&line.run));
        let one_run = lines.windows(2).all(|pair| pair[0].run == pair[1].run);
        if lines.len() > 1 && (case.promise == Promise::AtMostOnce || !one_run) {
            let where_and_when: Vec<String> =
                lines.iter().map(|line| format!("{} at {}", line.node, line.at)).collect();
            faults.push(Fault::StartedTwice(format!("{planned} of {}: {}", case.job, where_and_when.join(", "))));
        }
    }
}

fn started_in_time(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for line in case.starts() {
        let what = || format!("{} of {} on {} at {}", line.planned, case.job, line.node, line.at);
        if line.at + CLOCK_GRAIN < line.planned {
            faults.push(Fault::StartedEarly(what()));
        }
        if !case.due.contains(&line.planned) {
            faults.push(Fault::NeverDue(what()));
        }
        if let Some(late_after) = case.late_after {
            // Whatever disturbed it on its way excuses it until it was over.
            let disturbed = case.holdups().filter(|trouble| trouble.meets(line.planned - LOOK_AHEAD, line.at));
            let from = disturbed.map(|trouble| trouble.to).fold(line.planned, Timestamp::max);
            if line.at > from + late_after {
                faults.push(Fault::StartedLate(what()));
            }
        }
        // What a node fires by itself does not ask who holds it dead.
        let is_its_node = |mark: &&MarkedLost| {
            case.firer == Firer::Server && mark.node == line.node && mark.incarnation == line.incarnation
        };
        if let Some(mark) = case.marked_lost.iter().find(is_its_node).filter(|mark| line.at > mark.at) {
            faults.push(Fault::StartedAsZombie(format!("{}; its node was marked lost at {}", what(), mark.at)));
        }
    }
}

fn every_fire_has_one_record(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut by_instant: HashMap<Timestamp, usize> = HashMap::new();
    let mut marked: BTreeSet<Timestamp> = BTreeSet::new();
    for record in case.records {
        if case.is_marked(&record.id) {
            marked.insert(record.planned);
        } else {
            *by_instant.entry(record.planned).or_default() += 1;
        }
        // What was claimed ahead and then not wanted is recorded too.
        if !case.due.contains(&record.planned) && record.state != "cancelled" {
            faults.push(Fault::NeverDue(format!("{} of {} is recorded as {}", record.planned, case.job, record.state)));
        }
    }
    for due in case.due {
        match by_instant.get(due) {
            None if marked.contains(due) => {}
            None => faults.push(Fault::Unaccounted(format!("{due} of {}", case.job))),
            Some(1) => {}
            Some(count) => faults.push(Fault::RecordedTwice(format!("{due} of {}: {count} records", case.job))),
        }
    }
}

fn every_run_has_a_record(case: &Case<'_>, faults: &mut Vec<Fault>) {
    for line in case.unrecorded() {
        let (planned, job, node, at) = (line.planned, case.job, &line.node, line.at);
        faults.push(Fault::Unrecorded(format!("{planned} of {job} on {node} at {at}, run {}", line.run)));
    }
}

fn record_agrees(case: &Case<'_>, record: &Run, faults: &mut Vec<Fault>) {
    let of_run = |mark| case.line(&record.id, record.attempt, mark);
    let (started, finished) = (of_run(Mark::Started), of_run(Mark::Finished));
    let node = record.node_name.as_deref();
    let what = || {
        let on = node.map(|node| format!(" on {node}")).unwrap_or_default();
        format!("{} of {}{on} is {} ({})", record.planned, case.job, record.state, record.why())
    };
    match record.state.as_str() {
        "succeeded" => {
            if finished.is_none() {
                faults.push(Fault::RecordContradictsWitness(format!("{}, and never came to its end", what())));
            }
            if let Some(start) = started.filter(|start| node.is_some_and(|node| node != start.node)) {
                faults.push(Fault::RecordContradictsWitness(format!("{}, and ran on {}", what(), start.node)));
            }
        }
        "skipped" | "cancelled" => {
            if started.is_some() {
                faults.push(Fault::RecordContradictsWitness(format!("{}, and was started", what())));
            }
            if record.state == "skipped" && !skip_has_cause(case, record) {
                faults.push(Fault::SkippedWithoutCause(what()));
            }
        }
        "lost" => {
            // Only what the run was there for: not what was over before it, nor what came when its result had long been safe.
            let from = started.map_or(record.planned - LOOK_AHEAD, |start| start.at - AFTERLIFE);
            let to = finished.map_or(Timestamp::MAX, |end| end.at + DURABLE_WITHIN);
            let mut cuts = case.troubles.iter().filter(|trouble| trouble.can_lose_runs_on(node, case.firer));
            if !cuts.any(|trouble| trouble.meets(from, to)) {
                let end = finished.map(|line| format!("; it came to its end at {}", line.at)).unwrap_or_default();
                faults.push(Fault::LostWithoutCause(format!("{}, and nothing cut it{end}", what())));
            }
        }
        _ if !record.has_ended() => faults.push(Fault::NotEnded(what())),
        _ => faults.push(Fault::RecordContradictsWitness(format!("{}, and nothing in the job does that", what()))),
    }
    if case.promise == Promise::AtLeastOnce && record.has_ended() && record.state != "succeeded" {
        faults.push(Fault::NotDone(what()));
    }
}

/// Something was wrong around its instant, or another run of the job was in its way.
fn skip_has_cause(case: &Case<'_>, record: &Run) -> bool {
    let in_trouble = |trouble: &Trouble| match case.firer {
        Firer::Server => trouble.meets(record.planned - CAUGHT_UP_WITHIN, record.planned + LOOK_AHEAD),
        Firer::Node { misfire, .. } | Firer::Home { misfire } => {
            by_nodes::passes_over(trouble, record.planned, misfire)
        }
    };
    let in_its_way = |other: &Line| {
        let end = case.line(&other.run, other.attempt, Mark::Finished).map_or(Timestamp::MAX, |end| end.at);
        other.run != record.id && other.at <= record.planned + LOOK_AHEAD && end + LOOK_AHEAD >= record.planned
    };
    case.holdups().any(in_trouble) || (case.overlap_forbidden && case.starts().any(in_its_way))
}

/// A run goes on when its node is cut off, and the next one may then start elsewhere.
fn none_overlap(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let cut_off = |line: &Line, until: Timestamp| {
        let of_node = case.troubles.iter().filter(|trouble| trouble.can_lose_runs_on(Some(&line.node), case.firer));
        of_node.into_iter().any(|trouble| trouble.meets(line.at - LOOK_AHEAD, until))
    };
    let mut starts: Vec<&Line> = case.starts().collect();
    starts.sort_by_key(|line| line.at);
    for pair in starts.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let Some(end) = case.line(&before.run, before.attempt, Mark::Finished) else { continue };
        if end.at > after.at && !cut_off(before, end.at) && !cut_off(after, end.at) {
            faults.push(Fault::Overlapping(format!(
                "{}: {} on {} went until {}, {} on {} started at {}",
                case.job, before.planned, before.node, end.at, after.planned, after.node, after.at
            )));
        }
    }
}

/// From attempt to attempt of a run; and where runs wait for each other, from start to start. No two attempts have the same one.
fn fences_grow(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut holders: HashMap<u64, &Line> = HashMap::new();
    for line in case.starts() {
        let holder = holders.entry(line.fence).or_insert(line);
        if (&holder.run, holder.attempt) != (&line.run, line.attempt) {
            faults.push(Fault::FenceDoesNotGrow(format!(
                "{}: {} and {} both have {}",
                case.job, holder.planned, line.planned, line.fence
            )));
        }
    }
    let mut lines: Vec<&Line> = case.starts().collect();
    if case.overlap_forbidden {
        lines.sort_by_key(|line| line.at);
    } else {
        lines.sort_by_key(|line| (line.planned, line.attempt));
    }
    let is_next = |pair: &&[&Line]| {
        (case.overlap_forbidden || pair[0].run == pair[1].run)
            && (&pair[0].run, pair[0].attempt) != (&pair[1].run, pair[1].attempt)
    };
    for pair in lines.windows(2).filter(is_next).filter(|pair| pair[0].fence >= pair[1].fence) {
        let (before, after) = (&pair[0], &pair[1]);
        faults.push(Fault::FenceDoesNotGrow(format!(
            "{}: {} has {}, {} has {}",
            case.job, before.planned, before.fence, after.planned, after.fence
        )));
    }
}

#[cfg(test)]
mod tests;
