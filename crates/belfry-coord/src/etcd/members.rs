//! The members of an etcd cluster, each with a connection of its own: who is asked, for how long, and who is asked next.
//!
//! The library's own balancing is not used: it keeps choosing a member that is down, and hides which one failed.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, KvClient, ResponseHeader};
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::failure::{Failure, is_stale_token};

const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// etcd hangs up on a client that pings more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);
const PONG_WITHIN: Duration = Duration::from_secs(3);
/// Far above a page of a list, see `listing.rs`.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(super) struct Members {
    members: Vec<Member>,
    options: ConnectOptions,
    /// Who answered last; who does not answer is not asked first the next time.
    preferred: AtomicUsize,
    /// The newest revision of the keyspace that any answer told.
    revision: AtomicI64,
}

struct Member {
    address: String,
    client: OnceCell<Client>,
}

/// When another member is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    WhenNotHeard,
    AfterAnyDoubt,
}

/// A request to one member. The next one goes to another when it was not answered, also because whoever waited has given up: those whose
/// patience is shorter than the limit of a request would else ask a silent member again and again.
struct Question<'a> {
    preferred: &'a AtomicUsize,
    place: usize,
    after: usize,
    answered: bool,
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.answered {
            // Somebody else may have moved on already: then that choice stays.
            let _moved = self.preferred.compare_exchange(self.place, self.after, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Members {
    pub(super) fn new(addresses: Vec<String>, options: ConnectOptions) -> Self {
        let options = options
            .with_connect_timeout(CONNECT_WITHIN)
            .with_timeout(REQUEST_WITHIN)
            .with_keep_alive(PING_EVERY, PONG_WITHIN)
            // A dead member is then known before the next commit is sent to it. etcd hangs up on a connection that only
            // pings, which costs the next request a new connection and nothing else.
            .with_keep_alive_while_idle(true)
            // A member without a leader says so at once, and ends its watches, instead of waiting for one.
            .with_require_leader(true);
        let member = |address| Member { address, client: OnceCell::new() };
        Self {
            members: addresses.into_iter().map(member).collect(),
            options,
            preferred: AtomicUsize::new(0),
            revision: AtomicI64::new(0),
        }
    }

    pub(super) fn addresses(&self) -> Vec<&str> {
        self.members.iter().map(|member| member.address.as_str()).collect()
    }

    /// For what changes nothing, or changes the same when it is done twice: every member is asked in turn.
    pub(super) async fn ask<T, F, Asked>(&self, request: F) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        self.in_turn(request, Next::AfterAnyDoubt).await
    }

    /// For a commit: another member is asked only when the one before surely has not heard of it.
    pub(super) async fn send<T, F, Asked>(&self, request: F) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        self.in_turn(request, Next::WhenNotHeard).await
    }

    /// The same request to every member, for what each knows of itself.
    pub(super) async fn ask_each<T, F, Asked>(&self, request: F) -> Vec<Result<T, Failure>>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let mut answers = vec![];
        for member in &self.members {
            answers.push(self.try_one(member, &request).await);
        }
        answers
    }

    async fn in_turn<T, F, Asked>(&self, request: F, next: Next) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let count = self.members.len();
        let first = self.preferred.load(Ordering::Relaxed);
        let mut silent = vec![];
        for place in (first..first + count).map(|place| place % count) {
            let member = &self.members[place];
            let mut question =
                Question { preferred: &self.preferred, place, after: (place + 1) % count, answered: false };
            let (heard, why) = match self.try_one(member, &request).await {
                Err(Failure::NotHeard(why)) => (false, why),
                Err(Failure::Open(why)) => (true, why),
                answer => {
                    question.answered = true;
                    return answer;
                }
            };
            drop(question);
            let why = format!("{}: {why}", member.address);
            if heard && next == Next::WhenNotHeard {
                return Err(Failure::Open(why));
            }
            silent.push(why);
        }
        Err(Failure::NotHeard(silent.join("; ")))
    }

    /// Renews the user's token once: a request with a stale one was refused before anything was applied.
    async fn try_one<T, F, Asked>(&self, member: &Member, request: &F) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let client = self.client(member).await?;
        match limited(request(client)).await? {
            Err(error) if is_stale_token(&error) => {
                before_sending(client.refresh_token()).await?;
                limited(request(client)).await?.map_err(|error| Failure::of(&error))
            }
            answered => answered.map_err(|error| Failure::of(&error)),
        }
    }

    /// With a user it asks for a token here; the connection itself is made by the first request.
    async fn client<'a>(&self, member: &'a Member) -> Result<&'a Client, Failure> {
        let connect = || Client::connect([member.address.clone()], Some(self.options.clone()));
        before_sending(member.client.get_or_try_init(connect)).await
    }

    pub(super) fn saw(&self, header: Option<&ResponseHeader>) -> Option<i64> {
        let revision = header?.revision();
        self.revision.fetch_max(revision, Ordering::Relaxed);
        Some(revision)
    }

    pub(super) fn newest_seen(&self) -> i64 {
        self.revision.load(Ordering::Relaxed)
    }
}

pub(super) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(ANSWER_BYTES_MAX)
}

async fn limited<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<Result<T, Error>, Failure> {
    let silence = |_| Failure::Open(format!("no answer within {REQUEST_WITHIN:?}"));
    timeout(REQUEST_WITHIN, asked).await.map_err(silence)
}

async fn before_sending<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match timeout(CONNECT_WITHIN, asked).await {
        Ok(answered) => answered.map_err(|error| Failure::of(&error).before_sending()),
        Err(_) => Err(Failure::NotHeard(format!("no connection within {CONNECT_WITHIN:?}"))),
    }
}
