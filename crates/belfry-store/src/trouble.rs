//! Jobs that somebody should look at, found by their standings: ranges of small indexes, never history.

use belfry_core::usual::Usual;
use belfry_core::{JobId, RunId, Timestamp};
use belfry_sql::{Row, Statement, Value, sql};

use crate::columns::{parsed, word};
use crate::dialect::checked_within;
use crate::standings::{self, COLUMNS, standing_from};
use crate::{Standing, Store, StoreError};

const USUAL_PAGE_ROWS: usize = 5_000;
/// Living, not paused, and of a kind whose runs are to succeed. Services and removed jobs are told apart by columns whose indexes planners
/// would not begin with.
const WATCHED: &str = "j.removed_at IS NULL AND j.enabled = 1 AND COALESCE(j.run_on, '') <> 'service'";

/// A job with how it has been doing.
#[derive(Clone, Debug, PartialEq)]
pub struct Troubled {
    pub job: JobId,
    pub namespace: String,
    pub name: String,
    pub standing: Standing,
}

impl Store {
    /// Those whose newest run that was started did not succeed, the most failures in a row first, and how many there are.
    pub async fn failing(
        &self,
        namespaces: Option<&[String]>,
        limit: usize,
    ) -> Result<(Vec<Troubled>, u64), StoreError> {
        let found = self.read(failing(namespaces, limit)).await?;
        let found = found.iter().map(troubled).collect::<Result<Vec<_>, _>>()?;
        if found.len() < limit {
            let all = found.len() as u64;
            return Ok((found, all));
        }
        let (within, args) = checked_within("j.namespace", namespaces);
        let text = format!(
            "SELECT COUNT(*) FROM job_standings s JOIN jobs j ON j.id = s.job WHERE s.failed_in_a_row > 0 AND {WATCHED}{within}"
        );
        let all = self.read(Statement { sql: text.into(), args }).await?[0].int(0) as u64;
        Ok((found, all))
    }

    /// Those that had a fire skipped because it could not run in time, planned at or after an instant; the last first.
    pub async fn missed_since(
        &self,
        from: Timestamp,
        namespaces: Option<&[String]>,
        limit: usize,
    ) -> Result<Vec<Troubled>, StoreError> {
        self.read(missed_since(from, namespaces, limit)).await?.iter().map(troubled).collect()
    }

    /// How long runs usually take, of every job that has succeeded, by job.
    pub async fn all_usual(&self) -> Result<Vec<(JobId, Usual)>, StoreError> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let text =
                format!("SELECT job, took FROM job_standings WHERE job > ? ORDER BY job LIMIT {USUAL_PAGE_ROWS}");
            let rows = self.read(sql!(text, after.as_str())).await?;
            for row in &rows {
                let usual = Usual::of(standings::remembered(row.opt_text(1).unwrap_or_default()));
                all.extend(usual.map(|usual| Ok::<_, StoreError>((parsed(row, 0, "job id")?, usual))).transpose()?);
            }
            match rows.last() {
                Some(last) if rows.len() == USUAL_PAGE_ROWS => after = last.text(0).to_owned(),
                _ => return Ok(all),
            }
        }
    }
}

pub(crate) fn failing(namespaces: Option<&[String]>, limit: usize) -> Statement {
    found("s.failed_in_a_row > 0", vec![], "s.failed_in_a_row", namespaces, limit)
}

pub(crate) fn missed_since(from: Timestamp, namespaces: Option<&[String]>, limit: usize) -> Statement {
    found("s.last_missed >= ?", vec![word(RunId::first_at(from))], "s.last_missed", namespaces, limit)
}

fn found(condition: &str, mut args: Vec<Value>, by: &str, namespaces: Option<&[String]>, limit: usize) -> Statement {
    let (within, names) = checked_within("j.namespace", namespaces);
    args.extend(names);
    let columns = COLUMNS.replace(", ", ", s.");
    let text = format!(
        "SELECT s.{columns}, j.namespace, j.name FROM job_standings s JOIN jobs j ON j.id = s.job \
         WHERE {condition} AND {WATCHED}{within} ORDER BY {by} DESC LIMIT {limit}"
    );
    Statement { sql: text.into(), args }
}

fn troubled(row: &Row) -> Result<Troubled, StoreError> {
    Ok(Troubled {
        job: parsed(row, 0, "job id")?,
        namespace: row.text(12).to_owned(),
        name: row.text(13).to_owned(),
        standing: standing_from(row)?,
    })
}
