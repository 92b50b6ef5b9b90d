//! Tokens for programs, of a user or of a service by itself. Only the hash of a secret is ever kept.

use belfry_core::Timestamp;
use belfry_core::role::Grants;
use belfry_sql::{Row, Value, Written, sql};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::audit::{self, Deed};
use crate::columns::{from_json, instant, json as to_json, ms, opt_instant, opt_ms, word};
use crate::{Actor, Store, StoreError};

/// `last_used_at` is written at most this often for one token.
const LAST_USED_GRAIN_MS: i64 = 60_000;

/// SHA-256 of a secret, as hex. Enough for secrets of full entropy; passwords are hashed with argon2 elsewhere.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SecretHash(String);

impl SecretHash {
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// One that was made elsewhere.
    pub fn from_hex(digits: &str) -> Self {
        Self(digits.to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}…", self.0.get(..6).unwrap_or_default())
    }
}

impl From<SecretHash> for Value {
    fn from(hash: SecretHash) -> Self {
        Value::Text(hash.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenOwner {
    /// Ends with the user, and is worth nothing while the user is disabled.
    User(String),
    Service(String),
}

impl TokenOwner {
    pub fn name(&self) -> &str {
        match self {
            TokenOwner::User(name) | TokenOwner::Service(name) => name,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub owner: TokenOwner,
    pub label: String,
    pub grants: Grants,
    /// None: never.
    pub expires_at: Option<Timestamp>,
    pub created_at: Timestamp,
    pub last_used_at: Option<Timestamp>,
}

pub struct NewToken {
    pub id: String,
    pub owner: TokenOwner,
    pub label: String,
    pub secret: SecretHash,
    pub grants: Grants,
    pub expires_at: Option<Timestamp>,
}

const COLUMNS: &str = "t.id, t.owner, t.is_service, t.label, t.grants, t.expires_at, t.created_at, t.last_used_at";

impl Store {
    pub async fn create_token(&self, new: NewToken, now: Timestamp, actor: &Actor) -> Result<Token, StoreError> {
        let is_service = matches!(new.owner, TokenOwner::Service(_));
        let detail = json!({"owner": new.owner.name(), "label": new.label, "grants": new.grants});
        let mut steps = audit::rows(actor, now, &[Deed::new("token.create", &new.id).detail(detail)]);
        let owner_there = steps.len();
        if !is_service {
            steps.push(sql!("SELECT name FROM users WHERE name = ?", new.owner.name()).returning(1));
        }
        steps.push(
            sql!(
                "INSERT INTO tokens (id, owner, is_service, label, hash, grants, expires_at, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                word(&new.id),
                new.owner.name(),
                is_service,
                word(&new.label),
                new.secret,
                to_json(&new.grants),
                opt_ms(new.expires_at),
                ms(now),
            )
            .touching(1),
        );
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(Token {
                id: new.id,
                owner: new.owner,
                label: new.label,
                grants: new.grants,
                expires_at: new.expires_at,
                created_at: now,
                last_used_at: None,
            }),
            Written::Refused { step, .. } if !is_service && step == owner_there => Err(StoreError::NotFound),
            Written::Refused { .. } => Err(StoreError::NameTaken { name: new.id }),
        }
    }

    /// The token of a secret, if it is good now: not expired, and its user not disabled.
    pub async fn token_of(&self, secret: SecretHash, now: Timestamp) -> Result<Option<Token>, StoreError> {
        let text = format!(
            "SELECT {COLUMNS} FROM tokens t WHERE t.hash = ? AND (t.expires_at IS NULL OR t.expires_at > ?) \
             AND (t.is_service = 1 OR EXISTS (SELECT 1 FROM users u WHERE u.name = t.owner AND u.disabled = 0))"
        );
        self.read(sql!(text, secret, ms(now))).await?.first().map(token).transpose()
    }

    /// Remembers the use, to the minute; most calls write nothing.
    pub async fn token_used(&self, token: &Token, now: Timestamp) -> Result<(), StoreError> {
        let fresh_from = ms(now) - LAST_USED_GRAIN_MS;
        if token.last_used_at.is_some_and(|at| ms(at) > fresh_from) {
            return Ok(());
        }
        let text = "UPDATE tokens SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)";
        self.write(vec![sql!(text, ms(now), word(&token.id), ms(now)).anything()]).await.map(drop)
    }

    /// By owner and id; of one owner, or all.
    pub async fn list_tokens(&self, owner: Option<&str>) -> Result<Vec<Token>, StoreError> {
        let (guard, args) = owner.map_or(("1 = 1", vec![]), |owner| ("t.owner = ?", vec![word(owner)]));
        let text = format!("SELECT {COLUMNS} FROM tokens t WHERE {guard} ORDER BY t.owner, t.id");
        self.read(belfry_sql::Statement { sql: text.into(), args }).await?.iter().map(token).collect()
    }

    pub async fn remove_token(&self, id: &str, now: Timestamp, actor: &Actor) -> Result<(), StoreError> {
        let mut steps = audit::rows(actor, now, &[Deed::new("token.remove", id)]);
        steps.push(sql!("DELETE FROM tokens WHERE id = ?", id).touching(1));
        match self.try_write(steps).await? {
            Written::Done(_) => Ok(()),
            Written::Refused { .. } => Err(StoreError::NotFound),
        }
    }
}

fn token(row: &Row) -> Result<Token, StoreError> {
    let owner = row.text(1).to_owned();
    Ok(Token {
        id: row.text(0).to_owned(),
        owner: if row.int(2) == 1 { TokenOwner::Service(owner) } else { TokenOwner::User(owner) },
        label: row.text(3).to_owned(),
        grants: from_json(row.text(4), "grants of a token")?,
        expires_at: opt_instant(row, 5),
        created_at: instant(row.int(6)),
        last_used_at: opt_instant(row, 7),
    })
}
