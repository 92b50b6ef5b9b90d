use super::*;
use crate::run::{OutputFacts, Trigger, Usage};
use crate::{Fence, JobId};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(10_000 + second).unwrap()
}

fn job(name: &str) -> (String, String) {
    ("default".to_owned(), name.to_owned())
}

fn run(state: RunState) -> Run {
    Run {
        id: RunId::from_u128(1),
        job: JobId::from_u128(2),
        namespace: "default".into(),
        job_name: "a".into(),
        revision: 1,
        planned: at(0),
        trigger: Trigger::Schedule,
        state,
        reason: None,
        attempt: 1,
        next_attempt_at: None,
        node: None,
        node_name: Some("n1".into()),
        incarnation: None,
        fence: Fence(7),
        claimed_at: at(-1),
        dispatched_at: None,
        started_at: (state == RunState::Running).then(|| at(0)),
        ended_at: None,
        exit_code: None,
        signal: None,
        late: false,
        marks: Default::default(),
        usage: Usage::default(),
        output: OutputFacts::default(),
        overdue_at: None,
        placement: None,
        script: None,
    }
}

fn open(run: Run) -> Fact {
    let usual = Usual { p50_ms: 10_000, p95_ms: 20_000, runs: 9 };
    Fact::Open { run: Box::new(run), usual: Some(usual), jitter_ms: 0, is_service: false }
}

/// `kind: message` of the one notice, or nothing, at this second.
#[track_caller]
fn check(fact: Fact, second: i64, expected: &str) {
    let (notices, _) = attention(vec![fact], at(second), 9);
    let said = notices.first().map_or(String::new(), |notice| {
        let kind = serde_json::to_value(notice.kind).unwrap();
        format!("{}: {}", kind.as_str().unwrap(), notice.message)
    });
    assert_eq!(said, expected);
}

#[test]
fn a_run_is_overdue_beyond_twice_what_is_usual_and_a_minute() {
    let running = || run(RunState::Running);
    check(open(running()), 100, "");
    check(open(running()), 101, "overdue: it runs for 1m41s; 95 of 100 runs take at most 20s");
    let unknown = Fact::Open { run: Box::new(running()), usual: None, jitter_ms: 0, is_service: false };
    check(unknown, 100_000, "");
    let service = Fact::Open { run: Box::new(running()), usual: Usual::of(vec![1]), jitter_ms: 0, is_service: true };
    check(service, 100_000, "");
    let told = Run { overdue_at: Some(at(5)), ..running() };
    check(open(told), 7, "overdue: it runs for 7s, longer than timeout.after");
}

#[test]
fn a_run_is_late_when_it_was_due_for_a_minute_and_has_not_started() {
    for state in [RunState::Claimed, RunState::Dispatched] {
        check(open(run(state)), 60, "");
        check(open(run(state)), 61, "late: due for 1m1s and not started");
    }
    let why = |reason: &str| Run { reason: Some(reason.into()), ..run(RunState::Claimed) };
    check(open(why("n1 is draining")), 90, "late: due for 1m30s and not started: n1 is draining");
    check(open(why("overlap is queue: it waits for those before it to end")), 9_000, "");
    check(open(run(RunState::Waiting)), 9_000, "");
    check(open(Run { attempt: 2, ..run(RunState::Dispatched) }), 9_000, "");
    let held_back =
        Fact::Open { run: Box::new(run(RunState::Claimed)), usual: None, jitter_ms: 600_000, is_service: false };
    check(held_back.clone(), 660, "");
    check(held_back, 661, "late: due for 1m1s and not started");
}

#[test]
fn a_service_that_has_just_ended_is_not_down() {
    let stopped = |failed_in_a_row| Fact::ServiceStopped { job: job("s"), since: at(0), failed_in_a_row };
    check(stopped(0), 9, "");
    check(stopped(0), 10, "service_down: the service does not run");
    check(stopped(3), 10, "service_down: the service does not run; it ended badly 3 times in a row");
}

#[test]
fn a_node_that_was_sent_away_is_not_down() {
    let node = |expected| Fact::Node { name: "n1".into(), expected, heard_at: None };
    check(node(true), 0, "");
    check(node(false), 0, "node_down: node n1 is not connected");
}

#[test]
fn a_failure_is_told_in_words() {
    let failing = |state, exit_code, count| Fact::Failing {
        job: job("f"),
        last: Failure { run: RunId::from_u128(1), state, exit_code, node: Some("n1".into()), ended_at: None },
        count,
    };
    check(failing(RunState::Failed, Some(3), 1), 0, "failing: its last run did not succeed: exit code 3 on n1");
    check(
        failing(RunState::TimedOut, None, 5),
        0,
        "failing: 5 runs in a row did not succeed; the last: timed out on n1",
    );
}

#[test]
fn the_most_urgent_comes_first_and_the_rest_is_counted() {
    let failing = |name: &str, count| Fact::Failing {
        job: job(name),
        last: Failure { run: RunId::from_u128(1), state: RunState::Lost, exit_code: None, node: None, ended_at: None },
        count,
    };
    let lost = |name: &str, second| Fact::Lost {
        job: job(name),
        run: RunId::from_u128(1),
        node: None,
        at: at(second),
        count: 1,
    };
    let facts = vec![
        failing("seldom", 1),
        open(run(RunState::Claimed)),
        failing("often", 9),
        lost("before", 1),
        lost("lately", 2),
        Fact::Missed { job: job("missed"), run: RunId::from_u128(1), planned: at(0) },
        Fact::Node { name: "n1".into(), expected: false, heard_at: None },
        Fact::ClockOff { whose: "n2".into(), is_node: true, off_ms: -7_000 },
        Fact::StoreAway { since: at(0), message: "refused".into() },
        Fact::CoordinatorAway { since: at(0), message: "refused".into() },
    ];
    let (notices, left_out) = attention(facts, at(1_000), 9);
    let order: Vec<String> = notices
        .iter()
        .map(|notice| notice.job.as_ref().map_or(format!("{:?}", notice.kind), |(_, name)| name.clone()))
        .collect();
    assert_eq!(order, ["Coordinator", "Store", "Clock", "NodeDown", "lately", "before", "often", "seldom", "missed"]);
    assert_eq!(left_out, 1);
    assert_eq!(notices[2].message, "the clock of node n2 is off by 7s; no server sends it work");
}

#[test]
fn what_runs_longest_beyond_its_usual_time_comes_first() {
    let going = |id, started, p95_ms: Option<u64>| {
        let run = Run { id: RunId::from_u128(id), started_at: Some(at(started)), ..run(RunState::Running) };
        (run, p95_ms.map(|p95_ms| Usual { p50_ms: 1, p95_ms, runs: 5 }))
    };
    let mut runs = [going(1, 0, None), going(2, 0, Some(90_000)), going(3, -50, None), going(4, 60, Some(1_000))];
    furthest_beyond_usual(&mut runs, at(100));
    assert_eq!(runs.map(|(run, _)| run.id.as_u128()), [4, 2, 3, 1]);
}
