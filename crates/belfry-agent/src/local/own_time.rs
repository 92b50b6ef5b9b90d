//! The time that a node's own jobs go by: the wall clock's, unless that has just stepped.
//!
//! A clock that is an hour ahead for a moment would have the fires of that hour claimed, and the cursors on the disk would keep their jobs
//! silent until it has come there again. A server asks its agents whether its clock is right; a node that fires by itself may have nobody to
//! ask. So after a step the time goes on as it did before, counted on the clock that never steps, until the wall clock has stood for a minute
//! where it is. Then the step was meant: a clock that was set after boot, a machine that was restored. What lies between was missed, or is
//! still to come. Until then nothing is silent, only due by the old time. A minute is enough for whoever sets a clock to see a mistake and undo it, and
//! short beside the hour that a missed fire may wait.
//!
//! What an agent reads first is believed: nothing is known of before.

use std::time::Duration;

use crate::clock::Moment;

/// As far as the clock of a node may be off. What sets clocks right goes slowly below that.
const STEP_MS: i64 = 2_000;
const BELIEVED_AFTER: Duration = Duration::from_secs(60);

pub(super) struct OwnTime {
    /// When the machine booted, by the wall clock as it was read last.
    booted_at_ms: i64,
    /// By the last reading that was believed.
    believed_booted_at_ms: i64,
    /// Of the last step, on the clock that never steps.
    doubted_since: Option<Duration>,
}

impl OwnTime {
    pub fn new(seen: Moment) -> Self {
        let booted_at_ms = booted_at_ms(seen);
        Self { booted_at_ms, believed_booted_at_ms: booted_at_ms, doubted_since: None }
    }

    /// The same moment, with the wall clock's time as it is believed.
    pub fn at(&mut self, seen: Moment) -> Moment {
        let booted_at_ms = booted_at_ms(seen);
        let step_ms = booted_at_ms - std::mem::replace(&mut self.booted_at_ms, booted_at_ms);
        let off_ms = booted_at_ms - self.believed_booted_at_ms;
        let steps = step_ms.abs() > STEP_MS;
        self.doubted_since = match self.doubted_since {
            None if !steps => None,
            None => {
                tracing::warn!(
                    "the wall clock stepped by {step_ms} ms; jobs that this node fires by itself go on by the time before, until the clock has stood for {} s",
                    BELIEVED_AFTER.as_secs()
                );
                Some(seen.boot)
            }
            Some(_) if off_ms.abs() <= STEP_MS => {
                tracing::info!("the wall clock is back where it was before its step");
                None
            }
            Some(_) if steps => Some(seen.boot),
            Some(since) if seen.boot.saturating_sub(since) >= BELIEVED_AFTER => {
                tracing::warn!(
                    "the wall clock's step by {off_ms} ms has stayed; jobs that this node fires by itself follow it"
                );
                None
            }
            Some(since) => Some(since),
        };
        if self.doubted_since.is_none() {
            self.believed_booted_at_ms = booted_at_ms;
        }
        Moment { wall_ms: seen.boot.as_millis() as i64 + self.believed_booted_at_ms, ..seen }
    }

    /// When something ended that is heard of now, by whoever asked the wall clock at its end.
    pub fn ended_at_ms(&mut self, said_ms: i64, seen: Moment) -> i64 {
        let now = self.at(seen);
        // Not later than now: the clock may be back already.
        if self.doubted_since.is_some() { now.wall_ms } else { said_ms.min(now.wall_ms) }
    }
}

fn booted_at_ms(seen: Moment) -> i64 {
    seen.wall_ms - seen.boot.as_millis() as i64
}
