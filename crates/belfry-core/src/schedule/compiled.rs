//! All schedules of one job, compiled: the instants at which it fires.

use std::time::Duration;

use jiff::Timestamp;

use super::error::{Refusal, ScheduleError};
use super::parse::{Parsed, parse};
use super::rules::{DstRule, Window};
use super::trigger::Trigger;
use super::zone::{FAR_FUTURE, Zone};

/// More than any person writes; it bounds the work of one `next_after`.
const EXPRESSIONS_MAX: usize = 100;

/// What a job says about when it fires.
#[derive(Clone, Copy, Debug)]
pub struct ScheduleSpec<'a> {
    pub expressions: &'a [String],
    pub timezone: &'a str,
    pub dst: DstRule,
    pub window: Window,
    /// Stable hash of the job's namespace and name: the values of `H`.
    pub seed: u64,
    /// Creation of the job. `@every d` fires at `window.from + k·d` with k >= 0 if the window has a start, else at `anchor + k·d` with
    /// k >= 1, in whole seconds.
    pub anchor: Timestamp,
}

/// A few machine words per expression; the zone's table is shared by all jobs in it. Equal ones have the same fires.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Schedule {
    pub(super) zone: &'static Zone,
    pub(super) triggers: Box<[Trigger]>,
    /// Fires are in `from..until`, UTC seconds.
    from: i64,
    until: i64,
    /// `@after`, in milliseconds; 0 for none.
    delay_ms: u64,
    pub(super) dst: DstRule,
    at_boot: bool,
}

impl Schedule {
    /// Refuses what cannot be read and what can never fire at any time. An expression whose fires are all in the past compiles: a saved
    /// job must load for ever; see [`Schedule::compile_for_saving`].
    pub fn compile(spec: &ScheduleSpec<'_>) -> Result<Schedule, ScheduleError> {
        Schedule::compile_with_fires_from(spec, -FAR_FUTURE)
    }

    /// As [`Schedule::compile`], and refuses an expression that has no fire after `now`: its author expects one.
    pub fn compile_for_saving(spec: &ScheduleSpec<'_>, now: Timestamp) -> Result<Schedule, ScheduleError> {
        Schedule::compile_with_fires_from(spec, floor_second(now) + 1)
    }

    fn compile_with_fires_from(spec: &ScheduleSpec<'_>, earliest: i64) -> Result<Schedule, ScheduleError> {
        let mut schedule = Schedule {
            zone: Zone::shared(spec.timezone)?,
            triggers: Box::new([]),
            from: spec.window.from.map_or(-FAR_FUTURE, ceil_second),
            until: spec.window.until.map_or(FAR_FUTURE, ceil_second),
            delay_ms: 0,
            dst: spec.dst,
            at_boot: false,
        };
        if let (Some(from), Some(until)) = (spec.window.from, spec.window.until)
            && from >= until
        {
            return Err(ScheduleError::window(format!(
                "window.until {until} is not after window.from {from}; use a later end"
            )));
        }
        let mut triggers = Vec::with_capacity(spec.expressions.len());
        for (index, text) in spec.expressions.iter().enumerate() {
            let refused = |refusal: Refusal| refusal.of(index, text);
            if index >= EXPRESSIONS_MAX {
                return Err(refused(Refusal::new(
                    "schedule",
                    format!("a job has at most {EXPRESSIONS_MAX} schedules"),
                )));
            }
            let trigger = match parse(text, spec.seed).map_err(refused)? {
                Parsed::Cron(cron) => Trigger::Cron(cron),
                Parsed::At(instant) => Trigger::At(instant.as_second()),
                Parsed::EverySeconds(step) => {
                    let first = spec.window.from.map_or(floor_second(spec.anchor) + step, ceil_second);
                    Trigger::Every { first, step }
                }
                Parsed::After(delay) if schedule.delay_ms == 0 => {
                    schedule.delay_ms = delay.as_millis() as u64;
                    continue;
                }
                Parsed::After(_) => {
                    return Err(refused(Refusal::new("schedule", "a second @after; a job has at most one")));
                }
                Parsed::Boot => {
                    schedule.at_boot = true;
                    continue;
                }
            };
            schedule.refuse_without_fire(&trigger, earliest, spec).map_err(refused)?;
            triggers.push(trigger);
        }
        schedule.triggers = triggers.into_boxed_slice();
        Ok(schedule)
    }

    fn refuse_without_fire(&self, trigger: &Trigger, earliest: i64, spec: &ScheduleSpec<'_>) -> Result<(), Refusal> {
        let first_from = |from| trigger.next(self.zone, self.dst, from);
        let earliest = earliest.max(self.from);
        let found = first_from(earliest);
        if found.is_some_and(|fire| fire < self.until) {
            return Ok(());
        }
        if found.is_none() && (earliest == -FAR_FUTURE || first_from(-FAR_FUTURE).is_none()) {
            return Err(Refusal::new(
                "schedule",
                "it never fires: no time in the years 1970-2199 matches; use a date that exists",
            ));
        }
        if first_from(self.from).is_none_or(|fire| fire >= self.until) {
            let Window { from, until } = spec.window;
            let from = from.map_or(String::new(), |from| format!(" from {from}"));
            let until = until.map_or(String::new(), |until| format!(" until {until}"));
            return Err(Refusal::new(
                "window",
                format!("it never fires in the window{from}{until}; widen the window or change the schedule"),
            ));
        }
        Err(Refusal::new("schedule", "it never fires again: all its times are in the past; use a later date"))
    }

    /// The first fire later than `t`. Several expressions on one instant are one fire.
    pub fn next_after(&self, t: Timestamp) -> Option<Timestamp> {
        let from = (floor_second(t) + 1).max(self.from);
        if from >= self.until {
            return None;
        }
        let fires = self.triggers.iter().filter_map(|trigger| trigger.next(self.zone, self.dst, from));
        let fire = fires.min().filter(|fire| *fire < self.until)?;
        Timestamp::from_second(fire).ok()
    }

    /// A schedule with the same fires after `t`; jobs that were created at different times often share it.
    pub fn settled(&self, t: Timestamp) -> Schedule {
        let from = (floor_second(t) + 1).max(self.from);
        let settled = self.triggers.iter().filter_map(|trigger| trigger.settled(self.zone, self.dst, from));
        Schedule { triggers: settled.collect(), from: from.min(self.until), ..self.clone() }
    }

    /// The last fire earlier than `t`.
    pub fn prev_before(&self, t: Timestamp) -> Option<Timestamp> {
        let from = (ceil_second(t) - 1).min(self.until - 1);
        if from < self.from {
            return None;
        }
        let fires = self.triggers.iter().filter_map(|trigger| trigger.prev(self.zone, self.dst, from));
        let fire = fires.max().filter(|fire| *fire >= self.from)?;
        Timestamp::from_second(fire).ok()
    }

    /// Whether any fire comes at or after `from`. `@after` and `@boot` do not count: they depend on runs and nodes, not on time.
    pub fn first_fire_exists(&self, from: Timestamp) -> bool {
        let just_before = from.checked_sub(Duration::from_nanos(1)).unwrap_or(from);
        self.next_after(just_before).is_some()
    }

    /// `@after 90s`: the next fire is this long after the end of the last run. It is no function of time, so `next_after` ignores it.
    pub fn delay_after_end(&self) -> Option<Duration> {
        (self.delay_ms > 0).then(|| Duration::from_millis(self.delay_ms))
    }

    /// `@boot`: fires when a node starts.
    pub fn at_boot(&self) -> bool {
        self.at_boot
    }

    /// No expressions at all: manual runs only.
    pub fn is_empty(&self) -> bool {
        self.triggers.is_empty() && self.delay_ms == 0 && !self.at_boot
    }

    /// What this schedule takes in memory, without the shared zone.
    pub fn memory_bytes(&self) -> usize {
        let years = |trigger: &Trigger| match trigger {
            Trigger::Cron(cron) => cron.years.as_ref().map_or(0, |years| size_of_val(&**years)),
            Trigger::Every { .. } | Trigger::At(_) => 0,
        };
        size_of::<Schedule>() + size_of_val(&*self.triggers) + self.triggers.iter().map(years).sum::<usize>()
    }
}

fn floor_second(t: Timestamp) -> i64 {
    t.as_second() - i64::from(t.subsec_nanosecond() < 0)
}

fn ceil_second(t: Timestamp) -> i64 {
    t.as_second() + i64::from(t.subsec_nanosecond() > 0)
}
