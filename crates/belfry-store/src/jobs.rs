//! Job definitions: created, changed and removed with a guard on their revision, listed by name, and followed by a number that
//! grows with every change. It never judges a document; that is done before it comes here.

use std::collections::HashMap;

use belfry_core::job::RunOn;
use belfry_core::{Job, JobDocument, JobId, Timestamp};
use belfry_sql::{Dialect, Row, Statement, Value, Written, sql};
use serde::{Deserialize, Serialize};

use crate::columns::{from_json, instant, opt_instant, parsed, word};
use crate::dialect::{Column, incoming, marks, pieces};
use crate::{Actor, ChangeRefused, Store, StoreError};

mod change;
pub(crate) mod list;

pub use list::{JobCursor, JobFilter};

const COLUMNS: &str = "j.id, j.revision, j.namespace, j.name, j.document, j.created_at, j.updated_at, j.counts_from, j.seq, j.removed_seq";
const LOAD_PAGE_ROWS: usize = 5_000;
const CHANGES_PAGE_ROWS: usize = 5_000;
/// A refusal whose cause has gone by the time it is looked for is tried again so often.
const APPLY_TRIES_MAX: usize = 5;

/// One edit of a job.
#[derive(Clone, Debug)]
pub enum Change {
    Create {
        id: JobId,
        document: JobDocument,
    },
    Update {
        id: JobId,
        expected_revision: u64,
        document: JobDocument,
    },
    /// Without a revision: whatever it is by then.
    Remove {
        id: JobId,
        expected_revision: Option<u64>,
    },
}

/// What became of a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    Saved(Box<Job>),
    Removed(JobId),
}

/// What a follower of the jobs has to do.
#[derive(Clone, Debug, PartialEq)]
pub enum JobChange {
    Upsert(Box<Job>),
    Removed(JobId),
}

/// From when to when a job was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLife {
    pub id: JobId,
    pub created_at: Timestamp,
    /// None: it lives.
    pub removed_at: Option<Timestamp>,
}

/// A job whose document has not been parsed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RawJob {
    pub id: JobId,
    pub revision: u64,
    pub namespace: Box<str>,
    pub name: Box<str>,
    pub document: Box<str>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub counts_from: Timestamp,
    pub seq: u64,
}

impl RawJob {
    pub fn parse(&self) -> Result<Job, StoreError> {
        Ok(Job {
            id: self.id,
            revision: self.revision,
            document: from_json(&self.document, &format!("job {}/{}", self.namespace, self.name))?,
            created_at: self.created_at,
            updated_at: self.updated_at,
            counts_from: self.counts_from,
        })
    }
}

impl Store {
    /// The id is the caller's, so that a creation whose answer was lost can be looked up.
    pub async fn create_job(
        &self,
        document: JobDocument,
        id: JobId,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<Job, StoreError> {
        self.save(Change::Create { id, document }, now, actor).await
    }

    pub async fn update_job(
        &self,
        id: JobId,
        expected_revision: u64,
        document: JobDocument,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<Job, StoreError> {
        self.save(Change::Update { id, expected_revision, document }, now, actor).await
    }

    async fn save(&self, change: Change, now: Timestamp, actor: &Actor) -> Result<Job, StoreError> {
        let mut applied = self.apply(vec![change], now, actor).await.map_err(|refused| refused.cause)?;
        match applied.pop() {
            Some(Applied::Saved(job)) => Ok(*job),
            Some(Applied::Removed(_)) | None => Err(StoreError::NotFound),
        }
    }

    /// Its revisions and runs stay readable by id; its name is free again.
    pub async fn remove_job(
        &self,
        id: JobId,
        expected: Option<u64>,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let change = Change::Remove { id, expected_revision: expected };
        self.apply(vec![change], now, actor).await.map(drop).map_err(|refused| refused.cause)
    }

    /// All changes in one transaction, or none. Removals take effect first, so that a freed name can be used again.
    pub async fn apply(
        &self,
        changes: Vec<Change>,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<Vec<Applied>, ChangeRefused> {
        let whole = |cause| ChangeRefused { index: 0, cause };
        for _ in 0..APPLY_TRIES_MAX {
            let current = self.current_of(&changes).await.map_err(whole)?;
            if let Some(refused) = change::refusal(&changes, &current) {
                return Err(refused);
            }
            let plan = change::plan(&changes, &current, now, actor);
            if let Written::Done(_) = self.try_write(plan.steps).await.map_err(whole)? {
                return Ok(plan.applied);
            }
            // Someone was faster; the next look finds out who, or that he has gone again.
        }
        Err(whole(belfry_sql::SqlError::Away("jobs keep changing under this edit".to_owned()).into()))
    }

    /// What the changes stand on: the living jobs that they name by id, or whose name they want.
    async fn current_of(&self, changes: &[Change]) -> Result<change::Current, StoreError> {
        let mut current = change::Current::default();
        let ids: Vec<JobId> = changes.iter().map(change::id_of).collect();
        for piece in pieces(&ids) {
            let text = format!("SELECT {COLUMNS} FROM jobs j WHERE j.id IN ({})", marks(piece.len()));
            for row in self.read(Statement { sql: text.into(), args: piece.iter().map(word).collect() }).await? {
                let living = row.int(9) == 0;
                let job = raw(row)?;
                if living {
                    current.living.insert(job.id, job.parse()?);
                } else {
                    current.removed.insert(job.id);
                }
            }
        }
        let wanted: Vec<(&str, &str)> = changes.iter().filter_map(change::wanted_name).collect();
        for piece in pieces(&wanted) {
            for row in self.read(ids_of(self.dialect(), piece)).await? {
                current.names.insert((row.text(1).to_owned(), row.text(2).to_owned()), parsed(&row, 0, "job id")?);
            }
        }
        Ok(current)
    }

    pub async fn job(&self, namespace: &str, name: &str) -> Result<Option<Job>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM jobs j WHERE j.removed_seq = 0 AND j.namespace = ? AND j.name = ?");
        self.read(sql!(text, namespace, name)).await?.pop().map(|row| raw(row)?.parse()).transpose()
    }

    /// The living job of this id.
    pub async fn job_by_id(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM jobs j WHERE j.id = ? AND j.removed_seq = 0");
        self.read(sql!(text, word(id))).await?.pop().map(|row| raw(row)?.parse()).transpose()
    }

    /// Those that live among the jobs of these ids.
    pub async fn living_jobs(&self, ids: &[JobId]) -> Result<HashMap<JobId, Job>, StoreError> {
        let mut living = HashMap::with_capacity(ids.len());
        for piece in pieces(ids) {
            let text =
                format!("SELECT {COLUMNS} FROM jobs j WHERE j.id IN ({}) AND j.removed_at IS NULL", marks(piece.len()));
            for row in self.read(Statement { sql: text.into(), args: piece.iter().map(word).collect() }).await? {
                let job = raw(row)?.parse()?;
                living.insert(job.id, job);
            }
        }
        Ok(living)
    }

    /// Ids of the living job of this name and of removed ones that had it, newest first.
    pub async fn job_ids_of_name(&self, namespace: &str, name: &str, limit: usize) -> Result<Vec<JobId>, StoreError> {
        let text = "SELECT id FROM jobs WHERE namespace = ? AND name = ? ORDER BY removed_seq = 0 DESC, removed_seq DESC LIMIT ?";
        let rows = self.read(sql!(text, namespace, name, limit as u64)).await?;
        rows.iter().map(|row| parsed(row, 0, "job id")).collect()
    }

    /// The living job of this name and removed ones that had it, newest first.
    pub async fn job_lives(&self, namespace: &str, name: &str, limit: usize) -> Result<Vec<JobLife>, StoreError> {
        let text = "SELECT id, created_at, removed_at FROM jobs WHERE namespace = ? AND name = ? \
                    ORDER BY removed_seq = 0 DESC, removed_seq DESC LIMIT ?";
        self.read(sql!(text, namespace, name, limit as u64)).await?.iter().map(life).collect()
    }

    /// Of the job of this id, and the namespace that it is in, or was in last.
    pub async fn job_life(&self, id: JobId) -> Result<Option<(JobLife, String)>, StoreError> {
        let text = "SELECT id, created_at, removed_at, namespace FROM jobs WHERE id = ?";
        let rows = self.read(sql!(text, word(id))).await?;
        rows.first().map(|row| Ok((life(row)?, row.text(3).to_owned()))).transpose()
    }

    /// What changed after `seq`, oldest first, and the number to ask from next time. A page at a time: ask until it is empty.
    pub async fn job_changes_since(&self, seq: u64) -> Result<(Vec<JobChange>, u64), StoreError> {
        let text = format!("SELECT {COLUMNS} FROM jobs j WHERE j.seq > ? ORDER BY j.seq LIMIT {CHANGES_PAGE_ROWS}");
        let mut changes = Vec::new();
        let mut last = seq;
        for row in self.read(sql!(text, seq)).await? {
            let removed = row.int(9) != 0;
            let job = raw(row)?;
            last = job.seq;
            changes.push(if removed { JobChange::Removed(job.id) } else { JobChange::Upsert(Box::new(job.parse()?)) });
        }
        Ok((changes, last))
    }

    /// Hands over every living job with its document unparsed, a page at a time, and answers the number from which to follow
    /// changes. A job that changes meanwhile comes again with them.
    pub async fn load_raw_jobs(&self, mut each: impl FnMut(Vec<RawJob>)) -> Result<u64, StoreError> {
        // Before the first page: a change in between is then seen twice rather than never.
        let seq = self.read(sql!("SELECT value FROM counters WHERE name = 'job_changes'")).await?[0].int(0) as u64;
        let mut after = String::new();
        loop {
            let rows = self.read(load_page(&after)).await?;
            let page = rows.into_iter().map(raw).collect::<Result<Vec<_>, _>>()?;
            let Some(last) = page.last() else { return Ok(seq) };
            after = last.id.to_string();
            let full = page.len() == LOAD_PAGE_ROWS;
            each(page);
            if !full {
                return Ok(seq);
            }
        }
    }

    /// All living jobs of this kind; meant for those that are few.
    pub async fn jobs_that_run_on(&self, kind: RunOn) -> Result<Vec<Job>, StoreError> {
        self.jobs_fired_by(change::run_on(kind)).await
    }

    /// All living services; they are few.
    pub async fn services(&self) -> Result<Vec<Job>, StoreError> {
        self.jobs_fired_by(Value::from(change::SERVICE)).await
    }

    async fn jobs_fired_by(&self, kind: Value) -> Result<Vec<Job>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM jobs j WHERE j.run_on = ? AND j.removed_at IS NULL ORDER BY j.id");
        let rows = self.read(sql!(text, kind)).await?;
        rows.into_iter().map(|row| raw(row)?.parse()).collect()
    }

    pub async fn load_jobs(&self, mut each: impl FnMut(Vec<Job>)) -> Result<u64, StoreError> {
        let mut failed = None;
        let seq = self
            .load_raw_jobs(|page| match page.iter().map(RawJob::parse).collect() {
                Ok(jobs) => each(jobs),
                Err(cause) => failed = Some(cause),
            })
            .await?;
        failed.map_or(Ok(seq), Err)
    }
}

/// Of the living jobs of these names. As a join, which is a seek for each: SQLite reads all living jobs to find pairs in a list.
pub(crate) fn ids_of(dialect: Dialect, names: &[(&str, &str)]) -> Statement {
    let wanted = incoming(dialect, "v", &[("namespace", Column::Text), ("name", Column::Text)], names.len());
    let text = format!(
        "SELECT j.id, j.namespace, j.name FROM {wanted} CROSS JOIN jobs j \
         WHERE j.removed_seq = 0 AND j.namespace = v.namespace AND j.name = v.name"
    );
    let args = names.iter().flat_map(|(namespace, name)| [word(namespace), word(name)]).collect();
    Statement { sql: text.into(), args }
}

/// Not by `removed_seq`, whose index would be taken and then sorted by id.
pub(crate) fn load_page(after: &str) -> Statement {
    sql!(
        format!(
            "SELECT {COLUMNS} FROM jobs j WHERE j.id > ? AND j.removed_at IS NULL ORDER BY j.id LIMIT {LOAD_PAGE_ROWS}"
        ),
        after
    )
}

fn life(row: &Row) -> Result<JobLife, StoreError> {
    Ok(JobLife { id: parsed(row, 0, "job id")?, created_at: instant(row.int(1)), removed_at: opt_instant(row, 2) })
}

/// From a row of [`COLUMNS`], without copying the document.
fn raw(mut row: Row) -> Result<RawJob, StoreError> {
    let mut take = |column: usize| match std::mem::replace(&mut row.0[column], Value::Null) {
        Value::Text(text) => text.into_boxed_str(),
        other => panic!("column {column} of jobs holds {other:?}, text was expected"),
    };
    let (namespace, name, document) = (take(2), take(3), take(4));
    Ok(RawJob {
        id: parsed(&row, 0, "job id")?,
        revision: row.int(1) as u64,
        namespace,
        name,
        document,
        created_at: instant(row.int(5)),
        updated_at: instant(row.int(6)),
        counts_from: instant(row.int(7)),
        seq: row.int(8) as u64,
    })
}
