//! Keeps a session with the ensemble, in a task of its own. Nobody who waits for it can cancel its making, and nobody who makes it keeps
//! the others waiting: callers look whether there is one, each for as long as it likes.
//!
//! The library waits longer and longer between its rounds through the members. Here a round is one try at each of them, and the next
//! one follows after a short pause, so that a quorum that is back is noticed soon however long it was away.

use std::future::Future;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use zookeeper_client::{Client, SessionId, SessionState};

use crate::CoordError;

/// A whole round through the members, the first look at our nodes included.
const ROUND_WITHIN: Duration = Duration::from_secs(6);
/// Between two rounds: twice the last one, up to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LONGEST: Duration = Duration::from_millis(400);
/// A connection that the library has not brought back within this is left for a new session.
const RECONNECT_WITHIN: Duration = Duration::from_secs(1);

#[derive(Clone)]
enum Current {
    Missing(CoordError),
    Living(Client),
}

/// Ends its task, and with it the session, when it is dropped.
pub(super) struct Sessions {
    current: watch::Receiver<Current>,
    given_up: watch::Sender<Option<SessionId>>,
    keeper: AbortHandle,
}

impl Sessions {
    /// `make` goes once through the members; what it fails with is told to who waits.
    pub(super) fn keep<Made>(make: impl Fn() -> Made + Send + Sync + 'static) -> Self
    where
        Made: Future<Output = Result<Client, CoordError>> + Send,
    {
        let (sender, current) = watch::channel(Current::Missing(CoordError::Away("not connected yet".to_owned())));
        let (given_up, told) = watch::channel(None);
        let keeper = spawn(async move {
            loop {
                let client = arrive(&make, &sender).await;
                stay(&client, &sender, told.clone()).await;
                drop(sender.send_replace(Current::Missing(CoordError::Away("ZooKeeper: connection lost".to_owned()))));
            }
        });
        Self { current, given_up, keeper }
    }

    /// A client that is connected. Waits for it as long as the caller does, but not where waiting is no use.
    pub(super) async fn living(&self) -> Result<Client, CoordError> {
        let mut current = self.current.clone();
        // What the keeper has not seen yet counts too: a request to a lost connection would wait until there is another one.
        let is_of_use = |client: &Client| {
            client.state() == SessionState::SyncConnected && *self.given_up.borrow() != Some(client.session_id())
        };
        let found = current.wait_for(|current| match current {
            Current::Living(client) => is_of_use(client),
            Current::Missing(why) => !why.is_transient(),
        });
        match found.await.as_deref() {
            Ok(Current::Living(client)) => Ok(client.clone()),
            Ok(Current::Missing(why)) => Err(why.clone()),
            Err(_) => {
                Err(CoordError::Broken("what keeps the session with ZooKeeper has ended; start again".to_owned()))
            }
        }
    }

    /// Why there is none, or nothing when there is one.
    pub(super) fn missing(&self) -> Option<CoordError> {
        match &*self.current.borrow() {
            Current::Missing(why) => Some(why.clone()),
            Current::Living(_) => None,
        }
    }

    /// It seems connected and does not answer.
    pub(super) fn give_up(&self, client: &Client) {
        self.given_up.send_replace(Some(client.session_id()));
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "its fate is that of its owner, who hears of its end with the next question"
)]
fn spawn(keeper: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
    tokio::spawn(keeper).abort_handle()
}

async fn arrive<Made>(make: &impl Fn() -> Made, current: &watch::Sender<Current>) -> Client
where
    Made: Future<Output = Result<Client, CoordError>>,
{
    let mut pause = PAUSE_FIRST;
    loop {
        let why = match timeout(ROUND_WITHIN, make()).await {
            Ok(Ok(client)) => return client,
            Ok(Err(why)) => why,
            Err(_) => CoordError::Away(format!("no member of ZooKeeper answered within {ROUND_WITHIN:?}")),
        };
        drop(current.send_replace(Current::Missing(why)));
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

/// Until it has ended, stays away for too long, or somebody gives it up.
async fn stay(client: &Client, current: &watch::Sender<Current>, mut given_up: watch::Receiver<Option<SessionId>>) {
    let mut states = client.state_watcher();
    loop {
        match states.peek_state() {
            SessionState::SyncConnected => {
                drop(current.send_replace(Current::Living(client.clone())));
                tokio::select! {
                    _ = states.changed() => {}
                    _ = given_up.wait_for(|id| *id == Some(client.session_id())) => return,
                }
            }
            SessionState::Disconnected | SessionState::ConnectedReadOnly => {
                let away = CoordError::Away("ZooKeeper: connection lost".to_owned());
                drop(current.send_replace(Current::Missing(away)));
                if timeout(RECONNECT_WITHIN, states.changed()).await.is_err() {
                    return;
                }
            }
            SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => return,
        }
    }
}
