//! What the command printed, for servers that have its run in their history. It is kept while an attempt runs and told after the record has
//! its last word, for some seconds at most: no server delays the command or its heartbeat, and none changes the exit code.

use std::collections::VecDeque;
use std::pin::Pin;
use std::time::Duration;

use belfry_core::Timestamp;
use belfry_exec::{CaptureEvent, Chunk};
use tokio::time::{sleep, timeout};

use crate::instance::Instance;
use crate::signals::Signals;

/// What one attempt printed.
#[derive(Clone, Debug)]
pub struct Output {
    pub name: String,
    pub instance: String,
    pub claimed_at: Timestamp,
    pub attempt: u32,
    pub pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub at: Timestamp,
    /// Left out right before it.
    pub dropped_bytes: u64,
    pub chunk: Chunk,
}

/// Why a server does not have it.
#[derive(Debug)]
pub struct Untold {
    /// The same may be taken in a moment.
    pub is_transient: bool,
    pub cause: String,
}

pub type TellOutput = Box<dyn for<'a> Fn(&'a Output) -> Pin<Box<dyn Future<Output = Result<(), Untold>> + 'a>>>;

pub(crate) struct History {
    tell: TellOutput,
    attempts: VecDeque<Printed>,
}

/// By one attempt of this wrapper.
struct Printed {
    attempt: u32,
    pieces: Vec<Piece>,
}

/// Of each attempt up to 1 MiB is held; the last ones are those that people look at.
const ATTEMPTS_MAX: usize = 4;
const TELL_WITHIN: Duration = Duration::from_secs(10);
const TELL_WITHIN_WHEN_ASKED: Duration = Duration::from_secs(2);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

impl History {
    pub(crate) fn new(tell: TellOutput) -> History {
        History { tell, attempts: VecDeque::new() }
    }

    pub(crate) fn printed(&mut self, attempt: u32, started_at: Timestamp, events: Vec<CaptureEvent>) {
        let mut pieces = Vec::with_capacity(events.len());
        let mut missing_bytes = 0;
        for event in events {
            match event {
                CaptureEvent::Gap { dropped_bytes } => missing_bytes += dropped_bytes,
                CaptureEvent::Chunk(chunk) => {
                    let at = started_at.saturating_add(Duration::from_millis(chunk.at_ms)).unwrap_or(started_at);
                    pieces.push(Piece { at, dropped_bytes: std::mem::take(&mut missing_bytes), chunk });
                }
            }
        }
        if pieces.is_empty() {
            return;
        }
        self.attempts.push_back(Printed { attempt, pieces });
        if self.attempts.len() > ATTEMPTS_MAX {
            self.attempts.pop_front();
        }
    }

    /// When the record says how the instance ended: from then on it is a run.
    pub(crate) async fn tell(&mut self, instance: &Instance, claimed_at: Timestamp, signals: &Signals) {
        let is_asked_to_end = signals.has_come();
        let within = if is_asked_to_end { TELL_WITHIN_WHEN_ASKED } else { TELL_WITHIN };
        let asked_to_end = async {
            match is_asked_to_end {
                true => std::future::pending().await,
                false => signals.come().await,
            }
        };
        let mut why = "no answer in time".to_owned();
        let is_told = tokio::select! {
            told = timeout(within, self.tell_all(instance, claimed_at, &mut why)) => told.unwrap_or(false),
            () = asked_to_end => false,
        };
        if !is_told {
            tracing::warn!("what the command printed is not in the history of the server: {why}");
        }
    }

    /// The last attempt first: that is the one whose output is looked for.
    async fn tell_all(&mut self, instance: &Instance, claimed_at: Timestamp, why: &mut String) -> bool {
        while let Some(Printed { attempt, pieces }) = self.attempts.pop_back() {
            let (name, instance) = (instance.name.clone(), instance.instance.clone());
            let output = Output { name, instance, claimed_at, attempt, pieces };
            loop {
                match (self.tell)(&output).await {
                    Ok(()) => break,
                    Err(Untold { is_transient, cause }) => {
                        *why = cause;
                        if !is_transient {
                            return false;
                        }
                    }
                }
                sleep(ASK_AGAIN_AFTER).await;
            }
        }
        true
    }
}
