//! Starts programs and hears how they end. The zygote does it in every agent; a simulation plays them.

use std::time::Duration;

use belfry_exec::{
    CaptureEvent, CaptureLimits, CaptureSummary, Child, Exit, FailOn, OutputCopy, Prepared, SpawnError, Spawner,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::mpsc;

pub trait Programs: Send + Sync + 'static {
    /// Answers when the program runs. It is asked for with the first poll.
    fn start(&self, prepared: Prepared) -> BoxFuture<'_, Result<Box<dyn Program>, SpawnError>>;
}

/// A program that runs, or ran.
pub trait Program: Send {
    /// Since the machine booted.
    fn started_at(&self) -> Duration;

    /// Its output, to its end, also to `copy`. Called once.
    fn capture(
        &mut self,
        limits: CaptureLimits,
        fail_on: Option<FailOn>,
        copy: Option<OutputCopy>,
        sink: mpsc::Sender<CaptureEvent>,
    ) -> BoxFuture<'static, CaptureSummary>;

    /// May be called again, and cancelled.
    fn wait(&mut self) -> BoxFuture<'_, Exit>;

    /// Answers when nothing of it is left. Once asked for, it happens even if this future is dropped.
    fn end_tree(&self, grace: Duration) -> BoxFuture<'static, ()>;
}

impl Programs for Spawner {
    fn start(&self, prepared: Prepared) -> BoxFuture<'_, Result<Box<dyn Program>, SpawnError>> {
        self.spawn(prepared).map(|started| started.map(|child| Box::new(child) as Box<dyn Program>)).boxed()
    }
}

impl Program for Child {
    fn started_at(&self) -> Duration {
        self.started_at
    }

    fn capture(
        &mut self,
        limits: CaptureLimits,
        fail_on: Option<FailOn>,
        copy: Option<OutputCopy>,
        sink: mpsc::Sender<CaptureEvent>,
    ) -> BoxFuture<'static, CaptureSummary> {
        belfry_exec::capture(self.take_output().copied_to(copy), limits, fail_on, sink).boxed()
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        Child::wait(self).boxed()
    }

    fn end_tree(&self, grace: Duration) -> BoxFuture<'static, ()> {
        let killer = self.killer();
        async move { killer.end_tree(grace).await }.boxed()
    }
}
