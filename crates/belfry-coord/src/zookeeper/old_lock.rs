//! The lock of the wrapper that `dcron` replaces, for fleets in which both are at work. It is no part of the coordinator: our own records
//! decide among our hosts, and this only keeps hosts of the old wrapper out of what one of ours runs, and ours out of what they run.
//!
//! Of `a.b.INSTANCE` the old wrapper has, below the chroot that its address names, `/a/b/INSTANCE` with
//! - `master`, ephemeral, of the host that runs it; its data is that host's id, which nobody reads;
//! - `status`, made when the run has ended and never removed. Hosts that stood by look for it when `master` goes, and run the instance
//!   when it is missing; so it is made here too before `master` goes, and an instance that has it is not run.
//!
//! **What this cannot keep apart.** A host of the old wrapper that comes when `master` is gone does not look for `status` and runs the
//! instance again, as it does after one of its own kind. And when the session ends while the command runs, such a host may start it a
//! second time; that is said, and the command goes on, because our own record still stands.

use std::fmt;
use std::time::Duration;

use tokio::time::timeout;
use zookeeper_client::{Client, CreateMode, Error};

use super::address::Address;
use super::link::{answered, connector, is_lost, new_node};
use crate::CoordError;

/// Released when it is dropped, if that is given the time to be told; else when its session ends.
pub struct OldLock {
    address: Address,
    /// The node of the instance, from the root of the ensemble.
    instance: String,
    host: String,
    session_timeout: Duration,
    /// One for all attempts: a node whose making was in doubt is known by its session.
    client: Option<Client>,
}

/// What an attempt to take it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldTake {
    Taken,
    /// A host of the old wrapper runs the instance.
    Held {
        by: String,
    },
    /// It has been run.
    Finished,
}

/// What the data of a `master` of ours ends with.
const MARK: &[u8] = b" (belfry)";
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

impl OldLock {
    /// `instance`: `NAME.INSTANCE`; every dot parts two nodes, as it does for the old wrapper. `session_timeout`: how long the lock stays
    /// when this host is cut off, as far as the ensemble grants it.
    pub fn of(url: &str, instance: &str, host: &str, session_timeout: Duration) -> Result<OldLock, CoordError> {
        let address = Address::parse(url)?;
        let nodes: Vec<&str> = instance.split(['.', '/']).collect();
        let is_reserved = !address.chroot_is_named && nodes[0] == "zookeeper";
        if nodes.iter().any(|node| !is_name_of_node(node)) || is_reserved {
            return Err(CoordError::Broken(format!(
                "`{instance}` is no path of ZooKeeper when its dots are slashes, so that the old wrapper cannot have a lock of it"
            )));
        }
        let chroot = if address.chroot_is_named { address.chroot.as_str() } else { "" };
        let instance = format!("{chroot}/{}", nodes.join("/"));
        Ok(OldLock { address, instance, host: host.to_owned(), session_timeout, client: None })
    }

    /// May be asked again after an error, and when it has the lock already. Only for one who has the instance by our own record: a lock
    /// that another one of ours has left is then waited for (an error that is transient), because that one is dead or about to leave.
    pub async fn take(&mut self) -> Result<OldTake, CoordError> {
        let client = self.client().await?;
        match self.make_master(&client).await.map_err(|error| self.explain(error))? {
            Master::Ours => {}
            Master::OfOneOfOurs { by } => {
                return Err(CoordError::Away(format!("the lock {} of {by} is not yet gone", self.master())));
            }
            Master::Theirs { by } => return Ok(OldTake::Held { by }),
        }
        // Whoever had it before made its status before it let go, and this session has seen that it let go.
        let status = answered(client.check_stat(&self.status())).await.map_err(|error| self.explain(error))?;
        Ok(if status.is_some() { OldTake::Finished } else { OldTake::Taken })
    }

    /// How long the lock stays when this host is cut off. None: it was never taken.
    pub fn stays_for(&self) -> Option<Duration> {
        self.client.as_ref().map(Client::session_timeout)
    }

    /// Until the session has ended, and the lock with it.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let states = self.client.as_ref().map(Client::state_watcher);
        async move {
            let Some(mut states) = states else { return };
            while !states.peek_state().is_terminated() {
                states.changed().await;
            }
        }
    }

    /// Hosts of the old wrapper that stand by will not run it when the lock goes.
    pub async fn finish(&mut self, exit_code: u8) -> Result<(), CoordError> {
        let client = self.client().await?;
        let status = serde_json::json!({ "id": self.host, "status": exit_code }).to_string();
        let persistent = new_node(&self.address, CreateMode::Persistent);
        match answered(client.create(&self.status(), status.as_bytes(), &persistent)).await {
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// When this returns the lock is gone, unless nobody answers.
    pub async fn release(mut self) {
        let Some(client) = self.client.take() else { return };
        let mut states = client.state_watcher();
        // The library closes the session of a client that nobody has any more.
        drop(client);
        let closed = async {
            while !states.peek_state().is_terminated() {
                states.changed().await;
            }
        };
        let _it_ends_by_itself_later = timeout(GOODBYE_WITHIN, closed).await;
    }

    async fn make_master(&self, client: &Client) -> Result<Master, Error> {
        let data = [self.host.as_bytes(), MARK].concat();
        let ephemeral = new_node(&self.address, CreateMode::Ephemeral);
        let path = self.master();
        let mut made = answered(client.create(&path, &data, &ephemeral)).await;
        if matches!(made, Err(Error::NoNode)) {
            let persistent = new_node(&self.address, CreateMode::Persistent);
            answered(client.mkdir(&self.instance, &persistent)).await?;
            made = answered(client.create(&path, &data, &ephemeral)).await;
        }
        match made {
            Ok(_) => return Ok(Master::Ours),
            Err(Error::NodeExists) => {}
            Err(error) => return Err(error),
        }
        let (data, stat) = match answered(client.get_data(&path)).await {
            // It went meanwhile; who asks again finds out who is next.
            Err(Error::NoNode) => return Err(Error::ConnectionLoss),
            found => found?,
        };
        let name = |id: &[u8]| String::from_utf8_lossy(id).into_owned();
        Ok(match data.strip_suffix(MARK) {
            _ if stat.ephemeral_owner == client.session_id().0 => Master::Ours,
            Some(id) => Master::OfOneOfOurs { by: name(id) },
            None => Master::Theirs { by: name(&data) },
        })
    }

    async fn client(&mut self) -> Result<Client, CoordError> {
        if let Some(client) = &self.client
            && !client.state().is_terminated()
        {
            return Ok(client.clone());
        }
        let connected = answered(connector(&self.address, self.session_timeout).connect(&self.address.hosts)).await;
        let client = connected.map_err(|error| self.explain(error))?;
        Ok(self.client.insert(client).clone())
    }

    fn master(&self) -> String {
        format!("{}/master", self.instance)
    }

    fn status(&self) -> String {
        format!("{}/status", self.instance)
    }

    /// Asking again does no harm after any of them.
    fn explain(&self, error: Error) -> CoordError {
        let instance = &self.instance;
        match error {
            error if is_lost(&error) => CoordError::Away(format!("ZooKeeper: {error}")),
            Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => CoordError::Broken(format!(
                "ZooKeeper does not allow this user to take the old wrapper's lock in {instance}"
            )),
            error => CoordError::Broken(format!("the old wrapper's lock in {instance} of ZooKeeper: {error}")),
        }
    }
}

impl fmt::Debug for OldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OldLock").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// Whose it is.
enum Master {
    Ours,
    OfOneOfOurs { by: String },
    Theirs { by: String },
}

fn is_name_of_node(name: &str) -> bool {
    // The server refuses these, and what Java writes with two units.
    let is_refused = |c: char| c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || c >= '\u{fff0}';
    !name.is_empty() && !name.contains(is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn master(url: &str, instance: &str) -> Result<String, CoordError> {
        OldLock::of(url, instance, "h", Duration::from_secs(6)).map(|lock| lock.master())
    }

    #[test]
    fn the_lock_is_where_the_old_wrapper_has_it() {
        for (url, instance, path) in [
            ("zookeeper://h:2181/x", "dbbackup.2026-11-17", "/x/dbbackup/2026-11-17/master"),
            ("zookeeper://h:2181/x/y/", "db.backup.0230", "/x/y/db/backup/0230/master"),
            ("zookeeper://h:2181", "dbbackup.02.30", "/dbbackup/02/30/master"),
            ("zookeeper://h/x", "zookeeper.1", "/x/zookeeper/1/master"),
        ] {
            assert_eq!(master(url, instance).unwrap(), path, "{url} {instance}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused_before_anything_runs() {
        for (url, instance) in
            [("zookeeper://h", "a..1"), ("zookeeper://h", "zookeeper.1"), ("zookeeper://h", "a.\u{1f514}")]
        {
            assert!(!master(url, instance).unwrap_err().is_transient(), "{instance}");
        }
        assert!(master("etcd://h", "a.1").is_err());
    }
}
