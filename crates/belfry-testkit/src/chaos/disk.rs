//! A small file system of its own, which can be filled up.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const FILLER: &str = "filler";

pub(super) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    /// Mounted on a new folder. None where we may not mount.
    pub(super) fn mount(folder: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir_all(folder).expect("a folder to mount on");
        let options = format!("size={bytes},mode=0755");
        match mount(Some("tmpfs"), folder, Some("tmpfs"), MsFlags::empty(), Some(options.as_str())) {
            Ok(()) => Some(Self { folder: folder.to_owned() }),
            Err(Errno::EPERM | Errno::EACCES) => None,
            Err(cause) => panic!("mount a small file system on {}: {cause}", folder.display()),
        }
    }

    /// To the last byte.
    pub(super) fn fill(&self) {
        let mut filler = File::create(self.folder.join(FILLER)).expect("a file that fills the disk");
        for bytes in [64 << 10, 4 << 10, 1] {
            while filler.write(&vec![0_u8; bytes]).is_ok_and(|count| count == bytes) {}
        }
    }

    pub(super) fn make_room(&self) {
        std::fs::remove_file(self.folder.join(FILLER)).expect("the file that fills the disk");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(cause) = umount2(&self.folder, MntFlags::MNT_DETACH) {
            eprintln!("unmount {}: {cause}", self.folder.display());
        }
    }
}
