//! How each job has been doing: ended runs counted, the newest one, failures in a row, how long successes took. Kept in the transaction that
//! records the ends, so that a list of jobs never reads through their runs; the runs that retention forgets stay counted.
//!
//! Everything follows from what moves a run on, whoever brings it and however often. An exception: a success that the end of a later
//! attempt replaces, as after two servers disagreed, stays one until the job's next run.

use std::collections::{BTreeMap, HashMap};

use belfry_core::run::{Run, RunState};
use belfry_core::usual::{REMEMBERED_MAX, Usual};
use belfry_core::{JobId, RunId, Timestamp, wrapped};
use belfry_sql::{Row, Statement, Step, Value};

use crate::columns::{instant, opt_instant, parsed, word};
use crate::dialect::{Column, IfThere, if_there, incoming, joined_newest_first, marks, pieces};
use crate::{Store, StoreError, runs};

/// Enough for as many durations as are remembered, of up to eleven days each.
const TOOK_CHARS_MAX: usize = REMEMBERED_MAX * 10;
pub(crate) const COLUMNS: &str = "job, runs, failed_in_a_row, last_missed, last_run, last_state, last_planned, last_started_at, last_ended_at, \
     last_exit_code, last_node_name, took";

/// Of a job that has had an end.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Ended runs ever.
    pub runs: u64,
    /// Runs since the newest success that were started and did not succeed.
    pub failed_in_a_row: u64,
    /// The newest run that was skipped because it could not run in time.
    pub last_missed: Option<RunId>,
    /// The newest run that has ended.
    pub last: Option<LastRun>,
    /// From its newest successes.
    pub usual: Option<Usual>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastRun {
    pub id: RunId,
    pub state: RunState,
    pub planned: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub node_name: Option<String>,
}

impl Store {
    /// Before the runs are written: what those of them add that the store does not know to be so far. What a run counted for before, as
    /// `lost` that is corrected, is taken back.
    pub(crate) fn add_to_standings(&self, ended: &[&Run]) -> Step {
        let columns = [
            ("id", Column::Id),
            ("job", Column::Id),
            ("progress", Column::Number),
            ("failure", Column::Number),
            ("missed", Column::Id),
            ("took", Column::Text),
        ];
        // Both facts in one number, so that a run is looked up once. Not as a join: PostgreSQL would read all runs for it as long as it
        // has not analyzed the table.
        let was = format!(
            "(SELECT r.progress * 2 + CASE WHEN r.state IN ({}) THEN 1 ELSE 0 END FROM runs r WHERE r.id = v.id)",
            failures()
        );
        let columns_set: &[(&str, &str)] = &[
            ("runs", "old.runs + new.runs"),
            ("failed_in_a_row", "old.failed_in_a_row + new.failed_in_a_row"),
            (
                "last_missed",
                "CASE WHEN new.last_missed > old.last_missed THEN new.last_missed ELSE old.last_missed END",
            ),
            ("took", &format!("SUBSTR( CONCAT( new.took , COALESCE( old.took , '' ) ), 1, {TOOK_CHARS_MAX} )")),
        ];
        let text = format!(
            "INSERT INTO job_standings (job, runs, failed_in_a_row, last_missed, took) \
             SELECT b.job, SUM(CASE WHEN b.was IS NULL OR b.was < {ended_before} THEN 1 ELSE 0 END), \
             SUM(CASE WHEN b.id > COALESCE(b.good, '') THEN b.failure - COALESCE(b.was % 2, 0) ELSE 0 END), MAX(b.missed), {took} \
             FROM (SELECT v.id, v.job, v.progress, v.failure, v.missed, v.took, {was} AS was, \
             (SELECT s.last_success FROM job_standings s WHERE s.job = v.job) AS good FROM {rows} LIMIT {all}) b \
             WHERE b.was IS NULL OR b.was < b.progress * 2 GROUP BY b.job{then}",
            ended_before = Run::ENDED_PROGRESS * 2,
            took = joined_newest_first(self.dialect(), "b.took", "b.id"),
            rows = incoming(self.dialect(), "v", &columns, ended.len()),
            // Without it MariaDB takes the inner query apart, and then does not find its columns when the statement runs again.
            all = ended.len(),
            then = if_there(
                self.dialect(),
                "job_standings",
                &["job"],
                &IfThere::Set { columns: columns_set, guard: None }
            ),
        );
        Statement { sql: text.into(), args: ended.iter().flat_map(|run| facts(run)).collect() }.anything()
    }

    /// After the runs are written: the newest of each job, and from a new success on failures are counted anew. At most one run of a job
    /// at a time.
    pub(crate) fn newest_in_standings(&self, ids: &[RunId]) -> Step {
        const NEWER: &str = "CASE WHEN new.last_run >= old.last_run THEN new.{} ELSE old.{} END";
        const BETTER: &str = "CASE WHEN new.last_success > old.last_success THEN new.{} ELSE old.{} END";
        // What the others read comes last, for MySQL, which assigns one after the other.
        let set: Vec<(&str, String)> = [
            ("failed_in_a_row", BETTER),
            ("last_success", BETTER),
            ("last_state", NEWER),
            ("last_planned", NEWER),
            ("last_started_at", NEWER),
            ("last_ended_at", NEWER),
            ("last_exit_code", NEWER),
            ("last_node_name", NEWER),
            ("last_run", NEWER),
        ]
        .into_iter()
        .map(|(column, rule)| (column, rule.replace("{}", column)))
        .collect();
        let set: Vec<(&str, &str)> = set.iter().map(|(column, rule)| (*column, rule.as_str())).collect();
        let text = format!(
            "INSERT INTO job_standings (job, failed_in_a_row, last_success, last_state, last_planned, last_started_at, last_ended_at, \
             last_exit_code, last_node_name, last_run) \
             SELECT r.job, CASE WHEN r.state = 'succeeded' THEN {since} ELSE 0 END, \
             CASE WHEN r.state = 'succeeded' THEN r.id ELSE '' END, r.state, r.planned, r.started_at, r.ended_at, r.exit_code, r.node_name, r.id \
             FROM runs r WHERE r.id IN ({ids}) AND r.progress >= {ended}{then}",
            // The state is hidden from the planner, which might prefer its index: see `RunFilter`.
            since = format_args!(
                "(SELECT COUNT(*) FROM runs f WHERE f.job = r.job AND f.id > r.id AND COALESCE(f.state, '') IN ({}))",
                failures()
            ),
            ids = marks(ids.len()),
            ended = Run::ENDED_PROGRESS,
            then = if_there(self.dialect(), "job_standings", &["job"], &IfThere::Set { columns: &set, guard: None }),
        );
        Statement { sql: text.into(), args: ids.iter().map(word).collect() }.anything()
    }

    /// Of those among the jobs that have had an end.
    pub async fn standings(&self, jobs: &[JobId]) -> Result<HashMap<JobId, Standing>, StoreError> {
        let mut standings = HashMap::with_capacity(jobs.len());
        for piece in pieces(jobs) {
            let text = format!("SELECT {COLUMNS} FROM job_standings WHERE job IN ({})", marks(piece.len()));
            for row in self.read(Statement { sql: text.into(), args: piece.iter().map(word).collect() }).await? {
                standings.insert(parsed(&row, 0, "job id")?, standing_from(&row)?);
            }
        }
        Ok(standings)
    }
}

/// Ended runs of jobs; wrapped commands have no standing.
pub(crate) fn that_count<'a>(runs: &[&'a Run]) -> Vec<&'a Run> {
    runs.iter().copied().filter(|run| run.state.is_ended() && run.namespace != wrapped::NAMESPACE).collect()
}

/// The newest of each job, and then, of jobs whose newest did not succeed, the newest that did.
pub(crate) fn newest_of_each(ended: &[&Run]) -> [Vec<RunId>; 2] {
    let mut newest: BTreeMap<JobId, RunId> = BTreeMap::new();
    let mut good: BTreeMap<JobId, RunId> = BTreeMap::new();
    for run in ended {
        let keep = |of: &mut BTreeMap<JobId, RunId>| {
            let kept = of.entry(run.job).or_insert(run.id);
            *kept = run.id.max(*kept);
        };
        keep(&mut newest);
        if run.state == RunState::Succeeded {
            keep(&mut good);
        }
    }
    good.retain(|job, run| newest[job] != *run);
    [newest.into_values().collect(), good.into_values().collect()]
}

fn facts(run: &Run) -> [Value; 6] {
    let took = |from: Timestamp, to: Timestamp| to.as_millisecond() - from.as_millisecond();
    let took = run.started_at.zip(run.ended_at).map(|(from, to)| took(from, to));
    let took = took.filter(|took| *took >= 0 && run.state == RunState::Succeeded);
    [
        word(run.id),
        word(run.job),
        run.progress().into(),
        i64::from(run.state.is_failure()).into(),
        if run.was_missed() { word(run.id) } else { "".into() },
        took.map_or(String::new(), |took| format!("{took},")).into(),
    ]
}

/// `'failed', 'timed_out', …`
pub(crate) fn failures() -> String {
    let failures = RunState::ALL.into_iter().filter(|state| state.is_failure());
    failures.map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ")
}

/// From a row of [`COLUMNS`].
pub(crate) fn standing_from(row: &Row) -> Result<Standing, StoreError> {
    let id = |column| if row.text(column).is_empty() { Ok(None) } else { parsed(row, column, "run id").map(Some) };
    let last = id(4)?.map(|id| {
        Ok::<_, StoreError>(LastRun {
            id,
            state: runs::state(row, 5)?,
            planned: instant(row.int(6)),
            started_at: opt_instant(row, 7),
            ended_at: opt_instant(row, 8),
            exit_code: row.opt_int(9).map(|code| code as i32),
            node_name: row.opt_text(10).map(str::to_owned),
        })
    });
    Ok(Standing {
        runs: row.int(1).max(0) as u64,
        failed_in_a_row: row.int(2).max(0) as u64,
        last_missed: id(3)?,
        last: last.transpose()?,
        usual: Usual::of(remembered(row.opt_text(11).unwrap_or_default())),
    })
}

/// What is cut off at the end has no comma.
pub(crate) fn remembered(took: &str) -> Vec<u64> {
    let whole = took.rsplit_once(',').map_or("", |(whole, _)| whole);
    whole.split(',').filter_map(|took| took.parse().ok()).take(REMEMBERED_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_is_no_duration() {
        assert_eq!(remembered("12,3,"), [12, 3]);
        assert_eq!(remembered("12,3,4"), [12, 3]);
        assert_eq!(remembered(""), Vec::<u64>::new());
        assert_eq!(remembered(&"7,".repeat(500)).len(), REMEMBERED_MAX);
    }
}
