//! Who this node is: an id made once and kept on its disk, an incarnation that is new at each start, and the lock that
//! keeps a second agent away from the same folder.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use belfry_core::{Incarnation, NodeId};
use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};

use crate::AgentError;

/// Held as long as the agent lives; the kernel takes it away from one that was killed.
pub(crate) type FolderLock = Flock<File>;

pub(crate) fn lock_folder(data_dir: &Path) -> Result<FolderLock, AgentError> {
    let failed = |cause| AgentError::DataFolder { path: data_dir.to_owned(), cause };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(failed)?;
    let path = data_dir.join("agent.lock");
    let file = OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => AgentError::InUse { path: data_dir.to_owned() },
        other => failed(other.into()),
    })
}

pub(crate) const NODE_ID_FILE: &str = "node-id";

/// The id in `data_dir/node-id`, which is made when there is none.
pub(crate) fn node_id(data_dir: &Path, now: Timestamp) -> Result<NodeId, AgentError> {
    let path = data_dir.join(NODE_ID_FILE);
    let failed = |cause| AgentError::NodeId { path: path.clone(), cause };
    match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| AgentError::DamagedNodeId { path: path.clone() }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let id = NodeId::new(now, random().map_err(failed)?);
            write_once(data_dir, &path, &id.to_string()).map_err(failed)?;
            Ok(id)
        }
        Err(cause) => Err(failed(cause)),
    }
}

/// Greater than `last` and than every one before it, whatever the wall clock does: servers refuse a smaller one as dead. The newest is
/// kept in `data_dir/incarnation`. With a full disk the node goes on all the same: only a restart under a clock that went back
/// would meet a number that is too small.
pub(crate) fn new_incarnation(data_dir: &Path, last: Incarnation, now: Timestamp) -> Incarnation {
    const RANDOM_BITS: u32 = 20;
    let path = data_dir.join("incarnation");
    // One that cannot be read is as good as none: the clock goes forward nearly always.
    let kept: u64 = fs::read_to_string(&path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let random = random().unwrap_or_else(|_| u128::from(std::process::id())) as u64;
    let milliseconds = now.as_millisecond().max(0) as u64;
    let by_clock = (milliseconds << RANDOM_BITS | random & ((1 << RANDOM_BITS) - 1)) & (i64::MAX as u64);
    let new = by_clock.max(kept.max(last.0).saturating_add(1));
    if let Err(cause) = write_once(data_dir, &path, &new.to_string()) {
        tracing::error!(%cause, path = %path.display(), "keep the new incarnation on the disk; is it full?");
    }
    Incarnation(new)
}

pub(crate) fn random() -> io::Result<u128> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|cause| io::Error::other(cause.to_string()))?;
    Ok(u128::from_le_bytes(bytes))
}

/// All of it or nothing, also when the power fails: a node that lost its id would be a stranger.
pub(crate) fn write_once(folder: &Path, path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&draft, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "any time will do")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_id_is_made_once_and_only_its_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let made = node_id(folder.path(), Timestamp::now()).unwrap();
        assert_eq!(node_id(folder.path(), Timestamp::now()).unwrap(), made);
        let mode = fs::metadata(folder.path().join("node-id")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(folder.path().join("node-id"), "rubbish").unwrap();
        let refusal = node_id(folder.path(), Timestamp::now()).unwrap_err();
        assert!(matches!(refusal, AgentError::DamagedNodeId { .. }));
    }

    #[test]
    fn a_second_agent_is_kept_out_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock_folder(folder.path()).unwrap();
        assert!(matches!(lock_folder(folder.path()), Err(AgentError::InUse { .. })));
        drop(first);
        lock_folder(folder.path()).unwrap();
    }

    #[test]
    fn incarnations_grow_also_when_the_clock_goes_back() {
        let folder = tempfile::tempdir().unwrap();
        let now = Timestamp::now();
        let earlier = now - jiff::SignedDuration::from_hours(1);
        let mut some = vec![Incarnation(0)];
        for (at, remembered) in [(now, false), (now, false), (earlier, false), (earlier, true), (now, true)] {
            if remembered {
                // As when it could not be written.
                let _absent = fs::remove_file(folder.path().join("incarnation"));
            }
            let last = if remembered { some[some.len() - 1] } else { Incarnation(0) };
            some.push(new_incarnation(folder.path(), last, at));
        }
        assert!(some.is_sorted_by(|one, next| one < next), "{some:?}");
    }
}
