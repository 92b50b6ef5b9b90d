//! One run on this node: prepare → start → watch → settle. Its end is always reported, whatever happens.

use std::sync::Arc;
use std::time::Duration;

use belfry_core::run::Outcome;
use belfry_core::units::Span;
use belfry_exec::{
    Cage, CaptureEvent, CaptureLimits, Chunk, Exit, OUTPUT_CHUNKS_IN_FLIGHT_MAX, OutputCopy, Prepared, SpawnError,
    Stream,
};
use belfry_proto::session::{Dispatch, Ended, LocalRun, OutputChunk, SaveState};
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};

use crate::clock::Told;
use crate::desk::{CUT_OFF, Event, KillOrder};
use crate::key::Key;
use crate::local::instant;
use crate::prepare::{CannotStart, Care, Plan, prepare};
use crate::programs::Program;
use crate::saving::Saving;
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
    let (mut ended, cage) = match execution.run(dispatch).await {
        Ok(ran) => ran,
        Err(why) => (settle_unstarted(execution.key, why, execution.node.clock.now().wall_ms), None),
    };
    let Execution { node, key, local, .. } = execution;
    ended.local = local.map(|local| *local);
    node.spool.keep_end(ended);
    node.tell(Event::Exited { key }).await;
    if let Some(cage) = cage {
        cage.remove().await;
    }
}

impl Execution {
    /// Its end, and the control group that it leaves behind.
    async fn run(&mut self, dispatch: Dispatch) -> Result<(Ended, Option<Arc<Cage>>), CannotStart> {
        let (namespace, job) = (dispatch.namespace.clone(), dispatch.job.clone());
        let Plan { prepared, bounds, care, saving, notes, script } = prepare(&self.node, self.key, dispatch).await?;
        let path =
            prepared.env.iter().rfind(|(name, _)| name == "PATH").map(|(_, path)| path.to_string_lossy().into_owned());
        let (program, started) = self.start(prepared).await?;
        let began = instant(started.ms);
        let copy = self.node.run_logs.as_ref().map(|logs| logs.begin(&namespace, &job, self.key, began));
        let (facts, saves) = self.watch((program, started), care, copy, bounds.cage.as_deref(), (saving, notes)).await;
        let now = self.node.clock.now();
        let ended = settle(self.key, &facts, path.as_deref().unwrap_or_default(), &bounds, now);
        Ok((Ended { saves, script: script.unwrap_or_default(), ..ended }, bounds.cage))
    }

    async fn start(&self, prepared: Prepared) -> Result<(Box<dyn Program>, Told), CannotStart> {
        if let Some(order) = self.kills.borrow().as_ref() {
            let (reason, abandoned) = (order.reason.clone(), order.abandoned);
            return Err(CannotStart { outcome: Outcome::Cancelled, reason, exit_code: None, abandoned });
        }
        self.check_trust_before_start()?;
        let program = self.node.programs.start(prepared).await.map_err(|cause| match cause {
            SpawnError::TooLate => not_trusted(),
            cause => CannotStart::failed(cause.to_string(), cause.exit_code()),
        })?;
        let at = program.started_at();
        let ms = self.node.clock.now().ms_at(at);
        self.node.tell(Event::Started { key: self.key, at_ms: ms }).await;
        Ok((program, Told { at, ms }))
    }

    /// Once more at the last moment: preparing may have taken long, or the whole machine may have stood still.
    fn check_trust_before_start(&self) -> Result<(), CannotStart> {
        let trusted = self.node.trust.may_start(self.node.clock.boottime());
        if self.local.is_some() || trusted || belfry_core::planted::is("start_without_trust") {
            return Ok(());
        }
        Err(not_trusted())
    }

    /// How it went, and what it wrote of the job's state that nobody has yet.
    async fn watch(
        &mut self,
        (mut program, started): (Box<dyn Program>, Told),
        care: Care,
        copy: Option<OutputCopy>,
        cage: Option<&Cage>,
        (mut saving, notes): (Saving, mpsc::Receiver<String>),
    ) -> (Facts, Option<SaveState>) {
        let Care { keep_bytes, fail_on, time_limit, report_after, grace } = care;
        let (sink, events) = mpsc::channel(OUTPUT_CHUNKS_IN_FLIGHT_MAX);
        let capture = program.capture(CaptureLimits { keep_bytes }, fail_on, copy, sink);
        let (node, key) = (&self.node, self.key);
        let guard = guard(program.as_mut(), &mut self.kills, time_limit, grace, cage);
        let guard = async {
            let report = report(node, key, report_after);
            tokio::pin!(guard, report);
            let mut overdue = None;
            loop {
                tokio::select! {
                    biased;
                    (exit, cause) = &mut guard => return (exit, cause, overdue),
                    told = &mut report, if overdue.is_none() => overdue = Some(told),
                }
            }
        };
        let relay = relay(node, key, started.at, events, notes);
        let ends = async {
            let ended = tokio::select! {
                ended = async { tokio::join!(capture, guard) } => ended,
                never = saving.keep(node, key) => match never {},
            };
            (ended, saving.finish(node, key))
        };
        let (relayed, ((mut output, (exit, cause, overdue)), saves)) = tokio::join!(relay, ends);
        output.dropped_bytes += relayed.cut_bytes;
        output.stderr_bytes += relayed.noted_bytes;
        let used = cage.map(Cage::usage).unwrap_or_default();
        let kept_chunks = relayed.kept_chunks;
        (Facts { started, exit, cause, output, kept_chunks, used, overdue }, saves)
    }
}

fn not_trusted() -> CannotStart {
    let why = CannotStart::skipped("lost contact with the servers before its start".to_owned());
    CannotStart { abandoned: true, ..why }
}

/// Waits for the exit; ends the tree when it runs too long or when that is ordered, more urgently if ordered again.
async fn guard(
    program: &mut dyn Program,
    kills: &mut watch::Receiver<Option<KillOrder>>,
    time_limit: Option<Duration>,
    job_grace: Duration,
    cage: Option<&Cage>,
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
    let others_must_end = async {
        match cage {
            Some(cage) => cage.until_others_must_end().await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(others_must_end);
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
            () = &mut others_must_end, if cause == Cause::ByItself => {
                cause = Cause::OutOfMemory;
                ending = Some(program.end_tree(Duration::ZERO));
            }
        }
    }
    // The loop ends only with an exit; a second wait returns the same one.
    let exit = program.wait().await;
    // The kernel may have ended the first process and left the others.
    if cause == Cause::ByItself && cage.is_some_and(|cage| cage.usage().memory_kills > 0) {
        program.end_tree(Duration::ZERO).await;
    }
    if exit.past_deadline && cause == Cause::ByItself {
        cause = Cause::Killed { reason: CUT_OFF.to_owned(), abandoned: true };
    }
    (exit, cause)
}

/// Says when the run has taken too long, if it is to be said at all.
async fn report(node: &Node, key: Key, after: Option<Duration>) -> Told {
    match after {
        Some(after) => tokio::time::sleep(after).await,
        None => std::future::pending().await,
    }
    let now = node.clock.now();
    node.tell(Event::Overdue { key, at_ms: now.wall_ms }).await;
    Told { at: now.boot, ms: now.wall_ms }
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

/// Output of a run on its way through the spool, also what only followers are to see: it must not overtake what is kept before it. What
/// the spool has no room for is left out, and a gap of its own marks where.
struct Relay<'a> {
    node: &'a Node,
    key: Key,
    relayed: Relayed,
    end_offset: u64,
    /// How far followers were shown what is not kept.
    live_end_offset: u64,
    /// What the agent added moves on what the program writes after it.
    shift_bytes: u64,
    /// Left out since the last chunk that was kept, for whatever reason.
    gap_bytes: u64,
}

#[derive(Default)]
struct Relayed {
    kept_chunks: u32,
    /// Left out for lack of room.
    cut_bytes: u64,
    /// Added by the agent.
    noted_bytes: u64,
}

async fn relay(
    node: &Node,
    key: Key,
    started_at: Duration,
    mut events: mpsc::Receiver<CaptureEvent>,
    mut notes: mpsc::Receiver<String>,
) -> Relayed {
    let relayed = Relayed::default();
    let mut relay = Relay { node, key, relayed, end_offset: 0, live_end_offset: 0, shift_bytes: 0, gap_bytes: 0 };
    loop {
        tokio::select! {
            biased;
            Some(event) = events.recv() => match event {
                CaptureEvent::Chunk(piece) => relay.chunk(piece).await,
                CaptureEvent::Gap { dropped_bytes } => relay.gap_bytes += dropped_bytes,
            },
            Some(note) = notes.recv() => {
                let at = node.clock.boottime().saturating_sub(started_at);
                relay.note(note, at.as_millis() as u64).await;
            }
            else => break,
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
            offset: piece.offset + self.shift_bytes,
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
            self.live_end_offset = chunk.offset + chunk.bytes.len() as u64;
            return self.node.spool.pass_on(chunk).await;
        }
        self.mark_gap().await;
        chunk.sequence = self.relayed.kept_chunks;
        self.end_offset = chunk.offset + chunk.bytes.len() as u64;
        self.keep(chunk).await;
    }

    /// A line of the agent's own, on stderr; few and small enough to be kept whatever the room.
    async fn note(&mut self, text: String, at_ms: u64) {
        self.show_note(&text, at_ms).await;
        self.mark_gap().await;
        let (key, sequence, offset) = (Some(self.key.to_wire()), self.relayed.kept_chunks, self.end_offset);
        let bytes = text.len() as u64;
        self.shift_bytes += bytes;
        self.end_offset += bytes;
        self.relayed.noted_bytes += bytes;
        let chunk = OutputChunk { key, sequence, stream: 2, offset, at_ms, bytes: text.into(), ..Default::default() };
        self.keep(chunk).await;
    }

    /// It is kept behind what was kept before it. Followers who have seen what came since are further, and pass over what lies behind
    /// them: they get it first, where they are.
    async fn show_note(&mut self, text: &str, at_ms: u64) {
        if self.live_end_offset <= self.end_offset {
            return;
        }
        let (key, sequence, offset) = (Some(self.key.to_wire()), self.relayed.kept_chunks, self.live_end_offset);
        self.live_end_offset += text.len() as u64;
        let (bytes, live_only) = (text.to_owned().into(), true);
        let shown = OutputChunk { key, sequence, stream: 2, offset, at_ms, bytes, live_only, ..Default::default() };
        self.node.spool.pass_on(shown).await;
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
        self.node.spool.pass_on(chunk).await;
    }
}
