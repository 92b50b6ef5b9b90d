//! The loop around the desk: brings it events and the time, and does what it decides, in order. It never waits for a
//! session, a run or the disk.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::alarm::Alarm;
use crate::desk::{Act, Desk, Event, Load, SessionId};
use crate::execution::{Execution, execute};
use crate::outbox::Outbox;
use crate::session::Node;

/// What comes into the loop.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are events")]
pub(crate) enum Inbox {
    Event(Event),
    /// A session with the place where its messages wait.
    Open {
        session: SessionId,
        outbox: Arc<Outbox>,
    },
}

/// All that wait for the desk wait together, and executions and sessions are slowed down.
pub(crate) const INBOX_MAX: usize = 4096;
/// Starts come between events, however many events there are.
const EVENTS_PER_ROUND_MAX: usize = 64;
/// An event that was held up elsewhere must not be taken for a start in time.
const WAKE_AT_LEAST_EVERY: Duration = Duration::from_secs(60);

impl std::fmt::Debug for Outbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Outbox")
    }
}

pub(crate) async fn run(
    mut desk: Desk,
    node: Arc<Node>,
    mut alarm: Alarm,
    mut inbox: mpsc::Receiver<Inbox>,
    load: watch::Sender<Load>,
) {
    // Before it says hello: a former incarnation may have left no room.
    desk.on(Event::Space(node.spool.space()), node.clock.now());
    let mut outboxes = HashMap::new();
    let mut received = Vec::with_capacity(EVENTS_PER_ROUND_MAX);
    loop {
        let now = node.clock.boottime();
        alarm.set(desk.next_wake().map(|at| at.min(now + WAKE_AT_LEAST_EVERY)), now);
        tokio::select! {
            biased;
            () = alarm.rings() => {}
            count = inbox.recv_many(&mut received, EVENTS_PER_ROUND_MAX) => if count == 0 {
                return;
            },
        }
        for event in received.drain(..) {
            let event = match event {
                Inbox::Event(event) => event,
                Inbox::Open { session, outbox } => {
                    outboxes.insert(session, outbox);
                    Event::Opened { session }
                }
            };
            if let Event::Closed { session } = event {
                outboxes.remove(&session);
            }
            desk.on(event, node.clock.now());
        }
        desk.tick(node.clock.now());
        perform_all(&mut desk, &node, &outboxes).await;
        // What was just forgotten may have made room.
        desk.on(Event::Space(node.spool.space()), node.clock.now());
        perform_all(&mut desk, &node, &outboxes).await;
        load.send_if_modified(|known| std::mem::replace(known, desk.load()) != desk.load());
    }
}

async fn perform_all(desk: &mut Desk, node: &Arc<Node>, outboxes: &HashMap<SessionId, Arc<Outbox>>) {
    for act in desk.take_acts() {
        perform(act, node, outboxes).await;
    }
}

async fn perform(act: Act, node: &Arc<Node>, outboxes: &HashMap<SessionId, Arc<Outbox>>) {
    match act {
        Act::Send { session, message } => {
            if let Some(outbox) = outboxes.get(&session) {
                outbox.push(message);
            }
        }
        Act::SendSpooled { session, key } => {
            if let Some(outbox) = outboxes.get(&session) {
                outbox.push_spooled(key);
            }
        }
        Act::Start { key, order, local, kills } => {
            let execution = Execution { node: Arc::clone(node), key, local, kills };
            let mut execution = Box::pin(execute(execution, order.dispatch));
            // Up to its first wait here: so starts reach the kernel in the order in which they were decided.
            let first_step = poll_fn(|context| Poll::Ready(execution.as_mut().poll(context).is_ready()));
            if !tokio::task::coop::unconstrained(first_step).await {
                node.tasks.spawn("execution", execution);
            }
        }
        Act::Keep(ended) => node.spool.keep_end(ended),
        Act::KeepLocal(batch) => {
            if let Some(ticket) = node.journal.keep(batch) {
                let node = Arc::clone(node);
                // Fate: ends when the desk has heard it.
                node.clone()
                    .tasks
                    .spawn("local-written", async move { node.tell(Event::LocalWritten { ticket }).await });
            }
        }
        Act::Forget(keys) => node.spool.forget(&keys),
    }
}
