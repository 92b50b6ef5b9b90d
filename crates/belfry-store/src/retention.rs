//! Forgetting: ended runs, with their output, by age and by count, a few at a time so that nothing waits. It never deletes a run
//! that has not ended.

use std::time::Duration;

use belfry_core::run::{Run, RunState};
use belfry_core::{JobId, RunId, Timestamp};
use belfry_sql::{Row, Statement, Step, Value, sql};
use serde_json::json;

use crate::audit::{self, Deed};
use crate::columns::{DAY_MS, instant, ms, parsed, word};
use crate::dialect::{marks, pieces};
use crate::runs::ended_states;
use crate::{Actor, Store, StoreError};

/// Jobs that one call of `prune_runs` looks at.
const JOBS_PER_BATCH: usize = 100;
/// Runs that one transaction deletes.
const RUNS_PER_TRANSACTION: usize = 256;
/// Counts of days are small; they are kept this long.
const COUNTS_KEPT_DAYS: i64 = 400;

/// For jobs that do not say otherwise themselves. None: for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetentionRules {
    pub age: Option<Duration>,
    pub runs: Option<u32>,
}

/// What one call has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneBatch {
    pub deleted: u64,
    /// Where to go on; None: all jobs have been looked at.
    pub next: Option<JobId>,
}

impl Store {
    /// Deletes up to about `batch` runs that their job's rule, or else the cluster's, no longer keeps; looks at a hundred jobs
    /// at most. Call with None first, then with what came back as `next`.
    pub async fn prune_runs(
        &self,
        now: Timestamp,
        rules: RetentionRules,
        from: Option<JobId>,
        batch: usize,
    ) -> Result<PruneBatch, StoreError> {
        if from.is_none() {
            self.prune_the_rest(now).await?;
        }
        let jobs = self.jobs_with_runs(from, rules).await?;
        let mut deleted = 0;
        for job in &jobs {
            let Some(kept_from) = self.kept_from(job, now).await? else { continue };
            loop {
                let left = batch.saturating_sub(deleted as usize);
                if left == 0 {
                    return Ok(PruneBatch { deleted, next: Some(job.id) });
                }
                let limit = left.min(RUNS_PER_TRANSACTION);
                let ids = ids(&self.read(ended_before(job.id, &kept_from, limit)).await?)?;
                deleted += self.delete_runs(&ids).await?;
                if ids.len() < limit {
                    break;
                }
            }
        }
        let full = jobs.len() == JOBS_PER_BATCH;
        // Ids are 128-bit numbers: the next possible one is where the walk goes on.
        let next = jobs.last().filter(|_| full).map(|job| JobId::from_u128(job.id.as_u128() + 1));
        Ok(PruneBatch { deleted, next })
    }

    /// Everything that ended and was planned before an instant, of these namespaces (None: all), in small transactions.
    pub async fn delete_runs_before(
        &self,
        before: Timestamp,
        namespaces: Option<&[String]>,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<u64, StoreError> {
        let bound = word(RunId::first_at(before));
        let places: Vec<(&str, Vec<Value>)> = match namespaces {
            None => vec![("", vec![])],
            Some(namespaces) => {
                namespaces.iter().map(|namespace| (" AND namespace = ?", vec![word(namespace)])).collect()
            }
        };
        let mut deleted = 0;
        for (place, namespace) in &places {
            for state in RunState::ALL.into_iter().filter(|state| state.is_ended()) {
                let text = format!(
                    "SELECT id FROM runs WHERE state = ? AND id < ?{place} ORDER BY id LIMIT {RUNS_PER_TRANSACTION}"
                );
                loop {
                    let args = [vec![word(state), bound.clone()], namespace.clone()].concat();
                    let ids = ids(&self.read(Statement { sql: text.clone().into(), args }).await?)?;
                    deleted += self.delete_runs(&ids).await?;
                    if ids.len() < RUNS_PER_TRANSACTION {
                        break;
                    }
                }
            }
        }
        let subject = format!("runs before {before}");
        let detail = json!({"deleted": deleted, "namespaces": namespaces});
        self.write(audit::rows(actor, now, &[Deed::new("runs.delete", subject).detail(detail)])).await?;
        Ok(deleted)
    }

    /// What else grows with time: sessions that are over, and counts of days long past.
    async fn prune_the_rest(&self, now: Timestamp) -> Result<(), StoreError> {
        self.write(vec![
            sql!("DELETE FROM sessions WHERE expires_at <= ?", ms(now)).anything(),
            sql!("DELETE FROM run_counts WHERE day < ?", ms(now) - COUNTS_KEPT_DAYS * DAY_MS).anything(),
        ])
        .await
        .map(drop)
    }

    /// The next jobs that have runs, removed ones included: a walk over the index that touches one entry per job.
    async fn jobs_with_runs(&self, from: Option<JobId>, rules: RetentionRules) -> Result<Vec<Kept>, StoreError> {
        let text = format!(
            "WITH RECURSIVE walk (job, n) AS (\
               SELECT MIN(job), 1 FROM runs WHERE job >= ? \
               UNION ALL \
               SELECT (SELECT MIN(r.job) FROM runs r WHERE r.job > walk.job), n + 1 FROM walk WHERE walk.job IS NOT NULL AND n < {JOBS_PER_BATCH}) \
             SELECT w.job, j.retention_age_ms, j.retention_runs FROM walk w LEFT JOIN jobs j ON j.id = w.job WHERE w.job IS NOT NULL"
        );
        let rows = self.read(sql!(text, from.map_or(Value::Text(String::new()), word))).await?;
        let kept = |row: &Row| {
            let default_age = rules.age.map(|age| i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
            Ok(Kept {
                id: parsed(row, 0, "job id")?,
                age_ms: row.opt_int(1).or(default_age),
                runs: row.opt_int(2).or(rules.runs.map(i64::from)),
            })
        };
        let mut jobs = rows.iter().map(kept).collect::<Result<Vec<_>, StoreError>>()?;
        jobs.sort_unstable_by_key(|job| job.id);
        Ok(jobs)
    }

    /// The id before which a job's ended runs go.
    async fn kept_from(&self, job: &Kept, now: Timestamp) -> Result<Option<Value>, StoreError> {
        let by_age = job.age_ms.map(|age| RunId::first_at(instant(ms(now).saturating_sub(age))).to_string());
        let by_count = match job.runs {
            None => None,
            Some(0) => Some("~".to_owned()),
            Some(runs) => {
                let text = "SELECT id FROM runs WHERE job = ? ORDER BY id DESC LIMIT 1 OFFSET ?";
                let oldest_kept = self.read(sql!(text, word(job.id), runs - 1)).await?;
                oldest_kept.first().map(|row| row.text(0).to_owned())
            }
        };
        Ok(by_age.max(by_count).map(Value::Text))
    }

    async fn delete_runs(&self, ids: &[RunId]) -> Result<u64, StoreError> {
        if ids.is_empty() {
            return Ok(0);
        }
        let of = |text: &str, piece: &[RunId]| -> Step {
            let text = text.replace("{}", &marks(piece.len()));
            Statement { sql: text.into(), args: piece.iter().map(word).collect() }.anything()
        };
        let ended = format!("DELETE FROM runs WHERE id IN ({{}}) AND progress >= {}", Run::ENDED_PROGRESS);
        let mut steps: Vec<Step> = pieces(ids).map(|piece| of(&ended, piece)).collect();
        let runs = steps.len();
        steps.extend(pieces(ids).map(|piece| of("DELETE FROM output_chunks WHERE run IN ({})", piece)));
        steps.extend(pieces(ids).map(|piece| of("DELETE FROM run_attempts WHERE run IN ({})", piece)));
        steps.extend(pieces(ids).map(|piece| of("DELETE FROM run_keys WHERE run IN ({})", piece)));
        steps.extend(
            pieces(ids).map(|piece| of("DELETE FROM deliveries WHERE run IN ({}) AND next_try_at IS NULL", piece)),
        );
        let results = self.write(steps).await?;
        Ok(results[..runs].iter().map(|result| result.touched).sum())
    }
}

/// A job and how much of its history is kept.
struct Kept {
    id: JobId,
    age_ms: Option<i64>,
    runs: Option<i64>,
}

pub(crate) fn ended_before(job: JobId, bound: &Value, limit: usize) -> Statement {
    let ended = ended_states();
    let text = format!("SELECT id FROM runs WHERE job = ? AND id < ? AND state IN ({ended}) ORDER BY id LIMIT {limit}");
    sql!(text, word(job), bound.clone())
}

fn ids(rows: &[Row]) -> Result<Vec<RunId>, StoreError> {
    rows.iter().map(|row| parsed(row, 0, "run id")).collect()
}
