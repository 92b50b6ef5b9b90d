//! Runs as history keeps them: one row each, which only ever moves forward. It never makes a transition; it compares progress.

use std::collections::HashMap;

use belfry_core::run::{Run, RunState};
use belfry_core::wrapped;
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_sql::{Row, Statement, Step, Value, sql};

use crate::columns::{DAY_MS, instant, opt_instant, parsed, word};
use crate::dialect::{IfThere, checked_within, if_there, insert, lock, marks, pieces};
use crate::{Page, RunFilter, SecretHash, Store, StoreError, standings};

mod row;

use row::{COLUMN_NAMES, UPDATED, run_from, run_row};
pub(crate) use row::{COLUMNS, state};

/// A row is replaced by what is further on; one that waits is also replaced by what it waits for now, and one that runs by the news that
/// it takes too long.
const MOVES_ON: &str = "( new.progress > old.progress OR ( new.progress = old.progress AND ( ( new.state = 'claimed' AND new.reason IS NOT NULL ) \
     OR ( new.overdue_at IS NOT NULL AND old.overdue_at IS NULL AND new.state = 'running' ) ) ) )";
/// Jobs whose newest states are fetched by one statement.
const RECENT_JOBS_PER_READ: usize = 50;
/// More runs than this are not counted as going.
const RUNNING_MAX: usize = 20_000;
/// How many removed jobs of one name are looked through.
pub(crate) const JOBS_OF_A_NAME_MAX: usize = 16;

/// A run as one square of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecentRun {
    pub id: RunId,
    pub state: RunState,
    pub planned: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

impl Store {
    /// Inserts or moves forward: a row is replaced only by one with greater progress, or by another reason to wait, so records may
    /// come twice and in any order. All of them in one transaction, together with the counts of the overview, the standings of
    /// their jobs and what is to be told to webhooks.
    pub async fn record_runs(&self, runs: &[Run]) -> Result<(), StoreError> {
        let runs = furthest(runs);
        if runs.is_empty() {
            return Ok(());
        }
        let ended: Vec<RunId> = runs.iter().filter(|run| run.state.is_ended()).map(|run| run.id).collect();
        let overdue: Vec<RunId> = runs.iter().filter(|run| run.overdue_at.is_some()).map(|run| run.id).collect();
        let keyed: Vec<&Run> = runs.iter().copied().filter(|run| run.trigger.key().is_some()).collect();
        let counting = standings::that_count(&runs);
        let [newest, newest_good] = standings::newest_of_each(&counting);
        let mut steps = Vec::new();
        // Whatever these runs counted for before is taken back, and what they count for now is added: exact for a new end,
        // a repeated one and a corrected one. Two writers of the same end must not both find that it counted for nothing.
        if !ended.is_empty() {
            steps.extend(lock(self.dialect(), "run_counts"));
        }
        steps.extend(pieces(&ended).map(|piece| self.count_ended(piece, "-")));
        steps.extend(pieces(&counting).map(|piece| self.add_to_standings(piece)));
        steps.extend(pieces(&runs).map(|piece| self.upsert(piece)));
        steps.extend(pieces(&ended).map(|piece| self.count_ended(piece, "")));
        steps.extend(pieces(&newest).map(|piece| self.newest_in_standings(piece)));
        steps.extend(pieces(&newest_good).map(|piece| self.newest_in_standings(piece)));
        steps.extend(pieces(&ended).map(|piece| self.tell_ended(piece)));
        steps.extend(pieces(&overdue).map(|piece| self.tell_overdue(piece)));
        steps.extend(pieces(&keyed).map(|piece| self.remember_keys(piece)));
        self.write(steps).await.map(drop)
    }

    fn upsert(&self, runs: &[&Run]) -> Step {
        let then = IfThere::Set { columns: UPDATED, guard: Some(MOVES_ON) };
        let text = insert("runs", COLUMN_NAMES, runs.len()) + &if_there(self.dialect(), "runs", &["id"], &then);
        Statement { sql: text.into(), args: runs.iter().flat_map(|run| run_row(run)).collect() }.anything()
    }

    /// By progress, which has no index: PostgreSQL takes states for rarer than ids as long as it has not analyzed the table, and would
    /// read all runs in them.
    fn count_ended(&self, ids: &[RunId], sign: &str) -> Step {
        let then = IfThere::Set { columns: &[("n", "old.n + new.n")], guard: None };
        let text = format!(
            "INSERT INTO run_counts (day, namespace, state, n) \
             SELECT planned - planned % {DAY_MS}, namespace, state, {sign}COUNT(*) FROM runs \
             WHERE id IN ({}) AND progress >= {} GROUP BY planned - planned % {DAY_MS}, namespace, state{}",
            marks(ids.len()),
            Run::ENDED_PROGRESS,
            if_there(self.dialect(), "run_counts", &["day", "namespace", "state"], &then)
        );
        Statement { sql: text.into(), args: ids.iter().map(word).collect() }.anything()
    }

    /// The first run of a key keeps it: history is never refused because of a key.
    fn remember_keys(&self, runs: &[&Run]) -> Step {
        let text = insert("run_keys", &["job", "key_hash", "run"], runs.len())
            + &if_there(self.dialect(), "run_keys", &["job", "key_hash"], &IfThere::Keep);
        let row =
            |run: &&Run| [word(run.job), SecretHash::of(run.trigger.key().unwrap_or_default()).into(), word(run.id)];
        Statement { sql: text.into(), args: runs.iter().flat_map(row).collect() }.anything()
    }

    pub async fn run(&self, id: RunId) -> Result<Option<Run>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM runs WHERE id = ?");
        self.read(sql!(text, word(id))).await?.first().map(run_from).transpose()
    }

    /// The run that a manual trigger with this key has made.
    pub async fn run_by_key(&self, job: JobId, key: &str) -> Result<Option<Run>, StoreError> {
        let text =
            format!("SELECT {COLUMNS} FROM runs WHERE id = (SELECT run FROM run_keys WHERE job = ? AND key_hash = ?)");
        self.read(sql!(text, word(job), SecretHash::of(key))).await?.first().map(run_from).transpose()
    }

    /// Those of the runs that have ended, with how.
    pub async fn ended_among(&self, ids: &[RunId]) -> Result<Vec<(RunId, RunState)>, StoreError> {
        let mut ended = Vec::new();
        for piece in pieces(ids) {
            let text = format!("SELECT id, state FROM runs WHERE id IN ({})", marks(piece.len()));
            for found in self.read(Statement { sql: text.into(), args: piece.iter().map(word).collect() }).await? {
                let state = row::state(&found, 1)?;
                if state.is_ended() {
                    ended.push((parsed(&found, 0, "run id")?, state));
                }
            }
        }
        Ok(ended)
    }

    /// Newest first.
    pub async fn list_runs(&self, filter: &RunFilter) -> Result<Page<Run, RunId>, StoreError> {
        let jobs = self.jobs_of(filter).await?;
        let Some(statement) = filter.page(self.dialect(), COLUMNS, jobs.as_deref()) else {
            return Ok(Page { items: Vec::new(), next: None });
        };
        let mut runs = self.read(statement).await?.iter().map(run_from).collect::<Result<Vec<_>, _>>()?;
        runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.id));
        Ok(Page::of(runs, filter.limit, |run| run.id))
    }

    async fn jobs_of(&self, filter: &RunFilter) -> Result<Option<Vec<JobId>>, StoreError> {
        Ok(match &filter.job {
            None => None,
            Some(crate::JobRef::Id(id)) => Some(vec![*id]),
            Some(crate::JobRef::Name { namespace, name }) => {
                let mut jobs = self.job_ids_of_name(namespace, name, JOBS_OF_A_NAME_MAX).await?;
                // Wrapped commands have runs, and no jobs.
                jobs.extend((namespace == wrapped::NAMESPACE).then(|| wrapped::job_of(name)));
                Some(jobs)
            }
        })
    }

    pub async fn last_run_of_job(&self, job: JobId) -> Result<Option<Run>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM runs WHERE job = ? ORDER BY id DESC LIMIT 1");
        self.read(sql!(text, word(job))).await?.first().map(run_from).transpose()
    }

    pub async fn last_ended_run_of_job(&self, job: JobId) -> Result<Option<Run>, StoreError> {
        let text = format!(
            "SELECT {COLUMNS} FROM runs WHERE job = ? AND state IN ({}) ORDER BY id DESC LIMIT 1",
            ended_states()
        );
        self.read(sql!(text, word(job))).await?.first().map(run_from).transpose()
    }

    /// How many runs of each job have ended of those that were planned since; of jobs with none, nothing.
    pub async fn ended_runs_since(&self, jobs: &[JobId], since: Timestamp) -> Result<HashMap<JobId, u64>, StoreError> {
        let mut counts = HashMap::new();
        for some in jobs.chunks(RECENT_JOBS_PER_READ) {
            let places = vec!["?"; some.len()].join(", ");
            let text = format!(
                "SELECT job, COUNT(*) FROM runs WHERE job IN ({places}) AND id >= ? AND state IN ({}) GROUP BY job",
                ended_states()
            );
            let args = some.iter().map(word).chain([word(RunId::first_at(since))]).collect();
            for found in self.read(Statement { sql: text.into(), args }).await? {
                counts.insert(parsed(&found, 0, "job id of a run")?, found.int(1) as u64);
            }
        }
        Ok(counts)
    }

    /// The newest runs of each job, whole, newest first.
    pub async fn newest_runs(&self, jobs: &[JobId], per_job: usize) -> Result<HashMap<JobId, Vec<Run>>, StoreError> {
        let mut newest: HashMap<JobId, Vec<Run>> = HashMap::new();
        for some in jobs.chunks(RECENT_JOBS_PER_READ) {
            let of = |i| {
                format!(
                    "SELECT * FROM (SELECT {COLUMNS} FROM runs WHERE job = ? ORDER BY id DESC LIMIT {per_job}) AS job{i}"
                )
            };
            let text = (0..some.len()).map(of).collect::<Vec<_>>().join(" UNION ALL ");
            for found in self.read(Statement { sql: text.into(), args: some.iter().map(word).collect() }).await? {
                let run = run_from(&found)?;
                newest.entry(run.job).or_default().push(run);
            }
        }
        newest.values_mut().for_each(|runs| runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.id)));
        Ok(newest)
    }

    /// The last instant of the job's schedule that has a run, wherever.
    pub async fn last_scheduled(&self, job: JobId) -> Result<Option<Timestamp>, StoreError> {
        let text = "SELECT planned FROM runs WHERE job = ? AND trigger_kind = 'schedule' ORDER BY id DESC LIMIT 1";
        Ok(self.read(sql!(text, word(job))).await?.first().map(|found| instant(found.int(0))))
    }

    /// Runs that nodes fired by themselves and that are not known to have ended.
    pub async fn open_local_runs(&self) -> Result<Vec<Run>, StoreError> {
        let open = RunState::ALL.into_iter().filter(|state| !state.is_ended());
        let open = open.map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ");
        let text = format!("SELECT {COLUMNS} FROM runs WHERE state IN ({open}) AND marks <> 0");
        let runs = self.read(sql!(text)).await?.iter().map(run_from).collect::<Result<Vec<_>, _>>()?;
        Ok(runs.into_iter().filter(|run| run.marks.local).collect())
    }

    /// Where each of these jobs was placed last, and for which instant; of jobs that never were, nothing.
    pub async fn last_nodes(&self, jobs: &[JobId]) -> Result<HashMap<JobId, (NodeId, Timestamp)>, StoreError> {
        let mut last = HashMap::new();
        for some in jobs.chunks(RECENT_JOBS_PER_READ) {
            let newest = |i| {
                format!(
                    "SELECT {i}, node, planned FROM \
                     (SELECT node, planned FROM runs WHERE job = ? AND node IS NOT NULL ORDER BY id DESC LIMIT 1) AS job{i}"
                )
            };
            let text = (0..some.len()).map(newest).collect::<Vec<_>>().join(" UNION ALL ");
            for found in self.read(Statement { sql: text.into(), args: some.iter().map(word).collect() }).await? {
                last.insert(some[found.int(0) as usize], (parsed(&found, 1, "node id")?, instant(found.int(2))));
            }
        }
        Ok(last)
    }

    /// The newest runs of each job, newest first, as little as a row of squares needs.
    pub async fn recent_runs(
        &self,
        jobs: &[JobId],
        per_job: usize,
    ) -> Result<HashMap<JobId, Vec<RecentRun>>, StoreError> {
        let mut recent: HashMap<JobId, Vec<RecentRun>> = HashMap::new();
        if per_job == 0 {
            return Ok(recent);
        }
        for some in jobs.chunks(RECENT_JOBS_PER_READ) {
            let newest = |i| {
                format!(
                    "SELECT {i}, id, state, planned, started_at, ended_at FROM (SELECT id, state, planned, started_at, ended_at \
                     FROM runs WHERE job = ? ORDER BY id DESC LIMIT {per_job}) AS job{i}"
                )
            };
            let text = (0..some.len()).map(newest).collect::<Vec<_>>().join(" UNION ALL ");
            for found in self.read(Statement { sql: text.into(), args: some.iter().map(word).collect() }).await? {
                let run = RecentRun {
                    id: parsed(&found, 1, "run id")?,
                    state: row::state(&found, 2)?,
                    planned: instant(found.int(3)),
                    started_at: opt_instant(&found, 4),
                    ended_at: opt_instant(&found, 5),
                };
                recent.entry(some[found.int(0) as usize]).or_default().push(run);
            }
        }
        // A union promises no order.
        recent.values_mut().for_each(|runs| runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.id)));
        Ok(recent)
    }

    /// Runs in a state that few are in at a time, those planned first, and before `before`.
    pub async fn oldest_in(
        &self,
        state: RunState,
        namespaces: Option<&[String]>,
        before: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<Run>, StoreError> {
        self.read(oldest_in(state, namespaces, before, limit)).await?.iter().map(run_from).collect()
    }

    /// Every run that goes on, with its job.
    pub async fn running(&self) -> Result<Vec<(JobId, RunId)>, StoreError> {
        let text = format!("SELECT job, id FROM runs WHERE state = 'running' ORDER BY id DESC LIMIT {RUNNING_MAX}");
        let pair = |found: &Row| Ok((parsed(found, 0, "job id of a run")?, parsed(found, 1, "run id")?));
        self.read(sql!(text)).await?.iter().map(pair).collect()
    }

    /// Runs that the store does not know to have ended, newest first, those before `cursor`.
    pub async fn open_runs(&self, cursor: Option<RunId>, limit: usize) -> Result<Page<Run, RunId>, StoreError> {
        let states = RunState::ALL.into_iter().filter(|state| !state.is_ended()).collect();
        self.list_runs(&RunFilter { states, cursor, limit, ..RunFilter::default() }).await
    }
}

pub(crate) fn oldest_in(
    state: RunState,
    namespaces: Option<&[String]>,
    before: Option<Timestamp>,
    limit: usize,
) -> Statement {
    let (within, names) = checked_within("namespace", namespaces);
    let text = format!("SELECT {COLUMNS} FROM runs WHERE state = ? AND id < ?{within} ORDER BY id LIMIT {limit}");
    let before = before.map_or(Value::Text("~".to_owned()), |before| word(RunId::first_at(before)));
    Statement { sql: text.into(), args: [vec![word(state), before], names].concat() }
}

/// For each run only its furthest record, in the order of ids: no database updates one row twice in one statement, and two
/// writers that lock rows in one order do not wait for each other in a ring.
fn furthest(runs: &[Run]) -> Vec<&Run> {
    let mut furthest: HashMap<RunId, &Run> = HashMap::with_capacity(runs.len());
    for run in runs {
        let kept = furthest.entry(run.id).or_insert(run);
        let is_news = run.progress() == kept.progress() && run.overdue_at.is_some();
        if run.progress() > kept.progress() || is_news {
            *kept = run;
        }
    }
    let mut runs: Vec<&Run> = furthest.into_values().collect();
    runs.sort_unstable_by_key(|run| run.id);
    runs
}

/// `'succeeded', 'failed', …`
pub(crate) fn ended_states() -> String {
    let ended = RunState::ALL.into_iter().filter(|state| state.is_ended());
    ended.map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ")
}
