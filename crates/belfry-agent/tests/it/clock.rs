//! What a node reports and fires while its wall clock is wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use belfry_agent::{Agent, AgentConfig, Clock, SystemClock};
use belfry_core::{JobId, Timestamp};
use belfry_exec::ZygoteCommand;
use belfry_proto::session::{AgreedTime, ClockAnswer, ClockQuestion, LocalJob, LocalJobs, from_agent, to_agent};
use belfry_testkit::chaos::FakeClock;
use serde_json::json;

use crate::server::{Server, config, key, shell, with_document};

const HOUR_S: i64 = 3600;
const TTL: Duration = Duration::from_secs(10);

/// The wall clock of an agent and of its zygote, which is another process.
struct Wall {
    ahead_s: Arc<AtomicI64>,
    of_zygote: FakeClock,
}

struct Ahead(Arc<AtomicI64>);

impl Clock for Ahead {
    fn boottime(&self) -> Duration {
        SystemClock.boottime()
    }

    fn now(&self) -> Timestamp {
        SystemClock.now() + jiff::SignedDuration::from_secs(self.0.load(Ordering::Relaxed))
    }
}

impl Wall {
    /// An agent whose clock is so far ahead when it starts.
    async fn start(folder: &Path, ahead_s: i64) -> (Wall, Agent) {
        let of_zygote = FakeClock::new(folder.join("clock"));
        let words = of_zygote.env().into_iter().map(|(name, value)| format!("{name}={value}"));
        let words = words.chain(["FAKETIME_NO_CACHE=1".to_owned(), env!("CARGO_BIN_EXE_agent-zygote").to_owned()]);
        let zygote = ZygoteCommand { program: "env".into(), args: words.collect() };
        let wall = Wall { ahead_s: Arc::default(), of_zygote };
        wall.step(ahead_s);
        let clock = Arc::new(Ahead(wall.ahead_s.clone()));
        let agent = Agent::start_with_clock(AgentConfig { zygote, ..config(folder) }, clock).await.expect("it starts");
        (wall, agent)
    }

    fn step(&self, ahead_s: i64) {
        self.of_zygote.step(ahead_s);
        self.ahead_s.store(ahead_s, Ordering::Relaxed);
    }
}

fn now_ms() -> i64 {
    SystemClock.now().as_millisecond()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_on_through_a_step_of_the_clock_is_recorded_as_it_was() {
    for step_s in [HOUR_S, -HOUR_S] {
        let folder = tempfile::tempdir().unwrap();
        let (wall, agent) = Wall::start(folder.path(), 0).await;
        let mut server = Server::welcome(agent.connect_local(), TTL).await;
        let before_ms = now_ms();
        let stepped = folder.path().join("stepped");
        let command = format!("until [ -e {} ]; do sleep 0.02; done", stepped.display());
        let timeout = json!({"after": "1s", "action": "report"});
        let document = json!({"name": "job", "action": {"shell": {"command": command}}, "timeout": timeout});
        server.dispatch(with_document(1, &document)).await;
        server.until_started(1).await;
        server.dispatch(belfry_proto::session::Dispatch { start_in_ms: 60_000, ..shell(3, "true") }).await;
        wall.step(step_s);
        server
            .until(|message| match message {
                from_agent::Message::Started(started) => started.overdue_at_ms,
                _ => None,
            })
            .await;
        std::fs::write(stepped, "").unwrap();
        let goes_through = server.until_ended(1).await;
        server.dispatch(shell(2, "true")).await;
        let within = server.until_ended(2).await;
        server.recall(3, "cancelled", "no more").await;
        let never = server.until_ended(3).await;
        let true_ms = before_ms - 1000..=now_ms() + 1000;
        for ended in [goes_through, within] {
            let (started, overdue) = (ended.started_at_ms.unwrap(), ended.overdue_at_ms);
            let said = [started, overdue.unwrap_or(started), ended.ended_at_ms];
            assert!(said.is_sorted() && said.iter().all(|ms| true_ms.contains(ms)), "{said:?}, it is {true_ms:?}");
        }
        assert!(true_ms.contains(&never.ended_at_ms), "{}, it is {true_ms:?}", never.ended_at_ms);
    }
}

fn every_second() -> LocalJobs {
    let document = json!({
        "name": "job", "schedule": "* * * * * *", "run_on": "each", "overlap": "allow",
        "action": {"exec": {"argv": ["/bin/true"]}},
    });
    let job = LocalJob {
        id: JobId::from_u128(1).to_string(),
        revision: 1,
        document: document.to_string().into_bytes().into(),
        ..Default::default()
    };
    LocalJobs { put: vec![job], ..Default::default() }
}

impl Server {
    /// By the clocks of the others, and the question that was asked for it.
    async fn agreed_time(&mut self) -> AgreedTime {
        self.send(to_agent::Message::Clock(ClockQuestion { token: 1 })).await;
        let ClockAnswer { boot_ms, .. } = self
            .until(|message| match message {
                from_agent::Message::Clock(answer) => Some(answer),
                _ => None,
            })
            .await;
        AgreedTime { booted_at_ms: now_ms() - boot_ms as i64, within_ms: 2000 }
    }

    /// When the next runs of what the node fires by itself were planned, and when they are said to have started.
    async fn fired(&mut self, count: usize) -> Vec<i64> {
        let mut said = Vec::new();
        while said.len() < 2 * count {
            let ended = self
                .until(|message| match message {
                    from_agent::Message::Ended(ended) => Some(ended),
                    _ => None,
                })
                .await;
            let planned_ms = ended.local.as_ref().expect("of its own").planned_ms;
            assert_eq!(ended.outcome, "succeeded", "planned at {planned_ms}: {}", ended.reason);
            said.extend([planned_ms, ended.started_at_ms.unwrap()]);
        }
        said
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_starts_with_a_wrong_clock_fires_at_the_right_instants_once_servers_say_so() {
    for wrong_s in [HOUR_S, -HOUR_S] {
        let folder = tempfile::tempdir().unwrap();
        let before_ms = now_ms();
        let (wall, agent) = Wall::start(folder.path(), wrong_s).await;
        let mut server = Server::welcome(agent.connect_local(), TTL).await;
        // They may come first.
        server.send(to_agent::Message::LocalJobs(every_second())).await;
        let agreed = server.agreed_time().await;
        server.send(to_agent::Message::AgreedTime(agreed)).await;
        // What is hardly missed when a job comes is on time.
        let true_ms = |ms: &i64| (before_ms - 7_000..=now_ms() + 1000).contains(ms);
        let said = server.fired(3).await;
        assert!(said.iter().all(true_ms), "{said:?}, it is {}", now_ms());
        // It is set right: nothing is left out, nothing comes again.
        wall.step(0);
        let more = server.fired(2).await;
        assert!(more.iter().all(true_ms), "{more:?}, it is {}", now_ms());
        let planned: Vec<i64> = said.iter().chain(&more).step_by(2).map(|ms| ms / 1000).collect();
        let first = planned.iter().min().unwrap();
        let mut in_order = planned.clone();
        in_order.sort_unstable();
        assert_eq!(in_order, (0..planned.len() as i64).map(|n| first + n).collect::<Vec<_>>());
    }
}

/// A server that has nobody to compare with says nothing, and one that is away neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_nobody_tells_the_time_goes_by_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (_wall, agent) = Wall::start(folder.path(), 0).await;
    let mut server = Server::welcome(agent.connect_local(), TTL).await;
    let before_ms = now_ms();
    server.send(to_agent::Message::LocalJobs(every_second())).await;
    let said = server.fired(3).await;
    assert!(said.iter().all(|ms| (before_ms - 7_000..=now_ms() + 1000).contains(ms)), "{said:?}");
    server.dispatch(shell(9, "true")).await;
    server
        .until(|message| match message {
            from_agent::Message::Ended(ended) => (ended.key == Some(key(9))).then_some(()),
            _ => None,
        })
        .await;
}
