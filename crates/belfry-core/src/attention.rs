//! What somebody should look at, most urgent first: facts come in, a list with a sentence for each entry goes out. It judges what is late,
//! overdue or down; what failed or was lost it is told.

use std::cmp::Reverse;

use jiff::Timestamp;
use serde::Serialize;

use crate::run::{Run, RunState};
use crate::units::Span;
use crate::usual::Usual;
use crate::{RunId, overlap};

/// A run that is due and has not started is late after this.
pub const LATE_AFTER_MS: i64 = 60_000;
/// A service that has just ended is being started again.
pub const SERVICE_DOWN_AFTER_MS: i64 = 10_000;

/// The first is the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Coordinator,
    Store,
    Clock,
    NodeDown,
    ServiceDown,
    Lost,
    Failing,
    Missed,
    Late,
    Overdue,
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub kind: Kind,
    /// Namespace and name.
    pub job: Option<(String, String)>,
    pub run: Option<RunId>,
    /// Its name.
    pub node: Option<String>,
    pub since: Option<Timestamp>,
    pub count: Option<u64>,
    pub message: String,
}

/// What is known when the question is asked.
#[derive(Clone, Debug)]
pub enum Fact {
    CoordinatorAway {
        since: Timestamp,
        message: String,
    },
    StoreAway {
        since: Timestamp,
        message: String,
    },
    /// A clock that differs by so much that nothing is fired or started by it.
    ClockOff {
        whose: String,
        is_node: bool,
        off_ms: i64,
    },
    /// A node that is not connected; one that is drained or excluded is expected to go.
    Node {
        name: String,
        expected: bool,
        heard_at: Option<Timestamp>,
    },
    /// A service that is wanted and does not run; since its last end, or since it was saved.
    ServiceStopped {
        job: (String, String),
        since: Timestamp,
        failed_in_a_row: u64,
    },
    Lost {
        job: (String, String),
        run: RunId,
        node: Option<String>,
        at: Timestamp,
        count: u64,
    },
    Failing {
        job: (String, String),
        last: Failure,
        count: u64,
    },
    Missed {
        job: (String, String),
        run: RunId,
        planned: Timestamp,
    },
    /// A run that has not ended, with the longest that `jitter` may hold it back.
    Open {
        run: Box<Run>,
        usual: Option<Usual>,
        jitter_ms: i64,
        is_service: bool,
    },
}

/// The newest run of a job that fails.
#[derive(Clone, Debug)]
pub struct Failure {
    pub run: RunId,
    pub state: RunState,
    pub exit_code: Option<i32>,
    pub node: Option<String>,
    pub ended_at: Option<Timestamp>,
}

/// At most `limit`, and how many more there are.
pub fn attention(facts: Vec<Fact>, now: Timestamp, limit: usize) -> (Vec<Notice>, u64) {
    let mut notices: Vec<Notice> = facts.into_iter().filter_map(|fact| notice(fact, now)).collect();
    notices.sort_by(|a, b| rank(a).cmp(&rank(b)).then_with(|| a.job.cmp(&b.job)).then_with(|| a.node.cmp(&b.node)));
    let left_out = notices.len().saturating_sub(limit) as u64;
    notices.truncate(limit);
    (notices, left_out)
}

/// By kind; then what fails most, what happened last, what has lasted longest.
fn rank(notice: &Notice) -> (Kind, i64) {
    let since = notice.since.map_or(0, Timestamp::as_millisecond);
    let within = match notice.kind {
        Kind::Failing => -(notice.count.unwrap_or(0) as i64),
        Kind::Lost | Kind::Missed => -since,
        Kind::Coordinator | Kind::Store | Kind::Clock | Kind::NodeDown => since,
        Kind::ServiceDown | Kind::Late | Kind::Overdue => since,
    };
    (notice.kind, within)
}

fn notice(fact: Fact, now: Timestamp) -> Option<Notice> {
    let past_ms = |at: Timestamp| now.as_millisecond() - at.as_millisecond();
    let blank = |kind, message| Notice { kind, job: None, run: None, node: None, since: None, count: None, message };
    Some(match fact {
        Fact::CoordinatorAway { since, message } => Notice {
            since: Some(since),
            ..blank(Kind::Coordinator, format!("the coordinator does not answer: {message}"))
        },
        Fact::StoreAway { since, message } => {
            Notice { since: Some(since), ..blank(Kind::Store, format!("the store does not answer: {message}")) }
        }
        Fact::ClockOff { whose, is_node, off_ms } => {
            let message = if is_node {
                format!("the clock of node {whose} is off by {}; no server sends it work", seconds(off_ms))
            } else {
                format!("the clock of server {whose} is off by {}; it fires nothing", seconds(off_ms))
            };
            Notice { node: is_node.then_some(whose), ..blank(Kind::Clock, message) }
        }
        Fact::Node { expected: true, .. } => return None,
        Fact::Node { name, heard_at, .. } => {
            let message = format!("node {name} is not connected");
            Notice { node: Some(name), since: heard_at, ..blank(Kind::NodeDown, message) }
        }
        Fact::ServiceStopped { since, .. } if past_ms(since) < SERVICE_DOWN_AFTER_MS => return None,
        Fact::ServiceStopped { job, since, failed_in_a_row } => {
            let message = match failed_in_a_row {
                0 => "the service does not run".to_owned(),
                count => format!("the service does not run; it ended badly {} in a row", times(count)),
            };
            let count = (failed_in_a_row > 0).then_some(failed_in_a_row);
            Notice { job: Some(job), since: Some(since), count, ..blank(Kind::ServiceDown, message) }
        }
        Fact::Lost { job, run, node, at, count } => {
            let on = node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
            let message = format!("lost {}{on}; what it did is not known", times(count));
            Notice {
                job: Some(job),
                run: Some(run),
                node,
                since: Some(at),
                count: Some(count),
                ..blank(Kind::Lost, message)
            }
        }
        Fact::Failing { job, last, count } => Notice {
            job: Some(job),
            run: Some(last.run),
            since: last.ended_at,
            count: Some(count),
            message: failing(&last, count),
            node: last.node,
            ..blank(Kind::Failing, String::new())
        },
        Fact::Missed { job, run, planned } => Notice {
            job: Some(job),
            run: Some(run),
            since: Some(planned),
            ..blank(Kind::Missed, "a fire was skipped because it could not run in time".to_owned())
        },
        Fact::Open { run, usual, jitter_ms, is_service } => return open(*run, usual, jitter_ms, is_service, now),
    })
}

fn failing(last: &Failure, count: u64) -> String {
    let how = match (last.state, last.exit_code) {
        (RunState::Failed, Some(code)) => format!("exit code {code}"),
        (state, _) => state.as_str().replace('_', " "),
    };
    let on = last.node.as_ref().map_or(String::new(), |node| format!(" on {node}"));
    match count {
        1 => format!("its last run did not succeed: {how}{on}"),
        count => format!("{count} runs in a row did not succeed; the last: {how}{on}"),
    }
}

fn open(run: Run, usual: Option<Usual>, jitter_ms: i64, is_service: bool, now: Timestamp) -> Option<Notice> {
    let past_ms = |at: Timestamp| now.as_millisecond() - at.as_millisecond();
    let (kind, since, message) = match (run.state, run.started_at) {
        (RunState::Running, Some(started_at)) => {
            let elapsed_ms = past_ms(started_at);
            let usually = usual.filter(|usual| usual.is_exceeded(elapsed_ms) && !is_service);
            let message = match (run.overdue_at, usually) {
                (Some(_), _) => format!("it runs for {}, longer than timeout.after", seconds(elapsed_ms)),
                (None, Some(usual)) => {
                    format!(
                        "it runs for {}; 95 of 100 runs take at most {}",
                        seconds(elapsed_ms),
                        seconds(usual.p95_ms as i64)
                    )
                }
                (None, None) => return None,
            };
            (Kind::Overdue, run.overdue_at.unwrap_or(started_at), message)
        }
        (RunState::Claimed | RunState::Dispatched, _) => {
            let late_ms = past_ms(run.planned) - jitter_ms;
            // What waits for the run before it is not late: its job asked for that.
            let is_wanted = run.reason.as_deref().is_some_and(overlap::is_reason);
            // A later attempt waits for its own time.
            if late_ms <= LATE_AFTER_MS || is_wanted || is_service || run.attempt > 1 {
                return None;
            }
            let why = run.reason.as_ref().map_or(String::new(), |why| format!(": {why}"));
            (Kind::Late, run.planned, format!("due for {} and not started{why}", seconds(late_ms)))
        }
        (RunState::Running | RunState::Waiting, _) => return None,
        (
            RunState::Succeeded
            | RunState::Failed
            | RunState::TimedOut
            | RunState::Killed
            | RunState::Lost
            | RunState::Skipped
            | RunState::Cancelled,
            _,
        ) => return None,
    };
    let job = Some((run.namespace, run.job_name));
    Some(Notice { kind, job, run: Some(run.id), node: run.node_name, since: Some(since), count: None, message })
}

/// Runs that go on, those furthest beyond what is usual first; those of which nothing is known last, the longest first.
pub fn furthest_beyond_usual(runs: &mut [(Run, Option<Usual>)], now: Timestamp) {
    let elapsed = |run: &Run| now.as_millisecond() - run.started_at.unwrap_or(run.planned).as_millisecond();
    runs.sort_by_key(|(run, usual)| {
        let elapsed = elapsed(run);
        (Reverse(usual.map(|usual| elapsed - usual.p95_ms as i64)), Reverse(elapsed), run.id)
    });
}

fn seconds(ms: i64) -> String {
    Span::from_secs(ms.unsigned_abs() / 1_000).to_string()
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests;
