//! The coordinator on ZooKeeper: one znode per key, one multi per commit, and the transaction's number (zxid) as version.
//!
//! **Why a guard at a version is sound.** The version of a key is the zxid that last wrote its znode (mzxid). It grows in the
//! order of all transactions, but a multi cannot check it: it can only check a data version, which counts the writes to one
//! node and begins again at zero when the node is made again. So a key that was deleted and made again could pass for its
//! former self. Therefore every folder has a count of removals, a node that each commit which deletes a key of that folder
//! writes in the same multi, and that is never removed itself. For a guard we read the count of removals, then the key, in one
//! session, whose reads never go back in time; the key must be at the guarded version; the multi checks both data versions. If
//! it passes, no key of the folder was deleted since the first reading, so the key is still the node that was read, and as its
//! data version is the same, nobody wrote it: it is at the guarded version in the very transaction that makes the commit.
//! Commits get in each other's way only when one deletes in a folder where the other guards. Then the other is refused, which
//! proves that it did not happen, and it reads and tries again; each refusal means that someone else got on.
//!
//! **Why a conflict is true.** A read may come from a member that lags behind, and seeing a key at an older version than the
//! guarded one, or not at all, proves nothing. The answer is then taken from a second reading, after a transaction of this
//! session that went through a quorum (`link::barrier`, or a refused multi, which is a transaction too). A key at a newer
//! version, a check that is refused, and a node that exists where it should be made, are proof at once.
//!
//! **Absence** is proven by making the node, and unless the commit puts it, deleting it again in the same multi. A put without
//! a guard makes or sets the node as the reading suggests, and a wrong guess is a refusal like the one above. The folder's own
//! node is set by every commit that writes in it: that tells watches, and its answer tells the zxid, which the answers to
//! create and delete do not.
//!
//! All this holds among users of this file. Who deletes nodes by hand stops every server first. `old_lock` shares the ensemble and nothing
//! else: its nodes are never read as keys.

mod address;
mod link;
mod names;
mod old_lock;
mod plan;
mod session;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_core::Version;
use bytes::Bytes;
use futures_util::future::{try_join, try_join_all};
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Client, Error, MultiWriteError, MultiWriteResult, SessionId, Stat};

use self::address::Address;
use self::link::{ANSWER_WITHIN, Link, answered, barrier, is_lost};
use self::names::Folder;
pub use self::old_lock::{OldLock, OldTake};
use self::plan::{Facts, Multi, Operation, Plan, Questions, Refusal, Seen};
use crate::coordinator::check_commit;
use crate::hints::Listeners;
use crate::{Commit, CoordError, Coordinator, Entry, Guard, Hints, Write};

/// How often a watch looks whether another process has committed. Watches of ZooKeeper are not used: this library loses
/// persistent ones when it reconnects, and events that fall into the gap are lost with any client; a number that is compared
/// misses nothing.
const POLL_EVERY: Duration = Duration::from_millis(500);
/// Requests under way at once while a list is read.
const READS_IN_FLIGHT_MAX: usize = 256;
/// Refusals in a row, each of which means that another commit was applied.
const REFUSALS_MAX: usize = 64;

pub struct ZooKeeperCoordinator {
    link: Arc<Link>,
    listeners: Listeners,
}

impl ZooKeeperCoordinator {
    /// `zookeeper://[user:password@]h1:2181,h2:2181/chroot`. Makes the chroot, `/belfry` by default, when it is missing. With
    /// a password nobody else can read or write what is below.
    pub async fn open(url: &str) -> Result<Self, CoordError> {
        let link = Link::new(Address::parse(url)?);
        link.client().await?;
        Ok(Self { link: Arc::new(link), listeners: Listeners::default() })
    }

    /// Decides by reading whether and what to send. Nothing that could apply has been sent when this fails.
    async fn prepare(&self, guards: &[Guard], writes: &[Write], fresh_in: &mut Fresh) -> Result<Prepared, CoordError> {
        loop {
            let client = self.link.client().await?;
            match self.look(&client, guards, writes, fresh_in).await {
                Ok(Plan::Send(multi)) => {
                    multi.check_size(self.link.chroot())?;
                    return Ok(Prepared::Multi(client, multi));
                }
                Ok(Plan::Conflict { key }) => return Ok(Prepared::Conflict { key }),
                Ok(Plan::WornOut { key }) => {
                    return Err(CoordError::Away(format!("`{key}` must be put once more before it can be guarded")));
                }
                Ok(Plan::ReadFresh | Plan::MoveOn(_)) => {}
                Err(error) if is_lost(&error) => self.link.lost(&client, &error).await,
                Err(error) => return Err(self.link.explain(error)),
            }
        }
    }

    async fn look(
        &self,
        client: &Client,
        guards: &[Guard],
        writes: &[Write],
        fresh_in: &mut Fresh,
    ) -> Result<Plan, Error> {
        let Questions { removals, keys, folders } = Questions::of(guards, writes);
        self.link.make_folders(client, &Vec::from_iter(folders)).await?;
        // Sent in this order, and a session is served in order.
        let removals = try_join_all(removals.into_iter().map(|folder| {
            let asked = client.check_stat(&folder.removals());
            async move { Ok::<_, Error>((folder, answered(asked).await?.map(seen))) }
        }));
        let keys = try_join_all(keys.into_iter().map(|key| {
            let asked = client.check_stat(&names::path(&key));
            async move { Ok::<_, Error>((key, answered(asked).await?.map(seen))) }
        }));
        let (removals, keys) = try_join(removals, keys).await?;
        let facts = Facts { removals: BTreeMap::from_iter(removals), keys: BTreeMap::from_iter(keys) };
        let plan = plan::plan(guards, writes, &facts, *fresh_in == Some(client.session_id()));
        match &plan {
            Plan::ReadFresh => {
                barrier(client).await?;
                *fresh_in = Some(client.session_id());
            }
            Plan::MoveOn(folder) => drop(answered(client.set_data(&folder.removals(), b"", None)).await?),
            Plan::Send(_) | Plan::Conflict { .. } | Plan::WornOut { .. } => {}
        }
        Ok(plan)
    }

    async fn send(&self, client: &Client, multi: &Multi, until: Instant) -> Result<Sent, CoordError> {
        let mut writer = client.new_multi_writer();
        for operation in &multi.operations {
            match operation {
                Operation::Check { path, data_version } => writer.add_check_version(path, *data_version),
                Operation::Create { path, data } => writer.add_create(path, data, &self.link.new_node()),
                Operation::Set { path, data } => writer.add_set_data(path, data, None),
                Operation::Delete { path } => writer.add_delete(path, None),
            }
            .map_err(|error| self.link.explain(error))?;
        }
        let Ok(answer) = timeout_at(until, writer.commit()).await else {
            self.link.give_up(client);
            return Err(CoordError::Unknown);
        };
        match answer {
            Ok(results) => match results.get(multi.told_by) {
                Some(MultiWriteResult::SetData { stat }) => Ok(Sent::Applied(seen(*stat).at)),
                Some(_) | None => Err(CoordError::Unknown),
            },
            Err(MultiWriteError::OperationFailed { index, source }) => match multi.refusal(index, &source) {
                Refusal::Conflict { key } => Ok(Sent::Conflict { key }),
                Refusal::OutOfDate => Ok(Sent::OutOfDate),
                Refusal::NoFolder => {
                    self.link.forget_folders();
                    Ok(Sent::OutOfDate)
                }
                Refusal::Other => Err(self.link.explain(source)),
            },
            Err(MultiWriteError::RequestFailed { source }) if refused_as_a_whole(&source) => {
                Err(self.link.explain(source))
            }
            Err(MultiWriteError::RequestFailed { source }) => {
                self.link.lost(client, &source).await;
                Err(CoordError::Unknown)
            }
        }
    }
}

impl fmt::Debug for ZooKeeperCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ZooKeeperCoordinator").field(self.link.address()).finish()
    }
}

#[async_trait]
impl Coordinator for ZooKeeperCoordinator {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.link.read(|client| entry(client, key.to_owned())).await
    }

    /// Each key as some commit left it. A key that is written, made or deleted meanwhile may be seen before or after that, apart
    /// from the others; every key that stays as it is is there.
    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        self.link.read(|client| entries(client, prefix.to_owned())).await
    }

    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        check_commit(&guards, &writes)?;
        let until = Instant::now() + ANSWER_WITHIN;
        let mut fresh_in = None;
        for _ in 0..REFUSALS_MAX {
            let Ok(prepared) = timeout_at(until, self.prepare(&guards, &writes, &mut fresh_in)).await else {
                return Err(CoordError::Away(format!("ZooKeeper did not answer within {ANSWER_WITHIN:?}")));
            };
            let (client, multi) = match prepared? {
                Prepared::Multi(client, multi) => (client, multi),
                Prepared::Conflict { key } => return Ok(Commit::Conflict { key }),
            };
            match self.send(&client, &multi, until).await? {
                Sent::Applied(version) => {
                    self.listeners.tell(&writes);
                    return Ok(Commit::Applied(version));
                }
                Sent::Conflict { key } => return Ok(Commit::Conflict { key }),
                Sent::OutOfDate => fresh_in = Some(client.session_id()),
            }
        }
        Err(CoordError::Away(format!("{REFUSALS_MAX} other commits to the same folders came first")))
    }

    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        let own = self.listeners.listen(prefix);
        let seen = marks(&self.link, prefix).await?;
        let watch = (self.link.clone(), prefix.to_owned(), own, seen);
        Ok(Hints::new(stream::unfold(watch, |(link, prefix, own, mut seen)| async move {
            loop {
                tokio::select! {
                    () = own.notified() => break,
                    () = tokio::time::sleep(POLL_EVERY) => {}
                }
                // An error is no hint: whoever needs the truth lists by itself and meets the error there.
                match marks(&link, &prefix).await {
                    Ok(now) if now != seen => {
                        seen = now;
                        break;
                    }
                    Ok(_) | Err(_) => {}
                }
            }
            Some(((), (link, prefix, own, seen)))
        })))
    }
}

/// The session that has had a transaction since the commit began: its reads are no older than the commit.
type Fresh = Option<SessionId>;

enum Prepared {
    Multi(Client, Multi),
    Conflict { key: String },
}

enum Sent {
    Applied(Version),
    Conflict { key: String },
    OutOfDate,
}

async fn entry(client: Client, key: String) -> Result<Option<Entry>, Error> {
    match answered(client.get_data(&names::path(&key))).await {
        Ok((data, stat)) => Ok(Some(Entry { key, value: Bytes::from(data), version: seen(stat).at })),
        Err(Error::NoNode) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn entries(client: Client, prefix: String) -> Result<Vec<Entry>, Error> {
    let mut keys = vec![];
    for folder in folders(&client, &prefix).await? {
        let names = answered(client.list_children(&folder.path())).await?;
        keys.extend(names.iter().filter_map(|name| folder.key(name)).filter(|key| key.starts_with(&prefix)));
    }
    let read = stream::iter(keys).map(|key| entry(client.clone(), key)).buffer_unordered(READS_IN_FLIGHT_MAX);
    let mut entries: Vec<Entry> = read.try_filter_map(|entry| async { Ok(entry) }).try_collect().await?;
    entries.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(entries)
}

/// Those that can hold a key with this prefix.
async fn folders(client: &Client, prefix: &str) -> Result<Vec<Folder>, Error> {
    let names = answered(client.list_children("/")).await?;
    Ok(names.iter().filter_map(|name| Folder::named(name)).filter(|folder| folder.may_hold(prefix)).collect())
}

/// The commit that last wrote in each folder of this prefix.
async fn marks(link: &Link, prefix: &str) -> Result<BTreeMap<Folder, Version>, CoordError> {
    link.read(|client| {
        let prefix = prefix.to_owned();
        async move {
            let marks = try_join_all(folders(&client, &prefix).await?.into_iter().map(|folder| {
                let asked = client.check_stat(&folder.path());
                async move { Ok::<_, Error>(answered(asked).await?.map(|stat| (folder, seen(stat).at))) }
            }));
            Ok(marks.await?.into_iter().flatten().collect())
        }
    })
    .await
}

fn seen(stat: Stat) -> Seen {
    // A zxid is never negative.
    Seen { data_version: stat.version, at: Version(stat.mzxid.cast_unsigned()) }
}

/// Errors with which a server answers a request that it did not even try. Any other leaves the outcome open.
fn refused_as_a_whole(error: &Error) -> bool {
    matches!(
        error,
        Error::NoAuth
            | Error::InvalidAcl
            | Error::QuotaExceeded
            | Error::Throttled
            | Error::Unimplemented
            | Error::NotReadOnly
    )
}
