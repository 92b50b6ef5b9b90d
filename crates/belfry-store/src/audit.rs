//! Who changed what, when, from where. Rows are written in the transaction of the change itself, so there is no edit without
//! its row and no row without its edit. Values of fields, and so secrets, never enter it.

use belfry_core::Timestamp;
use belfry_sql::{Row, Step, Value, sql};
use serde_json::Value as Json;

use crate::columns::{from_json, instant, ms, word};
use crate::dialect::{insert, marks, pieces};
use crate::{Page, Store, StoreError};

/// On whose behalf something is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor {
    /// A user, a service or `belfry` itself.
    pub name: String,
    /// The address that the request came from.
    pub origin: Option<String>,
}

impl Actor {
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), origin: None }
    }

    pub fn from(mut self, origin: impl Into<String>) -> Self {
        self.origin = Some(origin.into());
        self
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct AuditEntry {
    /// Grows in the order of the changes.
    pub seq: u64,
    pub at: Timestamp,
    pub actor: String,
    pub origin: Option<String>,
    /// Noun and verb, as `job.update`.
    pub action: String,
    /// None for what belongs to no namespace.
    pub namespace: Option<String>,
    pub subject: String,
    pub detail: Json,
}

#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// None: all. Some: only entries of these namespaces.
    pub namespaces: Option<Vec<String>>,
    pub actor: Option<String>,
    pub action: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    /// Entries before this one.
    pub cursor: Option<u64>,
    pub limit: usize,
}

/// One row to be.
pub(crate) struct Deed {
    pub action: &'static str,
    pub namespace: Option<String>,
    pub subject: String,
    pub detail: Json,
}

impl Deed {
    pub(crate) fn new(action: &'static str, subject: impl Into<String>) -> Self {
        Self { action, namespace: None, subject: subject.into(), detail: Json::Object(Default::default()) }
    }

    pub(crate) fn within(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    pub(crate) fn detail(mut self, detail: Json) -> Self {
        self.detail = detail;
        self
    }
}

/// The steps that write these rows. They go before a change that reads before it writes, as all of users, tokens and sessions do:
/// the counter's row is then the lock that lets such changes take effect one after the other. Elsewhere they go behind it.
pub(crate) fn rows(actor: &Actor, at: Timestamp, deeds: &[Deed]) -> Vec<Step> {
    if deeds.is_empty() {
        return Vec::new();
    }
    // The counter's row is locked until the commit, so numbers appear in their order and none appears late.
    let mut steps =
        vec![sql!("UPDATE counters SET value = value + ? WHERE name = 'audit'", deeds.len() as u64).touching(1)];
    let mut left = deeds.len();
    for piece in pieces(deeds) {
        let mut args: Vec<Value> = Vec::with_capacity(piece.len() * 8);
        for deed in piece {
            left -= 1;
            args.extend([
                Value::from(left as u64),
                ms(at).into(),
                word(&actor.name),
                actor.origin.clone().into(),
                word(deed.action),
                deed.namespace.clone().into(),
                word(&deed.subject),
                word(&deed.detail),
            ]);
        }
        let columns = ["seq", "at", "actor", "origin", "action", "namespace", "subject", "detail"];
        let text = insert("audit", &columns, piece.len())
            .replace("(?, ?,", "((SELECT value FROM counters WHERE name = 'audit') - ?, ?,");
        steps.push(belfry_sql::Statement { sql: text.into(), args }.touching(piece.len() as u64));
    }
    steps
}

impl Store {
    /// A deed that changes nothing in the store by itself, such as a run that was started or killed by hand. Edits bring their
    /// own row, in their own transaction.
    pub async fn record_deed(
        &self,
        action: &'static str,
        namespace: &str,
        subject: &str,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let deed = Deed::new(action, subject).within(namespace);
        self.write(rows(actor, now, &[deed])).await.map(drop)
    }

    /// Newest first.
    pub async fn list_audit(&self, filter: &AuditFilter) -> Result<Page<AuditEntry, u64>, StoreError> {
        let mut text =
            "SELECT seq, at, actor, origin, action, namespace, subject, detail FROM audit WHERE seq < ?".to_owned();
        let mut args = vec![filter.cursor.map_or(Value::Int(i64::MAX), Value::from)];
        let mut narrow = |condition: &str, value: Option<Value>| {
            if let Some(value) = value {
                text.push_str(condition);
                args.push(value);
            }
        };
        narrow(" AND actor = ?", filter.actor.as_ref().map(word));
        narrow(" AND action = ?", filter.action.as_ref().map(word));
        narrow(" AND at >= ?", filter.from.map(|at| ms(at).into()));
        narrow(" AND at < ?", filter.to.map(|at| ms(at).into()));
        if let Some(namespaces) = &filter.namespaces {
            if namespaces.is_empty() {
                return Ok(Page { items: Vec::new(), next: None });
            }
            text.push_str(&format!(" AND namespace IN ({})", marks(namespaces.len())));
            args.extend(namespaces.iter().map(word));
        }
        text.push_str(&format!(" ORDER BY seq DESC LIMIT {}", filter.limit + 1));
        let rows = self.read(belfry_sql::Statement { sql: text.into(), args }).await?;
        let entries = rows.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        Ok(Page::of(entries, filter.limit, |entry| entry.seq))
    }
}

fn entry(row: &Row) -> Result<AuditEntry, StoreError> {
    Ok(AuditEntry {
        seq: row.int(0) as u64,
        at: instant(row.int(1)),
        actor: row.text(2).to_owned(),
        origin: row.opt_text(3).map(str::to_owned),
        action: row.text(4).to_owned(),
        namespace: row.opt_text(5).map(str::to_owned),
        subject: row.text(6).to_owned(),
        detail: from_json(row.text(7), "audit entry")?,
    })
}
