//! From a job's document to a child that is ready to be started: what this machine's policy says to it, command, user, directory,
//! environment, limits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use belfry_core::job::{Action, Exec, JobDocument, RunAs, Service, TimeoutAction};
use belfry_core::planted;
use belfry_core::policy::{self, Policy};
use belfry_core::run::Outcome;
use belfry_exec::{FailOn, Identity, LookupError, Prepared, RunTag, clean_environment};
use belfry_proto::session::Dispatch;
use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::key::Key;
use crate::limits::{self, Bounds};
use crate::logins::{Account, Logins};
use crate::saving::Saving;
use crate::session::Node;
use crate::{script, signature};

pub(crate) struct Plan {
    pub prepared: Prepared,
    pub bounds: Bounds,
    pub care: Care,
    pub saving: Saving,
    /// What the run is to be told about its state, in its output.
    pub notes: mpsc::Receiver<String>,
    /// Which script it executes.
    pub script: Option<String>,
}

/// What is done for a run while it goes.
pub(crate) struct Care {
    pub keep_bytes: u64,
    pub fail_on: Option<FailOn>,
    /// After this the tree is ended.
    pub time_limit: Option<Duration>,
    /// After this it is told that it takes too long.
    pub report_after: Option<Duration>,
    /// TERM to KILL.
    pub grace: Duration,
}

/// It cannot be started as it is written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CannotStart {
    pub outcome: Outcome,
    pub reason: String,
    pub exit_code: Option<i32>,
    /// For the node's own reasons.
    pub abandoned: bool,
}

/// As a shell does for a command that is there and cannot be run.
pub(crate) const CANNOT_RUN: i32 = 126;
/// Who jobs without `as.user` run as when neither flag nor policy says it.
const DEFAULT_USER: &str = "nobody";

impl CannotStart {
    pub(crate) fn failed(reason: String, exit_code: i32) -> CannotStart {
        CannotStart { outcome: Outcome::Failed, reason, exit_code: Some(exit_code), abandoned: false }
    }

    pub(crate) fn skipped(reason: String) -> CannotStart {
        CannotStart { outcome: Outcome::Skipped, reason, exit_code: None, abandoned: false }
    }

    fn by_policy(why: impl std::fmt::Display) -> CannotStart {
        CannotStart::skipped(format!("policy: {why}"))
    }
}

impl From<LookupError> for CannotStart {
    fn from(cause: LookupError) -> CannotStart {
        CannotStart::failed(cause.to_string(), CANNOT_RUN)
    }
}

pub(crate) async fn prepare(node: &Node, key: Key, dispatch: Dispatch) -> Result<Plan, CannotStart> {
    let document: JobDocument = serde_json::from_slice(&dispatch.document)
        .map_err(|cause| CannotStart::failed(format!("the job's document cannot be read: {cause}"), CANNOT_RUN))?;
    let policy = node.policy.current().map_err(CannotStart::by_policy)?;
    let variables = document.run_as.env.keys().chain(dispatch.env.keys()).map(String::as_str);
    policy.refuses(&document, variables).map_or(Ok(()), |why| Err(CannotStart::by_policy(why)))?;
    let limits = policy.limits(document.limits.unwrap_or_default()).map_err(CannotStart::by_policy)?;
    let account = account(node, &policy, &document.run_as).await?;
    let identity = identity(node, &policy, &document.run_as, &account).await?;
    let script = match &document.action {
        Action::Script(wanted) => Some(script::ready(wanted, &document.name, dispatch.script.as_ref())?),
        _ => None,
    };
    let argv = command(&document.action, script.as_ref())?;
    let fifo = node.fifos.as_ref().map(|fifos| fifos.make(key, account.login.uid));
    let (saving, notes) = Saving::new(fifo, dispatch.state.clone().into_iter().collect(), document.run_on);
    let env = environment(node, key, &dispatch, &document.run_as, &account, &saving);
    // What executes a script is its interpreter.
    let interpreter = script.as_ref().and_then(|script| script.sealed.interpreter());
    let executed = interpreter.or(argv.first().map(OsString::as_os_str)).unwrap_or_default();
    let (directory, program) = places(&policy, directory(&document.run_as, &account), executed, &env).await?;
    let (which, sealed, program) = match (script, document.signature.clone()) {
        (Some(script), _) => (Some(script.which), Some(script.sealed), program),
        (None, Some(signature)) => {
            let sealed = signature::sealed(signature, &document.action, program.clone()).await?;
            // What was looked up is then the script; its interpreter is executed, as its first line names it.
            let program = program.filter(|_| sealed.interpreter().is_none());
            (None, Some(sealed), program)
        }
        (None, None) => (None, None, program),
    };
    let tag = RunTag { run: key.run.to_string(), attempt: key.attempt };
    // Last: from here on there is something to be removed.
    let bounds = limits::bounds(&node.cgroups, &tag, limits, account.login.uid).await?;
    let prepared = Prepared {
        program,
        sealed,
        directory: Some(directory),
        umask: document.run_as.umask_bits(),
        identity,
        no_new_privileges: !policy.allow_new_privileges,
        limits: bounds.of_processes.clone(),
        cage: bounds.cage.clone(),
        exclusive: dispatch.exclusive && !planted::is("no_shim") && !planted::is("exclusive_work_goes_on"),
        ..Prepared::new(argv, env, tag)
    };
    let after = |action| document.timeout.filter(|timeout| timeout.action == action).map(|timeout| timeout.after.get());
    let care = Care {
        keep_bytes: document.output_keep_bytes(),
        fail_on: FailOn::parse(&document.output.fail_on),
        time_limit: after(TimeoutAction::Kill),
        report_after: after(TimeoutAction::Report),
        grace: document.grace().get(),
    };
    Ok(Plan { prepared, bounds, care, saving, notes, script: which })
}

fn command(action: &Action, script: Option<&script::Ready>) -> Result<Vec<OsString>, CannotStart> {
    match action {
        Action::Shell(shell) => Ok(in_bash(&shell.command)),
        Action::Exec(Exec { argv }) | Action::Service(Service { command: None, argv, .. }) => {
            Ok(argv.iter().map(OsString::from).collect())
        }
        Action::Service(Service { command: Some(command), .. }) => Ok(in_bash(command)),
        Action::Script(_) => Ok(script.iter().map(|script| OsString::from(&script.name)).collect()),
        Action::Http(_) | Action::Grpc(_) | Action::Handler(_) => {
            let reason = format!("action `{}` is not supported yet by the agent on this node", action.kind());
            Err(CannotStart::failed(reason, CANNOT_RUN))
        }
    }
}

fn in_bash(command: &str) -> Vec<OsString> {
    vec!["/bin/bash".into(), "-c".into(), command.into()]
}

async fn account(node: &Node, policy: &Policy, run_as: &RunAs) -> Result<Account, CannotStart> {
    let account = match &run_as.user {
        Some(user) => node.logins.user(user, node.clock.boottime()).await?,
        None => default_account(&node.logins, policy, node.clock.boottime()).await?,
    };
    let asked = policy::Account { user: &account.login.user, uid: account.login.uid };
    match policy.refuses_user(asked, run_as.user.is_some()) {
        Some(why) => Err(CannotStart::by_policy(why)),
        None => Ok(account),
    }
}

/// Who jobs without `as.user` run as.
pub(crate) async fn default_account(logins: &Logins, policy: &Policy, now: Duration) -> Result<Account, LookupError> {
    if logins.own().login.uid != 0 || policy.allows_root() {
        return Ok(logins.own().clone());
    }
    logins.user(policy.default_user.as_deref().unwrap_or(DEFAULT_USER), now).await
}

/// `None`: the agent's own user, so there is nothing to change.
async fn identity(
    node: &Node,
    policy: &Policy,
    run_as: &RunAs,
    account: &Account,
) -> Result<Option<Identity>, CannotStart> {
    let mut identity = account.login.identity();
    if let Some(name) = &run_as.group {
        let gid = node.logins.group(name, node.clock.boottime()).await?;
        let is_member = identity.gid == gid || identity.groups.contains(&gid);
        if let Some(why) = policy.refuses_group(name, gid, is_member) {
            return Err(CannotStart::by_policy(why));
        }
        identity.gid = gid;
    }
    let own = &node.logins.own().login;
    Ok(((identity.uid, identity.gid) != (own.uid, own.gid)).then_some(identity))
}

/// Where a policy names places, the job's are looked up with all links followed, and used as they were found.
async fn places(
    policy: &Policy,
    directory: PathBuf,
    program: &std::ffi::OsStr,
    env: &[(OsString, OsString)],
) -> Result<(PathBuf, Option<PathBuf>), CannotStart> {
    if policy.directories.is_none() && policy.programs.is_none() {
        return Ok((directory, None));
    }
    let path = env.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.clone()).unwrap_or_default();
    let (policy, program) = (policy.clone(), PathBuf::from(program));
    let looked = tokio::task::spawn_blocking(move || look(&policy, &directory, &program, &path)).await;
    looked.unwrap_or_else(|cause| Err(CannotStart::failed(cause.to_string(), CANNOT_RUN)))
}

fn look(
    policy: &Policy,
    directory: &Path,
    program: &Path,
    path: &std::ffi::OsStr,
) -> Result<(PathBuf, Option<PathBuf>), CannotStart> {
    let missing = |path: &Path, cause: std::io::Error| {
        CannotStart::failed(format!("{}: {cause}; it must exist on this node", path.display()), CANNOT_RUN)
    };
    let found = std::fs::canonicalize(directory).map_err(|cause| missing(directory, cause))?;
    if let Some(why) = policy.refuses_directory(&found) {
        return Err(CannotStart::by_policy(why));
    }
    if policy.programs.is_none() {
        return Ok((found, None));
    }
    let places = if program.components().count() > 1 {
        vec![found.join(program)]
    } else {
        std::env::split_paths(path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(program)).collect()
    };
    let there = places.iter().find_map(|place| std::fs::canonicalize(place).ok());
    let there = there.ok_or_else(|| missing(program, std::io::ErrorKind::NotFound.into()))?;
    match policy.refuses_program(&there) {
        Some(why) => Err(CannotStart::by_policy(why)),
        None => Ok((found, Some(there))),
    }
}

fn directory(run_as: &RunAs, account: &Account) -> PathBuf {
    match &run_as.directory {
        Some(directory) => directory.into(),
        None if account.has_home => account.login.home.clone(),
        None => "/".into(),
    }
}

/// The job's own, then what a manual run was given, then what Belfry says, which nobody can forge.
fn environment(
    node: &Node,
    key: Key,
    dispatch: &Dispatch,
    run_as: &RunAs,
    account: &Account,
    saving: &Saving,
) -> Vec<(OsString, OsString)> {
    let planned = Timestamp::from_millisecond(dispatch.planned_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let mut extra: BTreeMap<String, String> = run_as.env.clone();
    extra.extend(dispatch.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    let facts = [
        ("BELFRY_JOB", format!("{}/{}", dispatch.namespace, dispatch.job)),
        ("BELFRY_RUN_ID", key.run.to_string()),
        ("BELFRY_ATTEMPT", key.attempt.to_string()),
        ("BELFRY_SCHEDULED_AT", planned.to_string()),
        ("BELFRY_FENCE", dispatch.fence.to_string()),
        ("BELFRY_NODE", node.name.clone()),
        ("BELFRY_NODE_ID", node.id.to_string()),
        ("BELFRY_INCARNATION", dispatch.incarnation.to_string()),
    ];
    extra.retain(|name, _| name != "BELFRY_STATE" && !name.starts_with("BELFRY_STATE_"));
    extra.extend(facts.map(|(name, value)| (name.to_owned(), value)));
    extra.extend(saving.environment());
    clean_environment(&account.login, &extra)
}
