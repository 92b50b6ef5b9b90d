//! One run on this node: prepare → start → watch → settle. Its end is always reported, whatever happens.

use std::sync::Arc;
use std::time::Duration;

use belfry_core::run::Outcome;
use belfry_core::units::Span;
use belfry_exec::{CaptureEvent, CaptureLimits, Chunk, Exit, FailOn, OUTPUT_CHUNKS_IN_FLIGHT_MAX, Prepared, Stream};
use belfry_proto::session::{Dispatch, Ended, LocalRun, OutputChunk};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};

use crate::desk::{Event, KillOrder};
use crate::key::Key;
use crate::prepare::{CannotStart, Plan, prepare};
use crate::programs::Program;
use crate::session::Node;
use crate::settle::{Cause, Facts, settle, settle_unstarted};

pub(crate) struct Execution {
    pub node: Arc<Node>,
    pub key: Key,
    /// Of a run that this node fired by itself: it needs no trust, and its end says what servers do not know.
    pub local: Option<Box<LocalRun>>,
    pub kills: watch::Receiver<Option<KillOrder>>,
}

pub(crate) async fn execute(mut execution: Execution, dispatch: Dispatch) {
    let mut ended = match execution.run(dispatch).await {
        Ok(ended) => ended,
        Err(why) => settle_unstarted(execution.key, why, execution.node.clock.now().as_millisecond()),
    };
    let Execution { node, key, local, .. } = execution;
    ended.local = local.map(|local| *local);
    node.spool.keep_end(ended);
    node.tell(Event::Exited { key }).await;
}

impl Execution {
    async fn run(&mut self, dispatch: Dispatch) -> Result<Ended, CannotStart> {
        let Plan { prepared, keep_bytes, fail_on, time_limit, grace } = prepare(&self.node, self.key, dispatch).await?;
        let path =
            prepared.env.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.to_string_lossy().into_owned());
        let program = self.start(prepared).await?;
        let facts = self.watch(program, CaptureLimits { keep_bytes }, fail_on, time_limit, grace).await;
        Ok(settle(self.key, &facts, path.as_deref().unwrap_or_default()))
    }

    async fn start(&self, prepared: Prepared) -> Result<Box<dyn Program>, CannotStart> {
        if let Some(order) = self.kills.borrow().as_ref() {
            let (reason, abandoned) = (order.reason.clone(), order.abandoned);
            return Err(CannotStart { outcome: Outcome::Cancelled, reason, exit_code: None, abandoned });
        }
        self.check_trust_before_start()?;
        let started = self.node.programs.start(prepared).await;
        let program = started.map_err(|cause| CannotStart::failed(cause.to_string(), cause.exit_code()))?;
        self.node.tell(Event::Started { key: self.key, at_ms: program.started_at().as_millisecond() }).await;
        Ok(program)
    }

    /// Once more at the last moment: preparing may have taken long, or the whole machine may have stood still.
    fn check_trust_before_start(&self) -> Result<(), CannotStart> {
        let trusted = self.node.trust.may_start(self.node.clock.boottime());
        if self.local.is_some() || trusted || belfry_core::planted::is("start_without_trust") {
            return Ok(());
        }
        let why = CannotStart::skipped("lost contact with the servers before its start".to_owned());
        Err(CannotStart { abandoned: true, ..why })
    }

    async fn watch(
        &mut self,
        mut program: Box<dyn Program>,
        limits: CaptureLimits,
        fail_on: Option<FailOn>,
        time_limit: Option<Duration>,
        grace: Duration,
    ) -> Facts {
        let (sink, events) = mpsc::channel(OUTPUT_CHUNKS_IN_FLIGHT_MAX);
        let started_at = program.started_at();
        let capture = program.capture(limits, fail_on, sink);
        let guard = guard(program.as_mut(), &mut self.kills, time_limit, grace);
        let relay = relay(&self.node, self.key, events);
        let (mut output, relayed, (exit, cause)) = tokio::join!(capture, relay, guard);
        output.dropped_bytes += relayed.cut_bytes;
        Facts { started_at, exit, cause, output, kept_chunks: relayed.kept_chunks }
    }
}

/// Waits for the exit; ends the tree when it runs too long or when that is ordered, more urgently if ordered again.
async fn guard(
    program: &mut dyn Program,
    kills: &mut watch::Receiver<Option<KillOrder>>,
    time_limit: Option<Duration>,
    job_grace: Duration,
) -> (Exit, Cause) {
    let mut cause = Cause::ByItself;
    let mut ending: Option<BoxFuture<'static, ()>> = None;
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
            known = program.wait(), if exit.is_none() => exit = Some(known),
            () = ended(&mut ending), if ending.is_some() => ending = None,
            order = next_order(kills) => {
                ending = Some(program.end_tree(order.grace.unwrap_or(job_grace)));
                if cause == Cause::ByItself {
                    cause = Cause::Killed { reason: order.reason, abandoned: order.abandoned };
                }
            }
            () = &mut time_is_up, if cause == Cause::ByItself => {
                cause = Cause::TimedOut { after: Span::from(time_limit.unwrap_or_default()) };
                ending = Some(program.end_tree(job_grace));
            }
        }
    }
    // The loop ends only with an exit; a second wait returns the same one.
    (program.wait().await, cause)
}

async fn ended(ending: &mut Option<BoxFuture<'static, ()>>) {
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

/// Output of a run on its way: what is kept goes through the spool, the rest straight to followers. What the spool has no room for is
/// left out, and a gap of its own marks where.
struct Relay<'a> {
    node: &'a Node,
    key: Key,
    relayed: Relayed,
    end_offset: u64,
    /// Left out since the last chunk that was kept, for whatever reason.
    gap_bytes: u64,
}

#[derive(Default)]
struct Relayed {
    kept_chunks: u32,
    /// Left out for lack of room.
    cut_bytes: u64,
}

async fn relay(node: &Node, key: Key, mut events: mpsc::Receiver<CaptureEvent>) -> Relayed {
    let mut relay = Relay { node, key, relayed: Relayed::default(), end_offset: 0, gap_bytes: 0 };
    while let Some(event) = events.recv().await {
        match event {
            CaptureEvent::Chunk(piece) => relay.chunk(piece).await,
            CaptureEvent::Gap { dropped_bytes } => relay.gap_bytes += dropped_bytes,
        }
    }
    relay.mark_gap().await;
    relay.relayed
}

impl Relay<'_> {
    async fn chunk(&mut self, piece: Chunk) {
        let mut chunk = OutputChunk {
            key: Some(self.key.to_wire()),
            sequence: self.relayed.kept_chunks,
            stream: match piece.stream {
                Stream::Stdout => 1,
                Stream::Stderr => 2,
            },
            offset: piece.offset,
            at_ms: piece.at_ms,
            bytes: piece.bytes,
            dropped: 0,
            live_only: piece.live_only,
        };
        if !chunk.live_only && !self.node.spool.has_room_for_output(chunk.bytes.len()) {
            let bytes = chunk.bytes.len() as u64;
            self.relayed.cut_bytes += bytes;
            self.gap_bytes += bytes;
            chunk.live_only = true;
        }
        if chunk.live_only {
            return self.node.tell(Event::Live(chunk)).await;
        }
        self.mark_gap().await;
        chunk.sequence = self.relayed.kept_chunks;
        self.end_offset = chunk.offset + chunk.bytes.len() as u64;
        self.keep(chunk).await;
    }

    /// Small enough to be kept whatever the room.
    async fn mark_gap(&mut self) {
        let dropped = std::mem::take(&mut self.gap_bytes);
        if dropped > 0 {
            let (key, sequence) = (Some(self.key.to_wire()), self.relayed.kept_chunks);
            self.keep(OutputChunk { key, sequence, offset: self.end_offset, dropped, ..Default::default() }).await;
        }
    }

    async fn keep(&mut self, chunk: OutputChunk) {
        self.relayed.kept_chunks += 1;
        self.node.spool.keep_chunk(chunk).await;
    }
}
