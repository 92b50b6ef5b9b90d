//! Who may do what: four roles, each including the one before it, granted per namespace; what is not granted is denied.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Grants in this pseudo namespace hold in every namespace and for what belongs to none (nodes, users, the cluster).
pub const EVERYWHERE: &str = "*";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Reads jobs, runs and output.
    Viewer,
    /// Also runs, kills, pauses, resumes.
    Operator,
    /// Also creates, changes and removes jobs.
    Editor,
    /// Also users, tokens, nodes, audit and settings.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Editor => "editor",
            Role::Admin => "admin",
        })
    }
}

/// Namespace (or [`EVERYWHERE`]) to role.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Grants(pub BTreeMap<String, Role>);

impl Grants {
    pub fn everywhere(role: Role) -> Self {
        Self(BTreeMap::from([(EVERYWHERE.to_owned(), role)]))
    }

    /// The role held in a namespace, if any.
    pub fn role_in(&self, namespace: &str) -> Option<Role> {
        self.0.get(namespace).max(self.0.get(EVERYWHERE)).copied()
    }

    pub fn allow(&self, namespace: &str, needed: Role) -> bool {
        self.role_in(namespace).is_some_and(|held| held >= needed)
    }

    /// For what belongs to no namespace.
    pub fn allow_everywhere(&self, needed: Role) -> bool {
        self.0.get(EVERYWHERE).is_some_and(|held| *held >= needed)
    }

    /// Whether all of `others` is held too.
    pub fn include(&self, others: &Grants) -> bool {
        others.0.iter().all(|(namespace, role)| match namespace.as_str() {
            EVERYWHERE => self.allow_everywhere(*role),
            namespace => self.allow(namespace, *role),
        })
    }

    /// Holds a role somewhere, so that lists are answered (with only what may be seen).
    pub fn allow_somewhere(&self, needed: Role) -> bool {
        self.0.values().any(|held| *held >= needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_granted_is_denied() {
        let grants = Grants(BTreeMap::from([("shop".to_owned(), Role::Editor), (EVERYWHERE.to_owned(), Role::Viewer)]));
        assert!(grants.allow("shop", Role::Editor));
        assert!(!grants.allow("shop", Role::Admin));
        assert!(grants.allow("bank", Role::Viewer));
        assert!(!grants.allow("bank", Role::Operator));
        assert!(!grants.allow_everywhere(Role::Operator));
        assert!(!Grants::default().allow_somewhere(Role::Viewer));
    }

    #[test]
    fn grants_include_what_is_narrower_and_nothing_else() {
        let grants =
            |grants: &[(&str, Role)]| Grants(grants.iter().map(|(name, role)| ((*name).to_owned(), *role)).collect());
        let own = grants(&[(EVERYWHERE, Role::Viewer), ("shop", Role::Editor)]);
        for narrower in [&[(EVERYWHERE, Role::Viewer)][..], &[("shop", Role::Operator)], &[("bank", Role::Viewer)], &[]]
        {
            assert!(own.include(&grants(narrower)), "{narrower:?}");
        }
        for wider in [(EVERYWHERE, Role::Operator), ("shop", Role::Admin), ("bank", Role::Operator)] {
            assert!(!own.include(&grants(&[wider])), "{wider:?}");
        }
    }
}
