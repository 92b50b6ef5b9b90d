//! What examples fill stores with: runs that have ended, the same ones every time.

use belfry_core::id::Slot;
use belfry_core::run::{OutputFacts, Run, RunState, Trigger, Usage};
use belfry_core::{Fence, Incarnation, JobId, NodeId, RunId, Timestamp};
use jiff::SignedDuration;

pub struct Job<'a> {
    pub id: JobId,
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The `n`th run of all, on time, on the node of this number.
pub fn ended(n: u64, job: &Job<'_>, planned: Timestamp, took_ms: i64, state: RunState, node: u64) -> Run {
    let at = |ms| planned.checked_add(SignedDuration::from_millis(ms)).expect("within range");
    Run {
        id: RunId::of(job.id, planned, Slot::Only),
        job: job.id,
        namespace: job.namespace.to_owned(),
        job_name: job.name.to_owned(),
        revision: 1,
        planned,
        trigger: Trigger::Schedule,
        state,
        reason: None,
        attempt: 1,
        next_attempt_at: None,
        node: Some(NodeId::from_u128(node.into())),
        node_name: Some(format!("node{node}")),
        incarnation: Some(Incarnation(1)),
        fence: Fence(n),
        claimed_at: at(-900),
        dispatched_at: Some(at(-800)),
        started_at: Some(at(1)),
        ended_at: Some(at(1 + took_ms)),
        exit_code: Some(0),
        signal: None,
        late: false,
        marks: Default::default(),
        usage: Usage { cpu_ms: 12, max_rss_bytes: 4 << 20, left_behind: 0, ..Default::default() },
        output: OutputFacts { bytes: 120, dropped_bytes: 0 },
        overdue_at: None,
        placement: None,
        script: None,
    }
}

/// The same numbers every time.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
