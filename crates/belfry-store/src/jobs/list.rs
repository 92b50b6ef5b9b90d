//! Pages of living jobs, by namespace and name.

use belfry_core::Job;
use belfry_core::job::RunOn;
use belfry_sql::{Dialect, Statement, Value};

use super::change::SERVICE;
use super::{COLUMNS, raw};
use crate::columns::word;
use crate::dialect::pair_after;
use crate::{Page, Store, StoreError};

/// The place of a job in the list.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct JobCursor {
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// None: all. Some: only jobs of these namespaces.
    pub namespaces: Option<Vec<String>>,
    /// A part of name, description or command, in any case.
    pub q: Option<String>,
    /// Every one of these label = value pairs.
    pub labels: Vec<(String, String)>,
    pub enabled: Option<bool>,
    /// Only jobs whose newest run that was started did not succeed; a service ends when it is told to, and is none of them.
    pub failing: bool,
    /// Only jobs of which a run is going.
    pub running: bool,
    /// Only jobs whose newest run was on the node of this name, or that have a home, which only the servers know.
    pub node_name: Option<String>,
    /// Jobs after this one.
    pub cursor: Option<JobCursor>,
    pub limit: usize,
}

impl Store {
    pub async fn list_jobs(&self, filter: &JobFilter) -> Result<Page<Job, JobCursor>, StoreError> {
        let after = filter.cursor.clone().unwrap_or_default();
        let mut rows = Vec::new();
        match &filter.namespaces {
            None => rows = self.read(page(self.dialect(), filter, Within::All(&after), filter.limit + 1)).await?,
            Some(namespaces) => {
                // One namespace after the other: each is a range of the index, in the order of the page.
                let mut namespaces: Vec<&str> =
                    namespaces.iter().map(String::as_str).filter(|namespace| **namespace >= *after.namespace).collect();
                namespaces.sort_unstable();
                namespaces.dedup();
                for namespace in namespaces {
                    let name = if namespace == after.namespace { after.name.as_str() } else { "" };
                    let missing = filter.limit + 1 - rows.len();
                    let within = Within::One(namespace, name);
                    rows.extend(self.read(page(self.dialect(), filter, within, missing)).await?);
                    if rows.len() > filter.limit {
                        break;
                    }
                }
            }
        }
        let jobs = rows.into_iter().map(|row| raw(row)?.parse()).collect::<Result<Vec<_>, _>>()?;
        let place =
            |job: &Job| JobCursor { namespace: job.document.namespace.clone(), name: job.document.name.clone() };
        Ok(Page::of(jobs, filter.limit, place))
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Within<'a> {
    All(&'a JobCursor),
    /// A namespace, and the name after which to start.
    One(&'a str, &'a str),
}

pub(crate) fn page(dialect: Dialect, filter: &JobFilter, within: Within<'_>, limit: usize) -> Statement {
    let mut args: Vec<Value> = Vec::new();
    let mut labels = filter.labels.iter();
    // The first label drives the query, because its index is in the order of the page.
    let (from, by) = match labels.next() {
        Some((label, value)) => {
            args.extend([word(label), word(value)]);
            ("job_labels l JOIN jobs j ON j.id = l.job WHERE l.label = ? AND l.value = ? AND j.removed_seq = 0", "l")
        }
        None => ("jobs j WHERE j.removed_seq = 0", "j"),
    };
    let mut text = format!("SELECT {COLUMNS} FROM {from}");
    match within {
        Within::All(after) => {
            let after = (word(&after.namespace), word(&after.name));
            let (condition, bounds) = pair_after(dialect, &format!("{by}.namespace"), &format!("{by}.name"), after);
            text.push_str(&format!(" AND {condition}"));
            args.extend(bounds);
        }
        Within::One(namespace, after) => {
            text.push_str(&format!(" AND {by}.namespace = ? AND {by}.name > ?"));
            args.extend([word(namespace), word(after)]);
        }
    }
    for (label, value) in labels {
        text.push_str(" AND EXISTS (SELECT 1 FROM job_labels m WHERE m.job = j.id AND m.label = ? AND m.value = ?)");
        args.extend([word(label), word(value)]);
    }
    if let Some(enabled) = filter.enabled {
        text.push_str(" AND j.enabled = ?");
        args.push(enabled.into());
    }
    if filter.failing {
        text.push_str(" AND j.run_on <> ? AND EXISTS (SELECT 1 FROM job_standings s WHERE s.job = j.id AND s.failed_in_a_row > 0)");
        args.push(SERVICE.into());
    }
    if filter.running {
        // Its id is hidden from the planner, which might else begin with the runs and then sort.
        text.push_str(" AND COALESCE(j.id, '') IN (SELECT r.job FROM runs r WHERE r.state = 'running')");
    }
    if let Some(node_name) = &filter.node_name {
        let home = super::change::run_on(RunOn::Home);
        text.push_str(
            " AND (j.run_on = ? OR EXISTS (SELECT 1 FROM job_standings s WHERE s.job = j.id AND s.last_node_name = ?))",
        );
        args.extend([home, word(node_name)]);
    }
    if let Some(q) = filter.q.as_deref().filter(|q| !q.is_empty()) {
        text.push_str(" AND j.words LIKE ? ESCAPE '!'");
        args.push(Value::Text(format!("%{}%", escape_like(&q.to_lowercase()))));
    }
    text.push_str(&format!(" ORDER BY {by}.namespace, {by}.name LIMIT {limit}"));
    Statement { sql: text.into(), args }
}

/// So that `%` and `_` in a search mean themselves.
fn escape_like(q: &str) -> String {
    q.replace('!', "!!").replace('%', "!%").replace('_', "!_")
}
