//! Which servers there are, as the servers themselves say.
//!
//! What any of them says counts: one that is cut off from the others knows only itself, and must not make this node leave them. And
//! what the last session said outlives it: after a moment without any contact the learned addresses are tried again, not only those
//! that the agent was started with.

use std::collections::{BTreeMap, BTreeSet};

use crate::desk::SessionId;

#[derive(Debug, Default)]
pub(crate) struct Directory(BTreeMap<SessionId, BTreeSet<String>>);

impl Directory {
    pub(crate) fn said(&mut self, session: SessionId, addresses: Vec<String>) {
        self.0.insert(session, addresses.into_iter().collect());
    }

    /// True if that changes what is known.
    pub(crate) fn closed(&mut self, session: SessionId) -> bool {
        self.0.len() > 1 && self.0.remove(&session).is_some()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &String> {
        self.0.values().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(directory: &Directory) -> Vec<&str> {
        directory.addresses().map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    }

    #[test]
    fn a_server_that_knows_only_itself_makes_nobody_leave_the_others() {
        let mut directory = Directory::default();
        directory.said(SessionId(1), vec!["a".into(), "b".into()]);
        directory.said(SessionId(2), vec!["a".into(), "b".into()]);
        directory.said(SessionId(1), vec!["a".into()]);
        assert_eq!(known(&directory), ["a", "b"]);
        directory.said(SessionId(2), vec!["a".into(), "c".into()]);
        assert_eq!(known(&directory), ["a", "c"], "what nobody names any more is left");
    }

    #[test]
    fn what_was_learned_outlives_the_last_session() {
        let mut directory = Directory::default();
        directory.said(SessionId(1), vec!["a".into(), "b".into()]);
        directory.said(SessionId(2), vec!["b".into()]);
        assert!(directory.closed(SessionId(1)));
        assert!(!directory.closed(SessionId(2)));
        assert_eq!(known(&directory), ["b"]);
        directory.said(SessionId(3), vec!["b".into(), "c".into()]);
        assert_eq!(known(&directory), ["b", "c"]);
    }
}
