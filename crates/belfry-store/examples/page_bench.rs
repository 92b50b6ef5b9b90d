//! How fast history is written and paged with many runs: fills a temporary file and prints one line of JSON.
//! `cargo run --release -p belfry-store --example page_bench [runs] [pages]`, by default 1,000,000 and 400.
#![allow(clippy::disallowed_methods, reason = "a bench measures with the real clock")]

mod made;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use belfry_core::job::{Action, Shell};
use belfry_core::run::{Run, RunState};
use belfry_core::{JobDocument, JobId, NodeId, Timestamp};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, Change, JobRef, RetentionRules, RunFilter, Store};
use made::Dice;
use serde_json::{Value, json};

const START_MS: i64 = 1_790_000_000_000;
const STEP_MS: i64 = 500;
const JOBS: u64 = 2_000;
const BATCH: u64 = 500;
const PAGE: usize = 50;
const RAW_JOBS: u128 = 100_000;

/// From a random number.
type MakeFilter = Box<dyn Fn(u64) -> RunFilter>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let number = |nth, default| std::env::args().nth(nth).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (runs, pages): (u64, u64) = (number(1, 1_000_000), number(2, 400));
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("store.db");
    let store = Store::open(Arc::new(Sqlite::open(&path, SqliteOptions::default())?)).await?;

    let began = Instant::now();
    let mut last_tenth = began;
    for from in (0..runs).step_by(BATCH as usize) {
        if from == runs / 10 * 9 / BATCH * BATCH {
            last_tenth = Instant::now();
        }
        let batch: Vec<Run> = (from..(from + BATCH).min(runs)).map(run).collect();
        store.record_runs(&batch).await?;
    }
    let rows_per_second = (runs as f64 / began.elapsed().as_secs_f64()).round();
    let rows_per_second_at_end = (runs as f64 / 10.0 / last_tenth.elapsed().as_secs_f64()).round();

    let mut measured = BTreeMap::new();
    let node = Some(NodeId::from_u128(1));
    let rare = vec![RunState::Lost];
    let bad = vec![RunState::Failed, RunState::TimedOut, RunState::Killed, RunState::Lost];
    let ns = Some(vec!["ns3".to_owned()]);
    let job = |dice: u64| Some(JobRef::Id(job_id(dice % JOBS)));
    let biggest = || Some(JobRef::Id(job_id(JOBS)));
    let all = RunFilter { limit: PAGE, ..Default::default() };
    let mut kinds: Vec<(&str, MakeFilter)> = Vec::new();
    let mut kind = |name, make: MakeFilter| kinds.push((name, make));
    kind(
        "plain",
        Box::new({
            let all = all.clone();
            move |_| all.clone()
        }),
    );
    kind(
        "job",
        Box::new({
            let all = all.clone();
            move |dice| RunFilter { job: job(dice), ..all.clone() }
        }),
    );
    kind(
        "state",
        Box::new({
            let (all, rare) = (all.clone(), rare.clone());
            move |_| RunFilter { states: rare.clone(), ..all.clone() }
        }),
    );
    kind(
        "four states",
        Box::new({
            let (all, bad) = (all.clone(), bad.clone());
            move |_| RunFilter { states: bad.clone(), ..all.clone() }
        }),
    );
    kind(
        "node",
        Box::new({
            let all = all.clone();
            move |_| RunFilter { node, ..all.clone() }
        }),
    );
    kind(
        "node+state",
        Box::new({
            let (all, rare) = (all.clone(), rare.clone());
            move |_| RunFilter { node, states: rare.clone(), ..all.clone() }
        }),
    );
    kind(
        "namespace",
        Box::new({
            let (all, ns) = (all.clone(), ns.clone());
            move |_| RunFilter { namespaces: ns.clone(), ..all.clone() }
        }),
    );
    kind(
        "job+state",
        Box::new({
            let (all, rare) = (all.clone(), rare.clone());
            move |dice| RunFilter { job: job(dice), states: rare.clone(), ..all.clone() }
        }),
    );
    kind(
        "job of a fifth of all+state",
        Box::new({
            let (all, rare) = (all.clone(), rare);
            move |_| RunFilter { job: biggest(), states: rare.clone(), ..all.clone() }
        }),
    );
    kind(
        "job+node",
        Box::new({
            let all = all.clone();
            move |dice| RunFilter { job: job(dice), node, ..all.clone() }
        }),
    );
    kind(
        "time range",
        Box::new(move |dice| {
            let from = START_MS + (dice % runs) as i64 * STEP_MS;
            let at = |ms| Timestamp::from_millisecond(ms).ok();
            RunFilter { from: at(from), to: at(from + 3_600_000), ..all.clone() }
        }),
    );
    let mut dice = Dice(7);
    for (name, make) in &kinds {
        let mut took = Vec::new();
        for page in 0..pages {
            let mut filter = make(dice.roll());
            // Every second page from the top, the others from anywhere.
            if page % 2 == 1 && filter.from.is_none() {
                filter.cursor = Some(run(dice.roll() % runs).id);
            }
            let asked = Instant::now();
            let page = store.list_runs(&filter).await?;
            took.push(asked.elapsed().as_secs_f64() * 1e3);
            assert!(page.items.len() <= PAGE);
        }
        measured.insert(*name, percentiles(took));
    }
    let jobs: Vec<JobId> = (0..50).map(job_id).collect();
    let mut took = Vec::new();
    for _ in 0..50 {
        let asked = Instant::now();
        store.recent_runs(&jobs, 60).await?;
        took.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    measured.insert("recent 60 states of 50 jobs", percentiles(took));

    let asked = Instant::now();
    let facts = store.store_facts().await?;
    let facts_ms = asked.elapsed().as_secs_f64() * 1e3;
    let mut pruned = Vec::new();
    for _ in 0..20 {
        let asked = Instant::now();
        store.prune_runs(run(runs).planned, RetentionRules { age: None, runs: Some(100) }, None, 250).await?;
        pruned.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    let line = json!({
        "runs": runs, "page": PAGE, "record_rows_per_s": rows_per_second, "record_rows_per_s_last_tenth": rows_per_second_at_end,
        "bytes_per_run": facts.database_bytes / runs.max(1), "facts_ms": facts_ms, "pages_ms": measured,
        "prune_250_runs_ms": percentiles(pruned), "cold_start": cold_start(&store).await?,
    });
    println!("{line}");
    Ok(())
}

async fn cold_start(store: &Store) -> Result<Value, Box<dyn std::error::Error>> {
    let now = Timestamp::from_millisecond(START_MS)?;
    let made = Instant::now();
    for from in (0..RAW_JOBS).step_by(1_000) {
        let create = |n: u128| {
            let mut document = JobDocument::new(
                format!("job-{n}"),
                Action::Shell(Shell { command: format!("/usr/bin/work --number {n}") }),
            );
            document.description = "one of many that are loaded at a start".to_owned();
            Change::Create { id: JobId::new(now, n + 10_000_000), document }
        };
        store.apply((from..from + 1_000).map(create).collect(), now, &Actor::new("bench")).await?;
    }
    let made_ms = made.elapsed().as_secs_f64() * 1e3;
    let mut bytes = 0;
    let asked = Instant::now();
    store.load_raw_jobs(|page| bytes += page.iter().map(|job| job.document.len()).sum::<usize>()).await?;
    let raw_ms = asked.elapsed().as_secs_f64() * 1e3;
    let asked = Instant::now();
    let mut parsed = 0;
    store.load_jobs(|page| parsed += page.len()).await?;
    Ok(
        json!({"jobs": parsed, "document_bytes": bytes, "create_ms": made_ms, "load_raw_ms": raw_ms, "load_parsed_ms": asked.elapsed().as_secs_f64() * 1e3}),
    )
}

/// One job has a fifth of all runs, the others share the rest; one run in a thousand is lost, one in fifty failed.
fn run(n: u64) -> Run {
    let mut dice = Dice(n);
    let job = if dice.roll().is_multiple_of(5) { job_id(JOBS) } else { job_id(dice.roll() % JOBS) };
    let planned = Timestamp::from_millisecond(START_MS + n as i64 * STEP_MS).expect("within range");
    let state = match dice.roll() % 1_000 {
        0 => RunState::Lost,
        1..=20 => RunState::Failed,
        21..=40 => RunState::Skipped,
        _ => RunState::Succeeded,
    };
    let (namespace, name) = (job.as_u128() % 5, job.as_u128() % u128::from(JOBS));
    let job = made::Job { id: job, namespace: &format!("ns{namespace}"), name: &format!("job-{name}") };
    made::ended(n, &job, planned, 299, state, dice.roll() % 8)
}

fn job_id(n: u64) -> JobId {
    JobId::new(Timestamp::from_millisecond(START_MS).expect("within range"), u128::from(Dice(n).roll()) << 16)
}

fn percentiles(mut took: Vec<f64>) -> Value {
    took.sort_by(f64::total_cmp);
    let of = |share: f64| (took[((took.len() - 1) as f64 * share) as usize] * 1e3).round() / 1e3;
    json!({"p50": of(0.5), "p99": of(0.99), "max": of(1.0)})
}
