//! Fills the store of a data folder for `belfry up` with jobs that have a history: `console_data FOLDER [jobs] [runs]`, by default 10,000
//! and 1,000,000. The runs are the newest that the schedules of the jobs say.
#![allow(clippy::disallowed_methods, reason = "the history ends now")]

mod made;

use std::path::PathBuf;
use std::sync::Arc;

use belfry_core::job::{Action, Expressions, Shell};
use belfry_core::run::{Run, RunState};
use belfry_core::{JobDocument, JobId, Timestamp};
use belfry_sql::{Sqlite, SqliteOptions};
use belfry_store::{Actor, Change, Store};
use jiff::SignedDuration;
use made::Dice;

/// Below what a server keeps by default.
const DAYS_MAX: i64 = 29;
const JOBS_AT_ONCE: usize = 1_000;
const RUNS_AT_ONCE: usize = 5_000;
const NODES: u64 = 8;
/// One job in so many has been failing lately.
const FAILING_ONE_IN: usize = 250;

const NAMESPACES: [&str; 8] = ["billing", "data", "default", "mail", "ops", "reports", "search", "web"];
const VERBS: [&str; 10] =
    ["export", "import", "clean", "sync", "rebuild", "check", "send", "archive", "rotate", "collect"];
const NOUNS: [&str; 8] =
    ["invoices", "orders", "sessions", "mailboxes", "metrics", "backups", "customers", "certificates"];
const PLACES: [&str; 5] = ["eu", "us", "ap", "cn", "uk"];
const TEAMS: [&str; 6] = ["payments", "platform", "search", "growth", "storage", "web"];

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut given = std::env::args().skip(1);
    let folder = PathBuf::from(given.next().ok_or("which data folder?")?);
    let mut number = |default| given.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (jobs, runs) = (number(10_000_usize), number(1_000_000_usize));
    std::fs::create_dir_all(&folder)?;
    let store = Store::open(Arc::new(Sqlite::open(folder.join("belfry.db"), SqliteOptions::default())?)).await?;
    let now = Timestamp::now();
    let first = now - SignedDuration::from_hours(24 * DAYS_MAX);

    let jobs: Vec<(JobId, JobDocument)> =
        (0..jobs).map(|n| (JobId::new(first, u128::from(Dice(n as u64).roll()) << 16), document(n))).collect();
    for some in jobs.chunks(JOBS_AT_ONCE) {
        let create = |(id, document): &(JobId, JobDocument)| Change::Create { id: *id, document: document.clone() };
        store.apply(some.iter().map(create).collect(), first, &Actor::new("bench")).await?;
    }

    let mut fires = Vec::new();
    for (n, (_, document)) in jobs.iter().enumerate().filter(|(_, (_, document))| document.enabled) {
        let schedule = document.compile_schedule(first).map_err(|refused| format!("{refused:?}"))?;
        let next = |at: &Timestamp| schedule.next_after(*at);
        fires.extend(std::iter::successors(next(&first), next).take_while(|at| *at < now).map(|at| (at, n)));
    }
    fires.sort_unstable();
    let newest = fires.len().saturating_sub(runs);
    if fires.len() < runs {
        return Err(format!("these jobs have {} fires in {DAYS_MAX} days, not {runs}", fires.len()).into());
    }
    for some in fires[newest..].chunks(RUNS_AT_ONCE) {
        let batch: Vec<Run> = some.iter().map(|(planned, n)| run(*n, &jobs[*n], *planned, now)).collect();
        store.record_runs(&batch).await?;
    }
    println!("{} jobs, {runs} runs since {}", jobs.len(), fires[newest].0);
    Ok(())
}

fn document(n: usize) -> JobDocument {
    let mut dice = Dice(n as u64 + 1);
    let mut one_of = |words: &[&'static str]| words[(dice.roll() % words.len() as u64) as usize];
    let (namespace, verb, noun, place, team) =
        (one_of(&NAMESPACES), one_of(&VERBS), one_of(&NOUNS), one_of(&PLACES), one_of(&TEAMS));
    // Does nothing, so that the machine is not busy with it.
    let command = format!(": /opt/{namespace}/bin/{verb} --what {noun} --region {place} --part {n}");
    let mut document = JobDocument::new(format!("{verb}-{noun}-{place}-{n:05}"), Action::Shell(Shell { command }));
    document.namespace = namespace.to_owned();
    document.description = format!("{verb} the {noun} of {place}, part {n}");
    document.labels = [("team", team), ("region", place)].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    document.timezone = Some(one_of(&["Europe/Berlin", "UTC", "America/New_York", "Asia/Shanghai"]).to_owned());
    let (minute, hour) = (dice.roll() % 60, dice.roll() % 24);
    // Some 44,000 fires a day of 10,000 jobs.
    document.schedule = Expressions(vec![match n % 100 {
        0 => "*/15 * * * *".to_owned(),
        1..=10 => format!("{minute} * * * *"),
        11..=20 => format!("{minute} */6 * * *"),
        21..=30 => format!("{minute} {hour} * * 1-5"),
        31..=36 => format!("{minute} {hour} * * {}", hour % 7),
        _ => format!("{minute} {hour} * * *"),
    }]);
    document.enabled = n % 50 != 49;
    document
}

fn run(n: usize, (id, document): &(JobId, JobDocument), planned: Timestamp, now: Timestamp) -> Run {
    let job = made::Job { id: *id, namespace: &document.namespace, name: &document.name };
    let mut dice = Dice(planned.as_millisecond() as u64 ^ (n as u64) << 40);
    // From a tenth of a second to minutes, and each run about as long as the others of its job.
    let usual_ms = 100_i64 << (Dice(n as u64).roll() % 12);
    let took_ms = usual_ms * (80 + (dice.roll() % 40) as i64) / 100;
    let lately = now.duration_since(planned) < SignedDuration::from_hours(60);
    let state = match dice.roll() % 10_000 {
        _ if n % FAILING_ONE_IN == 7 && lately => RunState::Failed,
        0..=3 => RunState::Lost,
        4..=20 => RunState::TimedOut,
        21..=150 => RunState::Failed,
        151..=180 => RunState::Skipped,
        _ => RunState::Succeeded,
    };
    let run = made::ended(dice.roll() >> 1, &job, planned, took_ms, state, dice.roll() % NODES);
    match state {
        RunState::Succeeded => run,
        RunState::Failed => Run { exit_code: Some(1), ..run },
        RunState::Skipped => Run {
            reason: Some("missed by 4000 s: later than misfire.within 1h".to_owned()),
            node: None,
            node_name: None,
            incarnation: None,
            dispatched_at: None,
            started_at: None,
            exit_code: None,
            ..run
        },
        _ => Run { exit_code: None, ..run },
    }
}
