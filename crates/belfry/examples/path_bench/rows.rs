//! The rows of the bench.

use std::time::{Duration, Instant};

use belfry_core::run::RunState;
use belfry_core::{JobId, Timestamp};
use belfry_store::RunFilter;
use serde_json::{Value, json};

use crate::baseline::{batched_commits, lag_ms, spawn_loop, timer_and_spawn};
use crate::bed::{Bed, Kind, instant_agent};

const LAG_SECONDS: usize = 15;
const LAG_JOBS: usize = 4;
const AGENT_BYTES: usize = 1 << 30;
const SAVES: usize = 60;
/// Further apart than one may take: what is overwritten before it was seen was too late.
const SAVE_EVERY_S: &str = "0.6";

/// Planned instant to the first action of the child, beside a bare timer and spawn in alternating seconds.
pub async fn lag() -> Value {
    let bed = Bed::new().await;
    let control = bed.control().await;
    let _agent = bed.agent(&control, 64).await;
    bed.add_jobs(&control, LAG_JOBS, "*/2 * * * * *", &["/bin/date", "+%s%N"]).await;
    // Odd seconds are the baseline's.
    let first = Timestamp::now().as_second() / 2 * 2 + 3;
    let instants: Vec<Timestamp> = (0..LAG_SECONDS * LAG_JOBS / 4)
        .map(|n| Timestamp::from_second(first + 2 * n as i64).expect("an instant"))
        .collect();
    let mut bare = timer_and_spawn(&instants).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut lags = Vec::new();
    let runs = bed.store.list_runs(&RunFilter { limit: 500, ..RunFilter::default() }).await.expect("runs").items;
    for run in runs.iter().filter(|run| run.state == RunState::Succeeded) {
        let chunks = bed.store.read_output(run.id, run.attempt, 0, 1 << 16).await.expect("output");
        lags.push(lag_ms(&chunks.iter().flat_map(|chunk| chunk.bytes.clone()).collect::<Vec<u8>>(), run.planned));
    }
    control.stop().await;
    let (ours, base) = (percentiles(&mut lags), percentiles(&mut bare));
    json!({ "p50_ms": ours.0, "p99_ms": ours.1, "bare_p50_ms": base.0, "bare_p99_ms": base.1,
            "p50_ratio": ours.0 / base.0, "p99_ratio": ours.1 / base.1, "runs": lags.len() })
}

/// `count` jobs due in one second through the whole path, beside a loop that starts the same children; both in alternating
/// rounds, the medians of which are shown.
pub async fn runs(count: usize, rounds: usize) -> Value {
    let mut raw = vec![bare_loop(count).await];
    let mut ours = Vec::new();
    for _ in 0..rounds {
        ours.push(herd(count).await);
        raw.push(bare_loop(count).await);
    }
    let beside = |round: usize, of: fn(&Herd) -> f64| (of(&raw[round]) + of(&raw[round + 1])) / 2.0;
    let ratios =
        |of: fn(&Herd) -> f64| ours.iter().enumerate().map(|(round, herd)| of(herd) / beside(round, of)).collect();
    let end_ratios: Vec<f64> = ratios(|herd| herd.last_end_s);
    let start_ratios: Vec<f64> = ratios(|herd| herd.last_start_s);
    let all = |of: fn(&Herd) -> f64| median(ours.iter().map(of).collect());
    json!({ "jobs": count, "rounds": rounds, "not_succeeded": ours.iter().map(|herd| herd.not_succeeded).sum::<usize>(),
            "runs_per_s": count as f64 / all(|herd| herd.last_end_s), "raw_runs_per_s": count as f64 / median(raw.iter().map(|herd| herd.last_end_s).collect()),
            "runs_ratio": 1.0 / median(end_ratios.clone()), "runs_ratio_of_rounds": end_ratios.iter().map(|ratio| 1.0 / ratio).collect::<Vec<_>>(),
            "last_start_s": all(|herd| herd.last_start_s), "raw_last_start_s": median(raw.iter().map(|herd| herd.last_start_s).collect()), "start_ratio": median(start_ratios.clone()), "start_ratio_of_rounds": start_ratios,
            "recorded_s": all(|herd| herd.recorded_s), "syncs_per_run": all(|herd| herd.syncs_per_run), "rows_per_run": all(|herd| herd.rows_per_run) })
}

#[derive(Default)]
struct Herd {
    last_start_s: f64,
    last_end_s: f64,
    recorded_s: f64,
    not_succeeded: usize,
    syncs_per_run: f64,
    rows_per_run: f64,
}

async fn bare_loop(count: usize) -> Herd {
    let bare = tokio::task::spawn_blocking(move || spawn_loop(count, &["/bin/true"]));
    let (last_start_s, last_end_s) = bare.await.expect("the baseline");
    Herd { last_start_s, last_end_s, ..Herd::default() }
}

/// Runs as another user with limits, and behind shims, beside plain ones; in alternating rounds, and the first also in an agent that
/// holds much memory.
pub async fn kinds(count: usize, rounds: usize) -> Value {
    let (mut limited, mut all_limits, mut shims) = (vec![], vec![], vec![]);
    let (mut large, mut failed) = (vec![], 0);
    for _ in 0..rounds {
        let plain = herd_of(Kind::Plain, count).await;
        failed += plain.not_succeeded;
        let mut beside = async |kind| {
            let herd = herd_of(kind, count).await;
            failed += herd.not_succeeded;
            (count as f64 / herd.last_end_s, plain.last_end_s / herd.last_end_s)
        };
        limited.push(beside(Kind::AsUserWithLimits).await);
        all_limits.push(beside(Kind::AsUserWithAllLimits).await);
        shims.push(beside(Kind::BehindShim).await);
        let memory = vec![1_u8; AGENT_BYTES];
        let plain = herd_of(Kind::Plain, count).await;
        let herd = herd_of(Kind::AsUserWithLimits, count).await;
        drop(std::hint::black_box(memory));
        failed += plain.not_succeeded + herd.not_succeeded;
        large.push((count as f64 / herd.last_end_s, plain.last_end_s / herd.last_end_s));
    }
    let figures = |of: &[(f64, f64)]| {
        let ratios: Vec<f64> = of.iter().map(|(_, ratio)| *ratio).collect();
        json!({ "runs_per_s": median(of.iter().map(|(rate, _)| *rate).collect()), "ratio": median(ratios.clone()), "ratio_of_rounds": ratios })
    };
    json!({ "jobs": count, "rounds": rounds, "not_succeeded": failed, "as_user_with_limits": figures(&limited), "agent_1GiB": figures(&large),
            "as_user_with_all_limits": figures(&all_limits), "behind_shim": figures(&shims) })
}

async fn herd(count: usize) -> Herd {
    herd_of(Kind::Plain, count).await
}

async fn herd_of(kind: Kind, count: usize) -> Herd {
    let bed = Bed::new().await;
    let control = bed.control().await;
    let _agent = bed.agent(&control, 256).await;
    let due = due_in(Duration::from_secs(4 + count as u64 / 2_000));
    bed.add_jobs_of(kind, &control, count, &format!("@at {due}"), &["/bin/true"]).await;
    assert!(Timestamp::now() < due, "saving the jobs took too long");
    let before = bed.stats();
    let recorded_s = until_recorded(&bed, count, due).await;
    let after = bed.stats();
    let runs = all_runs(&bed).await;
    control.stop().await;
    let last = |of: fn(&belfry_core::run::Run) -> Option<Timestamp>| {
        runs.iter().filter_map(of).max().expect("runs have started and ended").duration_since(due).as_secs_f64()
    };
    let per_run = |before: u64, after: u64| (after - before) as f64 / count as f64;
    Herd {
        last_start_s: last(|run| run.started_at),
        last_end_s: last(|run| run.ended_at),
        recorded_s,
        not_succeeded: runs.iter().filter(|run| run.state != RunState::Succeeded).count(),
        syncs_per_run: per_run(before.0.commits + before.1.commits, after.0.commits + after.1.commits),
        rows_per_run: per_run(
            before.0.rows_written + before.1.rows_written,
            after.0.rows_written + after.1.rows_written,
        ),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// From the line that a run writes for the next one until the coordinator has it.
pub async fn saves() -> Value {
    let bed = Bed::new().await;
    let control = bed.control().await;
    let _agent = bed.agent(&control, 4).await;
    let due = due_in(Duration::from_secs(2));
    let script =
        format!("for i in $(seq {SAVES}); do echo AT=$(date +%s%N) > $BELFRY_STATE; sleep {SAVE_EVERY_S}; done");
    let job = bed.add_jobs(&control, 1, &format!("@at {due}"), &["/bin/bash", "-c", &script]).await;
    let mut last = String::new();
    let mut took_ms = Vec::new();
    while counted(&bed).await == 0 {
        let saved = bed.saved(job).await.and_then(|mut values| values.remove("AT"));
        if let Some(written) = saved.filter(|written| *written != last) {
            took_ms.push(lag_ms(written.as_bytes(), Timestamp::now()).abs());
            last = written;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    control.stop().await;
    let overwritten = SAVES - took_ms.len();
    let (p50, p99) = percentiles(&mut took_ms);
    json!({ "lines": SAVES, "overwritten": overwritten, "p50_ms": p50, "p99_ms": p99 })
}

/// Fires whose work is done at once: claim, dispatch, record and close alone, beside bare commits of the same keys.
pub async fn noop() -> Value {
    const COUNT: usize = 30_000;
    let bed = Bed::new().await;
    let raw = batched_commits(&bed, 60_000).await;
    let control = bed.control().await;
    let mut dispatched = instant_agent(&control);
    let due = due_in(Duration::from_secs(14));
    bed.add_jobs(&control, COUNT, &format!("@at {due}"), &["/bin/true"]).await;
    assert!(Timestamp::now() < due, "saving the jobs took too long");
    let before = bed.stats();
    let first = dispatched.recv().await.expect("a dispatch");
    loop {
        let open = control.cluster().open_runs;
        if open == 0 && counted(&bed).await == COUNT {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let took = Timestamp::now().duration_since(first).as_secs_f64();
    let after = bed.stats();
    control.stop().await;
    let per_s = COUNT as f64 / took;
    json!({ "fires_per_s": per_s, "raw_keys_per_s": raw, "ratio": per_s / raw,
            "claim_commits_per_fire": (after.1.transactions - before.1.transactions) as f64 / COUNT as f64,
            "syncs_per_fire": (after.0.commits + after.1.commits - before.0.commits - before.1.commits) as f64 / COUNT as f64,
            "rows_per_fire": (after.0.rows_written + after.1.rows_written - before.0.rows_written - before.1.rows_written) as f64 / COUNT as f64 })
}

/// Cold start and idle CPU with many jobs that fire once a day, and what the server needs for them beside one without.
pub async fn many_jobs(count: usize) -> Value {
    let without = start_with_jobs(0).await;
    let mut with = start_with_jobs(count).await;
    let bytes = |start: &Value| start["resident_bytes"].as_f64().expect("a number");
    with["bytes_per_job"] = ((bytes(&with) - bytes(&without)) / count as f64).into();
    with
}

/// Each start in a process of its own: this one has memory left from saving the jobs. One more job, which fires each second, shows
/// when the first fire comes; it is removed before the idle time.
async fn start_with_jobs(count: usize) -> Value {
    let bed = Bed::new().await;
    let control = bed.control().await;
    bed.add_jobs(&control, count, "H H * * *", &["/usr/local/bin/backup", "--all", "--to", "/srv/backup"]).await;
    let each_second = bed.add_jobs(&control, 1, "* * * * * *", &["/bin/true"]).await;
    control.stop().await;
    drop(control);
    let folder = bed.close();
    let program = std::env::current_exe().expect("the name of this program");
    let output = tokio::process::Command::new(program)
        .arg("cold-start")
        .arg(folder.path())
        .arg(each_second.to_string())
        .stderr(std::process::Stdio::inherit())
        .output();
    serde_json::from_slice(&output.await.expect("a second process").stdout).expect("its figures")
}

pub async fn cold_start(folder: &str, each_second: JobId) -> Value {
    let began = Instant::now();
    let bed = Bed::in_folder(folder).await;
    let control = bed.control().await;
    let ready_s = began.elapsed().as_secs_f64();
    let mut dispatched = instant_agent(&control);
    dispatched.recv().await.expect("a dispatch");
    // The first fire is due within a second of being ready; waiting for that second is not start-up.
    let first_fire_s = began.elapsed().as_secs_f64();
    bed.remove_job(&control, each_second).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let resident_bytes = resident_bytes();
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let idle = (cpu_seconds() - cpu) / wall.elapsed().as_secs_f64();
    control.stop().await;
    json!({ "resident_bytes": resident_bytes, "ready_s": ready_s, "first_fire_s": first_fire_s, "idle_cpu_percent": idle * 100.0 })
}

fn due_in(wait: Duration) -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second() + wait.as_secs() as i64 + 1).expect("an instant")
}

async fn counted(bed: &Bed) -> usize {
    let day = Timestamp::from_second(0).expect("an instant");
    let counts = bed.store.run_counts(None, day, Timestamp::MAX).await.expect("counts");
    counts.iter().map(|count| count.runs as usize).sum()
}

/// Seconds from the instant until the store has the end of all.
async fn until_recorded(bed: &Bed, count: usize, due: Timestamp) -> f64 {
    while counted(bed).await < count {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Timestamp::now().duration_since(due).as_secs_f64()
}

async fn all_runs(bed: &Bed) -> Vec<belfry_core::run::Run> {
    let mut runs = Vec::new();
    let mut cursor = None;
    loop {
        let page = bed.store.list_runs(&RunFilter { cursor, limit: 500, ..RunFilter::default() }).await.expect("runs");
        runs.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return runs;
        }
    }
}

fn percentiles(values: &mut [f64]) -> (f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    (at(0.5), at(0.99))
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("statm");
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

fn cpu_seconds() -> f64 {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).expect("usage");
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}
