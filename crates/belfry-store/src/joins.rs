//! Join tokens, each good for one node, and the credential of the node that used it. Only hashes are kept.

use belfry_core::{NodeId, Timestamp};
use belfry_sql::{Written, sql};
use serde_json::json;

use crate::audit::{self, Deed};
use crate::columns::{instant, ms, opt_instant, parsed, word};
use crate::{Actor, SecretHash, Store, StoreError};

/// A token that nobody used is forgotten so long after it expired; until then its late user is told what it was.
const EXPIRED_KEPT_MS: i64 = 30 * 86_400_000;

/// What became of an attempt to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    Yes,
    /// Nobody made such a token, or it expired long ago.
    UnknownToken,
    ExpiredToken(Timestamp),
    UsedToken(Timestamp),
    /// Another node has this id; a node that joins brings a new one.
    NodeTaken,
}

impl Store {
    pub async fn create_join_token(
        &self,
        secret: SecretHash,
        expires_at: Timestamp,
        now: Timestamp,
        actor: &Actor,
    ) -> Result<(), StoreError> {
        let detail = json!({ "expires_at": expires_at });
        let mut steps = audit::rows(actor, now, &[Deed::new("node.join_token", "").detail(detail)]);
        steps.push(
            sql!(
                "INSERT INTO join_tokens (hash, created_at, expires_at) VALUES (?, ?, ?)",
                secret,
                ms(now),
                ms(expires_at)
            )
            .touching(1),
        );
        let text = "DELETE FROM join_tokens WHERE used_at IS NULL AND expires_at < ?";
        steps.push(sql!(text, ms(now) - EXPIRED_KEPT_MS).anything());
        self.write(steps).await.map(drop)
    }

    /// A token lets in one node with one credential. The same once more is the same joining, whose answer was lost.
    pub async fn join_node(
        &self,
        token: SecretHash,
        node: NodeId,
        name: &str,
        credential: SecretHash,
        now: Timestamp,
    ) -> Result<Joined, StoreError> {
        let text = "SELECT used_at, used_by, credential, expires_at FROM join_tokens WHERE hash = ?";
        let rows = self.read(sql!(text, token.clone())).await?;
        let Some(row) = rows.first() else { return Ok(Joined::UnknownToken) };
        if let Some(used_at) = opt_instant(row, 0) {
            let is_the_same = row.text(1) == node.to_string() && row.text(2) == credential.as_str();
            return Ok(if is_the_same { Joined::Yes } else { Joined::UsedToken(used_at) });
        }
        let expires_at = instant(row.int(3));
        if expires_at <= now {
            return Ok(Joined::ExpiredToken(expires_at));
        }
        if self.node(node).await?.is_some() {
            return Ok(Joined::NodeTaken);
        }
        let deed = Deed::new("node.join", node.to_string()).detail(json!({ "name": name }));
        let mut steps = audit::rows(&Actor::new(name), now, &[deed]);
        let guarded = steps.len();
        steps.push(sql!("SELECT 1 FROM join_tokens WHERE hash = ? AND used_at IS NULL", token.clone()).returning(1));
        let text = "UPDATE join_tokens SET used_at = ?, used_by = ?, credential = ? WHERE hash = ? AND used_at IS NULL";
        steps.push(sql!(text, ms(now), word(node), credential, token).touching(1));
        Ok(match self.try_write(steps).await? {
            Written::Done(_) => Joined::Yes,
            // Somebody was faster.
            Written::Refused { step, .. } if step == guarded => Joined::UsedToken(now),
            Written::Refused { .. } => Joined::NodeTaken,
        })
    }

    /// Of a node that has joined; also of one that was removed.
    pub async fn credential(&self, node: NodeId) -> Result<Option<SecretHash>, StoreError> {
        let rows = self.read(sql!("SELECT credential FROM join_tokens WHERE used_by = ?", word(node))).await?;
        Ok(rows.first().map(|row| SecretHash::from_hex(row.text(0))))
    }

    /// Of the nodes that have joined and were not removed.
    pub async fn list_credentials(&self) -> Result<Vec<(NodeId, SecretHash)>, StoreError> {
        let text = "SELECT t.used_by, t.credential FROM join_tokens t LEFT JOIN nodes n ON n.id = t.used_by \
                    WHERE t.used_by IS NOT NULL AND n.removed_at IS NULL";
        let rows = self.read(sql!(text)).await?;
        rows.iter().map(|row| Ok((parsed(row, 0, "node id")?, SecretHash::from_hex(row.text(1))))).collect()
    }
}
