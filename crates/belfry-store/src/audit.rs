//! Who changed what, when, from where. Rows are written in the transaction of the change itself, so there is no edit without
//! its row and no row without its edit. Values of fields, and so secrets, never enter it.

use std::cmp::Reverse;

use belfry_core::Timestamp;
use belfry_sql::{Dialect, Row, Statement, Step, Value, sql};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::branches::{BRANCHES_MAX, Branch};
use crate::columns::{from_json, instant, ms, word};
use crate::dialect::{insert, newest_of, pair_before, pieces};
use crate::{Page, Store, StoreError};

const COLUMNS: &str = "seq, at, actor, origin, action, namespace, subject, detail";

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
    pub cursor: Option<AuditPlace>,
    pub limit: usize,
}

/// Where a page of the audit ends. Clocks of servers differ and are set: the order of `at` is not that of the numbers, and a list goes by one
/// of them from its first page to its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AuditPlace {
    Seq(u64),
    /// Milliseconds since 1970, and the number.
    At(i64, u64),
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

    /// Newest first: by time where the filter has one, else in the order of the changes.
    pub async fn list_audit(&self, filter: &AuditFilter) -> Result<Page<AuditEntry, AuditPlace>, StoreError> {
        let Some(statement) = filter.page(self.dialect()) else { return Ok(Page { items: Vec::new(), next: None }) };
        let rows = self.read(statement).await?;
        let mut entries = rows.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let by_time = filter.goes_by_time();
        entries.sort_unstable_by_key(|entry| Reverse((by_time.then_some(entry.at), entry.seq)));
        Ok(Page::of(entries, filter.limit, |entry| match by_time {
            true => AuditPlace::At(ms(entry.at), entry.seq),
            false => AuditPlace::Seq(entry.seq),
        }))
    }
}

impl AuditFilter {
    /// A list that began by number, as all did before there were indexes by time, goes on so.
    fn goes_by_time(&self) -> bool {
        match self.cursor {
            None => self.from.is_some() || self.to.is_some(),
            Some(AuditPlace::At(..)) => true,
            Some(AuditPlace::Seq(_)) => false,
        }
    }

    /// None when nothing can match. Asks for one entry more than the limit. One filter leads, by an index that yields entries in order; the
    /// others are checked.
    pub(crate) fn page(&self, dialect: Dialect) -> Option<Statement> {
        let namespaces = self.namespaces.as_ref().map(|namespaces| {
            let mut namespaces = namespaces.clone();
            namespaces.sort_unstable();
            namespaces.dedup();
            namespaces
        });
        if namespaces.as_ref().is_some_and(Vec::is_empty) {
            return None;
        }
        let branches = match (&self.actor, &self.action, &namespaces) {
            (Some(actor), action, _) => vec![
                Branch::default().equal("actor", word(actor)).checked("action", action.as_slice()).within(&namespaces),
            ],
            (None, Some(action), _) => vec![Branch::default().equal("action", word(action)).within(&namespaces)],
            (None, None, Some(some)) if some.len() <= BRANCHES_MAX => {
                some.iter().map(|namespace| Branch::default().equal("namespace", word(namespace))).collect()
            }
            (None, None, _) => vec![Branch::default().within(&namespaces)],
        };
        let order: &[&str] = if self.goes_by_time() { &["at", "seq"] } else { &["seq"] };
        let branches = branches.into_iter().map(|branch| self.before(dialect, branch).spoken());
        let (texts, args): (Vec<String>, Vec<Vec<Value>>) = branches.unzip();
        let text = newest_of(dialect, "audit", COLUMNS, order, &texts, self.limit + 1);
        Some(Statement { sql: text.into(), args: args.concat() })
    }

    /// Always with both ends, so that each combination of filters has one text, which stays prepared.
    fn before(&self, dialect: Dialect, branch: Branch) -> Branch {
        let from = self.from.map_or(i64::MIN, ms);
        let to = self.to.map_or(i64::MAX, ms);
        match self.cursor {
            Some(AuditPlace::Seq(seq)) if self.from.is_some() || self.to.is_some() => branch
                .that("seq < ?", [seq.into()])
                // Hidden from planners, as all that is only checked.
                .that("COALESCE(at, 0) >= ? AND COALESCE(at, 0) < ?", [from.into(), to.into()]),
            Some(AuditPlace::Seq(seq)) => branch.that("seq < ?", [seq.into()]),
            None if !self.goes_by_time() => branch.that("seq < ?", [i64::MAX.into()]),
            Some(AuditPlace::At(..)) | None => {
                // No number is below 0: without a cursor it is all before `to`.
                let first_after = match self.cursor {
                    Some(AuditPlace::At(at, seq)) if at < to => (Value::Int(at), Value::from(seq)),
                    _ => (Value::Int(to), Value::Int(0)),
                };
                let (before, bounds) = pair_before(dialect, "at", "seq", first_after);
                branch.that("at >= ?", [from.into()]).that(&before, bounds)
            }
        }
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
