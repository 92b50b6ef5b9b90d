//! One session with one server, over whatever carries its messages. Messages of the server go to the desk; what the desk
//! has for the server is taken from the session's outbox.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use belfry_core::NodeId;
use belfry_exec::Cgroups;
use belfry_proto::session::{FromAgent, ToAgent, to_agent};
use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, watch};

use crate::desk::{Event, SessionId};
use crate::desk_loop::Inbox;
use crate::directory::Directory;
use crate::local::Journal;
use crate::logins::Logins;
use crate::outbox::{Item, Outbox};
use crate::own_time::NodeClock;
use crate::policy::PolicyFile;
use crate::programs::Programs;
use crate::run_logs::RunLogs;
use crate::spool::Place;
use crate::state::{Fifos, Saves};
use crate::tasks::Tasks;
use crate::trust::Trust;

/// What sessions, executions and the desk's loop share.
pub(crate) struct Node {
    pub id: NodeId,
    pub name: String,
    /// Who jobs without `as.user` run as, by the policy that the agent started with.
    pub runs_as: String,
    pub policy: PolicyFile,
    pub cgroups: Arc<Cgroups>,
    pub clock: NodeClock,
    pub spool: Place,
    pub journal: Journal,
    /// None: output goes to the servers only.
    pub run_logs: Option<RunLogs>,
    pub programs: Arc<dyn Programs>,
    pub logins: Logins,
    pub trust: Trust,
    pub tasks: Tasks,
    pub inbox: mpsc::Sender<Inbox>,
    pub servers: watch::Sender<Directory>,
    pub last_session: AtomicU64,
    /// None in a simulation: its programs save nothing.
    pub fifos: Option<Fifos>,
    pub saves: Saves,
}

/// How a session went, for whoever would open the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// The server had accepted it.
    AfterWelcome,
    BeforeWelcome,
}

/// Messages on the way to one server; the rest waits in its outbox.
pub(crate) const MESSAGES_IN_FLIGHT_MAX: usize = 64;

impl Node {
    /// The desk ends before its senders only when the whole agent ends.
    pub(crate) async fn tell(&self, event: Event) {
        let _agent_ends = self.inbox.send(Inbox::Event(event)).await;
    }

    /// Serves until either side closes.
    pub(crate) async fn serve(
        &self,
        incoming: impl Stream<Item = ToAgent> + Unpin,
        outgoing: mpsc::Sender<FromAgent>,
    ) -> Closed {
        let session = SessionId(self.last_session.fetch_add(1, Ordering::Relaxed) + 1);
        let outbox = Arc::new(Outbox::default());
        let _agent_ends = self.inbox.send(Inbox::Open { session, outbox: Arc::clone(&outbox) }).await;
        let mut closed = Closed::BeforeWelcome;
        tokio::select! {
            () = self.listen(session, incoming, &outbox, &mut closed) => {}
            () = self.speak(&outbox, outgoing) => {}
        }
        self.servers.send_if_modified(|known| known.closed(session));
        self.clock.closed(session);
        self.tell(Event::Closed { session }).await;
        closed
    }

    async fn listen(
        &self,
        session: SessionId,
        mut incoming: impl Stream<Item = ToAgent> + Unpin,
        outbox: &Outbox,
        closed: &mut Closed,
    ) {
        while let Some(ToAgent { message }) = incoming.next().await {
            let at = self.clock.boottime();
            let Some(message) = message else {
                tracing::warn!("a server sent a message that this version does not know; it is ignored");
                continue;
            };
            match message {
                to_agent::Message::Welcome(_) => *closed = Closed::AfterWelcome,
                to_agent::Message::Servers(servers) => {
                    self.servers.send_modify(|known| known.said(session, servers.addresses));
                    continue;
                }
                to_agent::Message::StateSaved(saved) => {
                    self.saves.answered(saved);
                    continue;
                }
                to_agent::Message::AgreedTime(agreed) => self.clock.is_told(session, agreed),
                _ => {}
            }
            self.tell(Event::Received { session, message, at }).await;
            outbox.until_roomy().await;
        }
    }

    async fn speak(&self, outbox: &Outbox, outgoing: mpsc::Sender<FromAgent>) {
        loop {
            let sent = match outbox.next().await {
                Item::Message(message) => outgoing.send(message).await.is_ok(),
                Item::Spooled { key, from_sequence } => {
                    let mut reading = self.spool.read(key, from_sequence);
                    let mut sent = true;
                    loop {
                        let batch = reading.next().await;
                        if batch.is_empty() || !sent {
                            break sent;
                        }
                        for message in batch {
                            sent = sent && send_after_urgent(outbox, &outgoing, message).await;
                        }
                    }
                }
            };
            if !sent {
                return;
            }
        }
    }
}

/// A long output from the disk must not keep heartbeats waiting.
async fn send_after_urgent(outbox: &Outbox, outgoing: &mpsc::Sender<FromAgent>, message: FromAgent) -> bool {
    while let Some(urgent) = outbox.next_urgent() {
        if outgoing.send(urgent).await.is_err() {
            return false;
        }
    }
    outgoing.send(message).await.is_ok()
}
