//! The folder that one Belfry process keeps its things in: made with narrow rights, held by a lock for the life of the process.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Uid, User};

pub struct DataDir {
    path: PathBuf,
    /// The operating system gives the lock back when the process ends, however it ends.
    _lock: Flock<File>,
}

impl DataDir {
    pub fn open(path: PathBuf) -> anyhow::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).with_context(|| {
            format!("the data folder {} cannot be made; choose another with --data", path.display())
        })?;
        let owner = fs::metadata(&path)?.uid();
        if owner != Uid::effective().as_raw() {
            let name = User::from_uid(Uid::from_raw(owner)).ok().flatten().map_or(owner.to_string(), |user| user.name);
            bail!(
                "the data folder {} belongs to {name}; run as that user, or choose another folder with --data",
                path.display()
            );
        }
        let lock_path = path.join("belfry.lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .with_context(|| format!("{} cannot be written", lock_path.display()))?;
        let mut holder = String::new();
        file.read_to_string(&mut holder).ok();
        let mut lock = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => lock,
            Err(_) => bail!(
                "the data folder {} is in use by process {}; stop it, or choose another folder with --data",
                path.display(),
                holder.trim()
            ),
        };
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(Self { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Readable by its owner only, whole or not at all.
    pub fn write_secret(&self, name: &str, text: &str) -> anyhow::Result<()> {
        write_secret(&self.file(name), text)
    }

    pub fn read_secret(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.file(name)).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    pub fn remove(&self, name: &str) {
        // Nothing depends on it: a leftover address only leads to "no answer".
        let _ = fs::remove_file(self.file(name));
    }
}

/// Readable by its owner only, whole or not at all.
pub(super) fn write_secret(path: &Path, text: &str) -> anyhow::Result<()> {
    let failed = || format!("{} cannot be written", path.display());
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.new"));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh).with_context(failed)?;
    file.set_permissions(fs::Permissions::from_mode(0o600))?;
    writeln!(file, "{text}")?;
    file.sync_all()?;
    fs::rename(&fresh, path).with_context(failed)
}

pub fn default_agent_dir() -> PathBuf {
    if Uid::effective().is_root() {
        return PathBuf::from("/var/lib/belfry-agent");
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("."), PathBuf::from);
    home.join(".local/share/belfry-agent")
}
