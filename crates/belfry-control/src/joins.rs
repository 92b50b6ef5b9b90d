//! Who may come: nodes that have joined, each with a credential of its own, and newcomers with a join token.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use belfry_core::NodeId;
use belfry_proto::session::JoinRequest;
use belfry_store::{Joined, SecretHash};
use tracing::info;

use crate::context::Context;

/// The hashes of all credentials, so that a node comes back also while the store is away.
#[derive(Debug, Default)]
pub struct Credentials(RwLock<HashMap<NodeId, SecretHash>>);

impl Credentials {
    pub fn are(&self, all: Vec<(NodeId, SecretHash)>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all.into_iter().collect();
    }

    fn of(&self, node: NodeId) -> Option<SecretHash> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&node).cloned()
    }

    fn learn(&self, node: NodeId, credential: SecretHash) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(node, credential);
    }
}

const HOW_TO_JOIN: &str = "`belfry node join-token` makes a new one";

/// Why a node is not let in.
#[derive(Debug, thiserror::Error)]
pub enum NotLetIn {
    #[error(
        "node {0} was removed from the cluster; to use its machine again, start the agent with a fresh token from `belfry node join-token`"
    )]
    Removed(NodeId),
    #[error(
        "node {0} has not joined this cluster, or its credential is another one; start the agent with a fresh token from `belfry node join-token`"
    )]
    Credential(NodeId),
    #[error("the join token is not known here; {HOW_TO_JOIN}")]
    UnknownToken,
    #[error("the join token has expired at {0}; {HOW_TO_JOIN}")]
    ExpiredToken(belfry_core::Timestamp),
    #[error("the join token was used at {0} by another node, and each is good for one; {HOW_TO_JOIN}")]
    UsedToken(belfry_core::Timestamp),
    #[error("the id {0} belongs to a node that has joined before; start the agent with an empty data folder")]
    NodeTaken(String),
    #[error("{0} cannot be read")]
    BadRequest(&'static str),
    #[error("the store does not answer")]
    NotNow,
}

/// A node that has joined shows its credential.
pub async fn check(context: &Context, node: NodeId, shown: &str) -> Result<(), NotLetIn> {
    let shown = SecretHash::of(shown);
    if context.credentials.of(node).as_ref() == Some(&shown) {
        return Ok(());
    }
    // It may have joined through another server a moment ago.
    let away = |cause: belfry_store::StoreError| {
        context.store_health.away(context.now(), crate::chain(&cause));
        NotLetIn::NotNow
    };
    if context.store.node(node).await.map_err(away)?.is_some_and(|record| record.removed_at.is_some()) {
        return Err(NotLetIn::Removed(node));
    }
    match context.store.credential(node).await.map_err(away)? {
        Some(credential) if credential == shown => {
            context.credentials.learn(node, credential);
            Ok(())
        }
        Some(_) | None => Err(NotLetIn::Credential(node)),
    }
}

pub async fn join(context: &Context, request: JoinRequest) -> Result<(), NotLetIn> {
    let node: NodeId = request.node.parse().map_err(|_| NotLetIn::BadRequest("the node id"))?;
    let is_hash =
        request.credential_sha256.len() == 64 && request.credential_sha256.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hash {
        return Err(NotLetIn::BadRequest("the credential's hash"));
    }
    let (token, credential) = (SecretHash::of(&request.secret), SecretHash::from_hex(&request.credential_sha256));
    let joined = context.store.join_node(token, node, &request.name, credential.clone(), context.now()).await;
    match joined {
        Ok(Joined::Yes) => {
            info!(node = %request.name, %node, "a node has joined");
            context.credentials.learn(node, credential);
            Ok(())
        }
        Ok(Joined::UnknownToken) => Err(NotLetIn::UnknownToken),
        Ok(Joined::ExpiredToken(at)) => Err(NotLetIn::ExpiredToken(at)),
        Ok(Joined::UsedToken(at)) => Err(NotLetIn::UsedToken(at)),
        Ok(Joined::NodeTaken) => Err(NotLetIn::NodeTaken(request.node)),
        Err(cause) => {
            context.store_health.away(context.now(), crate::chain(&cause));
            Err(NotLetIn::NotNow)
        }
    }
}
