//! `open/<shard>/<run>` in the coordinator: a run that is claimed and not ended. Written by the claim, rewritten when a node is
//! named or a decision is taken, removed once when the store has the end.

use std::collections::BTreeMap;

use belfry_core::attempt::Attempt;
use belfry_core::id::FENCES_PER_COMMIT;
use belfry_core::run::{OutputFacts, Run, RunState, Trigger, Usage, Verdict};
use belfry_core::{Fence, Incarnation, JobId, NodeId, RunId, Timestamp, Version};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// The value of the key. Short names: there may be thousands a second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenRecord {
    #[serde(rename = "j")]
    pub job: JobId,
    #[serde(rename = "ns")]
    pub namespace: String,
    #[serde(rename = "n")]
    pub job_name: String,
    #[serde(rename = "r")]
    pub revision: u64,
    /// Milliseconds.
    #[serde(rename = "p")]
    pub planned: i64,
    #[serde(rename = "c")]
    pub claimed_at: i64,
    #[serde(rename = "t", default = "by_schedule", skip_serializing_if = "is_by_schedule")]
    pub trigger: Trigger,
    /// None in the claim itself and in the commit that names the node of a later attempt, where it follows from the key's own
    /// version and `step`.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// Its place among the runs that one commit claims: several fires of one job may be among them, and fences grow per job.
    #[serde(rename = "s", default, skip_serializing_if = "is_zero")]
    pub step: u8,
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Bound>,
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
    #[serde(rename = "m", default, skip_serializing_if = "is_default")]
    pub manual: ManualFacts,
    /// Of a service: the digest of the definition that it is started with.
    #[serde(rename = "v", default, skip_serializing_if = "Option::is_none")]
    pub service: Option<u64>,
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Next>,
    /// Attempts that were given up and that the store may not have yet: nobody else knows of them.
    #[serde(rename = "l", default, skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<Attempt>,
}

/// More than the facts take that nobody from outside has written.
const PLAIN_BYTES_MAX: usize = 4 << 10;

/// Where an attempt may start, and nowhere else.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bound {
    #[serde(rename = "n")]
    pub node: NodeId,
    #[serde(rename = "nn")]
    pub node_name: String,
    #[serde(rename = "i")]
    pub incarnation: Incarnation,
    #[serde(rename = "a")]
    pub attempt: u32,
    /// Its node was told to end it before anybody may start it again. What the job says later changes nothing of that.
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
}

/// The attempt after one that has ended; kept until it has ended itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Next {
    #[serde(rename = "a")]
    pub attempt: u32,
    /// When it is due, in milliseconds.
    #[serde(rename = "at")]
    pub at: i64,
    /// How, why and where the attempt before it ended.
    #[serde(rename = "o")]
    pub outcome: RunState,
    #[serde(rename = "w", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    #[serde(rename = "g", default, skip_serializing_if = "std::ops::Not::not")]
    pub abandoned: bool,
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    #[serde(rename = "nn", default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

impl Next {
    pub fn after(last: &Attempt, until: Timestamp) -> Self {
        Self {
            attempt: last.attempt + 1,
            at: until.as_millisecond(),
            outcome: last.state,
            reason: last.reason.clone(),
            exit_code: last.exit_code,
            abandoned: last.abandoned,
            node: last.node,
            node_name: last.node_name.clone(),
        }
    }

    pub fn due(&self) -> Timestamp {
        Timestamp::from_millisecond(self.at).unwrap_or(Timestamp::MIN)
    }
}

/// What a server decided by itself. First here, then in the store, then the key is removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    #[serde(rename = "v")]
    pub verdict: Verdict,
    #[serde(rename = "w")]
    pub reason: String,
    #[serde(rename = "at")]
    pub at: i64,
}

/// What a manual trigger asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ManualFacts {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

fn by_schedule() -> Trigger {
    Trigger::Schedule
}
fn is_by_schedule(trigger: &Trigger) -> bool {
    *trigger == Trigger::Schedule
}
fn is_zero(step: &u8) -> bool {
    *step == 0
}
fn is_default(manual: &ManualFacts) -> bool {
    *manual == ManualFacts::default()
}

impl OpenRecord {
    /// What it takes as a value: exactly where it has texts that may be long, which few have.
    pub fn bytes_at_most(&self) -> usize {
        let is_plain =
            is_default(&self.manual) && self.decision.is_none() && self.next.is_none() && self.lost.is_empty();
        let is_scheduled = self.trigger == Trigger::Schedule;
        if is_plain && is_scheduled { PLAIN_BYTES_MAX } else { self.encode().len() + PLAIN_BYTES_MAX }
    }

    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("a record of plain values is JSON").into()
    }

    pub fn decode(value: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(value)
    }

    /// From the version of the commit that names its node.
    pub fn fence_at(&self, commit: Version) -> Fence {
        Fence(commit.0 * FENCES_PER_COMMIT + u64::from(self.step))
    }

    /// The attempt that is going or comes next.
    pub fn attempt(&self) -> u32 {
        self.next.as_ref().map_or(1, |next| next.attempt)
    }

    /// Whether the end of this attempt, which the store has, is that of the run. A former owner may have written it late, when the attempt
    /// had been given up and the next one had its node: then it is kept with its attempt.
    pub fn ends_with(&self, attempt: u32) -> bool {
        self.bound.as_ref().is_none_or(|bound| attempt >= bound.attempt)
    }

    /// Between two attempts.
    pub fn waits(&self) -> Option<&Next> {
        self.next.as_ref().filter(|_| self.bound.is_none())
    }

    /// The run as far as the coordinator knows it, from the key at this version.
    pub fn to_run(&self, id: RunId, version: Version) -> Run {
        let instant = |ms| Timestamp::from_millisecond(ms).unwrap_or(Timestamp::MIN);
        let (bound, waits) = (self.bound.as_ref(), self.waits());
        let (node, node_name) = match (bound, waits) {
            (Some(bound), _) => (Some(bound.node), Some(bound.node_name.clone())),
            (None, Some(next)) => (next.node, next.node_name.clone()),
            (None, None) => (None, None),
        };
        Run {
            id,
            job: self.job,
            namespace: self.namespace.clone(),
            job_name: self.job_name.clone(),
            revision: self.revision,
            planned: instant(self.planned),
            trigger: self.trigger.clone(),
            state: match (bound, waits) {
                (Some(_), _) => RunState::Dispatched,
                (None, Some(_)) => RunState::Waiting,
                (None, None) => RunState::Claimed,
            },
            reason: waits.and_then(|next| next.reason.clone()),
            attempt: bound.map(|b| b.attempt).or(waits.map(|next| next.attempt - 1)).unwrap_or(0),
            next_attempt_at: waits.map(Next::due),
            node,
            node_name,
            incarnation: bound.map(|b| b.incarnation),
            fence: self.fence.or(bound.map(|_| self.fence_at(version))).unwrap_or(Fence(0)),
            claimed_at: instant(self.claimed_at),
            dispatched_at: None,
            started_at: None,
            ended_at: None,
            exit_code: waits.and_then(|next| next.exit_code),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_bytes_and_is_short() {
        let record = OpenRecord {
            job: JobId::from_u128(1),
            namespace: "default".into(),
            job_name: "dbbackup".into(),
            revision: 3,
            planned: 1_790_000_000_000,
            claimed_at: 1_789_999_999_000,
            trigger: Trigger::Schedule,
            fence: None,
            step: 3,
            bound: Some(Bound {
                node: NodeId::from_u128(2),
                node_name: "db1".into(),
                incarnation: Incarnation(9),
                attempt: 1,
                exclusive: false,
            }),
            decision: None,
            manual: ManualFacts::default(),
            service: None,
            next: None,
            lost: Vec::new(),
        };
        let bytes = record.encode();
        assert!(bytes.len() < 220, "{}", bytes.len());
        assert_eq!(OpenRecord::decode(&bytes).unwrap(), record);
        let run = record.to_run(RunId::from_u128(5), Version(77));
        assert_eq!((run.fence, run.attempt, run.state), (Fence(77 * 128 + 3), 1, RunState::Dispatched));

        let until = Timestamp::from_millisecond(1_790_000_010_000).unwrap();
        let last = Attempt { exit_code: Some(75), ..Attempt::lost(&run, run.planned, "exit code 75".into()) };
        let waiting = OpenRecord { next: Some(Next::after(&last, until)), bound: None, ..record.clone() };
        assert_eq!(OpenRecord::decode(&waiting.encode()).unwrap(), waiting);
        let run = waiting.to_run(run.id, Version(78));
        assert_eq!((run.state, run.attempt, run.next_attempt_at), (RunState::Waiting, 1, Some(until)));
        assert_eq!((run.node_name.as_deref(), run.exit_code), (Some("db1"), Some(75)));
        let again = OpenRecord { bound: record.bound.map(|bound| Bound { attempt: 2, ..bound }), ..waiting };
        let run = again.to_run(run.id, Version(79));
        assert_eq!((run.state, run.attempt, run.fence), (RunState::Dispatched, 2, Fence(79 * 128 + 3)));
    }
}
