//! A long-lived process does not keep cron waiting: its wrapper goes into the background. Call it before any thread or runtime exists.

use std::fs::File;

use nix::fcntl::{Flock, OFlag};

use crate::exit::Failure;
use crate::folder::Folder;
use crate::host::{lock, make_folders};
use crate::parameters::Parameters;

/// The only wrapper of its name on this host, in the background.
pub struct Detached {
    _lock: Flock<File>,
}

/// None: there is one already. The process that returns is another one than the one that called; what it says goes into a log.
pub fn detach(parameters: &Parameters) -> Result<Option<Detached>, Failure> {
    make_folders(parameters)?;
    let Some(lock) = lock(parameters)? else { return Ok(None) };
    let name = format!("{}.dcron.log", parameters.name.name);
    let failed = |what: &str, cause: std::io::Error| Failure::Cannot(format!("{what}: {cause}"));
    let log = Folder::make(&parameters.log_dir).and_then(|folder| folder.file(&name, OFlag::O_APPEND, 0o666));
    let log = log.map_err(|cause| failed(&format!("open {}", parameters.log_dir.join(&name).display()), cause))?;
    nix::unistd::daemon(true, false).map_err(|errno| failed("go into the background", errno.into()))?;
    nix::unistd::dup2_stderr(&log).map_err(|errno| failed("write to the log", errno.into()))?;
    Ok(Some(Detached { _lock: lock }))
}
