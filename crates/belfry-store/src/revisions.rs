//! Every revision that a job ever had, removed jobs included.

use belfry_core::{JobDocument, JobId, Timestamp};
use belfry_sql::{Row, Value, sql};

use crate::columns::{from_json, instant, ms, word};
use crate::{Page, Store, StoreError};

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

    pub async fn job_revision(&self, job: JobId, number: u64) -> Result<Option<Revision>, StoreError> {
        let text = "SELECT revision, at, author, document FROM job_revisions WHERE job = ? AND revision = ?";
        self.read(sql!(text, word(job), number)).await?.first().map(revision).transpose()
    }
}

fn revision(row: &Row) -> Result<Revision, StoreError> {
    Ok(Revision {
        revision: row.int(0) as u64,
        at: instant(row.int(1)),
        author: row.text(2).to_owned(),
        document: from_json(row.text(3), "revision of a job")?,
    })
}
