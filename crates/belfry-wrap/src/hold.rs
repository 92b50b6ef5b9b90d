//! The time in which this host has the instance: heartbeats, attempts, what is saved, and the last word.
//!
//! **Why two hosts never run it at once.** The record is its holder's heartbeat, rewritten under the guard of its last version. Another host
//! takes it only with a guard on a version that stood still for a whole TTL on that host's own clock, or on one that says that its holder let
//! go. The holder's tree is ended by its shim 0.8 TTL after the send of the last beat that succeeded, on this host's clock, whether the wrapper
//! lives, hangs or is killed; and nothing starts later than 0.5 TTL after it. So it has ended before anybody may take it.
//!
//! **Why a coordinator in good health costs nobody his command.** From the claim to the last word the last beat that succeeded is never much older
//! than TTL/4 because of what happens here: beats go on while a start takes its time, and what starts by an old one is beaten for at once.

use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use belfry_coord::wrapped::encode;
use belfry_coord::{CoordError, Guard, Pulse, PulseError, Trust, Write};
use belfry_core::Version;
use belfry_core::service::{Ended as ServiceEnd, RESTART_DELAY_DEFAULT, ServiceRule};
use belfry_core::state::{Values, merge_within};
use belfry_core::wrapped::{End, Holder, Last, Outcome, Phase, Record, Rule, Shared, Step};
use belfry_exec::{Deadline, Exit, ExitStatus, LastMoments, SpawnError};
use nix::sys::signal::Signal;
use tokio::time::{Instant, sleep_until};

use crate::beside::{Beside, Lock};
use crate::command::{Command, Running};
use crate::exit::{Failure, code_of};
use crate::history::History;
use crate::host::Stick;
use crate::instance::Instance;
use crate::parameters::Parameters;
use crate::saving::{KEYS_MAX, Saving};
use crate::signals::Signals;

pub(crate) struct Hold<'a> {
    pub instance: &'a Instance,
    pub parameters: &'a Parameters,
    pub signals: &'a Signals,
    pub command: &'a mut Command,
    pub beside: Option<&'a mut Beside>,
    pub history: Option<&'a mut History>,
    pub pulse: Pulse,
    pub record: Record,
    /// Of the delay before the next start, since this host let go of it and nobody else took it.
    pub waited: Duration,
}

/// What became of it.
pub(crate) enum Held {
    Over {
        exit_code: u8,
    },
    /// Another host may have it now, and this one too. Whoever takes it waits for this delay.
    LetGo {
        delay: Duration,
        /// Of the word that says so.
        version: Version,
    },
}

/// How one attempt ended.
struct Attempt {
    status: Result<ExitStatus, SpawnError>,
    /// The coordinator could not be reached for too long, and the tree was ended.
    cut_off: bool,
    ran: Duration,
}

/// For the last word, while nobody answers. After that the record is silent, and others find that out.
const LAST_WORD_WITHIN: Duration = Duration::from_mins(10);
const LAST_WORD_WHEN_ASKED: Duration = Duration::from_secs(5);
pub(crate) const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// A machine that is short of processes or memory.
const START_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Between two attempts on one host, growing with their number.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl Hold<'_> {
    pub(crate) async fn run(mut self) -> Result<Held, Failure> {
        let rule = ServiceRule { restart_delay: RESTART_DELAY_DEFAULT, digest: 0 };
        if self.record.quick_ends > 0 {
            // A host let go of it because it ended too soon.
            let ended = ServiceEnd::ByItself { ran: Duration::ZERO };
            let (delay, _) = rule.next_start(self.record.quick_ends - 1, ended);
            self.wait(delay.saturating_sub(self.waited)).await?;
        }
        if let Lock::Elsewhere { reason } = self.take_old_lock().await? {
            return self.leave_it_to_the_old(reason).await;
        }
        loop {
            let known = self.ask(async |hold| hold.shared_in_time().await).await?.0.values;
            let mut saving = self.command.saving(known)?;
            // After all that may take long.
            self.gain_trust().await?;
            // Grows from attempt to attempt: each begins with a beat of its own.
            let fence = self.pulse.version();
            self.record.fence = fence.0;
            self.pulse.set_info(encode(&self.record));
            if self.signals.has_come() {
                return self.give_back(&Attempt::never_made(), fence).await;
            }
            // Nothing ran: it is still the same attempt.
            let Some(attempt) = self.attempt(&mut saving, fence).await else { continue };
            saving.read_the_rest();
            if attempt.cut_off {
                self.reach_again().await?;
                if !self.record.is_tried_after_cut_off() || self.signals.has_come() {
                    let phase = match self.record.rule {
                        Rule::LongLived => Phase::Released,
                        Rule::AtMostOnce | Rule::Crash | Rule::AbnormalExit => self.ended(&attempt, Outcome::Lost),
                    };
                    self.say_last(phase, fence, saving.pending()).await?;
                    return Err(Failure::CutOff(CUT_OFF.into()));
                }
                self.go_on_with_next_attempt(&mut saving).await?;
                continue;
            }
            let exit_code = attempt.exit_code();
            let succeeded = exit_code == 0;
            if let Err(cause) = &attempt.status {
                tracing::error!("{cause}");
            }
            if self.signals.has_come() {
                self.record.quick_ends = 0;
                let phase = match self.record.rule {
                    Rule::LongLived => Phase::Released,
                    Rule::AtMostOnce | Rule::Crash | Rule::AbnormalExit => self.ended(&attempt, Outcome::Killed),
                };
                self.say_last(phase, fence, saving.pending()).await?;
                return Ok(Held::Over { exit_code });
            }
            if !self.record.is_tried_again(succeeded) {
                let outcome = if succeeded { Outcome::Succeeded } else { Outcome::Failed };
                self.say_last(self.ended(&attempt, outcome), fence, saving.pending()).await?;
                return Ok(Held::Over { exit_code });
            }
            let delay = if self.record.rule == Rule::LongLived {
                let (delay, quick_ends) =
                    rule.next_start(self.record.quick_ends, ServiceEnd::ByItself { ran: attempt.ran });
                self.record.quick_ends = quick_ends;
                // Beyond that time no host is preferred: one that cannot run it must not keep it from all that can.
                if delay > self.parameters.stick {
                    self.say_last(Phase::Released, fence, saving.pending()).await?;
                    return Ok(Held::LetGo { delay, version: self.pulse.version() });
                }
                delay
            } else {
                RETRY_DELAY * self.record.attempt
            };
            if !saving.pending().is_empty() {
                self.write(&mut saving).await?;
            }
            self.wait(delay).await?;
            if self.signals.has_come() {
                return self.give_back(&attempt, fence).await;
            }
            // Only now: whoever dies in the wait has used up what has run, not one that never started.
            self.go_on_with_next_attempt(&mut saving).await?;
        }
    }

    /// It is not run here, nor on another host of ours.
    async fn leave_it_to_the_old(&mut self, reason: String) -> Result<Held, Failure> {
        tracing::info!("{reason}; nothing is run");
        let fence = self.pulse.version();
        let at = self.instance.clock.now();
        let end = End { outcome: Outcome::Elsewhere, exit_code: None, signal: None, at, reason };
        self.say_last(Phase::Ended(end), fence, &Values::new()).await?;
        Ok(Held::Over { exit_code: 0 })
    }

    /// Asked to end between two attempts.
    async fn give_back(&mut self, attempt: &Attempt, fence: Version) -> Result<Held, Failure> {
        self.record.quick_ends = 0;
        let phase = match self.record.rule {
            Rule::LongLived => Phase::Released,
            Rule::AtMostOnce | Rule::Crash | Rule::AbnormalExit => self.ended(attempt, Outcome::Killed),
        };
        self.say_last(phase, fence, &Values::new()).await?;
        Ok(Held::Over { exit_code: self.signals.exit_code() })
    }

    /// Written before it starts: a host that takes over knows how many there were.
    async fn go_on_with_next_attempt(&mut self, saving: &mut Saving) -> Result<(), Failure> {
        self.record.attempt += 1;
        self.write(saving).await
    }

    /// The record as it is now, and what is to be saved.
    async fn write(&mut self, saving: &mut Saving) -> Result<(), Failure> {
        self.pulse.set_info(encode(&self.record));
        let began = self.instance.clock.boottime();
        loop {
            match self.beat(saving).await {
                Ok(true) => return Ok(()),
                Err(PulseError::Dead(_)) => return Err(Failure::CutOff(TAKEN.into())),
                Ok(false) | Err(_) if self.is_too_late(began) => return Err(Failure::CutOff(CUT_OFF.into())),
                Ok(false) | Err(PulseError::Refused(_) | PulseError::Renew { .. }) => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                }
            }
        }
    }

    /// None: trust ended before anything was started.
    async fn attempt(&mut self, saving: &mut Saving, fence: Version) -> Option<Attempt> {
        let fence = ("BELFRY_FENCE".to_owned(), fence.0.to_string());
        let extra: Vec<(String, String)> = saving.environment().chain([fence]).collect();
        self.put_off_deadline();
        let running = match self.start(extra).await? {
            Ok(running) => running,
            Err(cause) => return Some(Attempt { status: Err(cause), cut_off: false, ran: Duration::ZERO }),
        };
        let began = self.instance.clock.boottime();
        let exit = self.watch(running, saving).await;
        let ran = self.instance.clock.boottime().saturating_sub(began);
        Some(Attempt { status: Ok(exit.status), cut_off: exit.past_deadline, ran })
    }

    /// What may be over in a moment is tried again for half a TTL. The record is kept alive meanwhile, however long a start takes: by its own
    /// deadline the shim would end it while the coordinator is in good health. None: trust had ended before the first try.
    async fn start(&mut self, extra: Vec<(String, String)>) -> Option<Result<Running, SpawnError>> {
        let mut next_beat = self.next_beat();
        let Hold { instance, signals, command, pulse, record, .. } = self;
        let (trust, deadline) = (pulse.trust(), command.deadline().clone());
        let (clock, every, attempt) = (&instance.clock, instance.ttl / 4, record.attempt);
        let until = clock.boottime() + instance.ttl / 2;
        let mut tries = pin!(async {
            let mut failed = None;
            while trust.may_start(clock.boottime())
                && (failed.is_none() || (clock.boottime() < until && !signals.has_come()))
            {
                match command.start(attempt, true, extra.iter().cloned(), signals).await {
                    // Trust ended on the way: nothing ran.
                    Err(SpawnError::TooLate) => return None,
                    // With the helper that starts it gone nobody knows whether it ran for a moment.
                    Err(cause) if cause.is_transient() && cause != SpawnError::ZygoteGone => {
                        if failed.is_none() {
                            tracing::warn!("{cause}; it is tried again");
                        }
                        failed = Some(Err(cause));
                    }
                    Ok(running) => {
                        signals.are_for(Some(running.child.killer()));
                        return Some(Ok(running));
                    }
                    Err(cause) => return Some(Err(cause)),
                }
                tokio::select! {
                    () = signals.come() => {}
                    () = tokio::time::sleep(START_AGAIN_AFTER) => {}
                }
            }
            failed
        });
        let mut is_dead = false;
        loop {
            tokio::select! {
                biased;
                started = &mut tries => return started,
                () = sleep_until(next_beat), if !is_dead => {}
            }
            let mut started = None;
            let beaten = {
                let mut beat = pin!(pulse.beat());
                // One that is on its way is never dropped: it would not be known for our own.
                loop {
                    tokio::select! {
                        biased;
                        it_is = &mut tries, if started.is_none() => started = Some(it_is),
                        beaten = &mut beat => break beaten,
                    }
                }
            };
            put_off(&deadline, &trust);
            match beaten {
                Ok(()) => next_beat = Instant::now() + every,
                Err(PulseError::Dead(_)) => is_dead = true,
                Err(PulseError::Refused(_) | PulseError::Renew { .. }) => next_beat = Instant::now() + every / 4,
            }
            if let Some(started) = started {
                return started;
            }
        }
    }

    async fn watch(&mut self, running: Running, saving: &mut Saving) -> Exit {
        let Running { mut child, copies } = running;
        let clock = &self.instance.clock;
        let started_at = clock.now() - clock.boottime().saturating_sub(child.started_at);
        let every = self.instance.ttl / 4;
        let mut next_beat = self.next_beat();
        let mut is_dead = false;
        // What came while nobody answers goes with the next beat, and is not asked for in between.
        let mut is_answered = true;
        let exit = loop {
            tokio::select! {
                biased;
                exit = child.wait() => break exit,
                () = sleep_until(next_beat), if !is_dead => {}
                () = saving.gather(), if !is_dead && is_answered => {}
            }
            let beaten = self.beat(saving).await;
            is_answered = matches!(beaten, Ok(true));
            next_beat = match beaten {
                Ok(true) => Instant::now() + every,
                Ok(false) => Instant::now() + ASK_AGAIN_AFTER.min(every / 4),
                Err(PulseError::Refused(_)) => Instant::now() + ASK_AGAIN_AFTER / 10,
                Err(PulseError::Renew { cause, .. }) => {
                    tracing::warn!(%cause, "the coordinator does not answer; the command is ended before another host may start it");
                    Instant::now() + every / 4
                }
                Err(PulseError::Dead(_)) => {
                    is_dead = true;
                    self.command.deadline().is_over();
                    Instant::now()
                }
            };
        };
        self.signals.are_for(None);
        // Whoever takes the output may be slow; the instance is ours until we say otherwise.
        let mut finished = std::pin::pin!(copies.finish());
        let printed = loop {
            tokio::select! {
                biased;
                printed = &mut finished => break printed,
                () = sleep_until(next_beat), if !is_dead => {}
            }
            is_dead = matches!(self.beat(saving).await, Err(PulseError::Dead(_)));
            next_beat = Instant::now() + every;
        };
        if let Some(history) = &mut self.history {
            history.printed(self.record.attempt, started_at, printed);
        }
        exit
    }

    /// One beat, with what is to be saved if that can be done in time. False: it was not, and waits for the next one. A beat never waits for
    /// what instances of the name share: only the record keeps the command alive.
    async fn beat(&mut self, saving: &mut Saving) -> Result<bool, PulseError> {
        let is_all = saving.pending().is_empty();
        let shared = if is_all { None } else { self.shared_in_time().await.map_err(tell_that_it_waits).ok() };
        if let Some((mut shared, guard)) = shared {
            let refused = merge_within(&mut shared.values, saving.pending(), KEYS_MAX);
            match self.pulse.beat_with(vec![guard], vec![self.instance.put_shared(&shared)]).await {
                Ok(()) => {
                    refused.iter().for_each(|why| tracing::warn!("DCRON_FIFO: not saved: {why}"));
                    saving.saved();
                    self.put_off_deadline();
                    return Ok(true);
                }
                // Another instance was quicker, perhaps again and again.
                Err(PulseError::Refused(_)) if self.until_next_beat().is_zero() => {}
                Err(cause) => return Err(cause),
            }
        }
        self.pulse.beat().await?;
        self.put_off_deadline();
        Ok(is_all)
    }

    /// What instances of the name share, if the coordinator says it as soon as a beat has to be answered.
    async fn shared_in_time(&self) -> Result<(Shared, Guard), CoordError> {
        let answer = tokio::time::timeout(self.instance.ttl / 4, self.instance.shared()).await;
        answer.unwrap_or_else(|_late| Err(CoordError::Away("no answer in time".to_owned())))
    }

    fn put_off_deadline(&self) {
        put_off(self.command.deadline(), &self.pulse.trust());
    }

    /// How long it is until a quarter of the TTL has passed since the last beat that succeeded was sent.
    fn until_next_beat(&self) -> Duration {
        let due = self.pulse.trust().start_until().map_or(Duration::ZERO, |until| until - self.instance.ttl / 4);
        due.saturating_sub(self.instance.clock.boottime())
    }

    fn next_beat(&self) -> Instant {
        Instant::now() + self.until_next_beat()
    }

    /// Nothing starts without it. What is left of an old one might end before the first beat beside the command is answered.
    async fn gain_trust(&mut self) -> Result<(), Failure> {
        let until = self.instance.clock.boottime() + self.parameters.wait;
        let mut has_beaten = false;
        // Who is asked to end starts nothing.
        while self.until_next_beat().is_zero()
            && !(has_beaten && self.pulse.trust().may_start(self.instance.clock.boottime()))
            && !self.signals.has_come()
        {
            match self.pulse.beat().await {
                Ok(()) => has_beaten = true,
                Err(PulseError::Dead(_)) => return Err(Failure::CutOff(TAKEN.into())),
                Err(cause) if self.instance.clock.boottime() > until => {
                    return Err(self.away_before_start(&cause));
                }
                Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            }
        }
        Ok(())
    }

    /// After it was cut off: whether the instance is still this host's.
    async fn reach_again(&mut self) -> Result<(), Failure> {
        let began = self.instance.clock.boottime();
        loop {
            match self.pulse.beat().await {
                Ok(()) => return Ok(()),
                Err(PulseError::Dead(_)) => {
                    return Err(Failure::CutOff(format!(
                        "{CUT_OFF}; another host has it now, or it was recorded as lost"
                    )));
                }
                Err(_) if self.is_too_late(began) => return Err(Failure::CutOff(CUT_OFF.into())),
                Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            }
        }
    }

    /// The claim is not undone by that: others see this host fall silent.
    pub(crate) fn away_before_start(&self, cause: &dyn Error) -> Failure {
        let then = match self.record.next_step(Holder::Silent) {
            Step::TakeOver { .. } => "a host that stands by, or comes later, starts it after the TTL",
            Step::Leave | Step::StandBy | Step::GiveUp => "no other host runs it",
        };
        let cause = cause.source().unwrap_or(cause);
        Failure::AwayAfterClaim(format!(
            "this host has the instance, but attempt {} was not started, because the coordinator does not answer any more: {cause}; {then} (DCRON_ABSENT counts only until the instance is claimed)",
            self.record.attempt
        ))
    }

    /// For a coordinator that does not answer since this moment; who is asked to end waits only a little.
    fn is_too_late(&self, began: Duration) -> bool {
        let patience = if self.signals.has_come() { LAST_WORD_WHEN_ASKED } else { LAST_WORD_WITHIN };
        self.instance.clock.boottime() > began + patience
    }

    /// Beats on; returns early when the wrapper is asked to end.
    async fn wait(&mut self, delay: Duration) -> Result<(), Failure> {
        let until = Instant::now() + delay;
        loop {
            let beat_at = Instant::now() + self.instance.ttl / 4;
            tokio::select! {
                () = self.signals.come() => return Ok(()),
                () = sleep_until(until.min(beat_at)) => {}
            }
            if Instant::now() >= until {
                return Ok(());
            }
            match self.pulse.beat().await {
                Err(PulseError::Dead(_)) => return Err(Failure::CutOff(TAKEN.into())),
                Ok(()) | Err(PulseError::Refused(_) | PulseError::Renew { .. }) => {}
            }
        }
    }

    fn ended(&self, attempt: &Attempt, outcome: Outcome) -> Phase {
        let (exit_code, signal, reason) = match &attempt.status {
            Ok(ExitStatus::Code(code)) => (Some(*code), None, String::new()),
            Ok(ExitStatus::Signal(signal)) => (None, Some(*signal), String::new()),
            Ok(ExitStatus::Lost) => (None, None, "nobody knows how it ended".to_owned()),
            Err(cause) => (Some(cause.exit_code()), None, cause.to_string()),
        };
        let reason = if attempt.cut_off { "its host was cut off from the coordinator".to_owned() } else { reason };
        Phase::Ended(End { outcome, exit_code, signal, at: self.instance.clock.now(), reason })
    }

    async fn say_last(&mut self, phase: Phase, fence: Version, pending: &Values) -> Result<(), Failure> {
        let ran_here = !matches!(&phase, Phase::Ended(End { outcome: Outcome::Elsewhere, .. }));
        let sticks = ran_here && !self.parameters.stick.is_zero();
        let is_over = matches!(phase, Phase::Ended(_));
        if let Phase::Ended(end) = &phase
            && ran_here
        {
            self.tell_the_old(end).await?;
        }
        self.record.phase = phase;
        self.pulse.set_info(encode(&self.record));
        let began = self.instance.clock.boottime();
        loop {
            match self.last_word(is_over, sticks, fence, pending).await {
                Ok(()) => break,
                Err(PulseError::Dead(_)) => return Err(Failure::CutOff(TAKEN.into())),
                Err(cause) if self.is_too_late(began) => {
                    return Err(Failure::CutOff(format!(
                        "the command has ended, but that could not be written down: {cause}"
                    )));
                }
                Err(_) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
            }
        }
        if sticks {
            Stick::of(self.parameters).remember(fence.0);
        }
        if let Some(history) = self.history.as_mut().filter(|_| is_over && ran_here) {
            history.tell(self.instance, self.record.claimed_at, self.signals).await;
        }
        Ok(())
    }

    async fn last_word(
        &mut self,
        is_over: bool,
        sticks: bool,
        fence: Version,
        pending: &Values,
    ) -> Result<(), PulseError> {
        let mut writes = Vec::new();
        let mut guards = Vec::new();
        if is_over && self.record.rule != Rule::AtMostOnce {
            writes.extend((1..self.record.attempts_max).map(|seat| Write::Delete(self.instance.seat(seat))));
        }
        if sticks || !pending.is_empty() {
            let failed = |cause: CoordError| PulseError::Renew { key: self.instance.key(), cause };
            let (mut shared, guard) = self.shared_in_time().await.map_err(failed)?;
            for why in merge_within(&mut shared.values, pending, KEYS_MAX) {
                tracing::warn!("DCRON_FIFO: not saved: {why}");
            }
            let (host, ended_at) = (self.instance.host.clone(), self.instance.clock.now());
            shared.last = Some(Last { host, fence: fence.0, ended_at });
            guards.push(guard);
            writes.push(self.instance.put_shared(&shared));
        }
        self.pulse.stop_with(guards, writes).await
    }

    /// For as long as one waits for a coordinator at the start.
    async fn ask<T>(&mut self, question: impl AsyncFn(&Self) -> Result<T, CoordError>) -> Result<T, Failure> {
        let until = self.instance.clock.boottime() + self.parameters.wait;
        loop {
            match question(self).await {
                Ok(answer) => return Ok(answer),
                Err(cause) if !cause.is_transient() => return Err(Failure::Cannot(cause.to_string())),
                Err(cause) if self.instance.clock.boottime() > until => {
                    return Err(self.away_before_start(&cause));
                }
                Err(_) => {
                    tokio::time::sleep(ASK_AGAIN_AFTER).await;
                    let _told_at_the_next_start = self.pulse.beat().await;
                }
            }
        }
    }
}

fn tell_that_it_waits(cause: CoordError) {
    tracing::warn!(%cause, "DCRON_FIFO: what was written there is saved later; what the name shares cannot be read now");
}

fn put_off(deadline: &Deadline, trust: &Trust) {
    match trust.term_at().zip(trust.kill_at()) {
        Some((ask, kill)) => deadline.put_off(LastMoments { ask, kill }),
        None => deadline.is_over(),
    }
}

const CUT_OFF: &str =
    "this host was cut off from the coordinator, and the command was ended before another host may start it";
pub(crate) const TAKEN: &str = "this host was held dead, and another one has the instance now";

impl Attempt {
    /// The wrapper was asked to end before.
    fn never_made() -> Attempt {
        Attempt { status: Ok(ExitStatus::Signal(Signal::SIGTERM as i32)), cut_off: false, ran: Duration::ZERO }
    }

    fn exit_code(&self) -> u8 {
        match &self.status {
            Ok(status) => code_of(*status),
            Err(cause) => u8::try_from(cause.exit_code()).unwrap_or(u8::MAX),
        }
    }
}
