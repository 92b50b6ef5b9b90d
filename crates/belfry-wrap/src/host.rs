//! This machine as the wrapper sees it: its name for others, its folders, and what it remembers of a name on its own disk.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg, OFlag};

use crate::exit::Failure;
use crate::folder::Folder;
use crate::parameters::Parameters;

/// Made if missing.
pub(crate) fn make_folders(parameters: &Parameters) -> Result<(), Failure> {
    let mut folders = vec![&parameters.lib_dir];
    if parameters.captures || parameters.is_long_lived() {
        folders.push(&parameters.log_dir);
    }
    for folder in folders {
        let made = Folder::make(folder);
        made.map_err(|cause| Failure::Cannot(format!("make the folder {}: {cause}", folder.display())))?;
    }
    Ok(())
}

/// The address that others know this host by; its name where it has none.
pub(crate) fn address() -> String {
    let addresses = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let mut of_hosts = addresses.filter_map(|found| {
        let address = found.address?.as_sockaddr_in()?.ip();
        (!address.is_loopback() && !address.is_link_local()).then_some(address.to_string())
    });
    of_hosts.next().unwrap_or_else(name)
}

fn name() -> String {
    let name = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned())
}

/// Stands in names of files that are this host's own: the folder that they are in may be on storage that hosts share.
pub(crate) fn mark() -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    format!("@{}", name().chars().map(plain).collect::<String>())
}

/// Held for as long as it lives: one wrapper of a long-lived process on each host. None: there is one already.
pub(crate) fn lock(parameters: &Parameters) -> Result<Option<Flock<File>>, Failure> {
    let name = format!("{}{}.lock", parameters.name.name, mark());
    let failed =
        |cause: io::Error| Failure::Cannot(format!("open {}: {cause}", parameters.lib_dir.join(&name).display()));
    let opened = Folder::make(&parameters.lib_dir).and_then(|folder| folder.file(&name, OFlag::empty(), 0o666));
    let opened = opened.map_err(failed)?;
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

/// The number of the run of a name that ended last on this host.
pub(crate) struct Stick {
    folder: PathBuf,
    name: String,
}

/// More digits than any number has.
const FENCE_BYTES_MAX: u64 = 32;

impl Stick {
    pub(crate) fn of(parameters: &Parameters) -> Stick {
        let name = format!("{}{}.stick", parameters.name.name, mark());
        Stick { folder: parameters.lib_dir.clone(), name }
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        let file = Folder::make(&self.folder).and_then(|folder| folder.read(&self.name)).ok()?;
        let mut text = String::new();
        file.take(FENCE_BYTES_MAX).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    /// Without it this host is not preferred, which costs seconds at most.
    pub(crate) fn remember(&self, fence: u64) {
        let file = Folder::make(&self.folder).and_then(|folder| folder.file(&self.name, OFlag::empty(), 0o666));
        // Emptied only when it is known to be ours.
        let written = file.and_then(|mut file| file.set_len(0).and_then(|()| writeln!(file, "{fence}")));
        if let Err(cause) = written {
            tracing::warn!(file = %self.path().display(), %cause, "this host will not be known as the last one");
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }
}
