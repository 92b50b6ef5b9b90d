//! An attempt that has ended, as history keeps it beside its run. Of a run's last attempt the run itself tells.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::run::{Ended, Outcome, OutputFacts, Run, RunState, Usage};
use crate::state::Saves;
use crate::{Fence, Incarnation, NodeId, RunId};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    pub run: RunId,
    /// 1 for the first.
    pub attempt: u32,
    /// The job's revision that it executed.
    pub revision: u64,
    pub node: Option<NodeId>,
    pub node_name: Option<String>,
    pub incarnation: Option<Incarnation>,
    /// None: whoever wrote it down knew only what the node said.
    pub fence: Option<Fence>,
    pub dispatched_at: Option<Timestamp>,
    /// How it ended; `lost` until a later truth comes in.
    pub state: RunState,
    pub reason: Option<String>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The result came in after the attempt had been given up as lost.
    pub late: bool,
    pub abandoned: bool,
    pub usage: Usage,
    pub output: OutputFacts,
    /// What it wrote of the job's state, told to a server that does not own the run: its owner finds it here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saves: Option<Box<Saves>>,
    /// Which script it executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// It took longer than its job wants, from here on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue_at: Option<Timestamp>,
}

impl Attempt {
    /// The agent's word about an attempt of this run. What only the run knows is left out when it is about another attempt.
    pub fn ended(run: &Run, ended: &Ended) -> Self {
        Self {
            state: ended.outcome.into(),
            reason: ended.reason.clone(),
            started_at: ended.started_at,
            exit_code: ended.exit_code,
            signal: ended.signal,
            abandoned: ended.abandoned,
            usage: ended.usage,
            output: ended.output,
            saves: ended.saves.clone(),
            script: ended.script.clone(),
            overdue_at: ended.overdue_at,
            ..Self::of(run, ended.attempt, ended.ended_at)
        }
    }

    /// The last attempt of a run that has ended, as it ended.
    pub fn last_of(run: &Run) -> Self {
        Self {
            state: run.state,
            reason: run.reason.clone(),
            exit_code: run.exit_code,
            signal: run.signal,
            late: run.late,
            usage: run.usage,
            output: run.output,
            script: run.script.clone(),
            ..Self::of(run, run.attempt, run.ended_at.unwrap_or(run.planned))
        }
    }

    /// The run's current attempt, given up at this moment.
    pub fn lost(run: &Run, at: Timestamp, reason: String) -> Self {
        Self { reason: Some(reason), ..Self::of(run, run.attempt, at) }
    }

    fn of(run: &Run, attempt: u32, ended_at: Timestamp) -> Self {
        let current = (attempt == run.attempt).then_some(run);
        Self {
            run: run.id,
            attempt,
            revision: run.revision,
            node: current.and_then(|run| run.node),
            node_name: current.and_then(|run| run.node_name.clone()),
            incarnation: current.and_then(|run| run.incarnation),
            fence: current.map(|run| run.fence),
            dispatched_at: current.and_then(|run| run.dispatched_at),
            state: RunState::Lost,
            reason: None,
            started_at: current.and_then(|run| run.started_at),
            ended_at,
            exit_code: None,
            signal: None,
            late: false,
            abandoned: false,
            usage: Usage::default(),
            output: OutputFacts::default(),
            saves: None,
            script: None,
            overdue_at: current.and_then(|run| run.overdue_at),
        }
    }

    /// What the agent said. None: it has said nothing yet.
    pub fn to_ended(&self) -> Option<Ended> {
        let outcome = match self.state {
            RunState::Succeeded => Outcome::Succeeded,
            RunState::Failed => Outcome::Failed,
            RunState::TimedOut => Outcome::TimedOut,
            RunState::Killed => Outcome::Killed,
            RunState::Skipped => Outcome::Skipped,
            RunState::Cancelled => Outcome::Cancelled,
            RunState::Lost | RunState::Claimed | RunState::Dispatched | RunState::Running | RunState::Waiting => {
                return None;
            }
        };
        Some(Ended {
            attempt: self.attempt,
            outcome,
            reason: self.reason.clone(),
            started_at: self.started_at,
            ended_at: self.ended_at,
            exit_code: self.exit_code,
            signal: self.signal,
            abandoned: self.abandoned,
            usage: self.usage,
            output: self.output,
            saves: self.saves.clone(),
            script: self.script.clone(),
            overdue_at: self.overdue_at,
        })
    }
}
