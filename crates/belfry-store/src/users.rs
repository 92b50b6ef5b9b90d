//! People who may log in, what they are granted, and the rule that one of them always stays admin. Passwords come in hashed.

use belfry_core::Timestamp;
use belfry_core::role::{Grants, Role};
use belfry_sql::{Row, Step, Written, sql};
use serde_json::json;

use crate::audit::{self, Deed};
use crate::columns::{from_json, instant, json as to_json, ms, word};
use crate::{Actor, Store, StoreError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub password_hash: String,
    pub grants: Grants,
    /// May not log in, nor use tokens.
    pub disabled: bool,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Clone, Debug)]
pub struct NewUser {
    pub name: String,
    pub password_hash: String,
    pub grants: Grants,
}

/// What is None stays as it is.
#[derive(Clone, Debug, Default)]
pub struct UserChange {
    pub password_hash: Option<String>,
    pub grants: Option<Grants>,
    pub disabled: Option<bool>,
}

pub(crate) const COLUMNS: &str = "u.name, u.password_hash, u.grants, u.disabled, u.created_at, u.updated_at";

impl Store {
    pub async fn create_user(&self, new: NewUser, now: Timestamp, actor: &Actor) -> Result<User, StoreError> {
        let deed = Deed::new("user.create", &new.name).detail(json!({"grants": new.grants}));
        let mut steps = audit::rows(actor, now, &[deed]);
        steps.push(
            sql!(
                "INSERT INTO users (name, password_hash, grants, is_admin, disabled, created_at, updated_at) \
                 VALUES (?, ?, ?, ?, 0, ?, ?)",
                word(&new.name),
                word(&new.password_hash),
                to_json(&new.grants),
                is_admin(&new.grants),
                ms(now),
                ms(now),
            )
            .touching(1),
        );
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(User {
                name: new.name,
                password_hash: new.password_hash,
                grants: new.grants,
                disabled: false,
                created_at: now,
                updated_at: now,
            }),
            Written::Refused { .. } => Err(StoreError::NameTaken { name: new.name }),
        }
    }

    pub async fn user(&self, name: &str) -> Result<Option<User>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM users u WHERE u.name = ?");
        self.read(sql!(text, name)).await?.first().map(user).transpose()
    }

    /// Users are few: all of them, by name.
    pub async fn list_users(&self) -> Result<Vec<User>, StoreError> {
        let text = format!("SELECT {COLUMNS} FROM users u ORDER BY u.name");
        self.read(sql!(text)).await?.iter().map(user).collect()
    }

    /// A new password, or disabling, ends the user's sessions in the same transaction.
    pub async fn update_user(
        &self,
        name: &str,
        change: UserChange,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<User, StoreError> {
        let detail = json!({"grants": change.grants, "disabled": change.disabled, "password": change.password_hash.as_ref().map(|_| "changed")});
        let mut steps = audit::rows(actor, now, &[Deed::new("user.update", name).detail(detail)]);
        let named = steps.len();
        steps.push(
            sql!(
                "UPDATE users SET password_hash = COALESCE(?, password_hash), grants = COALESCE(?, grants), \
                 is_admin = COALESCE(?, is_admin), disabled = COALESCE(?, disabled), updated_at = ? WHERE name = ?",
                change.password_hash.clone(),
                change.grants.as_ref().map(to_json),
                change.grants.as_ref().map(is_admin),
                change.disabled,
                ms(now),
                name,
            )
            .touching(1),
        );
        let may_end_an_admin =
            change.disabled == Some(true) || change.grants.as_ref().is_some_and(|grants| !is_admin(grants));
        if may_end_an_admin {
            steps.push(an_admin_is_left());
        }
        if change.password_hash.is_some() || change.disabled == Some(true) {
            steps.push(sql!("DELETE FROM sessions WHERE owner = ?", name).anything());
        }
        self.write_keeping_an_admin(steps, named).await?;
        self.user(name).await?.ok_or(StoreError::NotFound)
    }

    /// With all sessions and tokens.
    pub async fn remove_user(&self, name: &str, now: Timestamp, actor: &Actor) -> Result<(), StoreError> {
        // Removing a user who was no admin must work also in a store that has none.
        let was_admin = self.user(name).await?.ok_or(StoreError::NotFound)?;
        let mut steps = audit::rows(actor, now, &[Deed::new("user.remove", name)]);
        let named = steps.len();
        steps.push(sql!("DELETE FROM users WHERE name = ?", name).touching(1));
        if is_admin(&was_admin.grants) {
            steps.push(an_admin_is_left());
        }
        steps.push(sql!("DELETE FROM sessions WHERE owner = ?", name).anything());
        steps.push(sql!("DELETE FROM tokens WHERE owner = ? AND is_service = 0", name).anything());
        self.write_keeping_an_admin(steps, named).await
    }

    /// The step `named` names the user; the only other guard is [`an_admin_is_left`].
    async fn write_keeping_an_admin(&self, steps: Vec<Step>, named: usize) -> Result<(), StoreError> {
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(()),
            Written::Refused { step, .. } if step == named => Err(StoreError::NotFound),
            Written::Refused { .. } => Err(StoreError::LastAdmin),
        }
    }
}

fn an_admin_is_left() -> Step {
    sql!("SELECT name FROM users WHERE is_admin = 1 AND disabled = 0 LIMIT 1").returning(1)
}

fn is_admin(grants: &Grants) -> bool {
    grants.allow_everywhere(Role::Admin)
}

/// From the first columns of a row that begins with [`COLUMNS`].
pub(crate) fn user(row: &Row) -> Result<User, StoreError> {
    Ok(User {
        name: row.text(0).to_owned(),
        password_hash: row.text(1).to_owned(),
        grants: from_json(row.text(2), "grants of a user")?,
        disabled: row.int(3) != 0,
        created_at: instant(row.int(4)),
        updated_at: instant(row.int(5)),
    })
}
