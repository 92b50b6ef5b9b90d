//! One call of the wrapper: reach the coordinator, be the first or wait for one's turn, run, and say how it went.

use std::sync::Arc;
use std::time::Duration;

use belfry_coord::wrapped::{decode, give_up};
use belfry_coord::{
    Clock, Coordinator, Entry, Guard, Heartbeat, Hints, Life, Liveness, Observer, Pulse, PulseError, Write,
};
use belfry_core::Version;
use belfry_core::wrapped::{Holder, Phase, Record, Rule, Step, patience_with};
use belfry_exec::ZygoteCommand;
use jiff::tz::TimeZone;

use crate::beside::{Beside, OpenOldLock};
use crate::cleaning;
use crate::command::{self, Command};
use crate::exit::{Failure, code_of};
use crate::history::{History, TellOutput};
use crate::hold::{Held, Hold};
use crate::host::{self, Stick, address, make_folders};
use crate::instance::Instance;
use crate::leftovers;
use crate::parameters::{Absent, Parameters};
use crate::signals::Signals;

/// What the program gives to the wrapper.
pub struct Surroundings {
    pub zygote: ZygoteCommand,
    pub clock: Arc<dyn Clock>,
    /// Instances are named in it.
    pub zone: TimeZone,
    pub open_old_lock: OpenOldLock,
    /// None: no server is told what commands print.
    pub tell_output: Option<TellOutput>,
}

/// Why there is no coordinator.
#[derive(Debug)]
pub struct Unreachable {
    /// It may answer later; else what it is called is wrong.
    pub is_transient: bool,
    pub cause: String,
}

const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// How much later than the host that it ran on last the others claim; and one that has let go of it, than all others.
const HEAD_START: Duration = Duration::from_secs(5);
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// Returns the exit code.
pub async fn run(
    parameters: Parameters,
    surroundings: Surroundings,
    connect: impl AsyncFn(&str) -> Result<Arc<dyn Coordinator>, Unreachable>,
) -> Result<u8, Failure> {
    let Surroundings { zygote, clock, zone, open_old_lock, tell_output } = surroundings;
    let instance = match parameters.rule {
        // One lock for all time.
        Rule::LongLived => String::new(),
        Rule::AtMostOnce | Rule::Crash | Rule::AbnormalExit => {
            parameters.name.instance(&clock.now().to_zoned(zone)).map_err(Failure::SaidWrong)?
        }
    };
    let host = parameters.id.clone().unwrap_or_else(address);
    let mut beside = Beside::of(&parameters, &instance, &host, open_old_lock)?;
    make_folders(&parameters)?;
    // Before anything is claimed that this host then could not run.
    command::make_fifo_folder(&parameters)?;
    let signals = Signals::listen()?;
    let nonce = random()?;
    let mut command = Command::prepare(&parameters, &instance, format!("dcron-{nonce:016x}"), zygote)?;
    // A process that always runs has no run in any history.
    let mut history = tell_output.filter(|_| !parameters.is_long_lived()).map(History::new);
    command.keeps_output = history.is_some();
    let reached = tokio::select! {
        reached = reach(&parameters, &*clock, connect) => reached,
        () = signals.come() => return Ok(signals.exit_code()),
    };
    let coordinator = match reached {
        Ok(coordinator) => coordinator,
        Err(Failure::CoordinatorAway(cause)) if parameters.absent == Absent::Run => {
            tell_that_it_runs_alone(&cause);
            return run_alone(&mut command, &signals).await;
        }
        Err(failure) => return Err(failure),
    };
    let instance = Instance {
        coordinator,
        clock,
        name: parameters.name.name.clone(),
        instance,
        host,
        ttl: parameters.ttl,
        // Half of the numbers are left to count in.
        beats_from: nonce >> 1,
    };
    let mut wrapper = Wrapper { parameters: &parameters, instance: &instance, signals: &signals, seat: None };
    let exit_code = wrapper.contest(&mut command, beside.as_mut(), history.as_mut()).await;
    wrapper.leave_seat().await;
    leftovers::remove_fifos(&command::fifo_folder(&parameters), &host::mark(), instance.clock.now());
    if let Some(beside) = beside {
        beside.leave().await;
    }
    // Last of all: it may take long, and others wait for nothing of it.
    if exit_code.is_ok() {
        cleaning::clean(&instance, &signals, parameters.is_long_lived()).await;
    }
    exit_code
}

async fn reach(
    parameters: &Parameters,
    clock: &dyn Clock,
    connect: impl AsyncFn(&str) -> Result<Arc<dyn Coordinator>, Unreachable>,
) -> Result<Arc<dyn Coordinator>, Failure> {
    let until = clock.boottime() + parameters.wait;
    loop {
        let left = until.saturating_sub(clock.boottime()).max(ASK_AGAIN_AFTER);
        let connected = tokio::time::timeout(left, connect(&parameters.coordinator)).await;
        match connected {
            Ok(Ok(coordinator)) => return Ok(coordinator),
            Ok(Err(Unreachable { is_transient: false, cause })) => return Err(Failure::SaidWrong(cause)),
            Ok(Err(Unreachable { cause, .. })) if clock.boottime() + ASK_AGAIN_AFTER >= until => {
                return Err(Failure::CoordinatorAway(cause));
            }
            Err(_) => return Err(Failure::CoordinatorAway("no answer in time".to_owned())),
            Ok(Err(_)) => tokio::time::sleep(ASK_AGAIN_AFTER).await,
        }
    }
}

fn tell_that_it_runs_alone(cause: &str) {
    tracing::warn!(
        "the coordinator does not answer: {cause}; DCRON_ABSENT=run: the command runs here, and perhaps on other hosts too"
    );
}

/// As plain cron would.
async fn run_alone(command: &mut Command, signals: &Signals) -> Result<u8, Failure> {
    command.warm_up()?;
    let mut saving = command.saving(Default::default())?;
    let environment: Vec<_> = saving.environment().collect();
    let mut running = match command.start(1, false, environment.into_iter(), signals).await {
        Ok(running) => running,
        Err(cause) => return Err(Failure::of_start(&cause)),
    };
    signals.are_for(Some(running.child.killer()));
    let exit = loop {
        tokio::select! {
            biased;
            exit = running.child.wait() => break exit,
            () = saving.gather() => {
                tracing::warn!("DCRON_FIFO: nothing is saved without a coordinator");
                saving.saved();
            }
        }
    };
    let _in_no_history = running.copies.finish().await;
    Ok(code_of(exit.status))
}

struct Wrapper<'a> {
    parameters: &'a Parameters,
    instance: &'a Instance,
    signals: &'a Signals,
    /// Of one who waits; with its number.
    seat: Option<(u32, Pulse)>,
}

/// What one who waits comes to.
enum Turn {
    Leave,
    Take { guard: Guard, attempt: u32, quick_ends: u32 },
}

impl Wrapper<'_> {
    async fn contest(
        &mut self,
        command: &mut Command,
        mut beside: Option<&mut Beside>,
        mut history: Option<&mut History>,
    ) -> Result<u8, Failure> {
        if self.give_head_start().await {
            return Ok(self.signals.exit_code());
        }
        let mut guard = Guard::Absent(self.instance.key());
        let (mut attempt, mut quick_ends) = (1, 0);
        // By this host, and when.
        let mut let_go: Option<(Version, Duration)> = None;
        loop {
            // Whoever takes it and is then ended has used it up for all hosts.
            if self.signals.has_come() {
                return Ok(self.signals.exit_code());
            }
            tokio::select! {
                biased;
                found = command.find_program() => found?,
                () = self.signals.come() => return Ok(self.signals.exit_code()),
            }
            command.warm_up()?;
            let record = Record { quick_ends, ..self.instance.record(self.parameters, attempt) };
            let is_own = |version: &Version| matches!(&guard, Guard::At(_, at) if at == version);
            let since = let_go.take().filter(|(version, _)| is_own(version)).map(|(_, since)| since);
            let seat = self.seat.iter().map(|(number, _)| Write::Delete(self.instance.seat(*number))).collect();
            let taken = self.instance.take(guard, &record, seat, self.parameters.wait, self.signals).await;
            let is_first = self.parameters.absent == Absent::Run && attempt == 1 && self.seat.is_none();
            let taken = match taken {
                Err(Failure::CoordinatorAway(_)) if self.signals.has_come() => return Ok(self.signals.exit_code()),
                Err(Failure::CoordinatorAway(cause)) if is_first => {
                    tell_that_it_runs_alone(&cause);
                    return run_alone(command, self.signals).await;
                }
                taken => taken?,
            };
            if let Some(pulse) = taken {
                self.seat = None;
                let (instance, parameters, signals) = (self.instance, self.parameters, self.signals);
                let (beside, history) = (beside.as_deref_mut(), history.as_deref_mut());
                let waited = since.map_or(Duration::ZERO, |since| instance.clock.boottime().saturating_sub(since));
                let hold = Hold { instance, parameters, signals, command, beside, history, pulse, record, waited };
                match hold.run().await? {
                    Held::Over { exit_code } => return Ok(exit_code),
                    Held::LetGo { delay, version } => {
                        command.cool_down();
                        let_go = Some((version, self.instance.clock.boottime()));
                        // Those who wait hear of it later than this host, which would always be the first.
                        if self.wait_for_others(delay).await {
                            return Ok(self.signals.exit_code());
                        }
                    }
                }
            }
            command.cool_down();
            match self.wait_for_turn().await? {
                Turn::Leave if self.signals.has_come() => return Ok(self.signals.exit_code()),
                Turn::Leave => return Ok(0),
                Turn::Take { guard: next, attempt: number, quick_ends: quick } => {
                    (guard, attempt, quick_ends) = (next, number, quick);
                }
            }
        }
    }

    /// To the host that it ran on last. True: the wrapper was asked to end.
    async fn give_head_start(&self) -> bool {
        if self.parameters.stick.is_zero() {
            return false;
        }
        // Only a preference: without an answer nobody waits.
        let Ok((shared, _)) = self.instance.shared().await else { return false };
        let Some(last) = shared.last else { return false };
        let ago = self.instance.clock.now().duration_since(last.ended_at);
        let sticks = Duration::try_from(ago).unwrap_or_default() < self.parameters.stick;
        if !sticks || Stick::of(self.parameters).fence() == Some(last.fence) {
            return false;
        }
        self.wait_for_others(self.parameters.stick).await
    }

    /// For a moment, at most so long. True: the wrapper was asked to end.
    async fn wait_for_others(&self, at_most: Duration) -> bool {
        tokio::select! {
            () = self.signals.come() => true,
            () = tokio::time::sleep(HEAD_START.min(at_most)) => false,
        }
    }

    /// Until the instance is over, or this host is to take it.
    async fn wait_for_turn(&mut self) -> Result<Turn, Failure> {
        let key = self.instance.key();
        let mut observer = Observer::new(self.instance.ttl);
        let mut seats = Observer::new(self.instance.ttl);
        let mut hints = None;
        let mut since: Option<Duration> = None;
        loop {
            match self.instance.coordinator.get(&key).await {
                // Removed long after its end.
                Ok(None) if self.parameters.rule != Rule::LongLived => return Ok(Turn::Leave),
                Ok(None) => return Ok(Turn::Take { guard: Guard::Absent(key), attempt: 1, quick_ends: 0 }),
                Ok(Some(entry)) => {
                    let now = self.instance.clock.boottime();
                    // Its holder counts by its own TTL, which may be longer than ours.
                    let patience = read(&entry)?.silence().max(self.instance.ttl);
                    if patience > observer.ttl() {
                        observer = Observer::new(patience);
                    }
                    observer.observe(std::slice::from_ref(&entry), now);
                    match self.step(&entry, &observer, now).await? {
                        (Step::Leave | Step::GiveUp, _) => return Ok(Turn::Leave),
                        (Step::TakeOver { attempt }, version) => {
                            let quick_ends = quick_ends_of(&entry)?;
                            return Ok(Turn::Take { guard: Guard::At(key, version), attempt, quick_ends });
                        }
                        (Step::StandBy, _) => {
                            let candidate_for = now.saturating_sub(*since.get_or_insert(now));
                            let has_seat = self.keep_seat(&mut seats).await?;
                            // Only a process that always runs is worth waiting to see whether those who have it or wait for it live.
                            let patience = observer.ttl().max(seats.ttl());
                            let watches = self.parameters.rule == Rule::LongLived && candidate_for < patience * 3 / 2;
                            if !has_seat && !watches {
                                return Ok(Turn::Leave);
                            }
                        }
                    }
                }
                Err(cause) if !cause.is_transient() => return Err(Failure::Cannot(cause.to_string())),
                // Silence is not counted meanwhile, and nobody starts anything.
                Err(_) => {}
            }
            if hints.is_none() {
                hints = self.instance.coordinator.watch(&key).await.ok();
            }
            tokio::select! {
                () = self.signals.come() => return Ok(Turn::Leave),
                () = changed(&mut hints) => {}
                () = tokio::time::sleep(self.until_next_look()) => {}
            }
        }
    }

    fn until_next_look(&self) -> Duration {
        let every = self.instance.ttl / 4;
        let due = self.seat.iter().map(|(_, pulse)| until_beat_of(pulse, self.instance));
        // A beat that has just failed is not asked for without end.
        due.filter(|left| !left.is_zero()).fold(every, Duration::min)
    }

    async fn step(&self, entry: &Entry, observer: &Observer, now: Duration) -> Result<(Step, Version), Failure> {
        let record = read(entry)?;
        let (holder, version) = match observer.liveness(&entry.key, now) {
            // What was read may be older than what was seen before: it does not say what to do next.
            Liveness::StoodStill(version) if version == entry.version => (Holder::Silent, version),
            Liveness::Ended(version) if version == entry.version => (Holder::Gone, version),
            Liveness::StoodStill(_) | Liveness::Ended(_) => (Holder::Lives, entry.version),
            Liveness::Alive | Liveness::Absent | Liveness::NotLooked => (Holder::Lives, entry.version),
        };
        let step = record.next_step(holder);
        if step == Step::GiveUp {
            let (coordinator, at) = (&*self.instance.coordinator, self.instance.clock.now());
            if let Err(cause) = give_up(coordinator, &entry.key, record, version, at).await {
                tracing::warn!(%cause, "that the instance is lost could not be written down; the next one who sees it will");
            }
        }
        Ok((step, version))
    }

    /// False: others wait already, as many as there may be.
    async fn keep_seat(&mut self, seats: &mut Observer) -> Result<bool, Failure> {
        if let Some((_, pulse)) = &mut self.seat {
            // Not at every look: where a watch cannot tell one key from another, as on a database, each beat is a hint for whoever waits.
            if !until_beat_of(pulse, self.instance).is_zero() {
                return Ok(true);
            }
            match pulse.beat().await {
                // Whoever had the instance ended it, and the seats with it; or the seat was given to another one.
                Err(PulseError::Dead(_)) => self.seat = None,
                Ok(()) | Err(PulseError::Refused(_) | PulseError::Renew { .. }) => {}
            }
            return Ok(true);
        }
        let numbers = 1..self.parameters.hosts_max;
        let mut taken = Vec::new();
        for number in numbers.clone() {
            let Ok(found) = self.instance.coordinator.get(&self.instance.seat(number)).await else { return Ok(true) };
            taken.extend(found);
        }
        // Each counts by its own TTL, as the one that has the instance.
        let patience = taken.iter().filter_map(ttl_of_seat).max();
        if let Some(patience) = patience.filter(|patience| *patience > seats.ttl()) {
            *seats = Observer::new(patience);
        }
        // First: silence that could not be heard is known by when there was a look, this one too.
        let now = self.instance.clock.boottime();
        seats.observe(&taken, now);
        let info = serde_json::json!({ "host": self.instance.host, TTL_OF_SEAT: self.instance.ttl_ms() });
        // Given by a request whose answer was lost: whoever took another one as well would keep two.
        let own = numbers.clone().find(|number| {
            let key = self.instance.seat(*number);
            taken.iter().any(|seat| seat.key == key && is_first_beat(seat, self.instance.beats_from))
        });
        for number in own.into_iter().chain(numbers) {
            let key = self.instance.seat(number);
            let guard = match seats.liveness(&key, now) {
                // It is found by its first beat, and nothing is written.
                _ if own == Some(number) => Guard::Absent(key),
                Liveness::Absent | Liveness::NotLooked => Guard::Absent(key),
                Liveness::StoodStill(version) | Liveness::Ended(version) => Guard::At(key, version),
                Liveness::Alive => continue,
            };
            let first =
                belfry_coord::FirstBeat { guard, from: self.instance.beats_from, info: info.clone(), writes: vec![] };
            let (coordinator, clock) = (self.instance.coordinator.clone(), self.instance.clock.clone());
            match Pulse::take(coordinator, clock, first, self.instance.ttl).await {
                Ok(Some(pulse)) => {
                    self.seat = Some((number, pulse));
                    return Ok(true);
                }
                // That nobody answered does not say that there is no seat; it is asked for again at the next look.
                Err(PulseError::Renew { cause, .. }) if cause.is_transient() => return Ok(true),
                Err(PulseError::Renew { cause, .. }) => return Err(Failure::Cannot(cause.to_string())),
                Ok(None) | Err(PulseError::Dead(_) | PulseError::Refused(_)) => {}
            }
        }
        Ok(false)
    }

    /// So that another host need not wait for a TTL.
    async fn leave_seat(&mut self) {
        let Some((number, pulse)) = self.seat.take() else { return };
        let key = self.instance.seat(number);
        let left =
            self.instance.coordinator.commit(vec![Guard::At(key.clone(), pulse.version())], vec![Write::Delete(key)]);
        let _others_find_out = tokio::time::timeout(GOODBYE_WITHIN, left).await;
    }
}

/// How long it is until a quarter of the TTL has passed since the last beat that succeeded was sent.
fn until_beat_of(pulse: &Pulse, instance: &Instance) -> Duration {
    let due = pulse.trust().start_until().map_or(Duration::ZERO, |until| until - instance.ttl / 4);
    due.saturating_sub(instance.clock.boottime())
}

const TTL_OF_SEAT: &str = "ttl_ms";

/// None: of one who did not say it.
fn ttl_of_seat(seat: &Entry) -> Option<Duration> {
    Heartbeat::decode(seat).ok()?.info.get(TTL_OF_SEAT)?.as_u64().map(patience_with)
}

/// Of the one that counts its beats from here.
fn is_first_beat(seat: &Entry, from: u64) -> bool {
    Heartbeat::decode(seat).is_ok_and(|found| found.beat == from && found.life == Life::Beating)
}

fn read(entry: &Entry) -> Result<Record, Failure> {
    decode(entry).map(|(record, _)| record).map_err(|cause| Failure::Cannot(cause.to_string()))
}

/// Of one whose host has let go of it for that.
fn quick_ends_of(entry: &Entry) -> Result<u32, Failure> {
    let record = read(entry)?;
    Ok(if record.phase == Phase::Released { record.quick_ends } else { 0 })
}

async fn changed(hints: &mut Option<Hints>) {
    match hints {
        Some(hints) => hints.changed().await,
        None => std::future::pending().await,
    }
}

fn random() -> Result<u64, Failure> {
    getrandom::u64().map_err(|cause| Failure::Cannot(format!("ask the kernel for a random number: {cause}")))
}

#[cfg(test)]
mod tests {
    use belfry_coord::faulty::{Fault, Faulty};
    use belfry_coord::{ManualClock, Memory};
    use tokio::sync::watch;

    use super::*;

    const SHORT: Duration = Duration::from_secs(2);
    const LONG: Duration = Duration::from_secs(8);

    /// Two hosts, one seat, and the clock of both.
    struct Ground {
        faulty: Arc<Faulty>,
        clock: Arc<ManualClock>,
        parameters: Parameters,
        signals: Signals,
        _stop: watch::Sender<bool>,
    }

    impl Ground {
        fn new() -> Ground {
            let args = ["DCRON_NAME=a", "DCRON_LLAP=true", "DCRON_MAXRETRY=2", "DCRON_COORD=memory", "--", "true"];
            let (signals, stop) = Signals::for_test();
            Ground {
                faulty: Arc::new(Faulty::new(Arc::new(Memory::default()))),
                clock: Arc::new(ManualClock::default()),
                parameters: Parameters::read(args.map(Into::into), []).unwrap(),
                signals,
                _stop: stop,
            }
        }

        fn host(&self, host: &str, ttl: Duration) -> Instance {
            Instance {
                coordinator: self.faulty.clone(),
                clock: self.clock.clone(),
                name: "a".into(),
                instance: String::new(),
                host: host.into(),
                ttl,
                beats_from: host.bytes().map(u64::from).sum(),
            }
        }

        fn wrapper<'a>(&'a self, instance: &'a Instance) -> Wrapper<'a> {
            Wrapper { parameters: &self.parameters, instance, signals: &self.signals, seat: None }
        }
    }

    #[tokio::test]
    async fn a_seat_stays_with_who_has_it_when_nobody_could_be_heard_for_a_while() {
        let ground = Ground::new();
        let (one, other) = (ground.host("one", SHORT), ground.host("other", SHORT));
        let (mut has_it, mut waits) = (ground.wrapper(&one), ground.wrapper(&other));
        let (mut own, mut seats) = (Observer::new(SHORT), Observer::new(SHORT));
        assert!(has_it.keep_seat(&mut own).await.unwrap());
        assert!(!waits.keep_seat(&mut seats).await.unwrap());
        ground.faulty.set_away(true);
        ground.clock.advance(SHORT * 2);
        waits.keep_seat(&mut seats).await.unwrap();
        ground.faulty.set_away(false);
        assert!(!waits.keep_seat(&mut seats).await.unwrap() && waits.seat.is_none(), "it could not beat meanwhile");
        has_it.keep_seat(&mut own).await.unwrap();
        assert!(has_it.seat.is_some());
        for _quarter in 0..5 {
            assert!(waits.seat.is_none());
            ground.clock.advance(SHORT / 4);
            waits.keep_seat(&mut seats).await.unwrap();
        }
        assert!(waits.seat.is_some(), "a whole TTL that could be heard");
    }

    #[tokio::test]
    async fn a_seat_that_was_asked_for_without_an_answer_is_asked_for_again() {
        for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Ghost, Fault::Away] {
            let mut ground = Ground::new();
            ground.parameters.hosts_max = 3;
            let one = ground.host("one", SHORT);
            let (mut waits, mut seats) = (ground.wrapper(&one), Observer::new(SHORT));
            ground.faulty.plan([fault]);
            assert!(waits.keep_seat(&mut seats).await.unwrap(), "{fault:?}: nobody said that all are taken");
            assert!(waits.seat.is_none(), "{fault:?}");
            ground.faulty.let_ghosts_through().await.unwrap();
            assert!(waits.keep_seat(&mut seats).await.unwrap(), "{fault:?}");
            assert_eq!(waits.seat.as_ref().map(|(number, _)| *number), Some(1), "{fault:?}");
            ground.clock.advance(SHORT / 4);
            assert!(waits.keep_seat(&mut seats).await.unwrap() && waits.seat.is_some(), "{fault:?}: it is its own");
            let other = ground.host("other", SHORT);
            let mut waits_too = ground.wrapper(&other);
            assert!(waits_too.keep_seat(&mut Observer::new(SHORT)).await.unwrap());
            assert_eq!(waits_too.seat.as_ref().map(|(number, _)| *number), Some(2), "{fault:?}: one was left free");
        }
    }

    #[tokio::test]
    async fn a_seat_is_beaten_for_four_times_a_ttl_however_often_one_looks() {
        let ground = Ground::new();
        let one = ground.host("one", LONG);
        let (mut waits, mut seats) = (ground.wrapper(&one), Observer::new(LONG));
        assert!(waits.keep_seat(&mut seats).await.unwrap());
        assert_eq!(ground.faulty.commits(), 1, "it has the seat");
        for _look in 0..40 {
            ground.clock.advance(LONG / 40);
            assert!(waits.keep_seat(&mut seats).await.unwrap());
            assert!(waits.until_next_look() <= LONG / 4);
        }
        assert_eq!(ground.faulty.commits(), 1 + 4);
        ground.faulty.set_away(true);
        ground.clock.advance(LONG / 4);
        assert!(waits.keep_seat(&mut seats).await.unwrap());
        assert!(waits.until_next_look() > Duration::ZERO, "one that fails is not asked for without end");
        ground.faulty.set_away(false);
        assert!(waits.keep_seat(&mut seats).await.unwrap() && waits.seat.is_some());
        assert_eq!(ground.faulty.commits(), 1 + 4 + 2, "it is asked for again at the next look");
    }

    #[tokio::test]
    async fn a_seat_counts_by_the_ttl_of_who_has_it() {
        let ground = Ground::new();
        let (one, other) = (ground.host("one", LONG), ground.host("other", SHORT));
        let (mut has_it, mut waits) = (ground.wrapper(&one), ground.wrapper(&other));
        let mut seats = Observer::new(SHORT);
        assert!(has_it.keep_seat(&mut Observer::new(LONG)).await.unwrap());
        assert!(!waits.keep_seat(&mut seats).await.unwrap());
        let mut silent = Duration::ZERO;
        while waits.seat.is_none() {
            ground.clock.advance(SHORT / 4);
            silent += SHORT / 4;
            waits.keep_seat(&mut seats).await.unwrap();
        }
        assert_eq!(silent, LONG);
    }

    #[tokio::test(start_paused = true)]
    async fn a_seat_whose_host_with_a_long_ttl_has_died_is_taken_by_one_with_a_short_ttl() {
        let ground = Ground::new();
        let (holder, dead, other) =
            (ground.host("holder", SHORT), ground.host("dead", LONG), ground.host("other", SHORT));
        let (free, record) = (Guard::Absent(holder.key()), holder.record(&ground.parameters, 1));
        let held = holder.take(free, &record, vec![], Duration::ZERO, &ground.signals).await.unwrap();
        let mut pulse = held.expect("nobody has it");
        assert!(ground.wrapper(&dead).keep_seat(&mut Observer::new(LONG)).await.unwrap());
        let mut waits = ground.wrapper(&other);
        let holder_lives = async {
            loop {
                tokio::time::sleep(SHORT / 4).await;
                ground.clock.advance(SHORT / 4);
                pulse.beat().await.unwrap();
            }
        };
        let waits_on = async {
            tokio::select! {
                turn = waits.wait_for_turn() => turn.map(drop).unwrap(),
                () = holder_lives => {}
            }
        };
        assert!(tokio::time::timeout(LONG * 3, waits_on).await.is_err(), "it has left");
        assert!(waits.seat.is_some());
    }
}
