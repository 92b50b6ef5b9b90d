//! A run as a row: one column for each of its facts, so that a page of history parses no document.

use std::sync::Arc;

use belfry_core::run::{Held, Marks, OutputFacts, Run, RunState, Trigger, Usage};
use belfry_core::{Fence, Incarnation};
use belfry_sql::{Row, Value};

use crate::StoreError;
use crate::columns::{
    bits, instant, json, ms, opt_instant, opt_ms, opt_parsed, opt_short_word, opt_word, parsed, short_word, word,
};

pub(super) const COLUMN_NAMES: &[&str] = &[
    "id",
    "job",
    "namespace",
    "job_name",
    "revision",
    "planned",
    "trigger_kind",
    "trigger_by",
    "trigger_key",
    "trigger_of",
    "state",
    "reason",
    "attempt",
    "node",
    "node_name",
    "incarnation",
    "fence",
    "claimed_at",
    "dispatched_at",
    "started_at",
    "ended_at",
    "exit_code",
    "exit_signal",
    "late",
    "cpu_ms",
    "max_rss_bytes",
    "left_behind",
    "output_bytes",
    "output_dropped_bytes",
    "placement",
    "progress",
    "next_attempt_at",
    "marks",
    "held",
    "script",
    "overdue_at",
];

pub(crate) const COLUMNS: &str = "id, job, namespace, job_name, revision, planned, trigger_kind, trigger_by, trigger_key, trigger_of, \
     state, reason, attempt, node, node_name, incarnation, fence, claimed_at, dispatched_at, started_at, \
     ended_at, exit_code, exit_signal, late, cpu_ms, max_rss_bytes, left_behind, output_bytes, output_dropped_bytes, placement, progress, \
     next_attempt_at, marks, held, script, overdue_at";

/// What a step forward may change; the rest is known when a run is planned. What the others read comes last.
pub(super) const UPDATED: &[(&str, &str)] = &[
    ("revision", "new.revision"),
    ("reason", "new.reason"),
    ("attempt", "new.attempt"),
    ("next_attempt_at", "new.next_attempt_at"),
    ("node", "new.node"),
    ("node_name", "new.node_name"),
    ("incarnation", "new.incarnation"),
    ("fence", "new.fence"),
    ("claimed_at", "new.claimed_at"),
    ("dispatched_at", "new.dispatched_at"),
    ("started_at", "new.started_at"),
    ("ended_at", "new.ended_at"),
    ("exit_code", "new.exit_code"),
    ("exit_signal", "new.exit_signal"),
    // Whoever brings the result need not know that the run had been given up.
    ("late", "CASE WHEN old.state = 'lost' THEN 1 ELSE new.late END"),
    ("cpu_ms", "new.cpu_ms"),
    ("max_rss_bytes", "new.max_rss_bytes"),
    ("left_behind", "new.left_behind"),
    ("held", "new.held"),
    ("script", "new.script"),
    ("output_bytes", "new.output_bytes"),
    ("output_dropped_bytes", "new.output_dropped_bytes"),
    ("marks", "old.marks | new.marks"),
    // Whoever took the run over does not know why its node was chosen.
    ("placement", "CASE WHEN new.placement IS NULL THEN old.placement ELSE new.placement END"),
    ("overdue_at", "new.overdue_at"),
    ("state", "new.state"),
    ("progress", "new.progress"),
];

pub(super) fn run_row(run: &Run) -> [Value; 36] {
    let (by, key, of) = match &run.trigger {
        Trigger::Schedule => (None, None, None),
        Trigger::Manual { by, key } => (Some(by), Some(key), None),
        Trigger::Rerun { by, key, of } => (Some(by), Some(key), Some(of)),
        Trigger::Wrapped { instance } => (None, Some(instance), None),
    };
    [
        word(run.id),
        word(run.job),
        short_word(&run.namespace),
        short_word(&run.job_name),
        bits(run.revision),
        ms(run.planned).into(),
        word(run.trigger.as_str()),
        opt_short_word(by.map(String::as_str)),
        opt_word(key),
        opt_word(of),
        word(run.state),
        opt_word(run.reason.as_ref()),
        run.attempt.into(),
        opt_word(run.node),
        opt_short_word(run.node_name.as_deref()),
        run.incarnation.map_or(Value::Null, |incarnation| bits(incarnation.0)),
        bits(run.fence.0),
        ms(run.claimed_at).into(),
        opt_ms(run.dispatched_at),
        opt_ms(run.started_at),
        opt_ms(run.ended_at),
        run.exit_code.into(),
        run.signal.into(),
        run.late.into(),
        bits(run.usage.cpu_ms),
        bits(run.usage.max_rss_bytes),
        run.usage.left_behind.into(),
        bits(run.output.bytes),
        bits(run.output.dropped_bytes),
        run.placement.as_ref().map_or(Value::Null, |placement| json(&**placement).into()),
        run.progress().into(),
        opt_ms(run.next_attempt_at),
        u32::from(run.marks.bits()).into(),
        run.usage.held.bits().into(),
        opt_word(run.script.as_ref()),
        opt_ms(run.overdue_at),
    ]
}

/// From a row of [`COLUMNS`].
pub(super) fn run_from(row: &Row) -> Result<Run, StoreError> {
    Ok(Run {
        id: parsed(row, 0, "run id")?,
        job: parsed(row, 1, "job id of a run")?,
        namespace: row.text(2).to_owned(),
        job_name: row.text(3).to_owned(),
        revision: row.int(4) as u64,
        planned: instant(row.int(5)),
        trigger: trigger(row)?,
        state: state(row, 10)?,
        reason: row.opt_text(11).map(str::to_owned),
        attempt: row.int(12) as u32,
        next_attempt_at: opt_instant(row, 31),
        node: opt_parsed(row, 13, "node id of a run")?,
        node_name: row.opt_text(14).map(str::to_owned),
        incarnation: row.opt_int(15).map(|bits| Incarnation(bits as u64)),
        fence: Fence(row.int(16) as u64),
        claimed_at: instant(row.int(17)),
        dispatched_at: opt_instant(row, 18),
        started_at: opt_instant(row, 19),
        ended_at: opt_instant(row, 20),
        exit_code: row.opt_int(21).map(|code| code as i32),
        signal: row.opt_int(22).map(|signal| signal as i32),
        late: row.int(23) != 0,
        marks: Marks::from_bits(row.int(32) as u8),
        usage: Usage {
            cpu_ms: row.int(24) as u64,
            max_rss_bytes: row.int(25) as u64,
            left_behind: row.int(26) as u32,
            held: Held::from_bits(row.int(33) as u32),
        },
        output: OutputFacts { bytes: row.int(27) as u64, dropped_bytes: row.int(28) as u64 },
        overdue_at: opt_instant(row, 35),
        // A reason that only a newer Belfry knows must not hide the run.
        placement: row.opt_text(29).and_then(|text| serde_json::from_str(text).ok()).map(Arc::new),
        script: row.opt_text(34).map(str::to_owned),
    })
}

pub(crate) fn state(row: &Row, column: usize) -> Result<RunState, StoreError> {
    let text = row.text(column);
    RunState::parse(text).ok_or_else(|| StoreError::unreadable("run", format!("`{text}` is not a state of a run")))
}

fn trigger(row: &Row) -> Result<Trigger, StoreError> {
    let by = row.opt_text(7).unwrap_or_default().to_owned();
    let key = row.opt_text(8).unwrap_or_default().to_owned();
    match row.text(6) {
        "schedule" => Ok(Trigger::Schedule),
        "manual" => Ok(Trigger::Manual { by, key }),
        "wrapped" => Ok(Trigger::Wrapped { instance: key }),
        "rerun" => Ok(Trigger::Rerun { by, key, of: parsed(row, 9, "run id of a rerun")? }),
        other => Err(StoreError::unreadable("run", format!("`{other}` is not a trigger of a run"))),
    }
}
