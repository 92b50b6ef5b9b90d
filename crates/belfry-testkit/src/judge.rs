//! Judges what became of a job's fires by three things that know nothing of each other: what was due (the oracle), what happened
//! (the witness) and what Belfry says (its records).

use std::collections::HashMap;

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

/// All that is known of one job.
pub struct Case<'a> {
    pub job: &'a str,
    pub due: &'a [Timestamp],
    pub witness: &'a [Line],
    pub records: &'a [Run],
    /// When Belfry was killed.
    pub kills: &'a [Timestamp],
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    StartedTwice(String),
    StartedEarly(String),
    NeverDue(String),
    Unaccounted(String),
    RecordedTwice(String),
    NotEnded(String),
    RecordContradictsWitness(String),
    LostWithoutCause(String),
    FenceDoesNotGrow(String),
}

/// How the fires ended, for people.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub std::collections::BTreeMap<String, usize>);

pub fn judge(case: &Case<'_>, tally: &mut Tally) -> Vec<Fault> {
    let mut faults = Vec::new();
    started_once(case, &mut faults);
    every_fire_has_one_record(case, &mut faults);
    for record in case.records {
        *tally.0.entry(record.state.clone()).or_default() += 1;
        record_agrees(case, record, &mut faults);
    }
    fences_grow(case, &mut faults);
    faults
}

fn started_once(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut by_run: HashMap<&str, usize> = HashMap::new();
    let mut by_instant: HashMap<Timestamp, usize> = HashMap::new();
    for line in case.witness.iter().filter(|line| line.mark == Mark::Started) {
        *by_run.entry(&line.run).or_default() += 1;
        *by_instant.entry(line.planned).or_default() += 1;
        if line.at + CLOCK_GRAIN < line.planned {
            faults.push(Fault::StartedEarly(format!("{} of {} at {}", line.planned, case.job, line.at)));
        }
        if !case.due.contains(&line.planned) {
            faults.push(Fault::NeverDue(format!("{} of {}", line.planned, case.job)));
        }
    }
    let runs = by_run
        .into_iter()
        .filter(|(_, count)| *count > 1)
        .map(|(run, count)| format!("run {run} of {}: {count} times", case.job));
    faults.extend(runs.map(Fault::StartedTwice));
    let instants = by_instant.into_iter().filter(|(_, count)| *count > 1);
    faults.extend(instants.map(|(at, count)| Fault::StartedTwice(format!("{at} of {}: {count} times", case.job))));
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
    let of_run = |mark| case.witness.iter().find(|line| line.run == record.id && line.mark == mark);
    let (started, finished) = (of_run(Mark::Started), of_run(Mark::Finished));
    let what = || format!("{} of {} is {} ({})", record.planned, case.job, record.state, record.why());
    match record.state.as_str() {
        "succeeded" => {
            if finished.is_none() {
                faults.push(Fault::RecordContradictsWitness(format!("{}, and never came to its end", what())));
            }
        }
        "skipped" | "cancelled" => {
            if started.is_some() {
                faults.push(Fault::RecordContradictsWitness(format!("{}, and was started", what())));
            }
        }
        "lost" => {
            // Only a kill that the run was there for: not one before it, not one when its result had long been safe.
            let from = started.map_or(record.planned - LOOK_AHEAD, |start| start.at - AFTERLIFE);
            let cut = |kill: &Timestamp| *kill >= from && finished.is_none_or(|end| *kill <= end.at + DURABLE_WITHIN);
            if !case.kills.iter().any(cut) {
                let end = finished.map(|line| format!("; it came to its end at {}", line.at)).unwrap_or_default();
                faults.push(Fault::LostWithoutCause(format!("{}, and no kill cut it{end}", what())));
            }
        }
        _ if !record.has_ended() => faults.push(Fault::NotEnded(what())),
        _ => faults.push(Fault::RecordContradictsWitness(format!("{}, and nothing in the job does that", what()))),
    }
}

fn fences_grow(case: &Case<'_>, faults: &mut Vec<Fault>) {
    let mut by_instant: Vec<&Line> = case.witness.iter().filter(|line| line.mark == Mark::Started).collect();
    by_instant.sort_by_key(|line| line.planned);
    for pair in by_instant.windows(2).filter(|pair| pair[0].run != pair[1].run && pair[0].fence >= pair[1].fence) {
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
        Line { mark, run: "R".to_owned(), planned: at(10.0), fence: 1, at: at(seconds) }
    }

    fn record(state: &str) -> Run {
        let value = serde_json::json!({
            "id": "R", "job_name": "j", "state": state, "trigger": "schedule", "revision": 1, "attempt": 1, "fence": 1,
            "planned": at(10.0), "output_bytes": 0, "output_dropped_bytes": 0,
        });
        serde_json::from_value(value).unwrap()
    }

    /// What is wrong with one fire at second 10.
    fn faults(state: Option<&str>, witness: &[Line], kills: &[f64]) -> Vec<Fault> {
        let records: Vec<Run> = state.map(record).into_iter().collect();
        let kills: Vec<Timestamp> = kills.iter().copied().map(at).collect();
        let case = Case { job: "j", due: &[at(10.0)], witness, records: &records, kills: &kills };
        judge(&case, &mut Tally::default())
    }

    const S: fn(f64) -> Line = |seconds| line(Mark::Started, seconds);
    const F: fn(f64) -> Line = |seconds| line(Mark::Finished, seconds);

    #[test]
    fn good_ends_are_not_blamed() {
        assert_eq!(faults(Some("succeeded"), &[S(10.0), F(10.1)], &[]), []);
        assert_eq!(faults(Some("skipped"), &[], &[]), []);
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
        assert!(matches!(faults(Some("skipped"), &[S(10.0)], &[])[..], [Fault::RecordContradictsWitness(_)]));
        let twice = faults(Some("succeeded"), &[S(10.0), S(11.0), F(11.1)], &[]);
        assert!(
            matches!(twice[..], [Fault::StartedTwice(_), Fault::StartedTwice(_)]),
            "by run and by instant: {twice:?}"
        );
    }
}
