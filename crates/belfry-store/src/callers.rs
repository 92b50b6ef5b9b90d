//! Whose a credential is, all of them at once: for a server that goes on answering while the store is away. It has hashes of secrets of
//! full entropy and no password.

use belfry_core::Timestamp;
use belfry_core::role::Grants;
use belfry_sql::sql;
use serde::{Deserialize, Serialize};

use crate::columns::{from_json, instant, ms, opt_instant};
use crate::{SecretHash, Store, StoreError, TokenOwner};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Callers {
    /// Those that may log in.
    users: Vec<(String, Grants)>,
    tokens: Vec<KnownToken>,
    sessions: Vec<KnownSession>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownToken {
    hash: String,
    owner: String,
    is_service: bool,
    grants: Grants,
    expires_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownSession {
    hash: String,
    owner: String,
    expires_at: Timestamp,
}

impl Store {
    /// What is good at this moment.
    pub async fn callers(&self, now: Timestamp) -> Result<Callers, StoreError> {
        let users = self.read(sql!("SELECT name, grants FROM users WHERE disabled = 0 ORDER BY name")).await?;
        let tokens = self
            .read(sql!(
                "SELECT hash, owner, is_service, grants, expires_at FROM tokens \
                 WHERE expires_at IS NULL OR expires_at > ? ORDER BY hash",
                ms(now)
            ))
            .await?;
        let sessions = self
            .read(sql!("SELECT hash, owner, expires_at FROM sessions WHERE expires_at > ? ORDER BY hash", ms(now)))
            .await?;
        let users = users.iter().map(|row| Ok((row.text(0).to_owned(), from_json(row.text(1), "grants of a user")?)));
        let tokens = tokens.iter().map(|row| {
            Ok(KnownToken {
                hash: row.text(0).to_owned(),
                owner: row.text(1).to_owned(),
                is_service: row.int(2) != 0,
                grants: from_json(row.text(3), "grants of a token")?,
                expires_at: opt_instant(row, 4),
            })
        });
        let sessions = sessions.iter().map(|row| KnownSession {
            hash: row.text(0).to_owned(),
            owner: row.text(1).to_owned(),
            expires_at: instant(row.int(2)),
        });
        Ok(Callers {
            users: users.collect::<Result<_, StoreError>>()?,
            tokens: tokens.collect::<Result<_, StoreError>>()?,
            sessions: sessions.collect(),
        })
    }
}

impl Callers {
    pub fn user(&self, name: &str) -> Option<&Grants> {
        self.users.iter().find(|(known, _)| known == name).map(|(_, grants)| grants)
    }

    /// As [`Store::token_of`]: whose it is, and what it allows by itself.
    pub fn token_of(&self, secret: &SecretHash, now: Timestamp) -> Option<(TokenOwner, &Grants)> {
        let token = self.tokens.iter().find(|token| token.hash == secret.as_str())?;
        if token.expires_at.is_some_and(|at| at <= now) || (!token.is_service && self.user(&token.owner).is_none()) {
            return None;
        }
        let owner = token.owner.clone();
        Some((if token.is_service { TokenOwner::Service(owner) } else { TokenOwner::User(owner) }, &token.grants))
    }

    /// As [`Store::session_user`].
    pub fn session_user(&self, secret: &SecretHash, now: Timestamp) -> Option<(&str, &Grants)> {
        let session =
            self.sessions.iter().find(|session| session.hash == secret.as_str() && session.expires_at > now)?;
        Some((&session.owner, self.user(&session.owner)?))
    }
}
