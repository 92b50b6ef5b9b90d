//! What makes a schedule fire at instants that can be computed: a cron expression, a fixed interval, or one instant.

use super::clock;
use super::cron::Cron;
use super::days::{DAY_LAST, DAY_SECONDS};
use super::rules::DstRule;
use super::zone::Zone;

/// The last second of 2199 in UTC: no interval is followed beyond it.
const SECOND_LAST: i64 = (DAY_LAST as i64 + 1) * DAY_SECONDS - 1;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Trigger {
    Cron(Cron),
    /// `first + k * step` for k >= 0.
    Every {
        first: i64,
        step: i64,
    },
    At(i64),
}

impl Trigger {
    /// The first fire at or after a UTC second.
    pub fn next(&self, zone: &Zone, dst: DstRule, from: i64) -> Option<i64> {
        match self {
            Trigger::Cron(cron) => clock::next_fire(cron, zone, dst, from),
            Trigger::Every { first, step } => {
                let behind = (from - first).max(0);
                let steps = (behind + step - 1) / step;
                Some(first + steps * step).filter(|fire| *fire <= SECOND_LAST)
            }
            Trigger::At(instant) => Some(*instant).filter(|fire| *fire >= from),
        }
    }

    /// One that fires at the same seconds from `from` on, and is the same for all that do.
    pub fn settled(&self, zone: &Zone, dst: DstRule, from: i64) -> Option<Trigger> {
        match self {
            Trigger::Cron(_) | Trigger::At(_) => Some(self.clone()),
            Trigger::Every { step, .. } => {
                self.next(zone, dst, from).map(|first| Trigger::Every { first, step: *step })
            }
        }
    }

    /// The last fire at or before a UTC second.
    pub fn prev(&self, zone: &Zone, dst: DstRule, from: i64) -> Option<i64> {
        match self {
            Trigger::Cron(cron) => clock::prev_fire(cron, zone, dst, from),
            Trigger::Every { first, step } => {
                let from = from.min(SECOND_LAST);
                (from >= *first).then(|| first + (from - first) / step * step)
            }
            Trigger::At(instant) => Some(*instant).filter(|fire| *fire <= from),
        }
    }
}
