//! Stored scripts with all their versions. A job names a script; what it executes is the newest version at that time.

use belfry_core::Timestamp;
use belfry_core::job::{Action, JobDocument};
use belfry_sql::{Row, Value, Written, sql};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::audit::{self, Deed};
use crate::columns::{from_json, instant, ms, word};
use crate::dialect::pair_after;
use crate::{Actor, Page, Store, StoreError};

/// One version of a script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    pub namespace: String,
    pub name: String,
    /// 1 for the first.
    pub version: u64,
    /// Of the body, in hex.
    pub sha256: String,
    pub at: Timestamp,
    pub author: String,
    /// Empty in lists.
    pub body: String,
}

/// Namespace and name of a script, behind which a list goes on.
pub type ScriptPlace = (String, String);

/// How many jobs a refusal names.
const USERS_NAMED_MAX: usize = 10;
const TRIES_MAX: usize = 5;
const FACTS: &str = "s.namespace, s.name, s.version, s.sha256, s.at, s.author";
const NEWEST: &str =
    "s.version = (SELECT MAX(n.version) FROM scripts n WHERE n.namespace = s.namespace AND n.name = s.name)";

impl Store {
    /// A new version, unless the newest has this body already. `expected`: only on top of this version; 0: only if there is none.
    pub async fn put_script(
        &self,
        (namespace, name): (&str, &str),
        body: &str,
        expected: Option<u64>,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<Script, StoreError> {
        let sha256 = digest(body);
        for _ in 0..TRIES_MAX {
            let newest = self.script(namespace, name, None).await?;
            let held = newest.as_ref().map_or(0, |newest| newest.version);
            if expected.is_some_and(|expected| expected != held) {
                return Err(StoreError::Conflict { revision: held });
            }
            if let Some(newest) = newest.filter(|newest| newest.sha256 == sha256) {
                return Ok(newest);
            }
            let version = held + 1;
            let deed = Deed::new("script.put", format!("{namespace}/{name}")).within(namespace);
            let deed = deed.detail(json!({ "version": version, "sha256": sha256 }));
            let mut steps = audit::rows(actor, now, &[deed]);
            steps.push(sql!("UPDATE counters SET value = value + 1 WHERE name = 'scripts'").touching(1));
            let text =
                "INSERT INTO scripts (namespace, name, version, sha256, at, author, body) VALUES (?, ?, ?, ?, ?, ?, ?)";
            let (at, author) = (ms(now), actor.name.clone());
            steps.push(sql!(text, namespace, name, version, sha256.clone(), at, author.clone(), body).touching(1));
            // Refused: someone was faster.
            if let Written::Done(_) = self.try_write(steps).await? {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                return Ok(Script { namespace, name, version, sha256, at: instant(at), author, body: body.to_owned() });
            }
        }
        Err(belfry_sql::SqlError::Away("the script keeps changing under this edit".to_owned()).into())
    }

    /// This version, or the newest.
    pub async fn script(
        &self,
        namespace: &str,
        name: &str,
        version: Option<u64>,
    ) -> Result<Option<Script>, StoreError> {
        let wanted = version.map_or(Value::Null, Value::from);
        let text = format!(
            "SELECT {FACTS}, s.body FROM scripts s WHERE s.namespace = ? AND s.name = ? AND s.version = \
             COALESCE(?, (SELECT MAX(n.version) FROM scripts n WHERE n.namespace = ? AND n.name = ?))"
        );
        let rows = self.read(sql!(text, namespace, name, wanted, namespace, name)).await?;
        Ok(rows.first().map(|row| Script { body: row.text(6).to_owned(), ..facts(row) }))
    }

    /// The newest version of each, by namespace and name, without their bodies.
    pub async fn list_scripts(
        &self,
        namespaces: Option<&[String]>,
        cursor: Option<ScriptPlace>,
        limit: usize,
    ) -> Result<Page<Script, ScriptPlace>, StoreError> {
        let mut args = Vec::new();
        let mut text = format!("SELECT {FACTS} FROM scripts s WHERE {NEWEST}");
        if let Some(namespaces) = namespaces {
            if namespaces.is_empty() {
                return Ok(Page { items: Vec::new(), next: None });
            }
            text.push_str(&format!(" AND s.namespace IN ({})", crate::dialect::marks(namespaces.len())));
            args.extend(namespaces.iter().map(word));
        }
        if let Some((namespace, name)) = cursor {
            let (after, pair) = pair_after(self.dialect(), "s.namespace", "s.name", (word(namespace), word(name)));
            text.push_str(&format!(" AND {after}"));
            args.extend(pair);
        }
        text.push_str(" ORDER BY s.namespace, s.name LIMIT ?");
        args.push((limit as u64 + 1).into());
        let rows = self.read(belfry_sql::Statement { sql: text.into(), args }).await?;
        let place = |script: &Script| (script.namespace.clone(), script.name.clone());
        Ok(Page::of(rows.iter().map(facts).collect(), limit, place))
    }

    /// All versions of one, the newest first, without their bodies.
    pub async fn script_versions(
        &self,
        namespace: &str,
        name: &str,
        cursor: Option<u64>,
        limit: usize,
    ) -> Result<Page<Script, u64>, StoreError> {
        let before = cursor.map_or(Value::Int(i64::MAX), Value::from);
        let text = format!(
            "SELECT {FACTS} FROM scripts s WHERE s.namespace = ? AND s.name = ? AND s.version < ? ORDER BY s.version DESC LIMIT ?"
        );
        let rows = self.read(sql!(text, namespace, name, before, limit as u64 + 1)).await?;
        Ok(Page::of(rows.iter().map(facts).collect(), limit, |script| script.version))
    }

    /// The newest version of every script with its body, and the number of the last change: for those who send them to agents.
    pub async fn newest_scripts(&self) -> Result<(Vec<Script>, u64), StoreError> {
        // Before the rows: a change in between is then looked at again rather than never.
        let change = self.last_script_change().await?;
        let rows = self.read(sql!(format!("SELECT {FACTS}, s.body FROM scripts s WHERE {NEWEST}"))).await?;
        let scripts = rows.iter().map(|row| Script { body: row.text(6).to_owned(), ..facts(row) }).collect();
        Ok((scripts, change))
    }

    pub async fn last_script_change(&self) -> Result<u64, StoreError> {
        let rows = self.read(sql!("SELECT value FROM counters WHERE name = 'scripts'")).await?;
        Ok(rows.first().map_or(0, |row| row.int(0) as u64))
    }

    /// With all its versions, unless jobs use it.
    pub async fn remove_script(
        &self,
        namespace: &str,
        name: &str,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let users = self.users_of_script(namespace, name).await?;
        if !users.is_empty() {
            return Err(StoreError::InUse { by: users });
        }
        let deed = Deed::new("script.remove", format!("{namespace}/{name}")).within(namespace);
        let mut steps = audit::rows(actor, now, &[deed]);
        let guarded = steps.len();
        let text = "SELECT 1 FROM scripts WHERE namespace = ? AND name = ? AND version = 1";
        steps.push(sql!(text, namespace, name).returning(1));
        steps.push(sql!("DELETE FROM scripts WHERE namespace = ? AND name = ?", namespace, name).anything());
        steps.push(sql!("UPDATE counters SET value = value + 1 WHERE name = 'scripts'").touching(1));
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(()),
            Written::Refused { step, .. } if step == guarded => Err(StoreError::NotFound),
            Written::Refused { step, .. } => {
                Err(belfry_sql::SqlError::Broken(format!("step {step} of a removal was refused")).into())
            }
        }
    }

    /// Names of jobs that execute it, some of them if there are many. Looks through the documents of the namespace: a removal is rare.
    async fn users_of_script(&self, namespace: &str, name: &str) -> Result<Vec<String>, StoreError> {
        let text =
            "SELECT document FROM jobs WHERE removed_seq = 0 AND namespace = ? AND document LIKE ? ORDER BY name";
        let rows = self.read(sql!(text, namespace, "%\"script\"%")).await?;
        let mut users = Vec::new();
        for row in rows {
            let document: JobDocument = from_json(row.text(0), "job")?;
            if let Action::Script(script) = &document.action
                && script.name.as_deref() == Some(name)
                && users.len() < USERS_NAMED_MAX
            {
                users.push(document.full_name());
            }
        }
        Ok(users)
    }
}

fn facts(row: &Row) -> Script {
    Script {
        namespace: row.text(0).to_owned(),
        name: row.text(1).to_owned(),
        version: row.int(2) as u64,
        sha256: row.text(3).to_owned(),
        at: instant(row.int(4)),
        author: row.text(5).to_owned(),
        body: String::new(),
    }
}

fn digest(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
