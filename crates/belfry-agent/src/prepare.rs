//! From a job's document to a child that is ready to be started: command, user, directory, environment, limits of time
//! and output.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use belfry_core::job::{Action, JobDocument, KILL_GRACE_DEFAULT, RunAs, TimeoutAction};
use belfry_core::run::Outcome;
use belfry_exec::{FailOn, Identity, Prepared, RunTag, clean_environment};
use belfry_proto::session::Dispatch;
use jiff::Timestamp;
use nix::unistd::Group;

use crate::key::Key;
use crate::logins::Account;
use crate::session::Node;

pub(crate) struct Plan {
    pub prepared: Prepared,
    pub keep_bytes: u64,
    pub fail_on: Option<FailOn>,
    /// After this the tree is ended.
    pub time_limit: Option<Duration>,
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
const CANNOT_RUN: i32 = 126;

impl CannotStart {
    pub(crate) fn failed(reason: String, exit_code: i32) -> CannotStart {
        CannotStart { outcome: Outcome::Failed, reason, exit_code: Some(exit_code), abandoned: false }
    }

    pub(crate) fn skipped(reason: String) -> CannotStart {
        CannotStart { outcome: Outcome::Skipped, reason, exit_code: None, abandoned: false }
    }
}

pub(crate) async fn prepare(node: &Node, key: Key, dispatch: Dispatch) -> Result<Plan, CannotStart> {
    let document: JobDocument = serde_json::from_slice(&dispatch.document)
        .map_err(|cause| CannotStart::failed(format!("the job's document cannot be read: {cause}"), CANNOT_RUN))?;
    let account = account(node, &document.run_as).await?;
    let prepared = Prepared {
        argv: command(&document.action)?,
        env: environment(node, key, &dispatch, &document.run_as, &account),
        directory: Some(directory(&document.run_as, &account)),
        umask: document.run_as.umask.as_deref().and_then(|umask| u32::from_str_radix(umask, 8).ok()),
        identity: identity(node, &document.run_as, &account)?,
        tag: RunTag { run: key.run.to_string(), attempt: key.attempt },
    };
    Ok(Plan {
        prepared,
        keep_bytes: document.output_keep_bytes(),
        fail_on: FailOn::parse(&document.output.fail_on),
        time_limit: document
            .timeout
            .filter(|timeout| timeout.action == TimeoutAction::Kill)
            .map(|timeout| timeout.after.get()),
        grace: document.timeout.map_or(KILL_GRACE_DEFAULT, |timeout| timeout.grace).get(),
    })
}

fn command(action: &Action) -> Result<Vec<OsString>, CannotStart> {
    match action {
        Action::Shell(shell) => Ok(vec!["/bin/bash".into(), "-c".into(), shell.command.clone().into()]),
        Action::Exec(exec) => Ok(exec.argv.iter().map(OsString::from).collect()),
        Action::Script(_) | Action::Http(_) | Action::Grpc(_) | Action::Handler(_) | Action::Service(_) => {
            let reason = format!("action `{}` is not supported yet by the agent on this node", action.kind());
            Err(CannotStart::failed(reason, CANNOT_RUN))
        }
    }
}

async fn account(node: &Node, run_as: &RunAs) -> Result<Account, CannotStart> {
    let account = match &run_as.user {
        None => node.logins.default().clone(),
        Some(user) => {
            let found = node.logins.find(user, node.clock.boottime()).await;
            found.map_err(|cause| CannotStart::failed(cause.to_string(), CANNOT_RUN))?
        }
    };
    if account.login.uid == 0 && !node.allow_root {
        let reason =
            "policy: this agent runs nothing as root; name another user in `as.user`, or start it with --allow-root";
        return Err(CannotStart::skipped(reason.to_owned()));
    }
    Ok(account)
}

/// `None`: the agent's own user, so there is nothing to change.
fn identity(node: &Node, run_as: &RunAs, account: &Account) -> Result<Option<Identity>, CannotStart> {
    let mut identity = account.login.identity();
    if let Some(name) = &run_as.group {
        let unknown =
            |why: &str| CannotStart::failed(format!("group {name} {why}; name another one in `as.group`"), CANNOT_RUN);
        let group = Group::from_name(name).map_err(|errno| unknown(errno.desc()))?;
        identity.gid = group.ok_or_else(|| unknown("does not exist on this node"))?.gid.as_raw();
    }
    let own = node.logins.own();
    Ok(((identity.uid, identity.gid) != (own.uid, own.gid)).then_some(identity))
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
    extra.extend(facts.map(|(name, value)| (name.to_owned(), value)));
    clean_environment(&account.login, &extra)
}
