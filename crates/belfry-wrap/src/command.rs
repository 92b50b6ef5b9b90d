//! The command itself: as whom, with which limits and environment, and where its output goes. Its whole tree ends with it, or at the
//! deadline, whatever becomes of the wrapper.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belfry_core::state::Values;
use belfry_exec::{
    CLEAN_PATH, Child, Deadline, Fifo, LimitOf, Login, LookupError, Prepared, ProcessLimit, RunTag, SpawnError,
    Spawner, ZygoteCommand, current_user, lookup_group, lookup_user,
};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{AccessFlags, access, getegid, geteuid};
use tokio::task::spawn_blocking;

use crate::copy::{Copies, Place};
use crate::exit::Failure;
use crate::folder::Folder;
use crate::host;
use crate::parameters::Parameters;
use crate::program::Sought;
use crate::saving::Saving;
use crate::signals::{GRACE, Signals};

/// One that has begun by then is asked to end as any other command.
const START_MAY_TAKE_WHEN_ASKED: Duration = Duration::from_secs(1);

/// All that is known before the first start.
pub(crate) struct Command {
    argv: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    /// The wrapper's own: cron writes there what follows a bare `%`. In the background it is `/dev/null`.
    stdin: Option<Arc<OwnedFd>>,
    directory: PathBuf,
    /// None: as the wrapper itself.
    login: Option<Login>,
    memory_bytes_max: Option<u64>,
    output: Place,
    /// What it prints is held for the history of servers.
    pub keeps_output: bool,
    fifos: PathBuf,
    /// In the environment of all its processes.
    run: String,
    deadline: Deadline,
    zygote: ZygoteCommand,
    spawner: Option<Spawner>,
    /// For the first attempt after a claim.
    fifo: Option<Fifo>,
}

/// One attempt that runs.
pub(crate) struct Running {
    pub child: Child,
    pub copies: Copies,
}

impl Command {
    pub(crate) fn prepare(
        parameters: &Parameters,
        instance: &str,
        run: String,
        zygote: ZygoteCommand,
    ) -> Result<Command, Failure> {
        let login = parameters.user.as_ref().map(|(user, group)| log_in(user, group.as_deref())).transpose()?;
        check_limit(parameters.memory_bytes_max)?;
        let directory = match &login {
            // Where the wrapper was started its user may have no business. Users of services may have no home.
            Some(login) if login.home.is_dir() => login.home.clone(),
            Some(_) => "/".into(),
            None => std::env::current_dir().unwrap_or_else(|_| "/".into()),
        };
        let deadline = Deadline::new().map_err(|cause| Failure::Cannot(format!("share memory: {cause}")))?;
        Ok(Command {
            argv: parameters.command.clone(),
            env: environment(login.as_ref()),
            stdin: std::io::stdin().as_fd().try_clone_to_owned().ok().map(Arc::new),
            directory,
            login,
            memory_bytes_max: parameters.memory_bytes_max,
            output: if parameters.captures {
                Place::in_folder(&parameters.log_dir, &parameters.name.name, instance)
            } else {
                Place::Passed
            },
            keeps_output: false,
            fifos: fifo_folder(parameters),
            run,
            deadline,
            zygote,
            spawner: None,
            fifo: None,
        })
    }

    pub(crate) fn deadline(&self) -> &Deadline {
        &self.deadline
    }

    /// Before an instance is claimed: a host that does not have it takes it from no other.
    pub(crate) async fn find_program(&self) -> Result<(), Failure> {
        let Some(program) = self.argv.first() else { return Ok(()) };
        let path = self.env.iter().find(|(name, _)| name == "PATH").map(|(_, path)| path.as_os_str());
        let sought = Sought {
            program: program.as_os_str().into(),
            path: path.unwrap_or(OsStr::new(CLEAN_PATH)).into(),
            directory: self.directory.clone(),
            as_self: self.login.as_ref().is_none_or(|login| login.uid == geteuid().as_raw()),
        };
        // It may be on a network mount that hangs, and signals may not.
        match spawn_blocking(move || sought.look()).await {
            Ok(found) => found.map_err(|cause| Failure::of_start(&cause)),
            // Left to the start.
            Err(_) => Ok(()),
        }
    }

    /// Before an instance is claimed: what cannot be had on this machine keeps it from no other, and the first start waits for none of it.
    pub(crate) fn warm_up(&mut self) -> Result<(), Failure> {
        if self.spawner.is_none() {
            let started = Spawner::start(self.zygote.clone(), self.deadline.clone());
            self.spawner = Some(started.map_err(|cause| Failure::Cannot(format!("start a helper process: {cause}")))?);
        }
        if self.fifo.is_none() {
            self.fifo = Some(self.make_fifo()?);
        }
        Ok(())
    }

    /// A wrapper that waits needs nothing of it.
    pub(crate) fn cool_down(&mut self) {
        self.spawner = None;
        self.fifo = None;
    }

    /// For what the command saves.
    pub(crate) fn saving(&mut self, known: Values) -> Result<Saving, Failure> {
        let fifo = self.fifo.take().map_or_else(|| self.make_fifo(), Ok)?;
        Ok(Saving::of(fifo, known))
    }

    /// In a folder that only the command's user can write in.
    fn make_fifo(&self) -> Result<Fifo, Failure> {
        let uid = self.login.as_ref().map_or_else(|| geteuid().as_raw(), |login| login.uid);
        let path = self.fifos.join(format!("{}{}", self.run, host::mark()));
        Fifo::make(&path, uid).map_err(|cause| {
            let path = path.display();
            Failure::Cannot(format!("make the FIFO {path}: {cause}; DCRON_LIBDIR names another place for it"))
        })
    }

    /// `guarded`: its tree does not outlive the deadline. A start that hangs is given up when the wrapper is asked to end.
    pub(crate) async fn start(
        &mut self,
        attempt: u32,
        guarded: bool,
        extra: impl Iterator<Item = (String, String)>,
        signals: &Signals,
    ) -> Result<Running, SpawnError> {
        let mut env = self.env.clone();
        for (name, value) in extra {
            env.retain(|(known, _)| known.to_str() != Some(&name));
            env.push((name.into(), value.into()));
        }
        let tag = RunTag { run: self.run.clone(), attempt };
        let mut prepared = Prepared::new(self.argv.clone(), env, tag);
        prepared.stdin = self.stdin.clone();
        prepared.directory = Some(self.directory.clone());
        prepared.identity = self.login.as_ref().map(Login::identity);
        prepared.limits =
            self.memory_bytes_max.map(|value| ProcessLimit { of: LimitOf::Memory, value }).into_iter().collect();
        prepared.exclusive = guarded;
        let spawner = self.spawner.as_ref().ok_or(SpawnError::ZygoteGone)?;
        let given_up = async {
            signals.come().await;
            tokio::time::sleep(START_MAY_TAKE_WHEN_ASKED).await;
        };
        let mut child = spawner.spawn_unless(given_up, GRACE, prepared).await?;
        let copies = self.output.copy(child.take_output(), self.keeps_output);
        Ok(Running { child, copies })
    }
}

/// One for each user that calls the wrapper: nobody can make FIFOs in another's.
pub(crate) fn fifo_folder(parameters: &Parameters) -> PathBuf {
    parameters.lib_dir.join(format!("fifo-{}", geteuid()))
}

pub(crate) fn make_fifo_folder(parameters: &Parameters) -> Result<(), Failure> {
    let folder = fifo_folder(parameters);
    let made = Folder::make_own(&folder);
    let usable = made.and_then(|made| Ok(access(&made.place(), AccessFlags::W_OK | AccessFlags::X_OK)?));
    usable.map_err(|cause| {
        Failure::Cannot(format!("make the folder {}: {cause}; DCRON_LIBDIR names another place", folder.display()))
    })
}

fn log_in(user: &str, group: Option<&str>) -> Result<Login, Failure> {
    let mut login = lookup_user(user).map_err(not_found)?;
    if let Some(group) = group {
        login.gid = lookup_group(group).map_err(not_found)?;
    }
    if !geteuid().is_root() {
        let me = current_user().user;
        if login.uid != geteuid().as_raw() {
            return Err(Failure::SaidWrong(format!(
                "DCRON_USER={user}: only root can become somebody else, and this is {me}"
            )));
        }
        // Also one that it is a member of.
        if login.gid != getegid().as_raw() {
            return Err(Failure::SaidWrong(format!(
                "DCRON_USER: only root can take another group than its own, and this is {me}; leave the group out, or put the line into root's crontab"
            )));
        }
    }
    Ok(login)
}

fn not_found(cause: LookupError) -> Failure {
    // In the words of who wrote the crontab: agents say which field of a job it is.
    Failure::SaidWrong(match cause {
        LookupError::UnknownUser { user } => {
            format!(
                "DCRON_USER: user {user} does not exist on this host; create it (useradd {user}) or name another one"
            )
        }
        LookupError::UnknownGroup { group } => {
            format!(
                "DCRON_USER: group {group} does not exist on this host; create it (groupadd {group}) or name another one"
            )
        }
        // Nothing is wrong with the crontab.
        failed @ LookupError::Failed { .. } => return Failure::Cannot(format!("DCRON_USER: {failed}")),
    })
}

/// Whoever is not root cannot raise a limit that was set for it.
fn check_limit(memory_bytes_max: Option<u64>) -> Result<(), Failure> {
    let (Some(wanted), false) = (memory_bytes_max, geteuid().is_root()) else { return Ok(()) };
    let limits = getrlimit(Resource::RLIMIT_AS);
    let (_, hard) = limits.map_err(|errno| Failure::Cannot(format!("ask for the limit of address space: {errno}")))?;
    if wanted <= hard {
        return Ok(());
    }
    Err(Failure::SaidWrong(format!(
        "DCRON_RLIMIT_AS={} is above the hard limit of {} MiB that {} has here (ulimit -Hv); say less, or let root start it",
        wanted >> 20,
        hard >> 20,
        current_user().user,
    )))
}

/// What cron gave, with the home and name of whoever the command runs as.
fn environment(login: Option<&Login>) -> Vec<(OsString, OsString)> {
    let mut env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    // A password is not for the command, nor for whom it runs as, nor for the output in history.
    let is_secret = |name: &OsString, value: &OsString| match name.to_str() {
        Some("DCRON_COORD" | "DCRON_ZK") => value.to_string_lossy().contains('@'),
        Some("BELFRY_TOKEN") => true,
        Some(_) | None => false,
    };
    env.retain(|(name, value)| !is_secret(name, value));
    if let Some(login) = login {
        let own = [
            ("HOME", login.home.clone().into_os_string()),
            ("USER", login.user.clone().into()),
            ("LOGNAME", login.user.clone().into()),
        ];
        env.retain(|(name, _)| own.iter().all(|(own, _)| name != own));
        env.extend(own.map(|(name, value)| (name.into(), value)));
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_database_that_does_not_answer_is_no_mistake_in_the_crontab() {
        let (name, reason) = ("joe".to_owned(), "Input/output error".to_owned());
        let failed = not_found(LookupError::Failed { name, reason });
        assert!(failed.code() == 71 && failed.to_string().starts_with("DCRON_USER: look up joe"), "{failed}");
        assert_eq!(not_found(LookupError::UnknownUser { user: "joe".to_owned() }).code(), 64);
        assert_eq!(not_found(LookupError::UnknownGroup { group: "joe".to_owned() }).code(), 64);
    }
}
