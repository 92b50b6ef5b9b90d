//! Every revision that a job ever had, removed jobs included.

use std::collections::HashMap;

use belfry_core::{JobDocument, JobId, Timestamp};
use belfry_sql::{Dialect, Row, Statement, Value, sql};

use crate::columns::{from_json, instant, ms, parsed, word};
use crate::dialect::{Column, incoming};
use crate::{Page, Store, StoreError};

/// A page of a list in two reads.
const PAIRS_PER_READ: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct Revision {
    pub revision: u64,
    pub at: Timestamp,
    pub author: String,
    pub document: JobDocument,
}

impl Store {
    /// Newest first, those before `cursor`.
    pub async fn job_revisions(
        &self,
        job: JobId,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Revision, u64>, StoreError> {
        let before = cursor.map_or(Value::Int(i64::MAX), Value::from);
        let text = "SELECT revision, at, author, document FROM job_revisions WHERE job = ? AND revision < ? \
                    ORDER BY revision DESC LIMIT ?";
        let rows = self.read(sql!(text, word(job), before, limit as u64 + 1)).await?;
        let revisions = rows.iter().map(revision).collect::<Result<Vec<_>, _>>()?;
        Ok(Page::of(revisions, limit, |revision| revision.revision))
    }

    /// The one that held at an instant, and when the next one replaced it.
    pub async fn job_revision_at(
        &self,
        job: JobId,
        at: Timestamp,
    ) -> Result<Option<(Revision, Option<Timestamp>)>, StoreError> {
        let text = "SELECT revision, at, author, document FROM job_revisions WHERE job = ? AND at <= ? \
                    ORDER BY revision DESC LIMIT 1";
        let Some(held) = self.read(sql!(text, word(job), ms(at))).await?.first().map(revision).transpose()? else {
            return Ok(None);
        };
        let text = "SELECT at FROM job_revisions WHERE job = ? AND revision = ?";
        let replaced = self.read(sql!(text, word(job), held.revision + 1)).await?;
        Ok(Some((held, replaced.first().map(|row| instant(row.int(0))))))
    }

    /// Those that are there of these.
    pub async fn job_revisions_of(
        &self,
        wanted: &[(JobId, u64)],
    ) -> Result<HashMap<(JobId, u64), JobDocument>, StoreError> {
        let mut found = HashMap::with_capacity(wanted.len());
        for some in wanted.chunks(PAIRS_PER_READ) {
            for row in self.read(some_of(self.dialect(), some)).await? {
                let key = (parsed(&row, 0, "job id")?, row.int(1) as u64);
                found.insert(key, from_json(row.text(2), "revision of a job")?);
            }
        }
        Ok(found)
    }

    pub async fn job_revision(&self, job: JobId, number: u64) -> Result<Option<Revision>, StoreError> {
        let text = "SELECT revision, at, author, document FROM job_revisions WHERE job = ? AND revision = ?";
        self.read(sql!(text, word(job), number)).await?.first().map(revision).transpose()
    }
}

/// As a join, which is a seek for each: SQLite reads the whole table to find pairs in a list.
pub(crate) fn some_of(dialect: Dialect, wanted: &[(JobId, u64)]) -> Statement {
    // Filled up with what no job has to the next of few sizes, so that few texts exist and each stays prepared.
    let rows = wanted.len().next_power_of_two();
    let none = [Value::from(""), Value::from(0)];
    let filling = std::iter::repeat_n(none, rows - wanted.len());
    let args = wanted.iter().map(|(job, number)| [word(job), Value::from(*number)]).chain(filling).flatten().collect();
    let wanted = incoming(dialect, "v", &[("job", Column::Id), ("number", Column::Number)], rows);
    let text = format!(
        "SELECT r.job, r.revision, r.document FROM {wanted} CROSS JOIN job_revisions r \
         WHERE r.job = v.job AND r.revision = v.number"
    );
    Statement { sql: text.into(), args }
}

fn revision(row: &Row) -> Result<Revision, StoreError> {
    Ok(Revision {
        revision: row.int(0) as u64,
        at: instant(row.int(1)),
        author: row.text(2).to_owned(),
        document: from_json(row.text(3), "revision of a job")?,
    })
}
