//! From a commit, and what was just read, to the operations of one multi; and what it means when ZooKeeper refuses one of them.
//! Talks to no server. Why it is right is written in `zookeeper.rs`.

use std::collections::{BTreeMap, BTreeSet};

use belfry_core::Version;
use bytes::Bytes;
use zookeeper_client::Error;

use super::names::{self, Folder};
use crate::{CoordError, Guard, Write};

/// A server closes the connection on a longer request (`jute.maxbuffer`), and the outcome would be unknown for ever.
const REQUEST_BYTES_MAX: usize = 1_048_575;
/// What an operation has around its path and data: its header, lengths, and the access list of a new node.
const OPERATION_BYTES: usize = 80;
/// ZooKeeper reads an expected data version of -1 as "any", and counts past it after 2³² writes.
const ANY_DATA_VERSION: i32 = -1;

/// A znode as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// ZooKeeper's count of writes to this node. It begins at zero each time that the node is made.
    pub(super) data_version: i32,
    /// The transaction that last wrote it.
    pub(super) at: Version,
}

/// What must be read before a commit can be planned. An absent guard needs nothing: ZooKeeper itself refuses to make a node
/// that exists.
#[derive(Debug, Default)]
pub(super) struct Questions {
    pub(super) removals: BTreeSet<Folder>,
    pub(super) keys: BTreeSet<String>,
    /// Nodes are made in these, so they must exist.
    pub(super) folders: BTreeSet<Folder>,
}

impl Questions {
    pub(super) fn of(guards: &[Guard], writes: &[Write]) -> Self {
        let mut questions = Self::default();
        let absent = absent_keys(guards);
        for guard in guards {
            match guard {
                Guard::At(key, _) => {
                    questions.removals.insert(Folder::of(key));
                    questions.keys.insert(key.clone());
                }
                Guard::Absent(key) => drop(questions.folders.insert(Folder::of(key))),
            }
        }
        for write in writes {
            questions.folders.insert(Folder::of(write.key()));
            if !absent.contains(write.key()) {
                questions.keys.insert(write.key().to_owned());
            }
        }
        questions
    }
}

/// The answers. Removals were read before the keys, in the same session.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) removals: BTreeMap<Folder, Option<Seen>>,
    pub(super) keys: BTreeMap<String, Option<Seen>>,
}

impl Facts {
    fn key(&self, key: &str) -> Option<Seen> {
        self.keys.get(key).copied().flatten()
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    Send(Multi),
    /// A guard on this key does not hold.
    Conflict {
        key: String,
    },
    /// A guard seems not to hold, but what was read may be older than the commit.
    ReadFresh,
    /// No check can name the count of removals in this folder before it moves on.
    MoveOn(Folder),
    /// No check can name the data version of this key before it is put again.
    WornOut {
        key: String,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Multi {
    pub(super) operations: Vec<Operation>,
    blames: Vec<Blame>,
    /// The operation whose answer names the transaction.
    pub(super) told_by: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Check { path: String, data_version: i32 },
    Create { path: String, data: Bytes },
    Set { path: String, data: Bytes },
    Delete { path: String },
}

/// What stands behind an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Blame {
    /// The guard on this key.
    Guard(String),
    /// What was read before, and may be different now.
    Reading,
}

/// A refused multi has not happened and never will.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Conflict {
        key: String,
    },
    /// What was read is out of date: read and plan again.
    OutOfDate,
    /// A folder is not there.
    NoFolder,
    /// Neither guard nor reading: an error to report.
    Other,
}

pub(super) fn plan(guards: &[Guard], writes: &[Write], facts: &Facts, fresh: bool) -> Plan {
    let mut multi = Multi { operations: vec![], blames: vec![], told_by: 0 };
    let mut checked = BTreeSet::new();
    for guard in guards {
        let Guard::At(key, version) = guard else { continue };
        match facts.key(key) {
            Some(seen) if seen.at == *version && seen.data_version == ANY_DATA_VERSION => {
                return Plan::WornOut { key: key.clone() };
            }
            Some(seen) if seen.at == *version => {
                multi.check(names::path(key), seen.data_version, Blame::Guard(key.clone()));
                checked.insert(Folder::of(key));
            }
            // A key's versions only grow: this one is in the past, however old the reading is.
            Some(seen) if seen.at > *version => return Plan::Conflict { key: key.clone() },
            Some(_) | None if fresh => return Plan::Conflict { key: key.clone() },
            Some(_) | None => return Plan::ReadFresh,
        }
    }
    for folder in checked {
        match facts.removals.get(&folder).copied().flatten() {
            Some(seen) if seen.data_version == ANY_DATA_VERSION => return Plan::MoveOn(folder),
            Some(seen) => multi.check(folder.removals(), seen.data_version, Blame::Reading),
            // The folder was made between the two readings.
            None => return Plan::ReadFresh,
        }
    }
    let absent = absent_keys(guards);
    let put: BTreeSet<&str> = writes.iter().filter(|write| matches!(write, Write::Put(..))).map(Write::key).collect();
    for key in absent.difference(&put) {
        multi.prove_absent(key, Blame::Guard((*key).to_owned()));
    }
    let mut removing = BTreeSet::new();
    for write in writes {
        match (write, facts.key(write.key())) {
            (Write::Put(key, value), _) if absent.contains(key.as_str()) => {
                multi.create(key, value.clone(), Blame::Guard(key.clone()));
            }
            (Write::Put(key, value), Some(seen)) => {
                // Twice, so that it never rests where no check can name it.
                let times = if seen.data_version.wrapping_add(1) == ANY_DATA_VERSION { 2 } else { 1 };
                (0..times).for_each(|_| multi.set(names::path(key), value.clone()));
            }
            (Write::Put(key, value), None) => multi.create(key, value.clone(), Blame::Reading),
            (Write::Delete(key), _) if absent.contains(key.as_str()) => {}
            (Write::Delete(key), Some(_)) => {
                multi.push(Operation::Delete { path: names::path(key) }, Blame::Reading);
                removing.insert(Folder::of(key));
            }
            (Write::Delete(key), None) => multi.prove_absent(key, Blame::Reading),
        }
    }
    removing.into_iter().for_each(|folder| multi.set(folder.removals(), Bytes::new()));
    multi.told_by = multi.operations.len();
    let touched: BTreeSet<Folder> = writes.iter().map(|write| Folder::of(write.key())).collect();
    touched.into_iter().for_each(|folder| multi.set(folder.path(), Bytes::new()));
    Plan::Send(multi)
}

impl Multi {
    /// Checked before it is sent.
    pub(super) fn check_size(&self, chroot: &str) -> Result<(), CoordError> {
        let bytes = |operation: &Operation| {
            let (path, data) = match operation {
                Operation::Check { path, .. } | Operation::Delete { path } => (path, 0),
                Operation::Create { path, data } | Operation::Set { path, data } => (path, data.len()),
            };
            OPERATION_BYTES + chroot.len() + path.len() + data
        };
        let count: usize = self.operations.iter().map(bytes).sum();
        if count > REQUEST_BYTES_MAX {
            return Err(CoordError::TooMany { what: "bytes as ZooKeeper counts them", count, most: REQUEST_BYTES_MAX });
        }
        Ok(())
    }

    pub(super) fn refusal(&self, index: usize, error: &Error) -> Refusal {
        let (Some(operation), Some(blame)) = (self.operations.get(index), self.blames.get(index)) else {
            return Refusal::Other;
        };
        match (operation, error, blame) {
            (Operation::Create { .. }, Error::NoNode, _) => Refusal::NoFolder,
            (_, Error::NodeExists | Error::NoNode | Error::BadVersion, Blame::Guard(key)) => {
                Refusal::Conflict { key: key.clone() }
            }
            (_, Error::NoNode, Blame::Reading) if index >= self.told_by => Refusal::NoFolder,
            (_, Error::NodeExists | Error::NoNode | Error::BadVersion, Blame::Reading) => Refusal::OutOfDate,
            _ => Refusal::Other,
        }
    }

    fn push(&mut self, operation: Operation, blame: Blame) {
        self.operations.push(operation);
        self.blames.push(blame);
    }

    fn check(&mut self, path: String, data_version: i32, blame: Blame) {
        self.push(Operation::Check { path, data_version }, blame);
    }

    fn create(&mut self, key: &str, data: Bytes, blame: Blame) {
        self.push(Operation::Create { path: names::path(key), data }, blame);
    }

    fn set(&mut self, path: String, data: Bytes) {
        self.push(Operation::Set { path, data }, Blame::Reading);
    }

    /// A node that can be made was not there. It is gone again before anybody sees it.
    fn prove_absent(&mut self, key: &str, blame: Blame) {
        self.create(key, Bytes::new(), blame);
        self.push(Operation::Delete { path: names::path(key) }, Blame::Reading);
    }
}

fn absent_keys(guards: &[Guard]) -> BTreeSet<&str> {
    let absent = guards.iter().filter(|guard| matches!(guard, Guard::Absent(_)));
    absent.map(Guard::key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(data_version: i32, at: u64) -> Option<Seen> {
        Some(Seen { data_version, at: Version(at) })
    }

    fn facts(keys: &[(&str, Option<Seen>)], removals: &[(&str, Option<Seen>)]) -> Facts {
        Facts {
            keys: keys.iter().map(|(key, seen)| ((*key).to_owned(), *seen)).collect(),
            removals: removals.iter().map(|(key, seen)| (Folder::of(key), *seen)).collect(),
        }
    }

    fn at(key: &str, version: u64) -> Guard {
        Guard::At(key.into(), Version(version))
    }

    fn absent(key: &str) -> Guard {
        Guard::Absent(key.into())
    }

    fn put(key: &str) -> Write {
        Write::Put(key.into(), "v".into())
    }

    fn delete(key: &str) -> Write {
        Write::Delete(key.into())
    }

    /// As `check /a 3`, one operation each; values are left out.
    fn sent(guards: &[Guard], writes: &[Write], facts: &Facts) -> Vec<String> {
        let Plan::Send(multi) = plan(guards, writes, facts, false) else { panic!("nothing to send") };
        let told = &multi.operations[multi.told_by];
        assert!(matches!(told, Operation::Set { .. }), "{told:?} does not name the transaction");
        let show = |operation: Operation| match operation {
            Operation::Check { path, data_version } => format!("check {path} {data_version}"),
            Operation::Create { path, .. } => format!("create {path}"),
            Operation::Set { path, .. } => format!("set {path}"),
            Operation::Delete { path } => format!("delete {path}"),
        };
        multi.operations.into_iter().map(show).collect()
    }

    #[test]
    fn a_guard_checks_its_key_and_the_removals_of_its_folder() {
        let facts = facts(&[("s/1", seen(4, 70))], &[("s/", seen(2, 60))]);
        let wanted = ["check /s%2F/1 4", "check /s%2F/%removals 2", "set /s%2F/1", "set /s%2F"];
        assert_eq!(sent(&[at("s/1", 70)], &[put("s/1")], &facts), wanted);
        let wanted =
            ["check /s%2F/1 4", "check /s%2F/%removals 2", "delete /s%2F/1", "set /s%2F/%removals", "set /s%2F"];
        assert_eq!(sent(&[at("s/1", 70)], &[delete("s/1")], &facts), wanted);
    }

    #[test]
    fn a_reading_that_may_be_old_proves_no_conflict() {
        for (reading, fresh, wanted) in [
            (seen(0, 71), false, Plan::Conflict { key: "a".into() }),
            (seen(0, 69), false, Plan::ReadFresh),
            (seen(0, 69), true, Plan::Conflict { key: "a".into() }),
            (None, false, Plan::ReadFresh),
            (None, true, Plan::Conflict { key: "a".into() }),
        ] {
            let facts = facts(&[("a", reading)], &[("", seen(0, 1))]);
            assert_eq!(plan(&[at("a", 70)], &[put("b")], &facts, fresh), wanted, "{reading:?} {fresh}");
        }
        let facts = facts(&[("a", seen(0, 70))], &[("", None)]);
        assert_eq!(plan(&[at("a", 70)], &[put("b")], &facts, true), Plan::ReadFresh);
    }

    #[test]
    fn absence_is_proven_by_making_the_node() {
        assert_eq!(sent(&[absent("a")], &[put("a")], &facts(&[], &[])), ["create /top/a", "set /top"]);
        let unwritten = ["create /top/a", "delete /top/a", "create /top/b", "set /top"];
        assert_eq!(sent(&[absent("a")], &[put("b")], &facts(&[("b", None)], &[])), unwritten);
        let deleted = ["create /top/a", "delete /top/a", "set /top"];
        assert_eq!(sent(&[absent("a")], &[delete("a")], &facts(&[], &[])), deleted);
        assert_eq!(sent(&[], &[delete("a")], &facts(&[("a", None)], &[])), deleted);
    }

    #[test]
    fn no_check_ever_says_any_version() {
        let worn = facts(&[("a", seen(-1, 70))], &[("", seen(0, 1))]);
        assert_eq!(plan(&[at("a", 70)], &[put("b")], &worn, true), Plan::WornOut { key: "a".into() });
        let worn = facts(&[("a", seen(0, 70))], &[("", seen(-1, 1))]);
        assert_eq!(plan(&[at("a", 70)], &[put("b")], &worn, true), Plan::MoveOn(Folder::of("a")));
        let wearing = facts(&[("a", seen(-2, 70))], &[("", seen(0, 1))]);
        let wanted = ["check /top/a -2", "check /top/%removals 0", "set /top/a", "set /top/a", "set /top"];
        assert_eq!(sent(&[at("a", 70)], &[put("a")], &wearing), wanted);
    }

    #[test]
    fn a_refusal_names_the_guard_or_asks_for_another_look() {
        let facts = facts(&[("a", seen(4, 70)), ("b", None), ("c", seen(0, 9))], &[("", seen(2, 60))]);
        let guards = [at("a", 70), absent("d")];
        let Plan::Send(multi) = plan(&guards, &[put("b"), delete("c"), put("d")], &facts, false) else { panic!() };
        let conflict = |key: &str| Refusal::Conflict { key: key.into() };
        for (index, error, wanted) in [
            (0, Error::BadVersion, conflict("a")),
            (0, Error::NoNode, conflict("a")),
            (1, Error::BadVersion, Refusal::OutOfDate),
            (2, Error::NodeExists, Refusal::OutOfDate),
            (2, Error::NoNode, Refusal::NoFolder),
            (3, Error::NoNode, Refusal::OutOfDate),
            (4, Error::NodeExists, conflict("d")),
            (4, Error::NoNode, Refusal::NoFolder),
            (6, Error::NoNode, Refusal::NoFolder),
            (4, Error::NoAuth, Refusal::Other),
            (99, Error::NoNode, Refusal::Other),
        ] {
            assert_eq!(multi.refusal(index, &error), wanted, "{index} {error:?} {:?}", multi.operations.get(index));
        }
    }

    #[test]
    fn a_request_that_the_server_would_hang_up_on_is_not_sent() {
        let long = |n: usize| format!("{n:03}{}", "\u{1}".repeat(500));
        let guards: Vec<_> = (0..100).map(|n| absent(&long(n))).collect();
        let value = Bytes::from(vec![0; 8 * 1024]);
        let writes: Vec<_> = (0..100).map(|n| Write::Put(long(n), value.clone())).collect();
        crate::coordinator::check_commit(&guards, &writes).unwrap();
        let Plan::Send(multi) = plan(&guards, &writes, &Facts::default(), false) else { panic!() };
        assert!(multi.check_size("/belfry").is_ok());
        let guards: Vec<_> = (0..120).map(|n| absent(&long(n + 100))).collect();
        let Plan::Send(multi) = plan(&guards, &writes, &Facts::default(), false) else { panic!() };
        assert!(matches!(multi.check_size("/belfry"), Err(CoordError::TooMany { .. })));
    }
}
