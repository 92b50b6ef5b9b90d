//! Programs that are played: each start is seen by the witness, each lasts and ends as its run's number says. They go on while
//! their agent is stopped, and die with it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use belfry_agent::{Program, Programs};
use belfry_core::{Incarnation, RunId};
use belfry_exec::{
    CaptureEvent, CaptureLimits, CaptureSummary, Exit, ExitStatus, FailOn, OutputCopy, Prepared, SpawnError,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::clock::MachineClock;
use crate::dice::Dice;
use crate::process::Process;
use crate::witness::Start;
use crate::world::World;

pub struct PlayedPrograms {
    pub world: Arc<World>,
    /// Of the agent.
    pub process: Arc<Process>,
    pub clock: Arc<MachineClock>,
    pub longest: Duration,
}

struct Played {
    clock: Arc<MachineClock>,
    started_at: Duration,
    ends_at: Instant,
    code: i32,
    /// When it was told to end.
    told: watch::Sender<bool>,
    going: Arc<Going>,
}

/// A program as seen from outside.
pub struct Going {
    /// When it ends, by itself or because it was told to or its agent died.
    ends_at: Mutex<Instant>,
    process: Arc<Process>,
    /// How often its agent had been stopped when it began.
    stops: u64,
}

impl Going {
    /// Still there, though its agent could have ended it: one that was stopped meanwhile could not.
    pub fn should_be_over(&self) -> bool {
        let goes_on = Instant::now() < *self.ends_at.lock().unwrap_or_else(PoisonError::into_inner);
        goes_on && self.process.stops() == self.stops
    }

    fn is_over(&self) {
        let mut ends_at = self.ends_at.lock().unwrap_or_else(PoisonError::into_inner);
        *ends_at = Instant::now().min(*ends_at);
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.going.is_over();
    }
}

const TERM: i32 = 15;

impl Programs for PlayedPrograms {
    fn start(&self, prepared: Prepared) -> BoxFuture<'_, Result<Box<dyn Program>, SpawnError>> {
        async move {
            let said = |name: &str| {
                let entry = prepared.env.iter().rfind(|(known, _)| known == name);
                entry.map_or(String::new(), |(_, value)| value.to_string_lossy().into_owned())
            };
            let run: RunId = prepared.tag.run.parse().expect("a run's id");
            let start = Start {
                run,
                attempt: prepared.tag.attempt,
                job: said("BELFRY_JOB"),
                fence: said("BELFRY_FENCE").parse().expect("a number"),
                node: said("BELFRY_NODE_ID"),
                incarnation: Incarnation(said("BELFRY_INCARNATION").parse().expect("a number")),
                at: self.world.elapsed(),
            };
            self.world.trace(format_args!("start {} {run} #{} on {}", start.job, start.attempt, said("BELFRY_NODE")));
            let mut dice = Dice::new(run.as_u128() as u64 ^ u64::from(prepared.tag.attempt));
            let (lasts, code) = self.life(&mut dice);
            let ends_at = Instant::now() + lasts;
            let (process, stops) = (self.process.clone(), self.process.stops());
            let going = Arc::new(Going { ends_at: Mutex::new(ends_at), process, stops });
            self.world.witness().started(start, going.clone());
            tokio::time::sleep(Duration::from_millis(1)).await;
            let started_at = belfry_agent::Clock::boottime(self.clock.as_ref());
            let told = watch::Sender::new(false);
            let clock = self.clock.clone();
            Ok(Box::new(Played { clock, started_at, ends_at, code, told, going }) as Box<dyn Program>)
        }
        .boxed()
    }
}

impl PlayedPrograms {
    fn life(&self, dice: &mut Dice) -> (Duration, i32) {
        let longest = self.longest.as_millis() as u64;
        let lasts = match dice.below(10) {
            0..6 => dice.ms(5, 200),
            6..9 => dice.ms(200, 1500),
            _ => dice.ms(1500, longest),
        };
        (lasts, if dice.chance(10) { 3 } else { 0 })
    }
}

impl Program for Played {
    fn started_at(&self) -> Duration {
        self.started_at
    }

    fn capture(
        &mut self,
        _limits: CaptureLimits,
        _fail_on: Option<FailOn>,
        _copy: Option<OutputCopy>,
        _sink: mpsc::Sender<CaptureEvent>,
    ) -> BoxFuture<'static, CaptureSummary> {
        std::future::ready(CaptureSummary::default()).boxed()
    }

    fn wait(&mut self) -> BoxFuture<'_, Exit> {
        async move {
            let mut told = self.told.subscribe();
            let status = tokio::select! {
                biased;
                () = tokio::time::sleep_until(self.ends_at) => ExitStatus::Code(self.code),
                _ = told.wait_for(|told| *told) => ExitStatus::Signal(TERM),
            };
            Exit {
                status,
                cpu_user: Duration::ZERO,
                cpu_system: Duration::ZERO,
                max_rss_bytes: 0,
                left_behind: 0,
                past_deadline: false,
                ended_at: belfry_agent::Clock::boottime(self.clock.as_ref()),
            }
        }
        .boxed()
    }

    fn end_tree(&self, _grace: Duration) -> BoxFuture<'static, ()> {
        let (told, going) = (self.told.clone(), self.going.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            going.is_over();
            told.send_replace(true);
        }
        .boxed()
    }
}
