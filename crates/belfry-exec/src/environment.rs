//! The environment a job gets: that of a fresh login, made from the user database and nothing the agent inherited.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::path::PathBuf;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, getgroups, getuid};

use crate::prepared::Identity;

/// The `PATH` of every job that sets none itself.
pub const CLEAN_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

const FALLBACK_LANG: &str = "C.UTF-8";

/// A user of this machine with all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    pub user: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: PathBuf,
    pub shell: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    #[error("user {user} does not exist on this node; create it (useradd {user}) or name another one in `as.user`")]
    UnknownUser { user: String },
    #[error(
        "group {group} does not exist on this node; create it (groupadd {group}) or name another one in `as.group`"
    )]
    UnknownGroup { group: String },
    #[error("look up {name}: {reason}; is the user database of this node reachable?")]
    Failed { name: String, reason: String },
}

impl LookupError {
    pub fn is_transient(&self) -> bool {
        match self {
            LookupError::UnknownUser { .. } | LookupError::UnknownGroup { .. } => false,
            LookupError::Failed { .. } => true,
        }
    }
}

impl Login {
    pub fn identity(&self) -> Identity {
        Identity { uid: self.uid, gid: self.gid, groups: self.groups.clone() }
    }
}

/// Asks the user database, which may be on the network: call it where waiting is allowed, and keep the answer.
pub fn lookup_user(name: &str) -> Result<Login, LookupError> {
    let failed = |reason: String| LookupError::Failed { name: name.into(), reason };
    let unknown = || LookupError::UnknownUser { user: name.into() };
    let user = User::from_name(name).map_err(|errno| failed(errno.desc().into()))?.ok_or_else(unknown)?;
    let c_name = CString::new(name).map_err(|_nul| unknown())?;
    let groups = getgrouplist(&c_name, user.gid).map_err(|errno| failed(errno.desc().into()))?;
    Ok(login(user, groups))
}

/// The number of a group. It may wait as `lookup_user` does.
pub fn lookup_group(name: &str) -> Result<u32, LookupError> {
    let failed = |errno: nix::errno::Errno| LookupError::Failed { name: name.into(), reason: errno.desc().into() };
    let unknown = || LookupError::UnknownGroup { group: name.into() };
    Group::from_name(name).map_err(failed)?.map(|group| group.gid.as_raw()).ok_or_else(unknown)
}

/// The user this process runs as. One without an entry in the user database gets `/` as home and `/bin/sh`.
pub fn current_user() -> Login {
    let uid = getuid();
    let groups = getgroups().unwrap_or_default();
    match User::from_uid(uid) {
        Ok(Some(user)) => login(user, groups),
        Ok(None) | Err(_) => Login {
            user: uid.to_string(),
            uid: uid.as_raw(),
            gid: Gid::current().as_raw(),
            groups: groups.iter().map(|group| group.as_raw()).collect(),
            home: "/".into(),
            shell: "/bin/sh".into(),
        },
    }
}

/// `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL` and `LANG` (the agent's, or C.UTF-8), then `extra`, which wins. Nothing
/// else is inherited.
pub fn clean_environment(login: &Login, extra: &BTreeMap<String, String>) -> Vec<(OsString, OsString)> {
    let lang = std::env::var_os("LANG").filter(|lang| !lang.is_empty()).unwrap_or_else(|| FALLBACK_LANG.into());
    let mut environment: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("PATH".into(), CLEAN_PATH.into()),
        ("HOME".into(), login.home.clone().into_os_string()),
        ("USER".into(), login.user.clone().into()),
        ("LOGNAME".into(), login.user.clone().into()),
        ("SHELL".into(), login.shell.clone().into_os_string()),
        ("LANG".into(), lang),
    ]);
    environment.extend(extra.iter().map(|(name, value)| (name.into(), value.into())));
    environment.into_iter().collect()
}

fn login(user: User, groups: Vec<Gid>) -> Login {
    // Users of services have a shell that only refuses logins; programs that start `$SHELL` would fail with it.
    let refuses = ["", "nologin", "false"].iter().any(|name| user.shell.file_name().unwrap_or_default() == *name);
    let shell = if refuses { "/bin/sh".into() } else { user.shell };
    Login {
        user: user.name,
        uid: Uid::as_raw(user.uid),
        gid: user.gid.as_raw(),
        groups: groups.iter().map(|group| group.as_raw()).collect(),
        home: user.dir,
        shell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn someone() -> Login {
        Login { user: "ann".into(), uid: 7, gid: 8, groups: vec![8], home: "/home/ann".into(), shell: "/bin/sh".into() }
    }

    fn names(environment: &[(OsString, OsString)]) -> Vec<&str> {
        environment.iter().filter_map(|(name, _)| name.to_str()).collect()
    }

    #[test]
    fn a_clean_environment_has_six_names_and_what_the_job_adds() {
        let plain = clean_environment(&someone(), &BTreeMap::new());
        assert_eq!(names(&plain), ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "USER"]);
        let extra = BTreeMap::from([("PATH".into(), "/opt".into()), ("X".into(), "1".into())]);
        let more = clean_environment(&someone(), &extra);
        assert!(more.contains(&("PATH".into(), "/opt".into())));
        assert_eq!(more.len(), 7);
    }

    #[test]
    fn an_unknown_user_is_named_with_what_to_do() {
        let refusal = lookup_user("belfry-nobody-has-this").expect_err("no such user").to_string();
        assert!(refusal.contains("useradd belfry-nobody-has-this"), "{refusal}");
    }

    #[test]
    fn the_current_user_is_found_again_by_name() {
        let me = current_user();
        assert_eq!(lookup_user(&me.user).map(|login| login.uid), Ok(me.uid));
    }
}
