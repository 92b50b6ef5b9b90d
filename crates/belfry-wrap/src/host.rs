//! This machine as the wrapper sees it: its name for others, its folders, and what it remembers of a name on its own disk.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::exit::Failure;
use crate::parameters::Parameters;

/// Made if missing.
pub(crate) fn make_folders(parameters: &Parameters) -> Result<(), Failure> {
    let mut folders = vec![&parameters.lib_dir];
    if parameters.captures || parameters.is_long_lived() {
        folders.push(&parameters.log_dir);
    }
    for folder in folders {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
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
    let name = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    of_hosts.next().or_else(name).unwrap_or_else(|| "localhost".to_owned())
}

/// Held for as long as it lives: one wrapper of a long-lived process on each host. None: there is one already.
pub(crate) fn lock(parameters: &Parameters) -> Result<Option<Flock<File>>, Failure> {
    let path = file(&parameters.lib_dir, &parameters.name.name, "lock");
    let failed = |cause: io::Error| Failure::Cannot(format!("open {}: {cause}", path.display()));
    let opened = File::options().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(failed(errno.into())),
    }
}

/// The number of the run of a name that ended last on this host.
pub(crate) struct Stick(PathBuf);

impl Stick {
    pub(crate) fn of(parameters: &Parameters) -> Stick {
        Stick(file(&parameters.lib_dir, &parameters.name.name, "stick"))
    }

    pub(crate) fn fence(&self) -> Option<u64> {
        std::fs::read_to_string(&self.0).ok()?.trim().parse().ok()
    }

    /// Without it this host is not preferred, which costs seconds at most.
    pub(crate) fn remember(&self, fence: u64) {
        if let Err(cause) = std::fs::write(&self.0, format!("{fence}\n")) {
            tracing::warn!(file = %self.0.display(), %cause, "this host will not be known as the last one");
        }
    }
}

fn file(folder: &Path, name: &str, kind: &str) -> PathBuf {
    folder.join(format!("{name}.{kind}"))
}
