//! Attempts that have ended, beside their run: one row each, which is written once. Only `lost` is corrected, by what the node
//! says later. Of a run's last attempt the run's own row tells, so a run of one attempt has no row here.

use belfry_core::attempt::Attempt;
use belfry_core::run::{Held, OutputFacts, Usage};
use belfry_core::{Fence, Incarnation, RunId};
use belfry_sql::{Row, Statement, Step, Value, sql};

use crate::columns::{bits, instant, ms, opt_instant, opt_ms, opt_parsed, opt_short_word, opt_word, parsed, word};
use crate::dialect::{IfThere, if_there, insert, marks, pieces};
use crate::runs::state;
use crate::{Store, StoreError};

const COLUMN_NAMES: &[&str] = &[
    "run",
    "attempt",
    "revision",
    "node",
    "node_name",
    "incarnation",
    "fence",
    "dispatched_at",
    "state",
    "reason",
    "started_at",
    "ended_at",
    "exit_code",
    "exit_signal",
    "late",
    "abandoned",
    "cpu_ms",
    "max_rss_bytes",
    "left_behind",
    "output_bytes",
    "output_dropped_bytes",
    "held",
    "saves",
    "script",
    "overdue_at",
];

/// What a late result changes. What is known of the order stays; the column that the guard reads comes last.
const CORRECTED: &[(&str, &str)] = &[
    ("reason", "new.reason"),
    ("started_at", "COALESCE( new.started_at , old.started_at )"),
    ("ended_at", "new.ended_at"),
    ("exit_code", "new.exit_code"),
    ("exit_signal", "new.exit_signal"),
    ("late", "1"),
    ("abandoned", "new.abandoned"),
    ("cpu_ms", "new.cpu_ms"),
    ("max_rss_bytes", "new.max_rss_bytes"),
    ("left_behind", "new.left_behind"),
    ("held", "new.held"),
    ("saves", "new.saves"),
    ("script", "new.script"),
    ("overdue_at", "new.overdue_at"),
    ("output_bytes", "new.output_bytes"),
    ("output_dropped_bytes", "new.output_dropped_bytes"),
    ("state", "new.state"),
];

impl Store {
    /// Idempotent by (run, attempt): the first that came stays, unless it is `lost` and this one knows better.
    pub async fn record_attempts(&self, attempts: &[Attempt]) -> Result<(), StoreError> {
        // One statement never meets the same row twice, and two writers lock rows in one order.
        let mut attempts: Vec<&Attempt> = attempts.iter().collect();
        attempts.sort_by_key(|attempt| (attempt.run, attempt.attempt));
        let mut rounds: Vec<Vec<&Attempt>> = Vec::new();
        for attempt in attempts {
            let is_free = |round: &&mut Vec<&Attempt>| {
                round.last().is_none_or(|last| (last.run, last.attempt) != (attempt.run, attempt.attempt))
            };
            match rounds.iter_mut().find(is_free) {
                Some(round) => round.push(attempt),
                None => rounds.push(vec![attempt]),
            }
        }
        let steps: Vec<Step> = rounds.iter().flat_map(|round| pieces(round)).map(|piece| self.keep(piece)).collect();
        if steps.is_empty() { Ok(()) } else { self.write(steps).await.map(drop) }
    }

    fn keep(&self, attempts: &[&Attempt]) -> Step {
        let then = IfThere::Set { columns: CORRECTED, guard: Some("old.state = 'lost' AND new.state <> 'lost'") };
        let text = insert("run_attempts", COLUMN_NAMES, attempts.len())
            + &if_there(self.dialect(), "run_attempts", &["run", "attempt"], &then);
        Statement { sql: text.into(), args: attempts.iter().flat_map(|attempt| row(attempt)).collect() }.anything()
    }

    /// Those that have a row, the first attempt first.
    pub async fn attempts(&self, run: RunId) -> Result<Vec<Attempt>, StoreError> {
        let text = format!("SELECT {} FROM run_attempts WHERE run = ? ORDER BY attempt", COLUMN_NAMES.join(", "));
        self.read(sql!(text, word(run))).await?.iter().map(attempt_from).collect()
    }

    /// Of several runs, in no order.
    pub async fn attempts_among(&self, runs: &[RunId]) -> Result<Vec<Attempt>, StoreError> {
        let mut found = Vec::new();
        for piece in pieces(runs) {
            let (columns, marks) = (COLUMN_NAMES.join(", "), marks(piece.len()));
            let text = format!("SELECT {columns} FROM run_attempts WHERE run IN ({marks})");
            let rows = self.read(Statement { sql: text.into(), args: piece.iter().map(word).collect() }).await?;
            found.extend(rows.iter().map(attempt_from).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(found)
    }
}

fn row(attempt: &Attempt) -> [Value; 25] {
    [
        word(attempt.run),
        attempt.attempt.into(),
        bits(attempt.revision),
        opt_word(attempt.node),
        opt_short_word(attempt.node_name.as_deref()),
        attempt.incarnation.map_or(Value::Null, |incarnation| bits(incarnation.0)),
        attempt.fence.map_or(Value::Null, |fence| bits(fence.0)),
        opt_ms(attempt.dispatched_at),
        word(attempt.state),
        opt_word(attempt.reason.as_ref()),
        opt_ms(attempt.started_at),
        ms(attempt.ended_at).into(),
        attempt.exit_code.into(),
        attempt.signal.into(),
        attempt.late.into(),
        attempt.abandoned.into(),
        bits(attempt.usage.cpu_ms),
        bits(attempt.usage.max_rss_bytes),
        attempt.usage.left_behind.into(),
        bits(attempt.output.bytes),
        bits(attempt.output.dropped_bytes),
        attempt.usage.held.bits().into(),
        opt_word(attempt.saves.as_ref().map(|saves| serde_json::to_string(saves).unwrap_or_default())),
        opt_word(attempt.script.as_ref()),
        opt_ms(attempt.overdue_at),
    ]
}

fn attempt_from(row: &Row) -> Result<Attempt, StoreError> {
    Ok(Attempt {
        run: parsed(row, 0, "run id of an attempt")?,
        attempt: row.int(1) as u32,
        revision: row.int(2) as u64,
        node: opt_parsed(row, 3, "node id of an attempt")?,
        node_name: row.opt_text(4).map(str::to_owned),
        incarnation: row.opt_int(5).map(|bits| Incarnation(bits as u64)),
        fence: row.opt_int(6).map(|bits| Fence(bits as u64)),
        dispatched_at: opt_instant(row, 7),
        state: state(row, 8)?,
        reason: row.opt_text(9).map(str::to_owned),
        started_at: opt_instant(row, 10),
        ended_at: instant(row.int(11)),
        exit_code: row.opt_int(12).map(|code| code as i32),
        signal: row.opt_int(13).map(|signal| signal as i32),
        late: row.int(14) != 0,
        abandoned: row.int(15) != 0,
        usage: Usage {
            cpu_ms: row.int(16) as u64,
            max_rss_bytes: row.int(17) as u64,
            left_behind: row.int(18) as u32,
            held: Held::from_bits(row.int(21) as u32),
        },
        output: OutputFacts { bytes: row.int(19) as u64, dropped_bytes: row.int(20) as u64 },
        saves: row.opt_text(22).and_then(|saves| serde_json::from_str(saves).ok()),
        script: row.opt_text(23).map(str::to_owned),
        overdue_at: opt_instant(row, 24),
    })
}
