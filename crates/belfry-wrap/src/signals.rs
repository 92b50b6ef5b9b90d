//! Signals to the wrapper are meant for its command: TERM ends it with all that it started, HUP and INT are passed on as they are.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use belfry_exec::Killer;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::exit::Failure;
use crate::tasks;

/// From TERM to KILL.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Signals {
    /// The command that runs now.
    command: Arc<watch::Sender<Option<Killer>>>,
    stop: watch::Receiver<bool>,
    ended_by: Arc<AtomicI32>,
}

impl Signals {
    pub(crate) fn listen() -> Result<Signals, Failure> {
        let open = |kind| signal(kind).map_err(|cause| Failure::Cannot(format!("listen for signals: {cause}")));
        let (mut term, mut int, mut hup) =
            (open(SignalKind::terminate())?, open(SignalKind::interrupt())?, open(SignalKind::hangup())?);
        let (command, current) = watch::channel::<Option<Killer>>(None);
        let (stopping, stop) = watch::channel(false);
        let ended_by = Arc::new(AtomicI32::new(0));
        let said = ended_by.clone();
        // Fate: ends with the process.
        drop(tasks::spawn("signals", async move {
            loop {
                let signal = tokio::select! {
                    _ = term.recv() => Signal::SIGTERM,
                    _ = int.recv() => Signal::SIGINT,
                    _ = hup.recv() => Signal::SIGHUP,
                };
                let command = current.borrow().clone();
                // Without a command there is only the wrapper itself to end. HUP means nothing to it.
                if signal == Signal::SIGTERM || (command.is_none() && signal == Signal::SIGINT) {
                    said.store(signal as i32, Ordering::Relaxed);
                    stopping.send_replace(true);
                }
                match (signal, command) {
                    (_, None) => {}
                    (Signal::SIGTERM, Some(command)) => {
                        // Fate: ends with the tree, at the latest after the grace.
                        drop(tasks::spawn("end the command", async move { command.end_tree(GRACE).await }));
                    }
                    (other, Some(command)) => command.pass_on(other),
                }
            }
        }));
        Ok(Signals { command: Arc::new(command), stop, ended_by })
    }

    /// From now on this is what signals are for.
    pub(crate) fn are_for(&self, command: Option<Killer>) {
        self.command.send_replace(command);
        if self.has_come() {
            let command = self.command.borrow().clone();
            // Came between two commands. Fate: as above.
            drop(command.map(|command| tasks::spawn("end the command", async move { command.end_tree(GRACE).await })));
        }
    }

    pub(crate) fn has_come(&self) -> bool {
        *self.stop.borrow()
    }

    /// Until the wrapper is asked to end.
    pub(crate) async fn come(&self) {
        let mut stop = self.stop.clone();
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// As a shell would say it.
    pub(crate) fn exit_code(&self) -> u8 {
        128 + self.ended_by.load(Ordering::Relaxed) as u8
    }
}

#[cfg(test)]
impl Signals {
    /// What is sent through the channel has come by TERM.
    pub(crate) fn for_test() -> (Signals, watch::Sender<bool>) {
        let (asked, stop) = watch::channel(false);
        let ended_by = Arc::new(AtomicI32::new(Signal::SIGTERM as i32));
        (Signals { command: Arc::new(watch::channel(None).0), stop, ended_by }, asked)
    }
}
