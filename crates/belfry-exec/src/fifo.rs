//! A FIFO that a run writes to and its starter reads.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::{geteuid, mkfifo};
use tokio::net::unix::pipe;

/// Gone when it is dropped.
#[derive(Debug)]
pub struct Fifo {
    path: PathBuf,
    reader: pipe::Receiver,
}

impl Fifo {
    /// To be written by this user alone. Both ends are held here: so no writer waits for a reader, and what was written stays when the
    /// writer is killed.
    pub fn make(path: &Path, uid: u32) -> io::Result<Fifo> {
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let opened = pipe::OpenOptions::new().read_write(true).open_receiver(path);
        let owned = if geteuid().as_raw() == uid { Ok(()) } else { chown(path, Some(uid), None) };
        match owned.and(opened) {
            Ok(reader) => Ok(Fifo { path: path.to_owned(), reader }),
            Err(cause) => {
                drop(std::fs::remove_file(path));
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
