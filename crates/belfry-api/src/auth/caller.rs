//! The caller of a request, and the permit that the gate hands to a route: what the route needs is part of it, so that a route checks
//! the object that it has loaded without naming a role again.

use std::net::IpAddr;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use belfry_core::Timestamp;
use belfry_core::role::{EVERYWHERE, Grants, Role};
use belfry_store::{Actor, TokenOwner};

use crate::access::Access;
use crate::errors::{Answer, ApiError};

#[derive(Clone, Debug)]
pub struct Caller {
    /// The user, or the service that a token belongs to; empty for a caller without credential.
    pub name: String,
    pub grants: Grants,
    pub credential: Credential,
    /// When the token that the request came with ends.
    pub token_ends: Option<Timestamp>,
    pub address: Option<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    None,
    /// Signed in with a password; the cookie's secret.
    Session(String),
    /// Whose token it is: a service may have the name of a user, and is not that user.
    Token(TokenOwner),
}

impl Caller {
    pub fn new(name: String, grants: Grants, credential: Credential, address: Option<IpAddr>) -> Self {
        Self { name, grants, credential, token_ends: None, address }
    }

    pub fn without_credential(address: Option<IpAddr>) -> Self {
        Self::new(String::new(), Grants::default(), Credential::None, address)
    }

    /// Whose tokens are the caller's own.
    pub fn as_owner(&self) -> TokenOwner {
        match &self.credential {
            Credential::Token(owner) => owner.clone(),
            Credential::Session(_) | Credential::None => TokenOwner::User(self.name.clone()),
        }
    }
}

/// What both allow: a token never gives more than its owner has now.
pub fn common_grants(one: &Grants, other: &Grants) -> Grants {
    let everywhere = |grants: &Grants| grants.0.get(EVERYWHERE).copied();
    let held = |grants: &Grants, namespace: &str| {
        if namespace == EVERYWHERE { everywhere(grants) } else { grants.role_in(namespace) }
    };
    let namespaces = one.0.keys().chain(other.0.keys());
    let common = namespaces.filter_map(|namespace| {
        let role = held(one, namespace)?.min(held(other, namespace)?);
        Some((namespace.clone(), role))
    });
    Grants(common.collect())
}

#[derive(Clone, Debug)]
pub struct Permit {
    pub caller: Caller,
    pub(super) access: Access,
}

impl Permit {
    /// Whether the route may be used on an object in this namespace. Who may not even read there is told that it does not exist.
    pub fn on(&self, namespace: &str, what: &str, name: impl std::fmt::Display) -> Answer<()> {
        if !self.caller.grants.allow(namespace, Role::Viewer) {
            return Err(ApiError::not_found(what, name));
        }
        self.within(namespace)
    }

    /// As [`Permit::on`], for something that is still to be made.
    pub fn within(&self, namespace: &str) -> Answer<()> {
        let (allowed, needed) = match self.access {
            Access::Namespace(needed) | Access::Somewhere(needed) => {
                (self.caller.grants.allow(namespace, needed), needed)
            }
            Access::Everywhere(needed) => (self.caller.grants.allow_everywhere(needed), needed),
            // Such a route has no objects of a namespace; asking is a defect, and defects are denied.
            Access::Open | Access::SignedIn => (false, Role::Admin),
        };
        if allowed {
            return Ok(());
        }
        Err(ApiError::forbidden(format!(
            "this needs the role {needed} in the namespace `{namespace}`; ask an admin for it"
        )))
    }

    /// The namespaces whose objects the route may show: `None` for all of them.
    pub fn namespaces(&self) -> Option<Vec<String>> {
        let needed = match self.access {
            Access::Namespace(needed) | Access::Somewhere(needed) | Access::Everywhere(needed) => needed,
            Access::Open | Access::SignedIn => return Some(Vec::new()),
        };
        let grants = &self.caller.grants;
        if grants.allow_everywhere(needed) {
            return None;
        }
        let held = grants.0.iter().filter(|(namespace, role)| namespace.as_str() != EVERYWHERE && **role >= needed);
        Some(held.map(|(namespace, _)| namespace.clone()).collect())
    }

    pub fn actor(&self) -> Actor {
        let actor = Actor::new(self.caller.name.clone());
        match self.caller.address {
            Some(address) => actor.from(address.to_string()),
            None => actor,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Permit {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Self> {
        // Without the gate's permit nothing is allowed, whatever the route.
        parts.extensions.get::<Permit>().cloned().ok_or_else(ApiError::unauthorized)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(held: &[(&str, Role)]) -> Grants {
        Grants(held.iter().map(|(namespace, role)| ((*namespace).to_owned(), *role)).collect())
    }

    #[test]
    fn a_token_gives_no_more_than_its_owner_has() {
        use Role::{Admin, Editor, Viewer};
        for (token, owner, common) in [
            (grants(&[("*", Admin)]), grants(&[("shop", Editor)]), grants(&[("shop", Editor)])),
            (grants(&[("shop", Viewer)]), grants(&[("*", Admin)]), grants(&[("shop", Viewer)])),
            (grants(&[("shop", Admin)]), grants(&[("bank", Admin)]), grants(&[])),
            (
                grants(&[("*", Viewer), ("shop", Admin)]),
                grants(&[("*", Editor)]),
                grants(&[("*", Viewer), ("shop", Editor)]),
            ),
        ] {
            assert_eq!(common_grants(&token, &owner), common, "{token:?} of {owner:?}");
            assert_eq!(common_grants(&owner, &token), common);
        }
    }
}
