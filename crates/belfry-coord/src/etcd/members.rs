//! The members of an etcd cluster, each with a connection of its own: who is asked, for how long, and who is asked next.
//!
//! The library's own balancing is not used: it keeps choosing a member that is down, and hides which one failed.

use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, KvClient, ResponseHeader};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::failure::{Failure, is_stale_token};

const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// An owner that waits for its commit can do nothing else. A member keeps one that it had sent to a leader which died, and answers long
/// after another was elected; whoever looks at another member meanwhile knows what became of it, or goes on without it.
const COMMIT_WITHIN: Duration = Duration::from_secs(2);
/// When another member is asked too. Longer than an election takes.
const SILENT_AFTER: Duration = Duration::from_millis(1500);
/// etcd hangs up on a client that pings more often than every 5 s.
const PING_EVERY: Duration = Duration::from_secs(6);
const PONG_WITHIN: Duration = Duration::from_secs(3);
/// Far above a page of a list, see `listing.rs`.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

pub(super) struct Members {
    members: Vec<Member>,
    options: ConnectOptions,
    /// Who is asked first: not the one that has just not answered.
    preferred: AtomicUsize,
    /// The newest revision of the keyspace that any answer told.
    revision: AtomicI64,
}

struct Member {
    address: String,
    client: OnceCell<Client>,
}

/// A caller's newest request, to one member. The next one goes to another when it was not answered, also because whoever waited has given
/// up: those whose patience is shorter than the limit of a request would else ask a silent member again and again.
struct Question<'a> {
    preferred: &'a AtomicUsize,
    place: usize,
    after: usize,
    answered: bool,
}

impl Question<'_> {
    fn answered(mut self) {
        self.answered = true;
    }
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

    /// For what changes nothing, or changes the same when it is done twice: another member is asked when one fails or is silent, and the first
    /// answer is taken.
    pub(super) async fn ask<T, F, Asked>(&self, request: F) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let request = &request;
        let (mut asked, mut newest, mut failed) = (FuturesUnordered::new(), None, vec![]);
        let mut questions = self.questions();
        loop {
            match questions.next() {
                Some(question) => {
                    let place = question.place;
                    newest = Some(question);
                    asked.push(
                        async move { (place, self.try_one(&self.members[place], request, REQUEST_WITHIN).await) },
                    );
                }
                None if asked.is_empty() => return Err(Failure::NotHeard(failed.join("; "))),
                None => {}
            }
            let patience = if questions.len() == 0 { Duration::MAX } else { SILENT_AFTER };
            let Ok(Some((place, answer))) = timeout(patience, asked.next()).await else { continue };
            match answer {
                Err(Failure::NotHeard(why) | Failure::Open(why)) => failed.push(self.said(place, &why)),
                answer => {
                    newest.into_iter().for_each(Question::answered);
                    return answer;
                }
            }
        }
    }

    /// For a commit: another member is asked only when the one before surely has not heard of it.
    pub(super) async fn send<T, F, Asked>(&self, request: F) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let mut failed = vec![];
        for question in self.questions() {
            let place = question.place;
            match self.try_one(&self.members[place], &request, COMMIT_WITHIN).await {
                Err(Failure::NotHeard(why)) => failed.push(self.said(place, &why)),
                Err(Failure::Open(why)) => return Err(Failure::Open(self.said(place, &why))),
                answer => {
                    question.answered();
                    return answer;
                }
            }
        }
        Err(Failure::NotHeard(failed.join("; ")))
    }

    /// The same request to every member, for what each knows of itself.
    pub(super) async fn ask_each<T, F, Asked>(&self, request: F) -> Vec<Result<T, Failure>>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let mut answers = vec![];
        for member in &self.members {
            answers.push(self.try_one(member, &request, REQUEST_WITHIN).await);
        }
        answers
    }

    /// To each member once.
    fn questions(&self) -> impl ExactSizeIterator<Item = Question<'_>> {
        let count = self.members.len();
        let first = self.preferred.load(Ordering::Relaxed);
        (0..count).map(move |next| {
            let place = (first + next) % count;
            Question { preferred: &self.preferred, place, after: (place + 1) % count, answered: false }
        })
    }

    fn said(&self, place: usize, why: &str) -> String {
        format!("{}: {why}", self.members[place].address)
    }

    /// Renews the user's token once: a request with a stale one was refused before anything was applied.
    async fn try_one<T, F, Asked>(&self, member: &Member, request: &F, within: Duration) -> Result<T, Failure>
    where
        F: Fn(&Client) -> Asked,
        Asked: Future<Output = Result<T, Error>>,
    {
        let client = self.client(member).await?;
        match limited(request(client), within).await? {
            Err(error) if is_stale_token(&error) => {
                before_sending(client.refresh_token()).await?;
                limited(request(client), within).await?.map_err(|error| Failure::of(&error))
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

async fn limited<T>(
    asked: impl Future<Output = Result<T, Error>>,
    within: Duration,
) -> Result<Result<T, Error>, Failure> {
    let silence = |_| Failure::Open(format!("no answer within {within:?}"));
    timeout(within, asked).await.map_err(silence)
}

async fn before_sending<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match timeout(CONNECT_WITHIN, asked).await {
        Ok(answered) => answered.map_err(|error| Failure::of(&error).before_sending()),
        Err(_) => Err(Failure::NotHeard(format!("no connection within {CONNECT_WITHIN:?}"))),
    }
}
