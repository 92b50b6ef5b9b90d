//! Commits per second of the SQLite coordinator, with syncs counted: `cargo run --release -p belfry-coord --example commit_rate`.

use std::io::Write as _;
use std::sync::Arc;

use belfry_coord::{Clock, Coordinator, SqlCoordinator, SystemClock, Users, Write};
use belfry_sql::{Sqlite, SqliteOptions};
use futures_util::future::join_all;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("belfry-commit-rate-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let database = Sqlite::open(folder.join("coord.db"), SqliteOptions::default())?;
    let coordinator = SqlCoordinator::open(Arc::new(database.clone()), Users::SoleByLock).await?;
    let clock = SystemClock;
    let puts = |n: u64, count: u64| -> Vec<Write> {
        (0..count)
            .map(|i| Write::Put(format!("open/{:02}/{:026}", n % 16, n * 1000 + i), vec![b'x'; 200].into()))
            .collect()
    };
    let mut file = std::fs::File::create(folder.join("plain"))?;
    let begin = clock.boottime();
    for _ in 0..1000 {
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
    }
    println!(
        "baseline: {:.0} appends of 4 KiB with fdatasync per s",
        1000.0 / (clock.boottime() - begin).as_secs_f64()
    );
    println!("{:<28} {:>10} {:>10} {:>8}", "what", "commits/s", "puts/s", "syncs");
    for (what, rounds, at_once, writes) in [
        ("1 put, 1 at once", 1500u64, 1u64, 1u64),
        ("1 put, 64 at once", 300, 64, 1),
        ("100 puts, 1 at once", 300, 1, 100),
        ("100 puts, 16 at once", 30, 16, 100),
    ] {
        let (begin, before) = (clock.boottime(), database.stats());
        for round in 0..rounds {
            let commits = (0..at_once).map(|i| coordinator.commit(vec![], puts(round * at_once + i, writes)));
            for commit in join_all(commits).await {
                commit?;
            }
        }
        let took = (clock.boottime() - begin).as_secs_f64();
        let commits = (rounds * at_once) as f64;
        let syncs = database.stats().commits - before.commits;
        println!("{what:<28} {:>10.0} {:>10.0} {syncs:>8}", commits / took, commits * writes as f64 / took);
    }
    for _ in 0..3 {
        let begin = clock.boottime();
        let listed = coordinator.list("open/03/").await?.len();
        println!("list of {listed} keys: {:?}", clock.boottime() - begin);
    }
    drop((coordinator, database));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
