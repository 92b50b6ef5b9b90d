//! Where runs write what their job keeps: a FIFO for each, which only the run's user can open; and who waits for a server to have it.

use std::collections::HashMap;
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use belfry_core::NodeId;
use belfry_exec::Fifo;
use belfry_proto::session::StateSaved;
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::geteuid;
use tokio::sync::watch;

use crate::key::Key;

/// The folder of the FIFOs. The data folder is closed to others, so an agent of root has them where every user may pass through, and
/// nobody may look around; in memory if it can: each run makes one, and on a disk that costs a twentieth of a short run.
pub(crate) struct Fifos(PathBuf);

const PASS_THROUGH: u32 = 0o711;
const ROOTS_PLACES: [&str; 2] = ["/run", "/dev/shm"];
const ROOTS_FOLDER: &str = "belfry-agent";

impl Fifos {
    /// What a former start has left is removed.
    pub(crate) fn open(data: &Path, node: NodeId) -> Fifos {
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(|base| PathBuf::from(base).join(format!("belfry-{node}")));
        let of_root = || ROOTS_PLACES.map(|base| Path::new(base).join(ROOTS_FOLDER).join(node.to_string()));
        let mut places: Vec<PathBuf> = if geteuid().is_root() { of_root().into() } else { own.into_iter().collect() };
        places.sort_by_key(|folder| !is_in_memory(folder));
        let folder = places.into_iter().find(|folder| make(folder).is_ok()).unwrap_or_else(|| {
            let folder = data.join("state");
            if let Err(cause) = make(&folder) {
                tracing::warn!(folder = %folder.display(), %cause, "jobs cannot save state on this node");
            }
            folder
        });
        Fifos(folder)
    }

    /// For one run.
    pub(crate) fn make(&self, key: Key, uid: u32) -> io::Result<Fifo> {
        Fifo::make(&self.0.join(format!("{}-{}", key.run, key.attempt)), uid)
    }

    pub(crate) fn close(&self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

impl Drop for Fifos {
    fn drop(&mut self) {
        self.close();
    }
}

fn make(folder: &Path) -> io::Result<()> {
    if let Some(base) = folder.parent().filter(|base| base.ends_with(ROOTS_FOLDER)) {
        make_own(base)?;
    }
    drop(std::fs::remove_dir_all(folder));
    make_own(folder)
}

/// Everybody may make folders in `/dev/shm`: one that is there already must be ours, and no link.
fn make_own(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PASS_THROUGH).create(folder)?;
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // Whatever the umask says.
    std::fs::set_permissions(folder, Permissions::from_mode(PASS_THROUGH))
}

fn is_in_memory(folder: &Path) -> bool {
    let place = folder.ancestors().find(|place| place.exists());
    place.and_then(|place| statfs(place).ok()).is_some_and(|found| found.filesystem_type() == TMPFS_MAGIC)
}

/// Runs that wait for an answer to what they wrote.
#[derive(Debug, Default)]
pub(crate) struct Saves(Mutex<HashMap<Key, watch::Sender<StateSaved>>>);

impl Saves {
    pub(crate) fn expect(&self, key: Key) -> watch::Receiver<StateSaved> {
        self.lock().entry(key).or_default().subscribe()
    }

    pub(crate) fn answered(&self, saved: StateSaved) {
        let waiting = Key::from_wire(saved.key.as_ref()).and_then(|key| self.lock().get(&key).cloned());
        waiting.into_iter().for_each(|waiting| drop(waiting.send(saved.clone())));
    }

    pub(crate) fn forget(&self, key: Key) {
        self.lock().remove(&key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, watch::Sender<StateSaved>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
