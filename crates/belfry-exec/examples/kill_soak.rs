//! A thousand trees that fork, call setsid and fork twice are ended, half of them behind a shim: how long beyond the grace each took, and who
//! survived. One line of JSON. `kill_soak 50` ends fifty.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::time::{Duration, Instant};

use belfry_exec::{Deadline, LastMoments, Prepared, RunTag, Spawner, ZygoteCommand, clean_environment, current_user};

const TREES: u32 = 1000;
const GRACE: Duration = Duration::from_millis(100);
/// Ignores being asked; its members are in its group, in sessions of their own, and orphaned.
const TREE: &str = "trap '' TERM HUP; sleep 1000 & setsid sleep 1000 & (setsid bash -c 'trap \"\" TERM; (setsid sleep 1000 &); sleep 1000' &) ; sleep 1000";
const MEMBERS: usize = 5;
const UP_PATIENCE: Duration = Duration::from_secs(30);

#[tokio::main]
async fn main() {
    let trees = std::env::args().nth(1).map_or(TREES, |text| text.parse().expect("a number of trees"));
    let bench = std::env::current_exe().expect("this program");
    let folder = bench.parent().and_then(|examples| examples.parent()).expect("target/PROFILE");
    let deadline = Deadline::new().expect("memory for a deadline");
    let far_off = Duration::from_secs(1 << 32);
    deadline.put_off(LastMoments { ask: far_off, kill: far_off });
    let zygote = ZygoteCommand { program: folder.join("belfry-zygote"), args: vec![] };
    let spawner =
        Spawner::start(zygote, deadline).expect("start the zygote; build it with: cargo build -p belfry-exec --bins");
    let (mut took, mut survivors) = (Vec::new(), 0);
    for number in 1..=trees {
        let tag = RunTag { run: format!("soak-{}", std::process::id()), attempt: number };
        let env = clean_environment(&current_user(), &Default::default());
        let argv = ["/bin/bash", "-c", TREE].map(Into::into).to_vec();
        let what = Prepared { exclusive: number % 2 == 0, ..Prepared::new(argv, env, tag.clone()) };
        let mut child = spawner.spawn(what).await.expect("start");
        let began = Instant::now();
        while alive(&tag) < MEMBERS {
            assert!(began.elapsed() < UP_PATIENCE, "tree {number} did not come up");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let asked = Instant::now();
        child.killer().end_tree(GRACE).await;
        child.wait().await;
        took.push(asked.elapsed().saturating_sub(GRACE).as_secs_f64() * 1000.0);
        survivors += alive(&tag);
    }
    took.sort_by(f64::total_cmp);
    let of = |part: f64| took[((took.len() - 1) as f64 * part).round() as usize];
    println!(
        "{{\"bench\":\"kills\",\"trees\":{trees},\"survivors\":{survivors},\"beyond_grace_p50_ms\":{:.1},\"beyond_grace_p99_ms\":{:.1}}}",
        of(0.5),
        of(0.99)
    );
}

/// Processes whose environment names the tree.
fn alive(tag: &RunTag) -> usize {
    let (run, attempt) = (format!("BELFRY_RUN_ID={}", tag.run), format!("BELFRY_ATTEMPT={}", tag.attempt));
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_of_tree = |environ: &[u8]| {
        let has = |wanted: &str| environ.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes());
        has(&run) && has(&attempt)
    };
    entries
        .filter(|entry| std::fs::read(entry.path().join("environ")).is_ok_and(|environ| is_of_tree(&environ)))
        .count()
}
