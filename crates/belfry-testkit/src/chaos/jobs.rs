//! The jobs that fire all the time while the cluster suffers, and when each of them is due.

use belfry_core::JobId;
use belfry_core::job::MisfirePolicy;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::cluster::SHARDS;
use crate::client::Client;
use crate::judge::{Firer, Promise};
use crate::oracle;
use crate::witness::Witness;

/// Fires a second of the steady jobs alone.
const STEADY: usize = 20;
const LONGS: usize = 3;
const JITTERS: usize = 3;
const AGAINS: usize = 3;
/// In which second of the minute the herd is due.
const HERD_SECOND: i64 = 20;
const JITTER: SignedDuration = SignedDuration::from_secs(4);

pub(super) struct ChaosJob {
    pub(super) name: String,
    pub(super) shard: u64,
    pub(super) promise: Promise,
    pub(super) overlap_forbidden: bool,
    /// It may start so much after its instant.
    pub(super) jitter: SignedDuration,
    /// Fires every second, on whichever server owns its shard.
    pub(super) steady: bool,
    fired: Fired,
    rhythm: Rhythm,
    from: Timestamp,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fired {
    ByServers,
    OnEach(MisfirePolicy),
    AtHome(MisfirePolicy),
}

#[derive(Clone, Copy)]
enum Rhythm {
    EverySeconds(i64),
    OnceAMinute(i64),
}

impl Rhythm {
    fn schedule(self) -> String {
        match self {
            Rhythm::EverySeconds(n) => format!("*/{n} * * * * *"),
            Rhythm::OnceAMinute(second) => format!("{second} * * * * *"),
        }
    }
}

struct Kind {
    prefix: &'static str,
    rhythm: Rhythm,
    work: &'static str,
    more: Value,
    promise: Promise,
    fired: Fired,
}

impl Kind {
    fn new(prefix: &'static str, rhythm: Rhythm, work: &'static str, more: Value) -> Self {
        Self { prefix, rhythm, work, more, promise: Promise::AtMostOnce, fired: Fired::ByServers }
    }

    /// Fired by nodes themselves.
    fn local(prefix: &'static str, every_seconds: i64, work: &'static str, fired: Fired) -> Self {
        let (run_on, policy) = match fired {
            Fired::ByServers => ("one", MisfirePolicy::Latest),
            Fired::OnEach(policy) => ("each", policy),
            Fired::AtHome(policy) => ("home", policy),
        };
        let misfire = match policy {
            MisfirePolicy::Skip => json!({"policy": "skip"}),
            MisfirePolicy::Latest => json!({"policy": "latest"}),
            MisfirePolicy::All => json!({"policy": "all", "limit": 100}),
        };
        let more = json!({"run_on": run_on, "misfire": misfire, "overlap": "allow"});
        Self { fired, ..Self::new(prefix, Rhythm::EverySeconds(every_seconds), work, more) }
    }
}

impl ChaosJob {
    pub(super) fn due(&self, up_to: Timestamp) -> Vec<Timestamp> {
        match self.rhythm {
            Rhythm::EverySeconds(n) => oracle::every_seconds(n, self.from, up_to),
            Rhythm::OnceAMinute(second) => oracle::seconds_of_minute(&[second], self.from, up_to),
        }
    }

    pub(super) fn needs_servers(&self) -> bool {
        self.fired == Fired::ByServers
    }

    /// Every node fires it by itself.
    pub(super) fn is_on_each(&self) -> bool {
        matches!(self.fired, Fired::OnEach(_))
    }

    /// One for each that has every fire of it to account for.
    pub(super) fn firers<'n>(&self, nodes: &'n [String]) -> Vec<Firer<'n>> {
        match self.fired {
            Fired::ByServers => vec![Firer::Server],
            Fired::OnEach(misfire) => nodes.iter().map(|name| Firer::Node { name, misfire }).collect(),
            Fired::AtHome(misfire) => vec![Firer::Home { misfire }],
        }
    }
}

/// Adds all jobs; they fire from now on.
pub(super) async fn add_all(client: &Client, witness: &Witness, herd: usize) -> Vec<ChaosJob> {
    let mut jobs = add_steady(client, witness).await;
    let mut kinds = vec![
        (LONGS, Kind::new("long", Rhythm::EverySeconds(10), "sleep 6", json!({}))),
        (LONGS, Kind::new("lasting", Rhythm::EverySeconds(5), "sleep 3", json!({"overlap": "forbid"}))),
        (JITTERS, Kind::new("jitter", Rhythm::EverySeconds(3), ":", json!({"jitter": "4s", "overlap": "allow"}))),
        (herd, Kind::new("herd", Rhythm::OnceAMinute(HERD_SECOND), ":", json!({"overlap": "allow"}))),
    ];
    let more = json!({
        "overlap": "allow",
        "retry": {"attempts": 100, "on": ["lost"], "delay": "0s"},
        "misfire": {"policy": "all", "limit": 100},
    });
    let again = Kind::new("again", Rhythm::EverySeconds(2), "sleep 1", more);
    kinds.push((AGAINS, Kind { promise: Promise::AtLeastOnce, ..again }));
    kinds.extend(fired_by_nodes());
    for (count, kind) in kinds {
        for number in 0..count {
            let (name, shard) = add_paused(client, witness, &kind, number).await;
            jobs.push(resume(client, &kind, name, shard).await);
        }
    }
    jobs
}

/// More homes than there are nodes, so that every fault of a node hits one.
fn fired_by_nodes() -> [(usize, Kind); 7] {
    use MisfirePolicy::{All, Latest, Skip};
    [
        (1, Kind::local("each-often", 1, ":", Fired::OnEach(Latest))),
        (1, Kind::local("each-all", 3, ":", Fired::OnEach(All))),
        (1, Kind::local("each-skip", 5, "sleep 2", Fired::OnEach(Skip))),
        (1, Kind::local("each-seldom", 10, ":", Fired::OnEach(Latest))),
        (3, Kind::local("home-all", 2, ":", Fired::AtHome(All))),
        (2, Kind::local("home-latest", 3, "sleep 1", Fired::AtHome(Latest))),
        (1, Kind::local("home-skip", 5, "sleep 2", Fired::AtHome(Skip))),
    ]
}

/// At least one in each shard, so that no server can stand still unseen.
async fn add_steady(client: &Client, witness: &Witness) -> Vec<ChaosJob> {
    let kinds = ["allow", "forbid"]
        .map(|overlap| Kind::new("often", Rhythm::EverySeconds(1), ":", json!({"overlap": overlap})));
    let mut chosen: Vec<(String, u64, usize)> = Vec::new();
    let mut spare = Vec::new();
    let covered = |chosen: &[(String, u64, usize)], shard| chosen.iter().any(|(_, known, _)| *known == shard);
    for number in 0.. {
        let kind = number % kinds.len();
        let (name, shard) = add_paused(client, witness, &kinds[kind], number).await;
        if covered(&chosen, shard) {
            spare.push((name, shard, kind));
        } else {
            chosen.push((name, shard, kind));
        }
        if chosen.len() == SHARDS && chosen.len() + spare.len() >= STEADY {
            break;
        }
    }
    chosen.extend(spare.drain(..STEADY - SHARDS));
    for (name, ..) in spare {
        client.delete(&format!("/jobs/default/{name}")).await;
    }
    let mut jobs = Vec::new();
    for (name, shard, kind) in chosen {
        let job = resume(client, &kinds[kind], name, shard).await;
        jobs.push(ChaosJob { steady: true, ..job });
    }
    jobs
}

async fn add_paused(client: &Client, witness: &Witness, kind: &Kind, number: usize) -> (String, u64) {
    let name = format!("{}-{number:03}", kind.prefix);
    let mut more = kind.more.clone();
    more["schedule"] = kind.rhythm.schedule().into();
    more["enabled"] = false.into();
    let job = client.add(&name, &witness.command(&name, kind.work), more).await;
    let id: JobId = job["id"].as_str().and_then(|id| id.parse().ok()).expect("an id");
    (name, id.shard().0.into())
}

/// What passed before was not due.
async fn resume(client: &Client, kind: &Kind, name: String, shard: u64) -> ChaosJob {
    let job = client.post(&format!("/jobs/default/{name}/resume"), json!({})).await;
    ChaosJob {
        name,
        shard,
        promise: kind.promise,
        overlap_forbidden: kind.more["overlap"] != "allow",
        jitter: if kind.more["jitter"].is_null() { SignedDuration::ZERO } else { JITTER },
        steady: false,
        fired: kind.fired,
        rhythm: kind.rhythm,
        from: changed_at(&job),
    }
}

pub(super) async fn pause(client: &Client, job: &ChaosJob) {
    client.post(&format!("/jobs/default/{}/pause", job.name), json!({})).await;
}

fn changed_at(job: &Value) -> Timestamp {
    job["updated_at"].as_str().and_then(|at| at.parse().ok()).expect("an instant")
}
