//! A FIFO that a run writes to and its starter reads.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, fstat};
use nix::unistd::{Uid, UnlinkatFlags, fchown, geteuid, mkfifoat, unlinkat};
use tokio::net::unix::pipe;

/// Gone when it is dropped.
#[derive(Debug)]
pub struct Fifo {
    path: PathBuf,
    reader: pipe::Receiver,
}

impl Fifo {
    /// To be written by this user alone. Both ends are held here: so no writer waits for a reader, and what was written stays when the
    /// writer is killed. In a folder of ours that nobody else may write to, who could put something else in its place.
    pub fn make(path: &Path, uid: u32) -> io::Result<Fifo> {
        let name = path.file_name().ok_or(Errno::EINVAL)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let how = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let folder = open(folder, how, Mode::empty())?;
        let facts = fstat(&folder)?;
        let is_writable = Mode::from_bits_truncate(facts.st_mode).intersects(Mode::S_IWGRP | Mode::S_IWOTH);
        if facts.st_uid != geteuid().as_raw() || is_writable {
            return Err(io::Error::other("somebody else may write to its folder"));
        }
        mkfifoat(&folder, name, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let opened = || -> io::Result<pipe::Receiver> {
            let how = OFlag::O_RDWR | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let fifo = openat(&folder, name, how, Mode::empty())?;
            if geteuid().as_raw() != uid {
                fchown(&fifo, Some(Uid::from_raw(uid)), None)?;
            }
            pipe::Receiver::from_owned_fd(fifo)
        };
        match opened() {
            Ok(reader) => Ok(Fifo { path: path.to_owned(), reader }),
            Err(cause) => {
                let _gone_already = unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir);
                Err(cause)
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn reader(&self) -> &pipe::Receiver {
        &self.reader
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    use super::*;

    const APP: u32 = 65534;

    #[tokio::test]
    async fn it_is_made_only_where_nobody_else_can_put_something_in_its_place() {
        let base = tempfile::tempdir().unwrap();
        let [own, shared, link] = ["own", "shared", "link"].map(|name| base.path().join(name));
        std::fs::create_dir(&own).unwrap();
        std::fs::create_dir(&shared).unwrap();
        set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
        symlink(&own, &link).unwrap();
        for folder in [&shared, &link] {
            assert!(Fifo::make(&folder.join("fifo"), geteuid().as_raw()).is_err(), "{}", folder.display());
            assert!(!folder.join("fifo").exists());
        }
        let uid = if geteuid().is_root() { APP } else { geteuid().as_raw() };
        let fifo = Fifo::make(&own.join("fifo"), uid).unwrap();
        let facts = fifo.path().symlink_metadata().unwrap();
        assert_eq!((facts.uid(), facts.mode() & 0o777), (uid, 0o600));
        drop(fifo);
        assert!(!own.join("fifo").exists());
        if geteuid().is_root() {
            std::os::unix::fs::chown(&own, Some(APP), None).unwrap();
            assert!(Fifo::make(&own.join("fifo"), APP).is_err());
        }
    }
}
