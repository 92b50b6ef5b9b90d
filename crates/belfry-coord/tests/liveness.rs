//! Heartbeats, trust and takeover on a clock that the test moves: who is held dead, when, and by what right.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belfry_coord::faulty::{Fault, Faulty};
use belfry_coord::observer::mark_lost;
use belfry_coord::{
    Clock, Commit, CoordError, Coordinator, Entry, Guard, Held, HeldError, Hints, Liveness, ManualClock, Memory,
    Observer, Pulse, PulseError, Seat, Taking, Vacancy, Write, keys,
};
use belfry_core::{ServerId, Term};

const TTL: Duration = Duration::from_secs(10);
const SHARD: &str = "shards/03";

fn server(n: u128) -> ServerId {
    ServerId::from_u128(n)
}

fn seconds(s: u64) -> Duration {
    Duration::from_secs(s)
}

async fn pulse(coordinator: &Arc<dyn Coordinator>, clock: &ManualClock, id: ServerId) -> Pulse {
    let clock = Arc::new(clock.clone());
    Pulse::start(coordinator.clone(), clock, keys::server(id), TTL, serde_json::Value::Null).await.unwrap()
}

async fn observe(observer: &mut Observer, coordinator: &Arc<dyn Coordinator>, clock: &ManualClock) {
    let entries = coordinator.list(keys::SERVERS).await.unwrap();
    observer.observe(&entries, clock.boottime());
}

async fn seat(coordinator: &Arc<dyn Coordinator>) -> Seat<u64> {
    Seat::look(&**coordinator, SHARD).await.unwrap()
}

async fn take(coordinator: &Arc<dyn Coordinator>, me: ServerId, by: Vacancy) -> Result<Held<u64>, String> {
    match seat(coordinator).await.take(coordinator.clone(), me, by, 0).await.unwrap() {
        Taking::Taken(held) => Ok(held),
        Taking::Refused { key } => Err(key),
    }
}

/// An owner (server 1) that holds the shard, and an observer (server 2) with its own clock.
struct Pair {
    coordinator: Arc<dyn Coordinator>,
    clock: ManualClock,
    pulse: Pulse,
    held: Held<u64>,
    observer: Observer,
}

impl Pair {
    async fn over(coordinator: Arc<dyn Coordinator>) -> Self {
        let clock = ManualClock::default();
        let pulse = pulse(&coordinator, &clock, server(1)).await;
        let held = take(&coordinator, server(1), Vacancy::NeverHeld).await.unwrap();
        let mut observer = Observer::new(TTL);
        observe(&mut observer, &coordinator, &clock).await;
        Self { coordinator, clock, pulse, held, observer }
    }

    /// Time goes by for an observer that looks every quarter of a TTL.
    async fn pass(&mut self, span: Duration) {
        let mut left = span;
        while !left.is_zero() {
            let step = left.min(TTL / 4);
            self.clock.advance(step);
            observe(&mut self.observer, &self.coordinator, &self.clock).await;
            left -= step;
        }
    }

    async fn vacancy(&self) -> Option<Vacancy> {
        let sole = self.coordinator.sole_user();
        seat(&self.coordinator).await.vacancy(server(2), sole, &self.observer, self.clock.boottime())
    }
}

async fn pair() -> Pair {
    Pair::over(Arc::new(Memory::default())).await
}

#[tokio::test]
async fn takeover_waits_for_a_full_ttl_on_the_observers_clock() {
    let mut pair = pair().await;
    for _ in 0..10 {
        pair.pass(TTL - Duration::from_millis(1)).await;
        assert_eq!(pair.vacancy().await, None, "not silent for a TTL yet");
        pair.pulse.beat().await.unwrap();
        observe(&mut pair.observer, &pair.coordinator, &pair.clock).await;
    }
    pair.pass(TTL - Duration::from_millis(1)).await;
    assert_eq!(pair.vacancy().await, None);
    pair.clock.advance(Duration::from_millis(1));
    let silent = pair.vacancy().await.expect("silent for a TTL");
    let mut new = take(&pair.coordinator, server(2), silent).await.unwrap();
    assert_eq!(new.term(), Term(2));
    let late = pair.held.commit(1, vec![], vec![]).await;
    assert!(matches!(late, Err(HeldError::Deposed(_))), "a deposed owner's commit: {late:?}");
    new.commit(1, vec![], vec![]).await.unwrap();
}

#[tokio::test]
async fn what_could_not_be_heard_is_no_silence() {
    let mut pair = pair().await;
    pair.pass(TTL / 4).await;
    // The coordinator is away for everybody, and nobody beats or looks.
    pair.clock.advance(TTL * 5);
    observe(&mut pair.observer, &pair.coordinator, &pair.clock).await;
    assert_eq!(pair.vacancy().await, None, "its owner had no chance to be heard");
    pair.pass(TTL / 2).await;
    assert!(pair.vacancy().await.is_some(), "it had one");
}

#[tokio::test]
async fn a_wall_clock_step_kills_nobody() {
    let pair = pair().await;
    pair.clock.step_wall("2030-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(pair.vacancy().await, None);
}

#[tokio::test]
async fn an_observer_that_just_started_waits_too() {
    let pair = pair().await;
    pair.clock.advance(TTL * 5);
    let mut fresh = Observer::new(TTL);
    assert_eq!(fresh.liveness(pair.pulse.key(), pair.clock.boottime()), Liveness::NotLooked);
    observe(&mut fresh, &pair.coordinator, &pair.clock).await;
    assert_eq!(fresh.liveness(pair.pulse.key(), pair.clock.boottime()), Liveness::Alive);
}

#[tokio::test]
async fn a_takeover_guarded_by_an_old_heartbeat_is_refused() {
    let mut pair = pair().await;
    pair.clock.advance(TTL);
    let silent = pair.vacancy().await.expect("silent as far as the observer knows");
    pair.pulse.beat().await.unwrap();
    let refused = take(&pair.coordinator, server(2), silent).await.unwrap_err();
    assert_eq!(refused, keys::server(server(1)), "the living owner's heartbeat refuses it");
    pair.held.commit(1, vec![], vec![]).await.expect("the owner goes on");
}

#[tokio::test]
async fn a_stale_list_kills_nobody() {
    let memory: Arc<dyn Coordinator> = Arc::new(Memory::default());
    let faulty = Arc::new(Faulty::new(memory.clone()));
    let mut pair = Pair::over(memory).await;
    let mut observer = Observer::new(TTL);
    let stale: Arc<dyn Coordinator> = faulty.clone();
    faulty.read_old().await.unwrap();
    observe(&mut observer, &stale, &pair.clock).await;
    pair.pulse.beat().await.unwrap();
    for _ in 0..4 {
        pair.clock.advance(TTL / 4);
        observe(&mut observer, &stale, &pair.clock).await;
    }
    let silent = observer.stood_still(pair.clock.boottime());
    assert_eq!(silent.len(), 1, "to a stale reader it stood still");
    let marked = mark_lost(&*stale, &silent[0].0, silent[0].1).await.unwrap();
    assert!(matches!(marked, Commit::Conflict { .. }));
    pair.pulse.beat().await.expect("still alive");
}

#[tokio::test]
async fn a_released_seat_is_free_at_once() {
    let mut pair = pair().await;
    pair.held.commit(9, vec![], vec![]).await.unwrap();
    pair.held.release().await.unwrap();
    let free = pair.vacancy().await.expect("free");
    assert_eq!(free, Vacancy::Released);
    let held = take(&pair.coordinator, server(2), free).await.unwrap();
    assert_eq!((held.term(), *held.extra()), (Term(2), 9), "the cursor stays, the term grows");
    assert!(matches!(pair.held.commit(1, vec![], vec![]).await, Err(HeldError::Deposed(_))));
}

#[tokio::test]
async fn a_sole_user_takes_at_once() {
    let pair = Pair::over(Arc::new(Memory::sole())).await;
    let by = pair.vacancy().await.expect("dead by proof");
    assert_eq!(by, Vacancy::SoleUser);
    take(&pair.coordinator, server(2), by).await.unwrap();
}

#[tokio::test]
async fn a_stopped_owner_is_followed_at_once() {
    let mut pair = pair().await;
    pair.pulse.stop().await.unwrap();
    observe(&mut pair.observer, &pair.coordinator, &pair.clock).await;
    let sole = pair.coordinator.sole_user();
    let by = seat(&pair.coordinator).await.vacancy(server(2), sole, &pair.observer, pair.clock.boottime());
    take(&pair.coordinator, server(2), by.expect("stopped")).await.unwrap();
}

#[tokio::test]
async fn a_removed_heartbeat_frees_the_seat_only_while_it_is_absent() {
    let mut pair = pair().await;
    pair.observer.observe(&[], pair.clock.boottime());
    let gone = pair.vacancy().await.expect("not in the list");
    assert_eq!(take(&pair.coordinator, server(2), gone.clone()).await.unwrap_err(), keys::server(server(1)));
    pair.coordinator.commit(vec![], vec![Write::Delete(keys::server(server(1)))]).await.unwrap();
    take(&pair.coordinator, server(2), gone).await.unwrap();
}

#[tokio::test]
async fn a_taking_whose_answer_was_lost_is_found_as_mine() {
    let memory: Arc<dyn Coordinator> = Arc::new(Memory::default());
    let faulty = Arc::new(Faulty::new(memory));
    let coordinator: Arc<dyn Coordinator> = faulty.clone();
    faulty.plan([Fault::LoseAnswer]);
    let lost = seat(&coordinator).await.take(coordinator.clone(), server(1), Vacancy::NeverHeld, 4).await;
    assert!(lost.is_err_and(|error| error.outcome_unknown()));
    let again = seat(&coordinator).await;
    let by = again.vacancy(server(1), false, &Observer::new(TTL), Duration::ZERO);
    assert_eq!(by, Some(Vacancy::Mine));
    let held = take(&coordinator, server(1), Vacancy::Mine).await.unwrap();
    assert_eq!((held.term(), *held.extra()), (Term(2), 4));
}

#[tokio::test]
async fn a_party_marked_lost_is_told_once_and_trusts_nothing() {
    let mut pair = pair().await;
    let trust = pair.pulse.trust();
    pair.clock.advance(TTL);
    let silent = pair.observer.stood_still(pair.clock.boottime());
    assert!(matches!(mark_lost(&*pair.coordinator, &silent[0].0, silent[0].1).await, Ok(Commit::Applied(_))));
    let told = tokio::time::timeout(seconds(5), pair.pulse.keep(|| serde_json::Value::Null))
        .await
        .expect("a refused beat ends the pulse");
    assert!(matches!(told, PulseError::Dead(_)));
    assert!(matches!(pair.pulse.beat().await, Err(PulseError::Dead(_))), "dead stays dead");
    assert!(trust.start_until().is_none() && !trust.may_start(pair.clock.boottime()));
    observe(&mut pair.observer, &pair.coordinator, &pair.clock).await;
    assert!(matches!(pair.observer.liveness(pair.pulse.key(), pair.clock.boottime()), Liveness::Ended(_)));
    assert!(pair.observer.stood_still(pair.clock.boottime()).is_empty(), "marked once");
}

/// Answers late: the clock moves on while a commit is on its way.
struct Slow(Memory, ManualClock, Duration);

#[async_trait]
impl Coordinator for Slow {
    async fn get(&self, key: &str) -> Result<Option<Entry>, CoordError> {
        self.0.get(key).await
    }
    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, CoordError> {
        self.0.list(prefix).await
    }
    async fn commit(&self, guards: Vec<Guard>, writes: Vec<Write>) -> Result<Commit, CoordError> {
        let outcome = self.0.commit(guards, writes).await;
        self.1.advance(self.2);
        outcome
    }
    async fn watch(&self, prefix: &str) -> Result<Hints, CoordError> {
        self.0.watch(prefix).await
    }
}

#[tokio::test]
async fn trust_counts_from_send() {
    let clock = ManualClock::default();
    let coordinator: Arc<dyn Coordinator> = Arc::new(Slow(Memory::default(), clock.clone(), seconds(4)));
    let sent = clock.boottime();
    let mut pulse = pulse(&coordinator, &clock, server(1)).await;
    let trust = pulse.trust();
    assert_eq!(clock.boottime(), sent + seconds(4), "the answer took 4 s");
    assert_eq!(trust.start_until(), Some(sent + seconds(5)));
    assert_eq!((trust.term_at(), trust.kill_at()), (Some(sent + seconds(6)), Some(sent + seconds(8))));
    assert!(trust.may_start(clock.boottime()));
    clock.advance(seconds(1));
    assert!(!trust.may_start(clock.boottime()), "5 s after the send");
    let sent = clock.boottime();
    pulse.beat().await.unwrap();
    assert_eq!(trust.start_until(), Some(sent + seconds(5)));
}

#[tokio::test]
async fn a_beat_whose_answer_was_lost_renews_trust_from_its_own_send() {
    let memory: Arc<dyn Coordinator> = Arc::new(Memory::default());
    let faulty = Arc::new(Faulty::new(memory));
    let mut pair = Pair::over(faulty.clone()).await;
    let trust = pair.pulse.trust();
    let first = pair.clock.boottime();

    faulty.plan([Fault::LoseAnswer]);
    pair.clock.advance(seconds(2));
    assert!(pair.pulse.beat().await.is_err());
    assert_eq!(trust.start_until(), Some(first + seconds(5)), "an unknown outcome renews nothing");
    pair.clock.advance(seconds(1));
    faulty.plan([Fault::LoseRequest]);
    assert!(pair.pulse.beat().await.is_err());
    assert_eq!(trust.start_until(), Some(first + seconds(7)), "the look found the beat of second 2");

    // A ghost of second 5 arrives between the look and the beat of second 6: refused by our own hand, not dead.
    faulty.plan([Fault::Ghost]);
    pair.clock.advance(seconds(2));
    assert!(pair.pulse.beat().await.is_err());
    faulty.read_old().await.unwrap();
    faulty.let_ghosts_through().await.unwrap();
    pair.clock.advance(seconds(1));
    let stale = pair.pulse.beat().await;
    assert!(matches!(stale, Err(PulseError::Renew { .. })), "an old read proves nothing: {stale:?}");
    faulty.read_fresh();
    pair.pulse.beat().await.unwrap();
    assert_eq!(trust.start_until(), Some(pair.clock.boottime() + seconds(5)));
}

/// The look before it still finds the old beat, and it is the party's own late one that refuses it.
#[tokio::test]
async fn what_a_late_beat_of_ones_own_had_overtaken_is_said_all_the_same() {
    let faulty = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let mut pair = Pair::over(faulty.clone()).await;
    for last in [false, true] {
        faulty.plan([Fault::Ghost, Fault::Overtaken]);
        pair.pulse.set_info("early".into());
        assert!(pair.pulse.beat().await.is_err());
        pair.clock.advance(seconds(1));
        pair.pulse.set_info("late".into());
        let beside = vec![Write::Put(format!("beside/{last}"), "too".into())];
        let said =
            if last { pair.pulse.stop_with(vec![], beside).await } else { pair.pulse.beat_with(vec![], beside).await };
        said.expect("nobody else wrote");
        let entry = faulty.get(pair.pulse.key()).await.unwrap().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&entry.value).unwrap();
        assert_eq!(found["info"], "late", "{found}");
        assert_eq!(found["life"] == "stopped", last, "{found}");
        assert!(faulty.get(&format!("beside/{last}")).await.unwrap().is_some(), "written in the same commit");
        assert_eq!(pair.pulse.trust().start_until(), (!last).then(|| pair.clock.boottime() + seconds(5)));
    }
}

#[tokio::test]
async fn a_coordinator_that_is_away_ends_trust_but_not_the_party() {
    let faulty = Arc::new(Faulty::new(Arc::new(Memory::default())));
    let mut pair = Pair::over(faulty.clone()).await;
    faulty.set_away(true);
    let kept = tokio::time::timeout(Duration::from_millis(50), pair.pulse.keep(|| serde_json::Value::Null)).await;
    assert!(kept.is_err(), "it goes on trying: {kept:?}");
    pair.clock.advance(seconds(6));
    assert!(!pair.pulse.trust().may_start(pair.clock.boottime()));
    faulty.set_away(false);
    pair.pulse.beat().await.expect("nobody took its place");
    assert!(pair.pulse.trust().may_start(pair.clock.boottime()));
}

#[test]
fn planted_bugs_are_caught() {
    belfry_testkit::planted::are_caught_in("belfry-coord/liveness");
}
