//! What the machine can do without Belfry: the same children started by a plain loop, the same commits without anything above.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use belfry_coord::{Coordinator, Write};
use belfry_core::Timestamp;

use crate::bed::Bed;

/// Lanes that spawn, drain and reap; two cores are busy with fewer, eight lose nothing.
const LANES: usize = 8;

/// Starts and reaps `count` children with captured output; seconds to the last start and to the last end.
pub fn spawn_loop(count: usize, argv: &[&str]) -> (f64, f64) {
    let next = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let lanes: Vec<_> = (0..LANES)
        .map(|_| {
            let (next, argv): (_, Vec<String>) = (next.clone(), argv.iter().map(|s| (*s).to_owned()).collect());
            std::thread::spawn(move || {
                let mut last_start = Duration::ZERO;
                while next.fetch_add(1, Ordering::Relaxed) < count {
                    let child = Command::new(&argv[0])
                        .args(&argv[1..])
                        .env_clear()
                        .env("PATH", "/usr/bin:/bin")
                        .stdin(Stdio::null())
                        .stdout(Stdio::piped())
                        .stderr(Stdio::piped())
                        .spawn()
                        .expect("the child starts");
                    last_start = began.elapsed();
                    child.wait_with_output().expect("the child ends");
                }
                last_start
            })
        })
        .collect();
    let last_start = lanes.into_iter().map(|lane| lane.join().expect("a lane")).max().unwrap_or_default();
    (last_start.as_secs_f64(), began.elapsed().as_secs_f64())
}

/// Waits for each instant with a plain timer, starts `date`, and reads what it printed: milliseconds after the instant.
pub async fn timer_and_spawn(instants: &[Timestamp]) -> Vec<f64> {
    let mut lags = Vec::new();
    for instant in instants {
        let wait: Duration = instant.duration_since(Timestamp::now()).try_into().unwrap_or_default();
        tokio::time::sleep(wait).await;
        let output = tokio::process::Command::new("/bin/date").arg("+%s%N").output().await.expect("date runs");
        lags.push(lag_ms(&output.stdout, *instant));
    }
    lags
}

pub fn lag_ms(printed: &[u8], planned: Timestamp) -> f64 {
    let nanos: i128 = String::from_utf8_lossy(printed).trim().parse().expect("date prints a number");
    (nanos - planned.as_nanosecond()) as f64 / 1e6
}

/// Keys a second in durable commits of 99 puts, many commits under way as the shards have them.
pub async fn batched_commits(bed: &Bed, keys: usize) -> f64 {
    let coordinator = Arc::new(
        belfry_coord::SqlCoordinator::open(Arc::new(bed.coordinator_db.clone()), belfry_coord::Users::SoleByLock)
            .await
            .expect("a coordinator"),
    );
    let value = bytes_of_an_open_run();
    let began = Instant::now();
    let lanes: Vec<_> = (0..16)
        .map(|lane| {
            let (coordinator, value) = (coordinator.clone(), value.clone());
            tokio::spawn(async move {
                for batch in 0..keys / 16 / 99 {
                    let puts = (0..99)
                        .map(|n| Write::Put(format!("bench/{lane:02}/{batch:05}/{n:02}"), value.clone()))
                        .collect();
                    coordinator.commit(vec![], puts).await.expect("a commit");
                }
            })
        })
        .collect();
    for lane in lanes {
        lane.await.expect("a lane");
    }
    (keys / 16 / 99 * 16 * 99) as f64 / began.elapsed().as_secs_f64()
}

fn bytes_of_an_open_run() -> bytes::Bytes {
    bytes::Bytes::from(vec![b'x'; 220])
}
