//! A client of a living session, rooted where our nodes are, for whoever asks. Reads may be asked again; nothing that writes keys is sent
//! from here.
//!
//! No key is bound to a session, so that its end costs nothing but a new one. `old_lock`, whose node is, has a session of its own.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Acls, Client, Connector, CreateMode, CreateOptions, Error, MultiWriteError, Permission};

use super::address::Address;
use super::names::Folder;
use super::session::Sessions;
use crate::CoordError;

/// How long an answer may take, a new session included. Requests on a broken connection would wait for ever.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const SESSION_TIMEOUT: Duration = Duration::from_secs(6);
/// A member that says nothing for so long is left for the next one.
const MEMBER_SILENT_AFTER: Duration = Duration::from_millis(1600);
const READ_TRIES_MAX: u32 = 5;
/// Between two attempts, where an error came back at once.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(20);

pub(super) struct Link {
    address: Arc<Address>,
    sessions: Sessions,
    /// Folders that exist. They are never removed.
    folders: Mutex<HashSet<Folder>>,
}

impl Link {
    pub(super) fn new(address: Address) -> Self {
        let address = Arc::new(address);
        let sessions = Sessions::keep({
            let address = address.clone();
            move || arrive(address.clone())
        });
        Self { address, sessions, folders: Mutex::default() }
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }

    pub(super) fn chroot(&self) -> &str {
        &self.address.chroot
    }

    /// A client of a living session, rooted where our nodes are.
    pub(super) async fn client(&self) -> Result<Client, CoordError> {
        timeout(ANSWER_WITHIN, self.sessions.living()).await.unwrap_or_else(|_| {
            let why = self.sessions.missing().map(|why| format!(" ({why})")).unwrap_or_default();
            Err(CoordError::Away(format!("no member of ZooKeeper serves: {}{why}", self.address.hosts)))
        })
    }

    /// Asks until there is an answer.
    pub(super) async fn read<T, Asked>(&self, ask: impl Fn(Client) -> Asked) -> Result<T, CoordError>
    where
        Asked: Future<Output = Result<T, Error>>,
    {
        let mut tries = 0;
        loop {
            let client = self.client().await?;
            match ask(client.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if is_lost(&error) && tries < READ_TRIES_MAX => {
                    tries += 1;
                    self.lost(&client, &error).await;
                }
                Err(error) => return Err(self.explain(error)),
            }
        }
    }

    /// After an error that came from the connection and not from the request.
    pub(super) async fn lost(&self, client: &Client, error: &Error) {
        // Sessions that ended say so by their state. These two do not: the library is stuck or broken in itself.
        if matches!(error, Error::Timeout | Error::UnexpectedError(_)) {
            self.sessions.give_up(client);
        }
        tokio::time::sleep(TRY_AGAIN_AFTER).await;
    }

    /// It did not answer in time.
    pub(super) fn give_up(&self, client: &Client) {
        self.sessions.give_up(client);
    }

    /// Made with their count of removals in one step, and once for all.
    pub(super) async fn make_folders(&self, client: &Client, wanted: &[Folder]) -> Result<(), Error> {
        for folder in wanted {
            if self.folders().contains(folder) {
                continue;
            }
            let mut multi = client.new_multi_writer();
            multi.add_create(&folder.path(), b"", &self.new_node())?;
            multi.add_create(&folder.removals(), b"", &self.new_node())?;
            let made = timeout(ANSWER_WITHIN, multi.commit()).await;
            match made.unwrap_or(Err(MultiWriteError::RequestFailed { source: Error::Timeout })) {
                Ok(_) | Err(MultiWriteError::OperationFailed { source: Error::NodeExists, .. }) => {
                    self.folders().insert(folder.clone());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Somebody removed them by hand.
    pub(super) fn forget_folders(&self) {
        self.folders().clear();
    }

    pub(super) fn new_node(&self) -> CreateOptions<'static> {
        new_node(&self.address, CreateMode::Persistent)
    }

    /// For an error after which the request is known not to have happened.
    pub(super) fn explain(&self, error: Error) -> CoordError {
        explain(&self.address, error)
    }

    fn folders(&self) -> MutexGuard<'_, HashSet<Folder>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One round through the members for a new session.
async fn arrive(address: Arc<Address>) -> Result<Client, CoordError> {
    let explain = |error| explain(&address, error);
    let client =
        connector(&address, SESSION_TIMEOUT).with_fail_eagerly().connect(&address.hosts).await.map_err(explain)?;
    // Looked for first: where it exists already, its parent may not be ours to make nodes in.
    if client.check_stat(&address.chroot).await.map_err(explain)?.is_none() {
        client.mkdir(&address.chroot, &new_node(&address, CreateMode::Persistent)).await.map_err(explain)?;
    }
    let client =
        client.chroot(address.chroot.as_str()).map_err(|_| explain(Error::BadArguments(&"not a path of ZooKeeper")))?;
    // So that this session reads nothing older than what the last one did.
    barrier(&client).await.map_err(explain)?;
    refuse_open_chroot(&address, &client).await?;
    Ok(client)
}

/// With a password, others must not be able to make nodes that we would take for keys.
async fn refuse_open_chroot(address: &Address, client: &Client) -> Result<(), CoordError> {
    if address.login.is_none() {
        return Ok(());
    }
    let (acls, _) = client.get_acl("/").await.map_err(|error| explain(address, error))?;
    let harmful = Permission::CREATE | Permission::DELETE | Permission::ADMIN;
    if acls.iter().any(|acl| acl.scheme() == "world" && acl.permission() & harmful != Permission::NONE) {
        let chroot = &address.chroot;
        return Err(CoordError::Broken(format!(
            "everybody may make nodes in {chroot} of ZooKeeper, though the URL has a password; \
             restrict it (setAcl {chroot} auth::cdrwa) or name another path"
        )));
    }
    Ok(())
}

pub(super) fn connector(address: &Address, session_timeout: Duration) -> Connector {
    let connector =
        Client::connector().with_session_timeout(session_timeout).with_connection_timeout(MEMBER_SILENT_AFTER);
    match address.digest() {
        Some(digest) => connector.with_auth("digest", digest.as_bytes()),
        None => connector,
    }
}

fn explain(address: &Address, error: Error) -> CoordError {
    let chroot = &address.chroot;
    match error {
        error if is_lost(&error) => CoordError::Away(format!("ZooKeeper: {error}")),
        Error::QuotaExceeded => CoordError::Full(format!("the quota of ZooKeeper for {chroot} is used up")),
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => CoordError::Broken(format!(
            "ZooKeeper does not allow this user to use {chroot}; the URL must name the user and password that made it"
        )),
        Error::NoNode => CoordError::Broken(format!("{chroot} was removed from ZooKeeper; start again, or restore it")),
        error => CoordError::Broken(format!("ZooKeeper, under {chroot}: {error}")),
    }
}

pub(super) fn new_node(address: &Address, mode: CreateMode) -> CreateOptions<'static> {
    mode.with_acls(if address.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() })
}

/// Waits no longer than [`ANSWER_WITHIN`].
pub(super) async fn answered<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    timeout(ANSWER_WITHIN, asked).await.unwrap_or(Err(Error::Timeout))
}

/// A transaction that changes nothing. Its answer is given by a quorum, so that what this session reads from now on is no
/// older than this call; `sync` does not promise that when the leader was replaced and does not know it yet.
pub(super) async fn barrier(client: &Client) -> Result<(), Error> {
    let mut multi = client.new_multi_writer();
    multi.add_check_version("/", -1)?;
    let passed = timeout(ANSWER_WITHIN, multi.commit()).await;
    passed.map_err(|_| Error::Timeout)?.map(drop).map_err(Error::from)
}

/// The connection's fault: on another one the same request may be answered.
pub(super) fn is_lost(error: &Error) -> bool {
    match error {
        Error::ConnectionLoss
        | Error::Timeout
        | Error::NoHosts
        | Error::SessionExpired
        | Error::SessionMoved
        | Error::ClientClosed
        | Error::NotReadOnly
        | Error::Throttled
        | Error::UnexpectedError(_)
        | Error::Custom(_) => true,
        // The library may name more; what it does not know is no reason to ask for ever.
        _ => false,
    }
}
