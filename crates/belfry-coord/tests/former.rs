//! Whose heartbeat is removed, on a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use belfry_coord::{Clock, Commit, Coordinator, Former, ManualClock, Memory, Pulse, PulseError, former, keys};
use belfry_core::{ServerId, Version};

const TTL: Duration = Duration::from_secs(70);
const HOUR: Duration = Duration::from_secs(3600);
const WEEK: Duration = Duration::from_secs(7 * 86_400);

fn key(n: u128) -> String {
    keys::server(ServerId::from_u128(n))
}

/// Server 1 looks.
struct Looker {
    coordinator: Arc<dyn Coordinator>,
    clock: ManualClock,
    pulse: Pulse,
    former: Former,
}

impl Looker {
    async fn new() -> Self {
        let (coordinator, clock): (Arc<dyn Coordinator>, _) = (Arc::new(Memory::default()), ManualClock::default());
        let pulse = pulse(&coordinator, &clock, 1).await;
        Self { coordinator, clock, pulse, former: Former::new(key(1), TTL, false) }
    }

    async fn look(&mut self) -> Vec<(String, Version)> {
        let entries = self.coordinator.list(keys::SERVERS).await.unwrap();
        self.former.look(&entries, self.clock.boottime())
    }

    /// Looks and beats until so much time has passed; what was last said to be gone.
    async fn pass(&mut self, span: Duration) -> Vec<(String, Version)> {
        let until = self.clock.boottime() + span;
        let mut gone = vec![];
        while self.clock.boottime() < until {
            self.clock.advance(TTL / 4);
            self.pulse.beat().await.unwrap();
            gone = self.look().await;
        }
        gone
    }

    async fn keys(&self) -> Vec<String> {
        self.coordinator.list(keys::SERVERS).await.unwrap().into_iter().map(|entry| entry.key).collect()
    }
}

async fn pulse(coordinator: &Arc<dyn Coordinator>, clock: &ManualClock, n: u128) -> Pulse {
    let clock = Arc::new(clock.clone());
    Pulse::start(coordinator.clone(), clock, key(n), TTL, serde_json::Value::Null).await.unwrap()
}

#[tokio::test]
async fn who_ended_an_hour_ago_or_is_silent_for_a_week_loses_his_heartbeat_and_is_dead() {
    let mut looker = Looker::new().await;
    let mut silent = pulse(&looker.coordinator, &looker.clock, 2).await;
    pulse(&looker.coordinator, &looker.clock, 3).await.stop().await.unwrap();
    let mut living = pulse(&looker.coordinator, &looker.clock, 4).await;
    let names = |gone: &[(String, Version)]| gone.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>();
    assert_eq!(looker.pass(HOUR - TTL / 4).await, []);
    let gone = looker.pass(TTL / 2).await;
    assert_eq!(names(&gone), [key(3)]);
    assert!(matches!(former::remove(&*looker.coordinator, gone).await, Ok(Commit::Applied(_))));
    living.beat().await.unwrap();
    assert_eq!(looker.pass(WEEK - HOUR - TTL).await, []);
    let gone = looker.pass(TTL).await;
    assert_eq!(names(&gone), [key(2)]);
    assert!(matches!(former::remove(&*looker.coordinator, gone).await, Ok(Commit::Applied(_))));
    assert_eq!(looker.keys().await, [key(1), key(4)]);
    living.beat().await.unwrap();
    assert!(matches!(silent.beat().await, Err(PulseError::Dead(_))));
}

#[tokio::test]
async fn who_beats_before_it_is_removed_keeps_it() {
    let mut looker = Looker::new().await;
    let mut other = pulse(&looker.coordinator, &looker.clock, 2).await;
    let gone = looker.pass(WEEK + TTL).await;
    assert_eq!(gone.len(), 1);
    other.beat().await.unwrap();
    assert!(matches!(former::remove(&*looker.coordinator, gone).await, Ok(Commit::Conflict { .. })));
    other.beat().await.unwrap();
    assert_eq!(looker.pass(WEEK - TTL).await, [], "its week begins anew");
}

#[tokio::test]
async fn a_week_in_which_no_beat_gets_through_is_no_silence() {
    let mut looker = Looker::new().await;
    let mut other = pulse(&looker.coordinator, &looker.clock, 2).await;
    assert_eq!(looker.pass(WEEK - TTL).await, []);
    // Lists are answered, and nobody's commit is.
    for _ in 0..WEEK.as_secs() / TTL.as_secs() {
        looker.clock.advance(TTL);
        assert_eq!(looker.look().await, []);
    }
    assert_eq!(looker.pass(WEEK - TTL).await, [], "the looker was quicker to beat again");
    other.beat().await.unwrap();
    assert_eq!(looker.pass(WEEK - TTL).await, []);
}

#[tokio::test]
async fn who_has_the_coordinator_alone_waits_for_nobody() {
    let mut looker = Looker::new().await;
    looker.former = Former::new(key(1), TTL, true);
    pulse(&looker.coordinator, &looker.clock, 2).await;
    assert_eq!(looker.look().await.len(), 1);
}
