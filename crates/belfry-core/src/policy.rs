//! What an agent lets jobs do on its machine, whatever the centre says. It comes from a file that only the machine's administrator
//! writes; who a user is and where a path leads the agent finds out, and asks here.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::job::{Action, JobDocument, Limits, Refusal};

/// What is left out allows everything, except root.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Who jobs that name no user run as when the agent is root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_root: Option<bool>,
    /// Lets sudo, and whatever else gives its caller more rights, work in jobs.
    #[serde(default)]
    pub allow_new_privileges: bool,
    /// Users that jobs may name; the default user need not be among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub users: Option<Vec<String>>,
    /// Groups that jobs may name beyond those that their user is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Folders in or below which jobs may be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directories: Option<Vec<PathBuf>>,
    /// Files, or folders of files, that jobs may execute; a `shell` job executes /bin/bash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<Vec<PathBuf>>,
    /// `shell`, `exec`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// Names of variables that jobs and manual runs may set; one may end in `*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Vec<String>>,
    /// The most that a job may ask for, and what one gets that asks for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

/// A user of the machine, as far as a rule needs it.
#[derive(Clone, Copy, Debug)]
pub struct Account<'a> {
    pub user: &'a str,
    pub uid: u32,
}

impl Policy {
    /// Mistakes in the file itself.
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, paths) in [("directories", &self.directories), ("programs", &self.programs)] {
            for path in paths.iter().flatten() {
                let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
                if !path.is_absolute() || !plain {
                    let message = format!("`{}` is not accepted; write an absolute path without `..`", path.display());
                    return Err(Refusal::new(field, message));
                }
            }
        }
        if let Some(unknown) = self.kinds.iter().flatten().find(|kind| !Action::KINDS.contains(&kind.as_str())) {
            let message = format!("`{unknown}` is not known; {} are", Action::KINDS.join(", "));
            return Err(Refusal::new("kinds", message));
        }
        for pattern in self.environment.iter().flatten() {
            let name = pattern.strip_suffix('*').unwrap_or(pattern);
            if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') || pattern.is_empty() {
                let message =
                    format!("`{pattern}` is not accepted; write a variable's name, at most with `*` at its end");
                return Err(Refusal::new("environment", message));
            }
        }
        if let Some(limits) = &self.limits {
            limits.check()?;
        }
        Ok(())
    }

    pub fn allows_root(&self) -> bool {
        self.allow_root == Some(true)
    }

    /// Why a job may not run here, by what its document says and which variables its run sets.
    pub fn refuses<'a>(&self, document: &JobDocument, mut variables: impl Iterator<Item = &'a str>) -> Option<String> {
        let kind = document.action.kind();
        if let Some(kinds) = &self.kinds
            && !kinds.iter().any(|allowed| allowed == kind)
        {
            return Some(format!("`{kind}` jobs are not allowed here; {} are", listed(kinds)));
        }
        let allowed = |name: &str| {
            self.environment.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| matches(pattern, name)))
        };
        if let Some(name) = variables.find(|name| !allowed(name)) {
            let patterns = self.environment.as_deref().unwrap_or_default();
            return Some(format!("a job may not set `{name}` here; {} are allowed", listed(patterns)));
        }
        None
    }

    /// `by_job`: the document names the user.
    pub fn refuses_user(&self, account: Account<'_>, by_job: bool) -> Option<String> {
        let Account { user, uid } = account;
        if uid == 0 && !self.allows_root() {
            return Some("nothing runs as root here; name another user in `as.user`".to_owned());
        }
        match &self.users {
            Some(users) if by_job && !users.iter().any(|allowed| allowed == user) => {
                Some(format!("jobs may not run as {user} here; {} are allowed", listed(users)))
            }
            _ => None,
        }
    }

    /// `is_member`: the user is in it anyway.
    pub fn refuses_group(&self, group: &str, gid: u32, is_member: bool) -> Option<String> {
        let is_root = gid == 0 && !self.allows_root();
        if is_root || !(is_member || self.groups.iter().any(|allowed| allowed == group)) {
            return Some(format!("the user is not in group {group}, and it is not among the `groups` of the policy"));
        }
        None
    }

    /// The folder as the file system knows it, with all links followed.
    pub fn refuses_directory(&self, directory: &Path) -> Option<String> {
        let allowed = self.directories.as_ref()?;
        let is_in = allowed.iter().any(|folder| directory.starts_with(folder));
        (!is_in).then(|| {
            format!("jobs may not be started in {} here; {} are allowed", directory.display(), listed_paths(allowed))
        })
    }

    /// The file as the file system knows it, with all links followed.
    pub fn refuses_program(&self, program: &Path) -> Option<String> {
        let allowed = self.programs.as_ref()?;
        let is_in = allowed.iter().any(|place| program.starts_with(place));
        (!is_in)
            .then(|| format!("jobs may not execute {} here; {} are allowed", program.display(), listed_paths(allowed)))
    }

    /// What a job gets: what it asks for where that is allowed, and the most where it asks for nothing.
    pub fn limits(&self, asked: Limits) -> Result<Limits, String> {
        let Some(most) = self.limits else { return Ok(asked) };
        fn bounded<T: Copy + PartialOrd + std::fmt::Display>(
            name: &str,
            asked: Option<T>,
            most: Option<T>,
        ) -> Result<Option<T>, String> {
            match (asked, most) {
                (Some(asked), Some(most)) if asked > most => {
                    Err(format!("limits.{name} is {asked}, and at most {most} is allowed here"))
                }
                (asked, most) => Ok(asked.or(most)),
            }
        }
        Ok(Limits {
            memory: bounded("memory", asked.memory, most.memory)?,
            cpus: bounded("cpus", asked.cpus, most.cpus)?,
            processes: bounded("processes", asked.processes, most.processes)?,
            open_files: bounded("open_files", asked.open_files, most.open_files)?,
            cpu_time: bounded("cpu_time", asked.cpu_time, most.cpu_time)?,
            file_size: bounded("file_size", asked.file_size, most.file_size)?,
        })
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

fn listed(allowed: &[String]) -> String {
    if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") }
}

fn listed_paths(allowed: &[PathBuf]) -> String {
    let texts: Vec<String> = allowed.iter().map(|path| path.display().to_string()).collect();
    listed(&texts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Exec, Shell};
    use crate::units::Size;

    fn strict() -> Policy {
        let words = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        Policy {
            users: words(&["backup"]),
            groups: vec!["dba".to_owned()],
            directories: Some(vec!["/srv".into()]),
            programs: Some(vec!["/srv/jobs".into(), "/usr/bin/rsync".into()]),
            kinds: words(&["exec"]),
            environment: words(&["LANG", "APP_*"]),
            limits: Some(Limits { memory: Some(Size::from_bytes(1 << 30)), cpus: Some(1.5), ..Limits::default() }),
            ..Policy::default()
        }
    }

    fn exec() -> JobDocument {
        JobDocument::new("j", Action::Exec(Exec { argv: vec!["/srv/jobs/x".to_owned()] }))
    }

    #[test]
    fn without_a_file_everything_is_allowed_except_root() {
        let open = Policy::default();
        let shell = JobDocument::new("j", Action::Shell(Shell { command: "true".to_owned() }));
        assert_eq!(open.refuses(&shell, ["ANY"].into_iter()), None);
        assert_eq!(open.refuses_user(Account { user: "ann", uid: 7 }, true), None);
        assert!(open.refuses_user(Account { user: "root", uid: 0 }, false).is_some());
        assert!(open.refuses_user(Account { user: "toor", uid: 0 }, true).is_some(), "by number, not by name");
        assert_eq!(open.refuses_directory(Path::new("/etc")), None);
        assert_eq!(open.limits(Limits::default()), Ok(Limits::default()));
        let root = Policy { allow_root: Some(true), ..open };
        assert_eq!(root.refuses_user(Account { user: "root", uid: 0 }, true), None);
    }

    #[test]
    fn a_group_needs_membership_or_a_word_in_the_policy_and_never_is_that_of_root() {
        let open = Policy::default();
        assert_eq!(open.refuses_group("users", 100, true), None);
        assert!(open.refuses_group("docker", 999, false).is_some());
        assert!(open.refuses_group("root", 0, true).is_some());
        assert_eq!(strict().refuses_group("dba", 50, false), None);
    }

    #[test]
    fn what_a_strict_file_does_not_name_is_refused_with_what_it_does() {
        let strict = strict();
        let shell = JobDocument::new("j", Action::Shell(Shell { command: "true".to_owned() }));
        let refused = strict.refuses(&shell, std::iter::empty()).unwrap();
        assert_eq!(refused, "`shell` jobs are not allowed here; exec are");
        assert_eq!(strict.refuses(&exec(), ["APP_ENV", "LANG"].into_iter()), None);
        assert_eq!(
            strict.refuses(&exec(), ["LANG", "LD_PRELOAD"].into_iter()).unwrap(),
            "a job may not set `LD_PRELOAD` here; LANG, APP_* are allowed"
        );
        assert!(strict.refuses_user(Account { user: "www-data", uid: 33 }, true).is_some());
        assert_eq!(strict.refuses_user(Account { user: "nobody", uid: 65534 }, false), None, "the default user");
        let refuses = |program: &str| strict.refuses_program(Path::new(program)).is_some();
        assert!(!refuses("/srv/jobs/a/b") && !refuses("/usr/bin/rsync"));
        assert!(refuses("/usr/bin/rsync2") && refuses("/srv/jobs2") && refuses("/bin/bash"));
        assert!(strict.refuses_directory(Path::new("/srvx")).is_some());
    }

    #[test]
    fn limits_are_bounded_and_given_to_who_asks_for_none() {
        let asked = |memory: Option<u64>| Limits { memory: memory.map(Size::from_bytes), ..Limits::default() };
        assert_eq!(strict().limits(asked(None)).unwrap().memory, Some(Size::from_bytes(1 << 30)));
        let small = strict().limits(asked(Some(1 << 20))).unwrap();
        assert_eq!((small.memory, small.cpus), (Some(Size::from_bytes(1 << 20)), Some(1.5)));
        assert_eq!(
            strict().limits(asked(Some(2 << 30))).unwrap_err(),
            "limits.memory is 2GiB, and at most 1GiB is allowed here"
        );
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        assert_eq!(strict().check(), Ok(()));
        let field = |policy: Policy| policy.check().unwrap_err().field;
        assert_eq!(field(Policy { directories: Some(vec!["srv".into()]), ..strict() }), "directories");
        assert_eq!(field(Policy { programs: Some(vec!["/srv/../etc".into()]), ..strict() }), "programs");
        assert_eq!(field(Policy { kinds: Some(vec!["bash".to_owned()]), ..strict() }), "kinds");
        assert_eq!(field(Policy { environment: Some(vec!["A*B".to_owned()]), ..strict() }), "environment");
        let limits = Some(Limits { cpus: Some(0.0), ..Limits::default() });
        assert_eq!(field(Policy { limits, ..strict() }), "limits.cpus");
    }
}
