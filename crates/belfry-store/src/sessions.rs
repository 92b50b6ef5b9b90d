//! Logins of the console: a hashed secret, whose it is and until when.

use belfry_core::Timestamp;
use belfry_sql::{Written, sql};

use crate::audit::{self, Deed};
use crate::columns::ms;
use crate::users::{COLUMNS, user};
use crate::{Actor, SecretHash, Store, StoreError, User};

impl Store {
    pub async fn create_session(
        &self,
        secret: SecretHash,
        owner: &str,
        now: Timestamp,
        expires_at: Timestamp,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let mut steps = audit::rows(actor, now, &[Deed::new("session.create", owner)]);
        steps.extend([
            sql!("SELECT name FROM users WHERE name = ? AND disabled = 0", owner).returning(1),
            sql!(
                "INSERT INTO sessions (hash, owner, created_at, expires_at) VALUES (?, ?, ?, ?)",
                secret,
                owner,
                ms(now),
                ms(expires_at)
            )
            .touching(1),
        ]);
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(()),
            Written::Refused { .. } => Err(StoreError::NotFound),
        }
    }

    /// Who has logged in with this secret, if that still holds.
    pub async fn session_user(&self, secret: SecretHash, now: Timestamp) -> Result<Option<User>, StoreError> {
        let text = format!(
            "SELECT {COLUMNS} FROM sessions s JOIN users u ON u.name = s.owner WHERE s.hash = ? AND s.expires_at > ? AND u.disabled = 0"
        );
        self.read(sql!(text, secret, ms(now))).await?.first().map(user).transpose()
    }

    /// A session that is in use lives on.
    pub async fn extend_session(&self, secret: SecretHash, expires_at: Timestamp) -> Result<(), StoreError> {
        let text = "UPDATE sessions SET expires_at = ? WHERE hash = ? AND expires_at < ?";
        self.write(vec![sql!(text, ms(expires_at), secret, ms(expires_at)).anything()]).await.map(drop)
    }

    /// Logging out twice is no error.
    pub async fn remove_session(&self, secret: SecretHash, now: Timestamp, actor: &Actor) -> Result<(), StoreError> {
        let mut steps = audit::rows(actor, now, &[Deed::new("session.remove", &actor.name)]);
        steps.push(sql!("DELETE FROM sessions WHERE hash = ?", secret).touching(1));
        self.try_write(steps).await.map(drop)
    }
}
