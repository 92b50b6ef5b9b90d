//! What a clock change did to a fire, for people who look at a preview.

use jiff::civil::DateTime;
use jiff::{SignedDuration, Timestamp};

use super::clock::moved_gap;
use super::compiled::Schedule;
use super::trigger::Trigger;

/// Why a fire stands where it stands on a day when clocks change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockNote {
    /// The clock skipped the local time it was meant for; it fires at the end of the gap.
    MovedFromGap { local: DateTime },
    /// Its local time comes twice on this day; this is the first pass.
    FirstPass,
    /// Its local time comes twice on this day; this is the second pass.
    SecondPass,
}

impl Schedule {
    /// The note for a fire of this schedule; none for an ordinary fire, or an instant at which no cron expression fires.
    pub fn note_for(&self, fire: Timestamp) -> Option<ClockNote> {
        let second = fire.as_second();
        let span = self.zone.span(self.zone.span_at(second));
        let local = second + span.offset;
        let crons = || {
            self.triggers.iter().filter_map(|trigger| match trigger {
                Trigger::Cron(cron) if trigger.next(self.zone, self.dst, second) == Some(second) => Some(cron),
                Trigger::Cron(_) | Trigger::Every { .. } | Trigger::At(_) => None,
            })
        };
        if crons().any(|cron| cron.next_local(local) == local) {
            let repeats_earlier = local < span.start + span.offset_before;
            let comes_again = local >= span.end + span.offset_after;
            return match (repeats_earlier, comes_again) {
                (true, _) => Some(ClockNote::SecondPass),
                (false, true) => Some(ClockNote::FirstPass),
                (false, false) => None,
            };
        }
        let missing =
            crons().filter_map(|cron| moved_gap(cron, self.dst, &span).map(|gap| cron.next_local(gap.start))).min()?;
        let local = DateTime::constant(1970, 1, 1, 0, 0, 0, 0).checked_add(SignedDuration::from_secs(missing)).ok()?;
        Some(ClockNote::MovedFromGap { local })
    }
}
