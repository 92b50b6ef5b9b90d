//! Judges what became of a job's fires by three things that know nothing of each other: what was due (the oracle), what happened
//! (the witness) and what Belfry says (its records). What was done to Belfry excuses what it was the cause of, and nothing else.

use std::collections::{BTreeMap, HashMap};

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
    pub promise: Promise,
    /// Two of its runs never go at once.
    pub overlap_forbidden: bool,
    /// None: lateness is not judged, for the machine may be busy.
    pub late_after: Option<SignedDuration>,
    pub troubles: &'a [Trouble],
    /// When which incarnation of a node was marked lost: half a TTL after it may have started anything, at least.
    pub marked_lost: &'a [MarkedLost],
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
    /// Runs on this node may be lost.
    Node(String),
    /// Servers and what they stand on: fires may be late or missed, but no run is lost.
    Servers,
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
    RecordedTwice(String),
    NotEnded(String),
    RecordContradictsWitness(String),
    LostWithoutCause(String),
    SkippedWithoutCause(String),
    /// Promised at least once, and not done.
    NotDone(String),
    FenceDoesNotGrow(String),
}

impl Fault {
    /// For the columns of a table.
    pub const KINDS: [&'static str; 14] = [
        "doubled",
        "early",
        "late",
        "zombie",
        "never due",
        "overlapping",
        "unaccounted",
        "recorded twice",
        "not ended",
        "record wrong",
        "lost without cause",
        "skipped without cause",
        "not done",
        "fence",
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
            Fault::RecordedTwice(_) => "recorded twice",
            Fault::NotEnded(_) => "not ended",
            Fault::RecordContradictsWitness(_) => "record wrong",
            Fault::LostWithoutCause(_) => "lost without cause",
            Fault::SkippedWithoutCause(_) => "skipped without cause",
            Fault::NotDone(_) => "not done",
            Fault::FenceDoesNotGrow(_) => "fence",
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

    fn can_lose_runs_on(&self, node: Option<&str>) -> bool {
        match &self.of {
            TroubleOf::Everything => true,
            TroubleOf::Node(name) => node.is_none_or(|node| node == name),
            TroubleOf::Servers => false,
        }
    }
}

pub fn judge(case: &Case<'_>, tally: &mut Tally) -> Vec<Fault> {
    let mut faults = Vec::new();
    started_once(case, &mut faults);
    started_in_time(case, &mut faults);
    every_fire_has_one_record(case, &mut faults);
    for record in case.records {
        *tally.0.entry(record.state.clone()).or_default() += 1;
        record_agrees(case, record, &mut faults);
    }
    if case.overlap_forbidden {
        none_overlap(case, &mut faults);
    }
    fences_grow(case, &mut faults);
    faults
}

impl Case<'_> {
    fn starts(&self) -> impl Iterator<Item = &Line> {
        self.witness.iter().filter(|line| line.mark == Mark::Started)
    }

    fn line(&self, run: &str, attempt: u32, mark: Mark) -> Option<&Line> {
        self.witness.iter().find(|line| line.run == run && line.attempt == attempt && line.mark == mark)
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
    for (planned, lines) in by_instant {
        let one_run = lines.iter().all(|line| line.run == lines[0].run);
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
            let disturbed = case.troubles.iter().filter(|trouble| trouble.meets(line.planned - LOOK_AHEAD, line.at));
            let from = disturbed.map(|trouble| trouble.to).fold(line.planned, Timestamp::max);
            if line.at > from + late_after {
                faults.push(Fault::StartedLate(what()));
            }
        }
        let is_its_node = |mark: &&MarkedLost| mark.node == line.node && mark.incarnation == line.incarnation;
        if let Some(mark) = case.marked_lost.iter().find(is_its_node).filter(|mark| line.at > mark.at) {
            faults.push(Fault::StartedAsZombie(format!("{}; its node was marked lost at {}", what(), mark.at)));
        }
    }
}

fn every_fire_has_one_record(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut by_instant: HashMap<Timestamp, usize> = HashMap::new();
    for record in case.records {
        *by_instant.entry(record.planned).or_default() += 1;
        // What was claimed ahead and then not wanted is recorded too.
        if !case.due.contains(&record.planned) && record.state != "cancelled" {
            faults.push(Fault::NeverDue(format!("{} of {} is recorded as {}", record.planned, case.job, record.state)));
        }
    }
    for due in case.due {
        match by_instant.get(due) {
            None => faults.push(Fault::Unaccounted(format!("{due} of {}", case.job))),
            Some(1) => {}
            Some(count) => faults.push(Fault::RecordedTwice(format!("{due} of {}: {count} records", case.job))),
        }
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
            let mut cuts = case.troubles.iter().filter(|trouble| trouble.can_lose_runs_on(node));
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
    let in_trouble = |trouble: &Trouble| trouble.meets(record.planned - CAUGHT_UP_WITHIN, record.planned + LOOK_AHEAD);
    let in_its_way = |other: &Line| {
        let end = case.line(&other.run, other.attempt, Mark::Finished).map_or(Timestamp::MAX, |end| end.at);
        other.run != record.id && other.at <= record.planned + LOOK_AHEAD && end + LOOK_AHEAD >= record.planned
    };
    case.troubles.iter().any(in_trouble) || (case.overlap_forbidden && case.starts().any(in_its_way))
}

/// A run goes on when its node is cut off, and the next one may then start elsewhere.
fn none_overlap(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let cut_off = |line: &Line, until: Timestamp| {
        let of_node = case.troubles.iter().filter(|trouble| trouble.can_lose_runs_on(Some(&line.node)));
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
mod tests {
    use super::*;

    fn at(seconds: f64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + (seconds * 1000.0) as i64).unwrap()
    }

    fn line(mark: Mark, seconds: f64) -> Line {
        Line {
            mark,
            job: "j".to_owned(),
            run: "R".to_owned(),
            attempt: 1,
            planned: at(10.0),
            fence: 1,
            node: "a".to_owned(),
            incarnation: 7,
            at: at(seconds),
        }
    }

    fn record(state: &str) -> Run {
        let value = serde_json::json!({
            "id": "R", "job_name": "j", "state": state, "trigger": "schedule", "revision": 1, "attempt": 1, "fence": 1,
            "planned": at(10.0), "output_bytes": 0, "output_dropped_bytes": 0, "node_name": "a",
        });
        serde_json::from_value(value).unwrap()
    }

    /// What is wrong with one fire at second 10.
    fn faults(state: Option<&str>, witness: &[Line], kills: &[f64]) -> Vec<Fault> {
        let records: Vec<Run> = state.map(record).into_iter().collect();
        let troubles: Vec<Trouble> = kills.iter().map(|kill| Trouble::at(at(*kill))).collect();
        judge(&case(&records, witness, &troubles), &mut Tally::default())
    }

    fn case<'a>(records: &'a [Run], witness: &'a [Line], troubles: &'a [Trouble]) -> Case<'a> {
        let due = std::slice::from_ref(const { &DUE });
        Case {
            job: "j",
            due,
            witness,
            records,
            promise: Promise::AtMostOnce,
            overlap_forbidden: false,
            late_after: None,
            troubles,
            marked_lost: &[],
        }
    }

    const DUE: Timestamp = Timestamp::constant(1_800_000_010, 0);

    const S: fn(f64) -> Line = |seconds| line(Mark::Started, seconds);
    const F: fn(f64) -> Line = |seconds| line(Mark::Finished, seconds);

    #[test]
    fn good_ends_are_not_blamed() {
        assert_eq!(faults(Some("succeeded"), &[S(10.0), F(10.1)], &[]), []);
        assert_eq!(faults(Some("skipped"), &[], &[9.5]), []);
        assert_eq!(faults(Some("lost"), &[S(10.0)], &[10.5]), [], "cut in the middle");
        assert_eq!(faults(Some("lost"), &[], &[9.5]), [], "claimed ahead, never started");
        assert_eq!(faults(Some("lost"), &[S(10.05), F(10.06)], &[10.0]), [], "it outlived Belfry by a moment");
    }

    #[test]
    fn lost_needs_a_kill_that_the_run_was_there_for() {
        let blamed = |witness: &[Line], kills: &[f64]| {
            matches!(faults(Some("lost"), witness, kills)[..], [Fault::LostWithoutCause(_)])
        };
        assert!(blamed(&[S(10.0), F(10.1)], &[]));
        assert!(blamed(&[S(10.0), F(10.1)], &[9.0]), "a kill before it is no excuse");
        assert!(blamed(&[S(10.0), F(10.1)], &[9.0, 12.5]), "nor is one long after its end");
        assert!(blamed(&[S(10.0)], &[9.0]));
    }

    #[test]
    fn each_broken_promise_is_seen() {
        assert!(matches!(faults(None, &[], &[])[..], [Fault::Unaccounted(_)]));
        assert!(matches!(faults(Some("running"), &[S(10.0)], &[])[..], [Fault::NotEnded(_)]));
        assert!(matches!(faults(Some("succeeded"), &[S(9.9), F(10.1)], &[])[..], [Fault::StartedEarly(_)]));
        assert!(matches!(faults(Some("succeeded"), &[S(10.0)], &[])[..], [Fault::RecordContradictsWitness(_)]));
        assert!(matches!(faults(Some("skipped"), &[S(10.0)], &[9.5])[..], [Fault::RecordContradictsWitness(_)]));
        assert!(matches!(faults(Some("skipped"), &[], &[])[..], [Fault::SkippedWithoutCause(_)]));
        let twice = faults(Some("succeeded"), &[S(10.0), S(11.0), F(11.1)], &[]);
        assert!(
            matches!(twice[..], [Fault::StartedTwice(_), Fault::StartedTwice(_)]),
            "by run and by instant: {twice:?}"
        );
    }

    fn trouble(of: TroubleOf) -> [Trouble; 1] {
        [Trouble { from: at(10.5), to: at(12.0), of }]
    }

    #[test]
    fn only_trouble_of_its_node_may_lose_a_run() {
        let records = [record("lost")];
        let blamed = |of: TroubleOf| {
            judge(&case(&records, &[S(10.0)], &trouble(of)), &mut Tally::default()).iter().any(|f| f.kind() != "fence")
        };
        assert!(!blamed(TroubleOf::Node("a".to_owned())));
        assert!(blamed(TroubleOf::Node("b".to_owned())));
        assert!(blamed(TroubleOf::Servers), "a server that dies takes no run with it");
    }

    #[test]
    fn a_start_after_its_node_was_marked_lost_is_a_zombie() {
        let records = [record("succeeded")];
        let witness = [S(10.6), F(10.7)];
        let mark = |incarnation, seconds| [MarkedLost { node: "a".to_owned(), incarnation, at: at(seconds) }];
        let kinds = |marked_lost: &[MarkedLost]| {
            let case = Case { marked_lost, ..case(&records, &witness, &[]) };
            judge(&case, &mut Tally::default()).iter().map(Fault::kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&mark(7, 10.5)), ["zombie"]);
        assert!(kinds(&mark(7, 10.65)).is_empty(), "it was started before");
        assert!(kinds(&mark(6, 10.5)).is_empty(), "that was its former incarnation");
    }

    #[test]
    fn late_is_what_nothing_excuses() {
        let records = [record("succeeded")];
        let late = |start: f64, troubles: &[Trouble]| {
            let witness = [S(start), F(start + 0.1)];
            let late_after = Some(SignedDuration::from_secs(5));
            let case = Case { late_after, ..case(&records, &witness, troubles) };
            !judge(&case, &mut Tally::default()).is_empty()
        };
        assert!(late(16.0, &[]));
        assert!(!late(16.0, &trouble(TroubleOf::Servers)));
        assert!(late(17.5, &trouble(TroubleOf::Servers)));
    }

    #[test]
    fn a_fence_belongs_to_one_attempt_and_grows_where_runs_wait() {
        let run = |name: &str, planned: f64, start: f64, fence: u64| {
            let own = |line: Line| Line { run: name.to_owned(), planned: at(planned), fence, ..line };
            [own(S(start)), own(F(start + 0.1))]
        };
        let blamed = |witness: &[Line], overlap_forbidden: bool| {
            let case = Case { overlap_forbidden, ..case(&[], witness, &[]) };
            judge(&case, &mut Tally::default()).iter().any(|fault| fault.kind() == "fence")
        };
        let later_first = [run("A", 10.0, 11.0, 8), run("B", 11.0, 11.5, 7)].concat();
        assert!(!blamed(&later_first, false), "nobody waits for the other");
        assert!(blamed(&later_first, true));
        assert!(blamed(&[run("A", 10.0, 10.0, 7), run("B", 11.0, 11.0, 9), run("C", 12.0, 12.0, 7)].concat(), false));
    }

    #[test]
    fn at_least_once_means_done() {
        let records = [record("lost")];
        let troubles = trouble(TroubleOf::Node("a".to_owned()));
        let witness = [S(10.0)];
        let case = Case { promise: Promise::AtLeastOnce, ..case(&records, &witness, &troubles) };
        assert!(matches!(judge(&case, &mut Tally::default())[..], [Fault::NotDone(_)]));
    }
}
