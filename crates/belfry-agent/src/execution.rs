//! One run on this node: prepare → start → watch → settle. Its end is always reported, whatever happens.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use belfry_core::run::Outcome;
use belfry_core::units::Span;
use belfry_exec::{
    CaptureEvent, CaptureLimits, Child, Exit, FailOn, Killer, OUTPUT_CHUNKS_IN_FLIGHT_MAX, Prepared, Stream, capture,
};
use belfry_proto::session::{Dispatch, Ended, OutputChunk};
use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use crate::desk::{Event, KillOrder};
use crate::key::Key;
use crate::prepare::{CannotStart, Plan, prepare};
use crate::session::Node;
use crate::settle::{Cause, Facts, settle, settle_unstarted};

pub(crate) struct Execution {
    pub node: Arc<Node>,
    pub key: Key,
    pub kills: watch::Receiver<Option<KillOrder>>,
}

pub(crate) async fn execute(mut execution: Execution, dispatch: Dispatch) {
    let ended = match execution.run(dispatch).await {
        Ok(ended) => ended,
        Err(why) => settle_unstarted(execution.key, why, execution.node.clock.now().as_millisecond()),
    };
    let Execution { node, key, .. } = execution;
    node.spool.keep_end(ended);
    node.tell(Event::Exited { key }).await;
}

impl Execution {
    async fn run(&mut self, dispatch: Dispatch) -> Result<Ended, CannotStart> {
        let Plan { prepared, keep_bytes, fail_on, time_limit, grace } = prepare(&self.node, self.key, dispatch).await?;
        let path =
            prepared.env.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.to_string_lossy().into_owned());
        let child = self.start(prepared).await?;
        let facts = self.watch(child, CaptureLimits { keep_bytes }, fail_on, time_limit, grace).await;
        Ok(settle(self.key, &facts, path.as_deref().unwrap_or_default()))
    }

    async fn start(&self, prepared: Prepared) -> Result<Child, CannotStart> {
        if let Some(order) = self.kills.borrow().as_ref() {
            return Err(CannotStart { outcome: Outcome::Cancelled, reason: order.reason.clone(), exit_code: None });
        }
        self.check_trust_before_start()?;
        let spawned = self.node.spawner.spawn(prepared).await;
        let child = spawned.map_err(|cause| CannotStart::failed(cause.to_string(), cause.exit_code()))?;
        self.node.tell(Event::Started { key: self.key, at_ms: child.started_at.as_millisecond() }).await;
        Ok(child)
    }

    /// Once more at the last moment: preparing may have taken long, or the whole machine may have stood still.
    fn check_trust_before_start(&self) -> Result<(), CannotStart> {
        if self.node.trust.may_start(self.node.clock.boottime()) {
            return Ok(());
        }
        Err(CannotStart::skipped("lost contact with the servers before its start".to_owned()))
    }

    async fn watch(
        &mut self,
        mut child: Child,
        limits: CaptureLimits,
        fail_on: Option<FailOn>,
        time_limit: Option<Duration>,
        grace: Duration,
    ) -> Facts {
        let (sink, events) = mpsc::channel(OUTPUT_CHUNKS_IN_FLIGHT_MAX);
        let started_at = child.started_at;
        let pipes = child.take_output();
        let guard = guard(&mut child, &mut self.kills, time_limit, grace);
        let relay = relay(&self.node, self.key, events);
        let (output, kept_chunks, (exit, cause)) = tokio::join!(capture(pipes, limits, fail_on, sink), relay, guard);
        Facts { started_at, exit, cause, output, kept_chunks }
    }
}

/// Waits for the exit; ends the tree when it runs too long or when that is ordered, more urgently if ordered again.
async fn guard(
    child: &mut Child,
    kills: &mut watch::Receiver<Option<KillOrder>>,
    time_limit: Option<Duration>,
    job_grace: Duration,
) -> (Exit, Cause) {
    let killer = child.killer();
    let mut cause = Cause::ByItself;
    let mut ending: Option<Ending> = None;
    let time_is_up = async {
        match time_limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(time_is_up);
    let mut exit = None;
    while exit.is_none() || ending.is_some() {
        tokio::select! {
            biased;
            known = child.wait(), if exit.is_none() => exit = Some(known),
            () = ended(&mut ending), if ending.is_some() => ending = None,
            order = next_order(kills) => {
                ending = Some(end_tree(killer.clone(), order.grace.unwrap_or(job_grace)));
                if cause == Cause::ByItself {
                    cause = Cause::Killed { reason: order.reason };
                }
            }
            () = &mut time_is_up, if cause == Cause::ByItself => {
                cause = Cause::TimedOut { after: Span::from(time_limit.unwrap_or_default()) };
                ending = Some(end_tree(killer.clone(), job_grace));
            }
        }
    }
    // The loop ends only with an exit; a second wait returns the same one.
    (child.wait().await, cause)
}

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

fn end_tree(killer: Killer, grace: Duration) -> Ending {
    Box::pin(async move { killer.end_tree(grace).await })
}

async fn ended(ending: &mut Option<Ending>) {
    match ending {
        Some(ending) => ending.await,
        None => std::future::pending().await,
    }
}

async fn next_order(kills: &mut watch::Receiver<Option<KillOrder>>) -> KillOrder {
    loop {
        if kills.changed().await.is_err() {
            // The desk is gone, and so is this run in a moment.
            std::future::pending::<()>().await;
        }
        if let Some(order) = kills.borrow_and_update().clone() {
            return order;
        }
    }
}

/// Numbers the output and sends it on its way: what is kept through the spool, the rest straight to followers. Says how
/// many chunks were kept.
async fn relay(node: &Node, key: Key, mut events: mpsc::Receiver<CaptureEvent>) -> u32 {
    let mut sequence = 0;
    let mut end_offset = 0;
    while let Some(event) = events.recv().await {
        let mut chunk = OutputChunk { key: Some(key.to_wire()), sequence, ..Default::default() };
        match event {
            CaptureEvent::Chunk(piece) => {
                chunk.stream = match piece.stream {
                    Stream::Stdout => 1,
                    Stream::Stderr => 2,
                };
                chunk.offset = piece.offset;
                chunk.at_ms = piece.at_ms;
                chunk.bytes = piece.bytes;
                chunk.live_only = piece.live_only;
            }
            CaptureEvent::Gap { dropped_bytes } => {
                chunk.offset = end_offset;
                chunk.dropped = dropped_bytes;
                chunk.bytes = Bytes::new();
            }
        }
        if chunk.live_only {
            node.tell(Event::Live(chunk)).await;
        } else {
            end_offset = chunk.offset + chunk.bytes.len() as u64;
            sequence += 1;
            node.spool.keep_chunk(chunk).await;
        }
    }
    sequence
}
