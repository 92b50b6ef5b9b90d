//! How a run ended, in the words of its record. Decides from facts alone.

use std::time::Duration;

use belfry_core::run::{Outcome, RunState};
use belfry_core::units::Span;
use belfry_exec::{CageUsage, CaptureSummary, Exit, ExitStatus, Stream};
use belfry_proto::session::Ended;
use nix::sys::signal::Signal;

use crate::clock::{Moment, Told};
use crate::key::Key;
use crate::limits::Bounds;
use crate::prepare::CannotStart;

/// Why a run's processes ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    ByItself,
    TimedOut {
        after: Span,
    },
    Killed {
        reason: String,
        abandoned: bool,
    },
    /// The kernel ended one of its processes for want of memory, and the rest was ended then.
    OutOfMemory,
}

pub(crate) struct Facts {
    pub started: Told,
    pub exit: Exit,
    pub cause: Cause,
    pub output: CaptureSummary,
    pub kept_chunks: u32,
    pub used: CageUsage,
    /// It took longer than its job wants, from here on.
    pub overdue: Option<Told>,
}

/// What a shell ends with when it does not find a command.
const NOT_FOUND: i32 = 127;

/// `path`: where commands were looked for. All is dated by the time as it is believed now, so that the run lasted as long as it did, whatever
/// was believed when it started.
pub(crate) fn settle(key: Key, facts: &Facts, path: &str, bounds: &Bounds, now: Moment) -> Ended {
    let Facts { started, exit, cause, output, kept_chunks, used, overdue } = facts;
    let (outcome, mut reason) = verdict(exit.status, cause, output);
    if outcome == Outcome::Failed
        && let Some(limit) = limit_met(exit.status, used, bounds)
    {
        reason = format!("{limit} ({reason})");
    }
    if outcome == Outcome::Failed && exit.status == ExitStatus::Code(NOT_FOUND) {
        reason = format!("{reason}: a command was not found; PATH was {path}");
    }
    let (exit_code, signal) = match exit.status {
        ExitStatus::Code(code) => (Some(code), None),
        ExitStatus::Signal(signal) => (None, Some(signal)),
        ExitStatus::Lost => (None, None),
    };
    let started_at_ms = now.ms_of(*started);
    Ended {
        key: Some(key.to_wire()),
        outcome: RunState::from(outcome).as_str().to_owned(),
        reason,
        started_at_ms: Some(started_at_ms),
        ended_at_ms: now.ms_at(exit.ended_at).max(started_at_ms),
        exit_code,
        signal,
        cpu_ms: used.cpu_us.map_or_else(|| milliseconds(exit.cpu_user + exit.cpu_system), |us| us / 1000),
        // Of the whole tree where it was counted, else of its largest process.
        max_rss_bytes: used.memory_peak_bytes.unwrap_or(exit.max_rss_bytes),
        left_behind: exit.left_behind,
        output_bytes: output.stdout_bytes + output.stderr_bytes,
        dropped_bytes: output.dropped_bytes,
        chunks: *kept_chunks,
        abandoned: matches!(cause, Cause::Killed { abandoned: true, .. }),
        local: None,
        held: bounds.held.bits(),
        saves: None,
        script: String::new(),
        overdue_at_ms: overdue.map(|overdue| now.ms_of(overdue)),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The limit that the end is owed to, as far as it can be known. A shell passes on the signal that ended its command as 128 and more.
fn limit_met(status: ExitStatus, used: &CageUsage, bounds: &Bounds) -> Option<String> {
    if used.memory_kills > 0 {
        let limit = bounds.memory.map(|limit| format!(" of {limit}")).unwrap_or_default();
        return Some(format!("memory: its processes together used up limits.memory{limit} and were ended"));
    }
    let ended_by = |signal: Signal| match status {
        ExitStatus::Signal(number) => number == signal as i32,
        ExitStatus::Code(code) => code == 128 + signal as i32,
        ExitStatus::Lost => false,
    };
    if bounds.held.cpu_time.is_some() && ended_by(Signal::SIGXCPU) {
        return Some("cpu_time: a process used up limits.cpu_time".to_owned());
    }
    if bounds.held.file_size.is_some() && ended_by(Signal::SIGXFSZ) {
        return Some("file_size: a file would have become larger than limits.file_size".to_owned());
    }
    None
}

pub(crate) fn settle_unstarted(key: Key, why: CannotStart, now_ms: i64) -> Ended {
    Ended {
        key: Some(key.to_wire()),
        outcome: RunState::from(why.outcome).as_str().to_owned(),
        reason: why.reason,
        ended_at_ms: now_ms,
        exit_code: why.exit_code,
        abandoned: why.abandoned,
        ..Default::default()
    }
}

fn verdict(status: ExitStatus, cause: &Cause, output: &CaptureSummary) -> (Outcome, String) {
    match (cause, status) {
        (Cause::TimedOut { after }, _) => (Outcome::TimedOut, format!("ran longer than {after}")),
        (Cause::Killed { reason, .. }, _) => (Outcome::Killed, reason.clone()),
        (Cause::OutOfMemory, _) => (Outcome::Failed, "ended by the kernel and the agent".to_owned()),
        (Cause::ByItself, ExitStatus::Code(0)) => match &output.failed_on {
            None => (Outcome::Succeeded, String::new()),
            Some(found) => {
                let stream = match found.stream {
                    Stream::Stdout => "stdout",
                    Stream::Stderr => "stderr",
                };
                (Outcome::Failed, format!("`{}` was found in {stream}", found.word))
            }
        },
        (Cause::ByItself, ExitStatus::Code(code)) => (Outcome::Failed, format!("exit code {code}")),
        (Cause::ByItself, ExitStatus::Signal(number)) => {
            let name = Signal::try_from(number).map_or("unknown", Signal::as_str);
            (Outcome::Failed, format!("ended by signal {number} ({name})"))
        }
        (Cause::ByItself, ExitStatus::Lost) => {
            let reason =
                "the helper process that starts children was killed, and the run with it; how far it came is not known";
            (Outcome::Failed, reason.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use belfry_exec::FailMatch;

    use super::*;

    fn check(status: ExitStatus, cause: Cause, found: Option<&str>, outcome: Outcome, reason: &str) {
        let failed_on = found.map(|word| FailMatch { word: word.into(), stream: Stream::Stderr });
        let output = CaptureSummary { failed_on, ..Default::default() };
        assert_eq!(verdict(status, &cause, &output), (outcome, reason.to_owned()));
    }

    #[test]
    fn every_end_has_its_outcome_and_reason() {
        use Cause::{ByItself, Killed, TimedOut};
        use ExitStatus::{Code, Signal};
        check(Code(0), ByItself, None, Outcome::Succeeded, "");
        check(Code(0), ByItself, Some("fatal"), Outcome::Failed, "`fatal` was found in stderr");
        check(Code(3), ByItself, Some("fatal"), Outcome::Failed, "exit code 3");
        check(Signal(9), ByItself, None, Outcome::Failed, "ended by signal 9 (SIGKILL)");
        check(Signal(64), ByItself, None, Outcome::Failed, "ended by signal 64 (unknown)");
        check(Code(0), TimedOut { after: Span::from_secs(90) }, None, Outcome::TimedOut, "ran longer than 1m30s");
        check(
            Signal(15),
            Killed { reason: "killed by ann".into(), abandoned: false },
            None,
            Outcome::Killed,
            "killed by ann",
        );
    }
}
