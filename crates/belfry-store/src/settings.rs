//! Settings of the whole cluster, a value per name. The meaning of a value is its reader's business.

use std::collections::BTreeMap;

use belfry_core::Timestamp;
use belfry_sql::{Statement, sql};

use crate::audit::{self, Deed};
use crate::columns::{ms, word};
use crate::dialect::{IfThere, if_there, insert};
use crate::{Actor, Store, StoreError};

const COLUMNS: &[&str] = &["name", "value", "updated_at"];

impl Store {
    pub async fn setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        let rows = self.read(sql!("SELECT value FROM settings WHERE name = ?", name)).await?;
        Ok(rows.first().map(|row| row.text(0).to_owned()))
    }

    pub async fn list_settings(&self) -> Result<BTreeMap<String, String>, StoreError> {
        let rows = self.read(sql!("SELECT name, value FROM settings ORDER BY name")).await?;
        Ok(rows.iter().map(|row| (row.text(0).to_owned(), row.text(1).to_owned())).collect())
    }

    /// The audit row names the setting, not its value, which may be secret.
    pub async fn set_setting(&self, name: &str, value: &str, now: Timestamp, actor: &Actor) -> Result<(), StoreError> {
        let set = [("value", "new.value"), ("updated_at", "new.updated_at")];
        let then = IfThere::Set { columns: &set, guard: None };
        let text = insert("settings", COLUMNS, 1) + &if_there(self.dialect(), "settings", &["name"], &then);
        let args = vec![word(name), word(value), ms(now).into()];
        let mut steps = vec![Statement { sql: text.into(), args }.anything()];
        steps.extend(audit::rows(actor, now, &[Deed::new("setting.update", name)]));
        self.write(steps).await.map(drop)
    }

    /// Sets what is not set yet and answers what holds then: of two servers that start together, both get the same.
    pub async fn setting_or(&self, name: &str, value: &str, now: Timestamp) -> Result<String, StoreError> {
        let text = insert("settings", COLUMNS, 1) + &if_there(self.dialect(), "settings", &["name"], &IfThere::Keep);
        let args = vec![word(name), word(value), ms(now).into()];
        self.write(vec![Statement { sql: text.into(), args }.anything()]).await?;
        self.setting(name).await?.ok_or(StoreError::NotFound)
    }

    pub async fn remove_setting(&self, name: &str, now: Timestamp, actor: &Actor) -> Result<(), StoreError> {
        let mut steps = vec![sql!("DELETE FROM settings WHERE name = ?", name).touching(1)];
        steps.extend(audit::rows(actor, now, &[Deed::new("setting.remove", name)]));
        match self.try_write(steps).await? {
            belfry_sql::Written::Done(_) => Ok(()),
            belfry_sql::Written::Refused { .. } => Err(StoreError::NotFound),
        }
    }
}
