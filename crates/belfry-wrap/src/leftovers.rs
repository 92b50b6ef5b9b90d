//! FIFOs of wrappers that were killed: the next wrapper on the same host removes them. A FIFO that somebody reads is left alone, and so are
//! those of other hosts that have the folder too: who reads one is known on its own host alone.

use std::fs::{DirEntry, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use belfry_core::Timestamp;
use nix::errno::Errno;
use nix::libc::O_NONBLOCK;

use crate::folder::Folder;

/// One that was made a moment ago may not be read yet.
const AGE_S_MIN: i64 = 60;

/// `mark`: this host's, at the end of their names. What cannot be removed is left to the next one.
pub(crate) fn remove_fifos(folder: &Path, mark: &str, now: Timestamp) {
    // Not through its path: somebody may have put another one there since.
    let Ok(own) = Folder::make_own(folder) else { return };
    let files = std::fs::read_dir(own.place()).into_iter().flatten().flatten();
    let is_own = |file: &DirEntry| file.file_name().as_encoded_bytes().ends_with(mark.as_bytes());
    for file in files.filter(|file| is_own(file) && is_left(file, now)) {
        let fifo = folder.join(file.file_name());
        tracing::info!(fifo = %fifo.display(), "its wrapper is gone, and it is removed");
        let _another_was_quicker = std::fs::remove_file(file.path());
    }
}

fn is_left(file: &DirEntry, now: Timestamp) -> bool {
    let Ok(facts) = file.metadata() else { return false };
    facts.file_type().is_fifo() && now.as_second().saturating_sub(facts.mtime()) >= AGE_S_MIN && !is_read(&file.path())
}

/// Its wrapper holds both ends for as long as it lives, also while it is stopped.
fn is_read(fifo: &Path) -> bool {
    let opened = File::options().write(true).custom_flags(O_NONBLOCK).open(fifo);
    !opened.is_err_and(|cause| cause.raw_os_error() == Some(Errno::ENXIO as i32))
}

#[cfg(test)]
mod tests {
    use belfry_exec::Fifo;
    use nix::sys::stat::Mode;
    use nix::unistd::{geteuid, mkfifo};

    use super::*;

    #[tokio::test]
    async fn only_old_fifos_of_this_host_that_nobody_reads_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let _read = Fifo::make(&path("read@h1"), geteuid().as_raw()).unwrap();
        for name in ["left@h1", "left@h2", "left@h1.of.another", "left@another-h1"] {
            mkfifo(&path(name), Mode::S_IRWXU).unwrap();
        }
        std::fs::write(path("file@h1"), "").unwrap();
        let made = Timestamp::from_second(std::fs::metadata(path("left@h1")).unwrap().mtime()).unwrap();
        let later = |seconds: i64| Timestamp::from_second(made.as_second() + seconds).unwrap();
        let names = || {
            let files = std::fs::read_dir(folder.path()).unwrap();
            let mut names: Vec<_> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        let all = names();
        remove_fifos(folder.path(), "@h1", later(AGE_S_MIN - 1));
        assert_eq!(names(), all);
        remove_fifos(folder.path(), "@h1", later(AGE_S_MIN + 1));
        assert_eq!(names(), ["file@h1", "left@another-h1", "left@h1.of.another", "left@h2", "read@h1"]);
    }
}
