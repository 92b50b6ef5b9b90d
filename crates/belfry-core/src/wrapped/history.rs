//! A wrapped command in the history of servers: a run in a namespace of its own, of a name that is no job. Nothing can edit or fire it.

use jiff::Timestamp;

use super::{End, Outcome, Phase, Record, Rule};
use crate::id::Slot;
use crate::job::OUTPUT_KEEP_DEFAULT;
use crate::run::{self, Ended, Event, OutputFacts, Run, RunState, Trigger, Usage, Verdict};
use crate::{Fence, JobId, RunId};

pub const NAMESPACE: &str = "dcron";
/// What the store has room for.
const NAME_CHARS_MAX: usize = 128;
const REASON_CHARS_MAX: usize = 4096;
/// Of what one attempt printed, so much is kept: half from its beginning, half from its end.
pub const OUTPUT_BYTES_MAX: u64 = OUTPUT_KEEP_DEFAULT.bytes();

/// What the runs of a name are of: the same on every server, and no job has it.
pub fn job_of(name: &str) -> JobId {
    JobId::of_name(NAMESPACE, name)
}

/// The run that an instance becomes: known as soon as a host has claimed it.
pub fn run_of(name: &str, instance: &str, claimed_at: Timestamp) -> RunId {
    RunId::of(job_of(&storable(name, NAME_CHARS_MAX)), claimed_at, Slot::Instance(instance))
}

impl Record {
    /// Whether history lacks it. A process that always runs has no run that ends.
    pub fn is_to_be_copied(&self) -> bool {
        matches!(self.phase, Phase::Ended(_)) && self.rule != Rule::LongLived && !self.copied
    }

    /// The run that history shows; None: it has not ended. The same record is the same run, whoever copies it. It tells when the last host
    /// claimed the instance, not when each attempt began.
    pub fn run(&self, name: &str, instance: &str) -> Option<Run> {
        let Phase::Ended(end) = &self.phase else { return None };
        let job_name = storable(name, NAME_CHARS_MAX);
        let job = job_of(&job_name);
        let planned = self.claimed_at;
        let mut run = Run {
            id: run_of(name, instance, planned),
            job,
            namespace: NAMESPACE.to_owned(),
            job_name,
            revision: 0,
            planned,
            trigger: Trigger::Wrapped { instance: storable(instance, NAME_CHARS_MAX) },
            state: RunState::Claimed,
            reason: None,
            attempt: 0,
            next_attempt_at: None,
            node: None,
            node_name: Some(storable(&self.host, NAME_CHARS_MAX)),
            incarnation: None,
            fence: Fence(self.fence),
            claimed_at: planned,
            dispatched_at: None,
            started_at: None,
            ended_at: None,
            exit_code: None,
            signal: None,
            late: false,
            marks: Default::default(),
            usage: Usage::default(),
            output: OutputFacts::default(),
            overdue_at: None,
            placement: None,
            script: None,
        };
        for event in self.events(end) {
            run.on(event).ok()?;
        }
        Some(run)
    }

    fn events(&self, end: &End) -> Vec<Event> {
        let attempt = self.attempt.max(1);
        // Who gives it up has another clock.
        let at: Timestamp = end.at.max(self.claimed_at);
        let reason = storable(&end.reason, REASON_CHARS_MAX);
        let ended = |outcome| {
            Event::Ended(Ended {
                attempt,
                outcome,
                reason: Some(reason.clone()).filter(|reason| !reason.is_empty()),
                started_at: Some(self.claimed_at),
                ended_at: at,
                exit_code: end.exit_code,
                signal: end.signal,
                abandoned: false,
                usage: Usage::default(),
                output: OutputFacts::default(),
                saves: None,
                script: None,
                overdue_at: None,
            })
        };
        let last = match end.outcome {
            Outcome::Succeeded => ended(run::Outcome::Succeeded),
            Outcome::Failed => ended(run::Outcome::Failed),
            Outcome::Killed => ended(run::Outcome::Killed),
            Outcome::Lost => Event::Decided { at, verdict: Verdict::Lost, reason },
            Outcome::Elsewhere if attempt == 1 => {
                return vec![Event::Decided { at, verdict: Verdict::Skipped, reason }];
            }
            // An attempt before this one may have started here.
            Outcome::Elsewhere => Event::Decided { at, verdict: Verdict::Lost, reason },
        };
        vec![Event::Started { at: self.claimed_at, attempt }, last]
    }
}

/// Anybody may write a record: databases refuse some characters, and what is too long.
fn storable(text: &str, chars_max: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn ended(outcome: Outcome, exit_code: Option<i32>, signal: Option<i32>) -> Record {
        let end = End { outcome, exit_code, signal, at: at(160), reason: "why".into() };
        Record {
            host: "db1".into(),
            rule: Rule::Crash,
            attempt: 2,
            attempts_max: 3,
            claimed_at: at(100),
            ttl_ms: 15_000,
            keep_s: 60,
            phase: Phase::Ended(end),
            fence: 77,
            quick_ends: 0,
            copied: false,
        }
    }

    fn run_of(record: &Record) -> Run {
        record.run("backup", "0230").unwrap()
    }

    #[test]
    fn every_end_is_an_end_of_a_run() {
        for (outcome, exit_code, signal, state) in [
            (Outcome::Succeeded, Some(0), None, RunState::Succeeded),
            (Outcome::Failed, Some(3), None, RunState::Failed),
            (Outcome::Failed, None, Some(11), RunState::Failed),
            (Outcome::Killed, None, Some(15), RunState::Killed),
            (Outcome::Lost, None, None, RunState::Lost),
        ] {
            let run = run_of(&ended(outcome, exit_code, signal));
            assert_eq!((run.state, run.exit_code, run.signal), (state, exit_code, signal));
            assert_eq!((&*run.namespace, &*run.job_name, run.attempt), ("dcron", "backup", 2));
            assert_eq!((run.node_name.as_deref(), run.reason.as_deref()), (Some("db1"), Some("why")));
            assert_eq!((run.fence, run.trigger), (Fence(77), Trigger::Wrapped { instance: "0230".into() }));
            assert_eq!((run.planned, run.started_at, run.ended_at), (at(100), Some(at(100)), Some(at(160))));
        }
    }

    #[test]
    fn what_the_old_wrapper_has_is_skipped_unless_it_may_have_started_here() {
        let elsewhere = |attempt| run_of(&Record { attempt, ..ended(Outcome::Elsewhere, None, None) });
        assert_eq!((elsewhere(1).state, elsewhere(1).attempt), (RunState::Skipped, 0));
        assert_eq!((elsewhere(1).started_at, elsewhere(1).reason.as_deref()), (None, Some("why")));
        assert_eq!((elsewhere(2).state, elsewhere(2).attempt), (RunState::Lost, 2));
    }

    #[test]
    fn one_record_is_one_run_and_another_instance_is_another() {
        let record = ended(Outcome::Failed, Some(3), None);
        assert_eq!(run_of(&record).id, record.run("backup", "0230").unwrap().id);
        assert_eq!(run_of(&record).id, super::run_of("backup", "0230", at(100)), "known when it is claimed");
        assert_ne!(run_of(&record).id, record.run("backup", "0231").unwrap().id);
        assert_ne!(run_of(&record).id, record.run("restore", "0230").unwrap().id);
        let next_day = Record { claimed_at: at(100 + 86_400), ..record.clone() };
        assert_ne!(run_of(&record).id, run_of(&next_day).id);
        assert!(Record { phase: Phase::Running, ..record }.run("backup", "0230").is_none());
    }

    #[test]
    fn what_no_database_takes_is_left_out() {
        let record = ended(Outcome::Failed, Some(3), None);
        let run = record.run(&format!("a\0{}", "é".repeat(200)), "0230").unwrap();
        assert_eq!(run.job_name, format!("a{}", "é".repeat(127)));
        assert_eq!(run.job, job_of(&run.job_name), "it is found by the name that is shown");
        let early = Record { claimed_at: at(200), ..record };
        assert_eq!(run_of(&early).ended_at, Some(at(200)), "by another clock it ended before it began");
    }

    #[test]
    fn a_process_that_always_runs_is_not_copied() {
        let record = ended(Outcome::Failed, Some(3), None);
        assert!(record.is_to_be_copied());
        assert!(!Record { copied: true, ..record.clone() }.is_to_be_copied());
        assert!(!Record { rule: Rule::LongLived, ..record.clone() }.is_to_be_copied());
        assert!(!Record { phase: Phase::Running, ..record }.is_to_be_copied());
    }
}
