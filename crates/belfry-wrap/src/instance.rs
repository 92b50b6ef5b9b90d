//! One instance in the coordinator, as all hosts see it: taken, and what its name shares.

use std::sync::Arc;
use std::time::Duration;

use belfry_coord::wrapped::encode;
use belfry_coord::{Clock, CoordError, Coordinator, FirstBeat, Guard, Pulse, PulseError, Write, keys};
use belfry_core::wrapped::{Phase, Record, Shared};

use crate::exit::Failure;
use crate::parameters::Parameters;
use crate::signals::Signals;

/// What every step needs.
pub(crate) struct Instance {
    pub coordinator: Arc<dyn Coordinator>,
    pub clock: Arc<dyn Clock>,
    pub name: String,
    pub instance: String,
    pub host: String,
    pub ttl: Duration,
    /// Beats of this process are counted from here.
    pub beats_from: u64,
}

/// How often an answer is asked for that did not come.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// By one that is asked to end, for an answer that was lost.
const PATIENCE_WHEN_ASKED: Duration = Duration::from_secs(5);

impl Instance {
    pub(crate) fn key(&self) -> String {
        keys::wrapped(&self.name, &self.instance)
    }

    pub(crate) fn seat(&self, number: u32) -> String {
        keys::wrapped_seat(&self.name, &self.instance, number)
    }

    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttl.as_millis().try_into().unwrap_or(u64::MAX)
    }

    /// As it is when this host has it.
    pub(crate) fn record(&self, parameters: &Parameters, attempt: u32) -> Record {
        Record {
            host: self.host.clone(),
            rule: parameters.rule,
            attempt,
            attempts_max: parameters.hosts_max,
            claimed_at: self.clock.now(),
            ttl_ms: self.ttl_ms(),
            keep_s: parameters.keep.as_secs(),
            phase: Phase::Running,
            fence: 0,
            quick_ends: 0,
            copied: false,
        }
    }

    /// None: another host was quicker. Asks for as long as `patience` says: an answer that was lost may have been a yes. One that is asked to
    /// end, and has certainly taken nothing, gives up at once.
    pub(crate) async fn take(
        &self,
        guard: Guard,
        record: &Record,
        writes: Vec<Write>,
        patience: Duration,
        signals: &Signals,
    ) -> Result<Option<Pulse>, Failure> {
        let info = encode(record);
        let mut until = self.clock.boottime() + patience;
        let (mut may_have_it, mut is_asked) = (false, false);
        loop {
            let (guard, info, writes) = (guard.clone(), info.clone(), writes.clone());
            let first = FirstBeat { guard, from: self.beats_from, info, writes };
            let cause = match Pulse::take(self.coordinator.clone(), self.clock.clone(), first, self.ttl).await {
                Ok(taken) => return Ok(taken),
                Err(PulseError::Renew { cause, .. }) if cause.is_transient() => cause,
                Err(PulseError::Renew { cause, .. }) => return Err(Failure::Cannot(cause.to_string())),
                Err(PulseError::Dead(_) | PulseError::Refused(_)) => return Ok(None),
            };
            may_have_it |= cause.outcome_unknown();
            tokio::select! {
                () = signals.come(), if !is_asked => {
                    is_asked = true;
                    until = until.min(self.clock.boottime() + PATIENCE_WHEN_ASKED);
                }
                () = tokio::time::sleep(ASK_AGAIN_AFTER) => {}
            }
            if self.clock.boottime() >= until || (is_asked && !may_have_it) {
                return Err(Failure::CoordinatorAway(cause.to_string()));
            }
        }
    }

    /// What all instances of the name share, with the guard for the next one who writes it.
    pub(crate) async fn shared(&self) -> Result<(Shared, Guard), CoordError> {
        let key = keys::wrapped_shared(&self.name);
        Ok(match self.coordinator.get(&key).await? {
            None => (Shared::default(), Guard::Absent(key)),
            Some(entry) => {
                let shared = serde_json::from_slice(&entry.value)
                    .map_err(|cause| CoordError::Broken(format!("`{key}` cannot be read: {cause}")))?;
                (shared, Guard::At(key, entry.version))
            }
        })
    }

    pub(crate) fn put_shared(&self, shared: &Shared) -> Write {
        let value = serde_json::to_vec(shared).expect("texts and numbers");
        Write::Put(keys::wrapped_shared(&self.name), value.into())
    }
}

#[cfg(test)]
mod tests {
    use belfry_coord::faulty::{Fault, Faulty};
    use belfry_coord::{Memory, SystemClock};

    use super::*;

    const PATIENCE: Duration = Duration::from_mins(10);

    fn instance(coordinator: Arc<Faulty>) -> (Instance, Record) {
        let args = ["DCRON_NAME=a.%F", "DCRON_COORD=memory", "--", "true"];
        let parameters = Parameters::read(args.map(Into::into), []).unwrap();
        let instance = Instance {
            coordinator,
            clock: Arc::new(SystemClock),
            name: "a".into(),
            instance: "1".into(),
            host: "h".into(),
            ttl: Duration::from_secs(2),
            beats_from: 5,
        };
        let record = instance.record(&parameters, 1);
        (instance, record)
    }

    #[tokio::test]
    async fn one_that_is_asked_to_end_takes_nothing_later_on() {
        let faulty = Arc::new(Faulty::new(Arc::new(Memory::default())));
        let (instance, record) = instance(faulty.clone());
        let (signals, asked) = Signals::for_test();
        let key = instance.key();
        faulty.set_away(true);
        let take = instance.take(Guard::Absent(key.clone()), &record, vec![], PATIENCE, &signals);
        let ask = async {
            tokio::time::sleep(ASK_AGAIN_AFTER / 2).await;
            faulty.set_away(false);
            asked.send_replace(true);
        };
        let (taken, ()) = tokio::join!(take, ask);
        assert!(matches!(taken, Err(Failure::CoordinatorAway(_))));
        assert!(instance.coordinator.get(&key).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn one_that_is_asked_to_end_finds_out_first_whether_it_has_taken_it() {
        let faulty = Arc::new(Faulty::new(Arc::new(Memory::default())));
        let (instance, record) = instance(faulty.clone());
        let (signals, asked) = Signals::for_test();
        faulty.plan([Fault::LoseAnswer]);
        asked.send_replace(true);
        let taken = instance.take(Guard::Absent(instance.key()), &record, vec![], PATIENCE, &signals).await;
        assert!(taken.is_ok_and(|pulse| pulse.is_some()));
    }
}
