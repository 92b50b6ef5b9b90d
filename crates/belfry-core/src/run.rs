//! The life of a run. [`Run::on`] makes every transition; nothing else changes a run's state.

use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::attempt::Attempt;
use crate::place::Decision;
use crate::state::Saves;
use crate::{Fence, Incarnation, JobId, NodeId, RunId};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunState {
    /// Owned by the cluster; it will start, or be decided against, with a reason.
    Claimed,
    /// An agent has it and waits for its instant.
    Dispatched,
    Running,
    /// Between two attempts.
    Waiting,
    Succeeded,
    Failed,
    TimedOut,
    Killed,
    Lost,
    Skipped,
    Cancelled,
}

impl RunState {
    pub const ALL: [RunState; 11] = [
        RunState::Claimed,
        RunState::Dispatched,
        RunState::Running,
        RunState::Waiting,
        RunState::Succeeded,
        RunState::Failed,
        RunState::TimedOut,
        RunState::Killed,
        RunState::Lost,
        RunState::Skipped,
        RunState::Cancelled,
    ];

    pub fn is_ended(self) -> bool {
        match self {
            RunState::Claimed | RunState::Dispatched | RunState::Running | RunState::Waiting => false,
            RunState::Succeeded
            | RunState::Failed
            | RunState::TimedOut
            | RunState::Killed
            | RunState::Lost
            | RunState::Skipped
            | RunState::Cancelled => true,
        }
    }

    /// It was started, or may have been, and did not succeed. What was skipped or cancelled says nothing of how its job does.
    pub fn is_failure(self) -> bool {
        match self {
            RunState::Failed | RunState::TimedOut | RunState::Killed | RunState::Lost => true,
            RunState::Claimed | RunState::Dispatched | RunState::Running | RunState::Waiting => false,
            RunState::Succeeded | RunState::Skipped | RunState::Cancelled => false,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            RunState::Claimed => "claimed",
            RunState::Dispatched => "dispatched",
            RunState::Running => "running",
            RunState::Waiting => "waiting",
            RunState::Succeeded => "succeeded",
            RunState::Failed => "failed",
            RunState::TimedOut => "timed_out",
            RunState::Killed => "killed",
            RunState::Lost => "lost",
            RunState::Skipped => "skipped",
            RunState::Cancelled => "cancelled",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

impl std::fmt::Display for RunState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why there is a run at all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Trigger {
    Schedule,
    /// By hand or by a program; `key` makes a repeated request one run.
    Manual {
        by: String,
        key: String,
    },
    Rerun {
        by: String,
        key: String,
        of: RunId,
    },
    /// A host's own cron, through `dcron`: no server had a part in it.
    Wrapped {
        instance: String,
    },
}

impl Trigger {
    pub fn as_str(&self) -> &'static str {
        match self {
            Trigger::Schedule => "schedule",
            Trigger::Manual { .. } => "manual",
            Trigger::Rerun { .. } => "rerun",
            Trigger::Wrapped { .. } => "wrapped",
        }
    }

    pub fn key(&self) -> Option<&str> {
        match self {
            Trigger::Schedule | Trigger::Wrapped { .. } => None,
            Trigger::Manual { key, .. } | Trigger::Rerun { key, .. } => Some(key),
        }
    }
}

/// A run and what is known of it so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub id: RunId,
    pub job: JobId,
    pub namespace: String,
    pub job_name: String,
    /// The job's revision that this run executes.
    pub revision: u64,
    pub planned: Timestamp,
    pub trigger: Trigger,
    pub state: RunState,
    /// Why it was skipped, cancelled, lost, failed or killed.
    pub reason: Option<String>,
    /// Starts so far, the current one included; 0 before the first dispatch.
    pub attempt: u32,
    /// While it waits.
    pub next_attempt_at: Option<Timestamp>,
    pub node: Option<NodeId>,
    pub node_name: Option<String>,
    pub incarnation: Option<Incarnation>,
    /// Of the current attempt.
    pub fence: Fence,
    pub claimed_at: Timestamp,
    pub dispatched_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The result came in after the run had been given up as lost.
    pub late: bool,
    #[serde(default)]
    pub marks: Marks,
    pub usage: Usage,
    pub output: OutputFacts,
    /// When the current attempt had taken longer than the job's `timeout.after`, and went on (`action: report`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue_at: Option<Timestamp>,
    /// Why its node was chosen, or why none can take it. None: nothing was decided about it, or who decided is gone.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "shared")]
    pub placement: Option<Arc<Decision>>,
    /// The script that was executed, with its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
}

mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(value: &Option<Arc<T>>, s: S) -> Result<S::Ok, S::Error> {
        value.as_deref().serialize(s)
    }
    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(d: D) -> Result<Option<Arc<T>>, D::Error> {
        Ok(Option::<T>::deserialize(d)?.map(Arc::new))
    }
}

/// What a reader of its record should know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    /// Its node fired it from its own copy of the job (`run_on: each` or `home`); no shard has it.
    pub local: bool,
    /// Its node had no contact with the servers when it started.
    pub cut_off: bool,
    /// The job's home had moved by then: its new home may have run the same fire.
    pub may_have_run_twice: bool,
}

impl Marks {
    pub fn bits(self) -> u8 {
        u8::from(self.local) | u8::from(self.cut_off) << 1 | u8::from(self.may_have_run_twice) << 2
    }

    pub fn from_bits(bits: u8) -> Self {
        Self { local: bits & 1 != 0, cut_off: bits & 2 != 0, may_have_run_twice: bits & 4 != 0 }
    }

    /// In the words of the API.
    pub fn words(self) -> Vec<&'static str> {
        let all = [(self.local, "local"), (self.cut_off, "cut_off"), (self.may_have_run_twice, "may_have_run_twice")];
        all.into_iter().filter_map(|(is_set, word)| is_set.then_some(word)).collect()
    }
}

/// What the process tree used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub cpu_ms: u64,
    pub max_rss_bytes: u64,
    /// Background processes that outlived the command.
    pub left_behind: u32,
    #[serde(default)]
    pub held: Held,
}

/// What held each limit that the run had; none: it had no such limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    pub memory: Option<HeldBy>,
    pub cpus: Option<HeldBy>,
    pub processes: Option<HeldBy>,
    pub open_files: Option<HeldBy>,
    pub cpu_time: Option<HeldBy>,
    pub file_size: Option<HeldBy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// Each process alone.
    Rlimit = 1,
    /// The whole tree.
    CgroupV1 = 2,
    CgroupV2 = 3,
}

impl Held {
    const BITS_EACH: u32 = 2;

    fn each(self) -> [(&'static str, Option<HeldBy>); 6] {
        [
            ("memory", self.memory),
            ("cpus", self.cpus),
            ("processes", self.processes),
            ("open_files", self.open_files),
            ("cpu_time", self.cpu_time),
            ("file_size", self.file_size),
        ]
    }

    pub fn bits(self) -> u32 {
        let by = self.each().map(|(_, by)| by.map_or(0, |by| by as u32));
        by.into_iter().rev().fold(0, |bits, by| bits << Self::BITS_EACH | by)
    }

    pub fn from_bits(bits: u32) -> Self {
        let by = |place: u32| match bits >> (place * Self::BITS_EACH) & 3 {
            1 => Some(HeldBy::Rlimit),
            2 => Some(HeldBy::CgroupV1),
            3 => Some(HeldBy::CgroupV2),
            _ => None,
        };
        Self { memory: by(0), cpus: by(1), processes: by(2), open_files: by(3), cpu_time: by(4), file_size: by(5) }
    }

    /// In the words of the API.
    pub fn words(self) -> Vec<String> {
        let word = |by| match by {
            HeldBy::Rlimit => "rlimit",
            HeldBy::CgroupV1 => "cgroup v1",
            HeldBy::CgroupV2 => "cgroup v2",
        };
        self.each().into_iter().filter_map(|(limit, by)| Some(format!("{limit} by {}", word(by?)))).collect()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFacts {
    /// Everything that was printed.
    pub bytes: u64,
    /// What was dropped from the middle.
    pub dropped_bytes: u64,
}

/// Something that happened to a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Dispatched {
        at: Timestamp,
        node: NodeId,
        node_name: String,
        incarnation: Incarnation,
        attempt: u32,
    },
    Started {
        at: Timestamp,
        attempt: u32,
    },
    /// It takes longer than its job wants, and goes on.
    Overdue {
        at: Timestamp,
        attempt: u32,
    },
    /// An agent's word on how an attempt ended.
    Ended(Ended),
    /// A server's decision about a run that it knows not to be running or cannot know of.
    Decided {
        at: Timestamp,
        verdict: Verdict,
        reason: String,
    },
    /// The attempt ended and another one is planned.
    Waits {
        last: Box<Attempt>,
        until: Timestamp,
    },
}

impl Event {
    /// The one that an agent speaks of.
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Event::Dispatched { attempt, .. } | Event::Started { attempt, .. } | Event::Overdue { attempt, .. } => {
                Some(*attempt)
            }
            Event::Ended(ended) => Some(ended.attempt),
            Event::Decided { .. } | Event::Waits { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was never started.
    Skipped,
    /// It is not wanted any more, and does not run.
    Cancelled,
    /// What became of it is not known.
    Lost,
    /// As its last attempt ended: there cannot be the next one that was planned.
    Failed,
    TimedOut,
}

impl From<Verdict> for RunState {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Skipped => RunState::Skipped,
            Verdict::Cancelled => RunState::Cancelled,
            Verdict::Lost => RunState::Lost,
            Verdict::Failed => RunState::Failed,
            Verdict::TimedOut => RunState::TimedOut,
        }
    }
}

/// The end of an attempt, as the agent saw it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ended {
    pub attempt: u32,
    pub outcome: Outcome,
    pub reason: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// Its node ended it, or did not start it, for reasons of its own: it was cut off or stops. `retry.on` takes it for lost.
    pub abandoned: bool,
    pub usage: Usage,
    pub output: OutputFacts,
    /// What it wrote of the job's state and nobody had acknowledged when it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves: Option<Box<Saves>>,
    /// Which script it executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// It took longer than its job wants, from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue_at: Option<Timestamp>,
}

impl Ended {
    /// A later attempt that its node did not start: the run ends as the one before it did.
    pub fn is_attempt_not_made(&self) -> bool {
        self.outcome == Outcome::Skipped && self.attempt > 1
    }

    /// Not all that it wrote of the job's state could be kept: its record says so.
    pub fn not_saved(&mut self, why: &[String]) {
        let why = format!("not saved: {}", why.join("; "));
        self.reason = Some(self.reason.take().map_or(why.clone(), |reason| format!("{reason}; {why}")));
    }
}

/// How work that reached an agent can end. `Skipped` and `Cancelled`: it was never started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    TimedOut,
    Killed,
    Skipped,
    Cancelled,
}

impl From<Outcome> for RunState {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Succeeded => RunState::Succeeded,
            Outcome::Failed => RunState::Failed,
            Outcome::TimedOut => RunState::TimedOut,
            Outcome::Killed => RunState::Killed,
            Outcome::Skipped => RunState::Skipped,
            Outcome::Cancelled => RunState::Cancelled,
        }
    }
}

/// The event comes too late to mean anything: the run is already further on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("run {run} is already {state}")]
pub struct Stale {
    pub run: RunId,
    pub state: RunState,
}

impl Run {
    /// Moves on, or answers [`Stale`] and changes nothing.
    pub fn on(&mut self, event: Event) -> Result<(), Stale> {
        let stale = Stale { run: self.id, state: self.state };
        // An attempt that was never started though others were before it does not tell what became of those.
        let tells_nothing = matches!(&event, Event::Ended(ended) if ended.is_attempt_not_made());
        // `lost` is the one end that a later truth may correct.
        let corrects = self.state == RunState::Lost && matches!(event, Event::Ended(_));
        if tells_nothing || self.state.is_ended() && !corrects {
            return Err(stale);
        }
        match event {
            Event::Dispatched { at, node, node_name, incarnation, attempt } => {
                let is_over = self.state == RunState::Waiting && attempt == self.attempt;
                if self.state == RunState::Running || is_over || attempt < self.attempt {
                    return Err(stale);
                }
                self.begin(attempt);
                self.state = RunState::Dispatched;
                self.dispatched_at = Some(at);
                self.node = Some(node);
                self.node_name = Some(node_name);
                self.incarnation = Some(incarnation);
            }
            Event::Started { at, attempt } => {
                let is_further = matches!(self.state, RunState::Running | RunState::Waiting) && attempt == self.attempt;
                if attempt < self.attempt || is_further {
                    return Err(stale);
                }
                self.begin(attempt);
                self.state = RunState::Running;
                self.started_at = Some(at);
            }
            Event::Overdue { at, attempt } => {
                if self.state != RunState::Running || attempt != self.attempt || self.overdue_at.is_some() {
                    return Err(stale);
                }
                self.overdue_at = Some(at);
            }
            Event::Ended(ended) => {
                if ended.attempt < self.attempt {
                    return Err(stale);
                }
                // While it waits, only the attempt that was given up as lost still has something to say.
                self.late = corrects || self.state == RunState::Waiting;
                self.state = ended.outcome.into();
                self.attempt = ended.attempt;
                self.next_attempt_at = None;
                self.reason = ended.reason;
                self.started_at = ended.started_at;
                self.ended_at = Some(ended.ended_at);
                self.exit_code = ended.exit_code;
                self.signal = ended.signal;
                self.usage = ended.usage;
                self.output = ended.output;
                self.script = ended.script;
                self.overdue_at = ended.overdue_at;
            }
            Event::Decided { at, verdict, reason } => {
                let may_be = match verdict {
                    Verdict::Skipped => !matches!(self.state, RunState::Running | RunState::Waiting),
                    Verdict::Cancelled => self.state != RunState::Running,
                    Verdict::Lost => true,
                    Verdict::Failed | Verdict::TimedOut => self.state == RunState::Waiting,
                };
                if !may_be {
                    return Err(stale);
                }
                self.state = verdict.into();
                self.next_attempt_at = None;
                self.reason = Some(reason);
                self.ended_at = Some(at);
            }
            Event::Waits { last, until } => {
                if last.attempt < self.attempt {
                    return Err(stale);
                }
                self.state = RunState::Waiting;
                self.attempt = last.attempt;
                self.next_attempt_at = Some(until);
                self.reason = last.reason;
                self.started_at = last.started_at;
                self.ended_at = Some(last.ended_at);
                self.exit_code = last.exit_code;
                self.signal = last.signal;
                self.usage = last.usage;
                self.output = last.output;
                self.overdue_at = last.overdue_at;
            }
        }
        Ok(())
    }

    /// What was known of the attempt before it is not true of this one.
    fn begin(&mut self, attempt: u32) {
        if attempt > self.attempt {
            self.attempt = attempt;
            self.next_attempt_at = None;
            self.reason = None;
            (self.started_at, self.ended_at) = (None, None);
            (self.exit_code, self.signal) = (None, None);
            (self.usage, self.output) = (Usage::default(), OutputFacts::default());
            self.overdue_at = None;
        }
    }

    /// It was skipped because it could not run in time: nobody was there to start it, or no node could take it.
    pub fn was_missed(&self) -> bool {
        let is_wanted = |reason: &String| crate::overlap::is_reason(reason);
        self.state == RunState::Skipped && !self.reason.as_ref().is_some_and(is_wanted)
    }

    /// The progress of a run that has ended is this or greater, that of an open one is less.
    pub const ENDED_PROGRESS: i64 = 1 << 40;

    /// Grows with every step forward; a record with a lower or equal number never replaces one with a higher.
    pub fn progress(&self) -> i64 {
        // A run ends as its newest attempt does, also when an earlier one's end comes in from a server that was cut off.
        let lost = Run::ENDED_PROGRESS + 2 * i64::from(self.attempt.saturating_sub(1));
        let known_end = lost + 1;
        let within_attempt = match self.state {
            RunState::Claimed => 0,
            RunState::Dispatched => 1,
            RunState::Running => 2,
            RunState::Waiting => 3,
            RunState::Lost => return lost,
            RunState::Succeeded
            | RunState::Failed
            | RunState::TimedOut
            | RunState::Killed
            | RunState::Skipped
            | RunState::Cancelled => return known_end,
        };
        i64::from(self.attempt) * 4 + within_attempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn claimed() -> Run {
        Run {
            id: RunId::from_u128(1),
            job: JobId::from_u128(2),
            namespace: "default".into(),
            job_name: "a".into(),
            revision: 1,
            planned: at(10),
            trigger: Trigger::Schedule,
            state: RunState::Claimed,
            reason: None,
            attempt: 0,
            next_attempt_at: None,
            node: None,
            node_name: None,
            incarnation: None,
            fence: Fence(7),
            claimed_at: at(9),
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
        }
    }

    fn dispatched(attempt: u32) -> Event {
        Event::Dispatched {
            at: at(9),
            node: NodeId::from_u128(3),
            node_name: "n".into(),
            incarnation: Incarnation(1),
            attempt,
        }
    }

    fn ended(attempt: u32, outcome: Outcome) -> Event {
        Event::Ended(Ended {
            attempt,
            outcome,
            reason: None,
            started_at: Some(at(10)),
            ended_at: at(11),
            exit_code: Some(0),
            signal: None,
            abandoned: false,
            usage: Usage::default(),
            output: OutputFacts::default(),
            saves: None,
            script: None,
            overdue_at: None,
        })
    }

    fn waits(run: &Run, until: i64) -> Event {
        let last = Attempt::lost(run, at(12), "exit code 1".into());
        Event::Waits { last: Box::new(last), until: at(until) }
    }

    fn decided(verdict: Verdict) -> Event {
        Event::Decided { at: at(12), verdict, reason: "why".into() }
    }

    #[test]
    fn a_run_goes_forward_and_its_progress_grows() {
        let mut run = claimed();
        let mut last = run.progress();
        for event in [dispatched(1), Event::Started { at: at(10), attempt: 1 }, ended(1, Outcome::Succeeded)] {
            run.on(event).unwrap();
            assert!(run.progress() > last);
            last = run.progress();
        }
        assert_eq!(run.state, RunState::Succeeded);
    }

    #[test]
    fn a_later_attempt_that_was_never_started_ends_nothing_by_itself() {
        let mut run = claimed();
        run.on(dispatched(1)).unwrap();
        run.on(Event::Started { at: at(10), attempt: 1 }).unwrap();
        run.on(waits(&run, 30)).unwrap();
        run.on(dispatched(2)).unwrap();
        let going = run.clone();
        run.on(ended(2, Outcome::Skipped)).unwrap_err();
        assert_eq!(run, going, "what became of the first one is not told by it");
        run.on(decided(Verdict::Lost)).unwrap();
        run.on(ended(2, Outcome::Skipped)).unwrap_err();
    }

    #[test]
    fn an_end_is_final_except_lost() {
        for outcome in [
            Outcome::Succeeded,
            Outcome::Failed,
            Outcome::TimedOut,
            Outcome::Killed,
            Outcome::Skipped,
            Outcome::Cancelled,
        ] {
            let mut run = claimed();
            run.on(ended(1, outcome)).unwrap();
            let end = run.clone();
            for event in [
                dispatched(2),
                Event::Started { at: at(13), attempt: 2 },
                ended(2, Outcome::Failed),
                decided(Verdict::Lost),
            ] {
                run.on(event).unwrap_err();
                assert_eq!(run, end);
            }
        }
        let mut run = claimed();
        run.on(dispatched(1)).unwrap();
        run.on(decided(Verdict::Lost)).unwrap();
        run.on(Event::Started { at: at(13), attempt: 1 }).unwrap_err();
        run.on(ended(1, Outcome::Succeeded)).unwrap();
        assert!(run.late && run.state == RunState::Succeeded);
        run.on(ended(1, Outcome::Failed)).unwrap_err();
    }

    #[test]
    fn an_attempt_that_was_not_made_does_not_tell_what_became_of_those_before_it() {
        let lost = |attempt| {
            let mut run = claimed();
            run.on(dispatched(attempt)).unwrap();
            run.on(decided(Verdict::Lost)).unwrap();
            run
        };
        lost(2).on(ended(2, Outcome::Skipped)).unwrap_err();
        lost(2).on(ended(2, Outcome::Cancelled)).unwrap();
        lost(1).on(ended(1, Outcome::Skipped)).unwrap();
    }

    #[test]
    fn what_may_have_started_is_never_called_skipped() {
        let mut run = claimed();
        run.on(dispatched(1)).unwrap();
        run.on(Event::Started { at: at(10), attempt: 1 }).unwrap();
        run.on(decided(Verdict::Skipped)).unwrap_err();
        run.on(decided(Verdict::Cancelled)).unwrap_err();
        run.on(decided(Verdict::Lost)).unwrap();
    }

    #[test]
    fn an_old_attempt_says_nothing_about_a_newer_one() {
        let mut run = claimed();
        run.on(dispatched(1)).unwrap();
        run.on(Event::Started { at: at(10), attempt: 1 }).unwrap();
        run.on(waits(&run, 30)).unwrap();
        assert_eq!((run.state, run.next_attempt_at), (RunState::Waiting, Some(at(30))));
        let waiting = run.clone();
        run.on(Event::Started { at: at(20), attempt: 1 }).unwrap_err();
        run.on(dispatched(1)).unwrap_err();
        assert_eq!(run, waiting);
        run.on(dispatched(2)).unwrap();
        assert_eq!((run.next_attempt_at, run.started_at, run.reason.as_deref()), (None, None, None));
        assert!(run.progress() > waiting.progress());
        run.on(ended(1, Outcome::Succeeded)).unwrap_err();
        run.on(Event::Started { at: at(20), attempt: 1 }).unwrap_err();
        run.on(ended(2, Outcome::Failed)).unwrap();
        assert_eq!((run.attempt, run.late), (2, false));
    }

    #[test]
    fn a_run_that_waits_ends_as_cancelled_as_its_last_attempt_or_with_a_late_result() {
        let waiting = || {
            let mut run = claimed();
            run.on(dispatched(1)).unwrap();
            run.on(waits(&run, 30)).unwrap();
            run
        };
        for verdict in [Verdict::Cancelled, Verdict::Lost, Verdict::Failed, Verdict::TimedOut] {
            let mut run = waiting();
            run.on(decided(verdict)).unwrap();
            assert_eq!((run.state, run.next_attempt_at), (verdict.into(), None));
        }
        waiting().on(decided(Verdict::Skipped)).unwrap_err();
        let mut run = waiting();
        run.on(ended(1, Outcome::Succeeded)).unwrap();
        assert!(run.late && run.state == RunState::Succeeded);
        let mut going = claimed();
        going.on(dispatched(1)).unwrap();
        going.on(decided(Verdict::Failed)).unwrap_err();
    }

    #[test]
    fn that_a_run_is_overdue_is_told_once_an_attempt_and_changes_nothing_else() {
        let overdue = |attempt, second| Event::Overdue { at: at(second), attempt };
        let mut run = claimed();
        run.on(dispatched(1)).unwrap();
        run.on(overdue(1, 20)).unwrap_err();
        run.on(Event::Started { at: at(10), attempt: 1 }).unwrap();
        let progress = run.progress();
        run.on(overdue(2, 20)).unwrap_err();
        run.on(overdue(1, 20)).unwrap();
        run.on(overdue(1, 21)).unwrap_err();
        assert_eq!((run.state, run.overdue_at, run.progress()), (RunState::Running, Some(at(20)), progress));
        run.on(waits(&run, 30)).unwrap();
        assert_eq!(run.overdue_at, Some(at(20)), "of the attempt that is over");
        run.on(dispatched(2)).unwrap();
        assert_eq!(run.overdue_at, None);
        run.on(ended(2, Outcome::Succeeded)).unwrap();
        run.on(overdue(2, 40)).unwrap_err();
    }

    #[test]
    fn every_state_has_one_word() {
        for state in RunState::ALL {
            assert_eq!(RunState::parse(state.as_str()), Some(state));
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}
