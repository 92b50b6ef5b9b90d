//! The rows of the bench.

use std::time::{Duration, Instant};

use belfry_core::Timestamp;
use belfry_core::run::RunState;
use belfry_store::RunFilter;
use serde_json::{Value, json};

use crate::baseline::{batched_commits, lag_ms, spawn_loop, timer_and_spawn};
use crate::bed::{Bed, instant_agent};

const LAG_SECONDS: usize = 15;
const LAG_JOBS: usize = 4;

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

/// `count` jobs due in one second through the whole path, beside a loop that starts the same children.
pub async fn runs(count: usize) -> Value {
    let argv = ["/bin/true"];
    let (raw_start, raw_end) =
        tokio::task::spawn_blocking(move || spawn_loop(count, &argv)).await.expect("the baseline");
    let bed = Bed::new().await;
    let control = bed.control().await;
    let _agent = bed.agent(&control, 256).await;
    let due = due_in(Duration::from_secs(4 + count as u64 / 2_000));
    bed.add_jobs(&control, count, &format!("@at {due}"), &argv).await;
    assert!(Timestamp::now() < due, "saving the jobs took too long");
    let before = bed.stats();
    let recorded = until_recorded(&bed, count, due).await;
    let after = bed.stats();
    let runs = all_runs(&bed).await;
    let last_start = runs.iter().filter_map(|run| run.started_at).max().expect("runs started");
    let bad = runs.iter().filter(|run| run.state != RunState::Succeeded).count();
    let start_s = last_start.duration_since(due).as_secs_f64();
    let end_s = runs.iter().filter_map(|run| run.ended_at).max().expect("runs ended").duration_since(due).as_secs_f64();
    control.stop().await;
    let again = tokio::task::spawn_blocking(move || spawn_loop(count, &["/bin/true"])).await.expect("the baseline");
    let (raw_start, raw_end) = ((raw_start + again.0) / 2.0, (raw_end + again.1) / 2.0);
    json!({ "jobs": count, "not_succeeded": bad, "runs_per_s": count as f64 / end_s, "raw_runs_per_s": count as f64 / raw_end,
            "runs_ratio": raw_end / end_s, "last_start_s": start_s, "raw_last_start_s": raw_start, "start_ratio": start_s / raw_start,
            "recorded_s": recorded, "syncs_per_run": (after.0.commits + after.1.commits - before.0.commits - before.1.commits) as f64 / count as f64,
            "rows_per_run": (after.0.rows_written + after.1.rows_written - before.0.rows_written - before.1.rows_written) as f64 / count as f64 })
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

/// Memory, cold start and idle CPU with many jobs that fire once a day, and one that fires each second.
pub async fn many_jobs(count: usize) -> Value {
    let bed = Bed::new().await;
    let control = bed.control().await;
    bed.add_jobs(&control, count, "H H * * *", &["/usr/local/bin/backup", "--all", "--to", "/srv/backup"]).await;
    bed.add_jobs(&control, 1, "* * * * * *", &["/bin/true"]).await;
    control.stop().await;
    drop(control);
    let bed = bed.reopened().await;
    let before = resident_bytes();
    let began = Instant::now();
    let control = bed.control().await;
    let loaded_s = began.elapsed().as_secs_f64();
    let mut dispatched = instant_agent(&control);
    dispatched.recv().await.expect("a dispatch");
    // The first fire is due within a second of being ready; waiting for that second is not start-up.
    let first_fire_s = began.elapsed().as_secs_f64();
    let memory = resident_bytes().saturating_sub(before);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (cpu, wall) = (cpu_seconds(), Instant::now());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let idle = (cpu_seconds() - cpu) / wall.elapsed().as_secs_f64();
    control.stop().await;
    json!({ "jobs": count, "bytes_per_job": memory as f64 / count as f64, "ready_s": loaded_s, "first_fire_s": first_fire_s, "idle_cpu_percent": idle * 100.0 })
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
