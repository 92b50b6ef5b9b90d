//! Instances of wrapped commands (`dcron`): what is written of one in the coordinator, and the rule by which a host that sees it leaves it
//! alone, waits for it, or takes it over. What history shows of it is in `history`.

mod history;

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use history::{NAMESPACE, OUTPUT_BYTES_MAX, job_of, run_of};

/// Of records that do not say it.
const TTL_DEFAULT_MS: u64 = 15_000;
/// Whatever a record says, silence is measured within these.
const PATIENCE_MIN: Duration = Duration::from_secs(2);
const PATIENCE_MAX: Duration = Duration::from_hours(24 * 30);
/// How long somebody who says this TTL, by whose own clock it counts, must be silent to be held dead.
pub fn patience_with(ttl_ms: u64) -> Duration {
    Duration::from_millis(ttl_ms).clamp(PATIENCE_MIN, PATIENCE_MAX)
}

/// How much longer than its time a record waits for servers that do not copy it: their store may be away for days.
const WAITS_FOR_COPY_S: i64 = 7 * 24 * 60 * 60;

/// When a command is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Started somewhere; what becomes of it is not looked at.
    AtMostOnce,
    /// When its host dies, on another one.
    Crash,
    /// When it exits with anything but 0, where it ran; when its host dies, on another one.
    AbnormalExit,
    /// One instance that always runs, however it ends.
    LongLived,
}

/// One instance. Its heartbeat is the key that it lies under: whoever holds it writes it again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Who holds it, or held it last.
    pub host: String,
    pub rule: Rule,
    /// The first is 1; written before it starts, so that a host that takes over knows how many there were.
    pub attempt: u32,
    pub attempts_max: u32,
    pub claimed_at: Timestamp,
    /// How long its holder may be silent.
    #[serde(default = "ttl_default_ms")]
    pub ttl_ms: u64,
    /// How long it stays after its end.
    pub keep_s: u64,
    pub phase: Phase,
    /// Of the attempt that runs, or ran last: `BELFRY_FENCE`. It comes from the very commit that claimed it, so it is written with the next one.
    #[serde(default, skip_serializing_if = "is_no_fence")]
    pub fence: u64,
    /// How often in a row a process that always runs has ended too soon.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub quick_ends: u32,
    /// Servers have it in their history.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub copied: bool,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

fn is_no_fence(number: &u64) -> bool {
    *number == 0
}

fn ttl_default_ms() -> u64 {
    TTL_DEFAULT_MS
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Running,
    /// Its host let go of it, and another one may start it at once.
    Released,
    Ended(End),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub outcome: Outcome,
    /// None: by a signal, or nobody knows.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// By the clock of its host.
    pub at: Timestamp,
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    Failed,
    /// Somebody ended the wrapper.
    Killed,
    /// Its host died or was cut off, and nobody may start it again.
    Lost,
    /// The old wrapper has it or had it, which says nothing of how it ends.
    Elsewhere,
}

/// What an observer knows of whoever holds an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    Lives,
    /// Silent for a whole TTL on the observer's own clock.
    Silent,
    /// It said so itself, or was given up before.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is nothing to do for this host.
    Leave,
    StandBy,
    TakeOver {
        attempt: u32,
    },
    /// Its host is dead, and it must not start again: that is written down.
    GiveUp,
}

impl Record {
    /// What a host does that did not get the instance.
    pub fn next_step(&self, holder: Holder) -> Step {
        let takes_over = match self.rule {
            Rule::AtMostOnce => false,
            Rule::Crash | Rule::AbnormalExit => self.attempt < self.attempts_max,
            Rule::LongLived => true,
        };
        let attempt = self.attempt.saturating_add(1);
        match (holder, &self.phase) {
            (_, Phase::Ended(_)) => Step::Leave,
            (Holder::Gone, Phase::Running) => Step::Leave,
            (Holder::Gone | Holder::Silent, Phase::Released) => Step::TakeOver { attempt },
            (Holder::Silent, Phase::Running) if takes_over => Step::TakeOver { attempt },
            (Holder::Silent, Phase::Running) => Step::GiveUp,
            (Holder::Lives, _) if self.rule == Rule::AtMostOnce => Step::Leave,
            (Holder::Lives, _) => Step::StandBy,
        }
    }

    /// Whether an exit with this code is followed by another attempt on the same host.
    pub fn is_tried_again(&self, succeeded: bool) -> bool {
        match self.rule {
            Rule::AtMostOnce | Rule::Crash => false,
            Rule::AbnormalExit => !succeeded && self.attempt < self.attempts_max,
            Rule::LongLived => true,
        }
    }

    /// What was cut off from the coordinator and ended here: whether this host may start it again, if nobody else has.
    pub fn is_tried_after_cut_off(&self) -> bool {
        match self.rule {
            Rule::AtMostOnce => false,
            Rule::Crash | Rule::AbnormalExit => self.attempt < self.attempts_max,
            Rule::LongLived => true,
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// After which its holder, whose clock this was measured by, has ended all that it ran.
    pub fn silence(&self) -> Duration {
        patience_with(self.ttl_ms)
    }

    /// How long its holder must have been silent before a server, which runs nothing itself, writes down that it is lost. None: never.
    pub fn lost_after(&self) -> Option<Duration> {
        let silence = match self.next_step(Holder::Silent) {
            Step::GiveUp => Duration::from_millis(self.ttl_ms),
            Step::TakeOver { .. } if self.rule == Rule::LongLived => return None,
            // Hosts that wait for it have had their time; it seems that there are none.
            Step::TakeOver { .. } => Duration::from_secs(self.keep_s),
            Step::Leave | Step::StandBy => return None,
        };
        Some(silence.clamp(PATIENCE_MIN, PATIENCE_MAX))
    }

    /// Its host is dead, and nobody starts it again.
    #[must_use]
    pub fn given_up(self, at: Timestamp) -> Self {
        let reason = format!("its host {} died, or was cut off", self.host);
        let end = End { outcome: Outcome::Lost, exit_code: None, signal: None, at, reason };
        Self { phase: Phase::Ended(end), ..self }
    }

    /// From then on nobody needs it: a host that comes later than that is a host whose clock is wrong by as much.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.ended_longer_ago_than(self.keep_s.try_into().unwrap_or(i64::MAX), now)
    }

    /// Whether a host may remove it where there are servers, or have been.
    pub fn is_stale_beside_servers(&self, now: Timestamp) -> bool {
        let keep_s = i64::try_from(self.keep_s).unwrap_or(i64::MAX);
        let waits_s = if self.is_to_be_copied() { WAITS_FOR_COPY_S } else { 0 };
        self.ended_longer_ago_than(keep_s.saturating_add(waits_s), now)
    }

    fn ended_longer_ago_than(&self, seconds: i64, now: Timestamp) -> bool {
        let Phase::Ended(end) = &self.phase else { return false };
        now.as_second().saturating_sub(end.at.as_second()) > seconds
    }
}

/// What all instances of one name share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shared {
    /// Saved by one run for the next.
    #[serde(default)]
    pub values: crate::state::Values,
    /// The instance whose run ended last.
    #[serde(default)]
    pub last: Option<Last>,
    /// When old records were last looked for.
    #[serde(default)]
    pub cleaned_at: Option<Timestamp>,
}

/// Where a name ran last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Last {
    pub host: String,
    /// Two hosts may have the same name; the one that has this number on its disk is the one.
    pub fence: u64,
    pub ended_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rule: Rule, attempt: u32, phase: Phase) -> Record {
        let claimed_at = Timestamp::UNIX_EPOCH;
        Record {
            host: "h".into(),
            rule,
            attempt,
            attempts_max: 2,
            claimed_at,
            ttl_ms: 15_000,
            keep_s: 60,
            phase,
            fence: 0,
            quick_ends: 0,
            copied: false,
        }
    }

    fn ended() -> Phase {
        let at = Timestamp::from_second(1000).unwrap();
        Phase::Ended(End { outcome: Outcome::Failed, exit_code: Some(1), signal: None, at, reason: String::new() })
    }

    #[test]
    fn what_a_host_does_that_did_not_get_the_instance() {
        use Holder::{Gone, Lives, Silent};
        use Phase::{Released, Running};
        use Rule::{AbnormalExit, AtMostOnce, Crash, LongLived};
        let second = Step::TakeOver { attempt: 2 };
        for (rule, attempt, phase, holder, step) in [
            (AtMostOnce, 1, Running, Lives, Step::Leave),
            (AtMostOnce, 1, Running, Silent, Step::GiveUp),
            (AtMostOnce, 1, Running, Gone, Step::Leave),
            (Crash, 1, Running, Lives, Step::StandBy),
            (Crash, 1, Running, Silent, second),
            (Crash, 2, Running, Silent, Step::GiveUp),
            (Crash, 1, ended(), Gone, Step::Leave),
            (AbnormalExit, 1, Running, Silent, second),
            (AbnormalExit, 2, Running, Silent, Step::GiveUp),
            (AbnormalExit, 1, ended(), Silent, Step::Leave),
            (LongLived, 1, Running, Lives, Step::StandBy),
            (LongLived, 1, Running, Silent, second),
            (LongLived, 1, Released, Gone, second),
            (LongLived, 9, Running, Silent, Step::TakeOver { attempt: 10 }),
            (LongLived, 1, Running, Gone, Step::Leave),
        ] {
            assert_eq!(record(rule, attempt, phase.clone()).next_step(holder), step, "{rule:?} {phase:?} {holder:?}");
        }
    }

    #[test]
    fn only_an_abnormal_exit_is_tried_again_where_it_ran_and_only_as_often_as_allowed() {
        for (rule, attempt, succeeded, again) in [
            (Rule::AtMostOnce, 1, false, false),
            (Rule::Crash, 1, false, false),
            (Rule::AbnormalExit, 1, false, true),
            (Rule::AbnormalExit, 2, false, false),
            (Rule::AbnormalExit, 1, true, false),
            (Rule::LongLived, 7, true, true),
        ] {
            assert_eq!(record(rule, attempt, Phase::Running).is_tried_again(succeeded), again, "{rule:?} {attempt}");
        }
    }

    #[test]
    fn a_record_is_kept_for_its_time_after_the_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(!record(Rule::Crash, 1, ended()).is_stale(at(1060)));
        assert!(record(Rule::Crash, 1, ended()).is_stale(at(1061)));
        assert!(!record(Rule::Crash, 1, Phase::Running).is_stale(at(9_999_999)));
        let copied = Record { copied: true, ..record(Rule::Crash, 1, ended()) };
        assert!(copied.is_stale_beside_servers(at(1061)));
        assert!(!record(Rule::Crash, 1, ended()).is_stale_beside_servers(at(1061)), "servers may still copy it");
        assert!(record(Rule::Crash, 1, ended()).is_stale_beside_servers(at(1061 + WAITS_FOR_COPY_S)));
    }

    #[test]
    fn a_silent_host_is_given_up_after_its_own_ttl_or_when_nobody_came_for_what_it_held() {
        let seconds = |n| Some(Duration::from_secs(n));
        for (rule, attempt, phase, silence) in [
            (Rule::AtMostOnce, 1, Phase::Running, seconds(15)),
            (Rule::Crash, 2, Phase::Running, seconds(15)),
            (Rule::Crash, 1, Phase::Running, seconds(60)),
            (Rule::AbnormalExit, 1, Phase::Running, seconds(60)),
            (Rule::AbnormalExit, 2, ended(), None),
            (Rule::LongLived, 1, Phase::Running, None),
            (Rule::LongLived, 1, Phase::Released, None),
        ] {
            assert_eq!(record(rule, attempt, phase.clone()).lost_after(), silence, "{rule:?} {attempt} {phase:?}");
        }
        let boundless = Record { ttl_ms: u64::MAX, ..record(Rule::AtMostOnce, 1, Phase::Running) };
        assert_eq!(boundless.lost_after(), Some(PATIENCE_MAX));
    }

    #[test]
    fn a_record_of_an_older_wrapper_is_read() {
        let mut known = serde_json::to_value(record(Rule::Crash, 1, Phase::Running)).unwrap();
        known.as_object_mut().unwrap().remove("ttl_ms");
        assert_eq!(serde_json::from_value::<Record>(known).unwrap(), record(Rule::Crash, 1, Phase::Running));
    }
}
