//! Small jobs and runs to fill a store with.

use belfry_core::id::Slot;
use belfry_core::job::{Action, Shell};
use belfry_core::run::{Held, OutputFacts, Run, RunState, Trigger, Usage};
use belfry_core::{Fence, Incarnation, Job, JobDocument, JobId, NodeId, RunId, Timestamp};

use crate::{Actor, Store};

pub fn at(second: i64) -> Timestamp {
    // 2026-11-15, so that days and ids look as they do in life.
    Timestamp::from_second(1_794_700_800 + second).expect("within range")
}

pub fn ann() -> Actor {
    Actor::new("ann").from("192.0.2.7")
}

pub fn document(namespace: &str, name: &str) -> JobDocument {
    let mut document = JobDocument::new(name, Action::Shell(Shell { command: format!("echo {name}") }));
    document.namespace = namespace.to_owned();
    document
}

pub fn job_id(number: u128) -> JobId {
    JobId::new(at(0), number)
}

pub async fn job(store: &Store, number: u128, document: JobDocument) -> Job {
    store.create_job(document, job_id(number), at(0), &ann()).await.expect("created")
}

pub fn run(job: JobId, second: i64, state: RunState) -> Run {
    let planned = at(second);
    let open = !state.is_ended();
    Run {
        id: RunId::of(job, planned, Slot::Only),
        job,
        namespace: "default".into(),
        job_name: "a".into(),
        revision: 1,
        planned,
        trigger: Trigger::Schedule,
        state,
        reason: None,
        attempt: u32::from(state != RunState::Claimed),
        next_attempt_at: (state == RunState::Waiting).then(|| at(second + 10)),
        node: Some(NodeId::from_u128(5)),
        node_name: Some("n5".into()),
        incarnation: Some(Incarnation(u64::MAX - 1)),
        fence: Fence(7),
        claimed_at: planned,
        dispatched_at: Some(planned),
        started_at: Some(planned),
        ended_at: (!open).then(|| at(second + 1)),
        exit_code: (!open).then_some(0),
        signal: None,
        late: false,
        marks: Default::default(),
        usage: Usage { cpu_ms: 3, max_rss_bytes: 1 << 33, left_behind: 1, held: Held::from_bits(0b11_01_10) },
        output: OutputFacts { bytes: 10, dropped_bytes: 2 },
        overdue_at: None,
        placement: None,
        script: Some("nightly version 3, sha256 ab".into()),
    }
}
