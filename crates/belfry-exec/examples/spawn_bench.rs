//! Starts per second of /bin/true through the zygote, with output captured, against a loop that prepares and spawns the
//! same child through std's posix_spawn with two pipes; as another user with limits, and behind a shim, against the same without. Alternating
//! rounds, medians, one line of JSON.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts the baseline itself")]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use belfry_exec::{
    CaptureLimits, Deadline, LastMoments, LimitOf, Prepared, ProcessLimit, RunTag, Spawner, ZygoteCommand, capture,
    clean_environment, current_user, lookup_user,
};
use tokio::sync::mpsc;

const ROUNDS: usize = 5;
const STARTS_PER_ROUND: usize = 320;
const AT_ONCE: usize = 8;

fn main() {
    let zygote = zygote_program();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let deadline = Deadline::new().expect("memory for a deadline");
    let far_off = std::time::Duration::from_secs(1 << 32);
    deadline.put_off(LastMoments { ask: far_off, kill: far_off });
    let spawner = runtime
        .block_on(async { Spawner::start(ZygoteCommand { program: zygote, args: vec![] }, deadline) })
        .expect("start the zygote");
    let small = compare(&runtime, &spawner);
    let memory = vec![1_u8; 1024 * 1024 * 1024];
    let large = compare(&runtime, &spawner);
    drop(memory);
    println!(
        "{{\"bench\":\"spawn\",\"starts_per_round\":{STARTS_PER_ROUND},\"rounds\":{ROUNDS},\"small_agent\":{},\"agent_1GiB\":{}}}",
        json(small),
        json(large)
    );
}

/// One way of starting, measured: starts per second, and CPU time of agent, zygote and child together, which says more on a
/// machine that is busy with other things.
#[derive(Clone, Copy)]
struct Measured {
    per_s: f64,
    cpu_us: f64,
}

struct Comparison {
    ours: Measured,
    std: Measured,
}

fn compare(runtime: &tokio::runtime::Runtime, spawner: &Spawner) -> [Comparison; 4] {
    let mut rounds: [Vec<Measured>; 7] = [const { Vec::new() }; 7];
    let (own, limited) = (own_user(), limited());
    let exclusive = Prepared { exclusive: true, ..own_user() };
    for _ in 0..ROUNDS {
        rounds[0].push(measure(spawner, || runtime.block_on(ours(spawner.clone(), own.clone(), STARTS_PER_ROUND))));
        rounds[1].push(measure(spawner, || plain(STARTS_PER_ROUND)));
        rounds[2].push(measure(spawner, || runtime.block_on(ours_at_once(spawner, &own))));
        rounds[3].push(measure(spawner, plain_at_once));
        rounds[4].push(measure(spawner, || runtime.block_on(ours_at_once(spawner, &limited))));
        rounds[5].push(measure(spawner, || runtime.block_on(ours_at_once(spawner, &own))));
        rounds[6].push(measure(spawner, || runtime.block_on(ours_at_once(spawner, &exclusive))));
    }
    let [ours, std, ours_at_once, std_at_once, limited, unlimited, behind_shim] = rounds.map(|rounds| Measured {
        per_s: median(rounds.iter().map(|round| round.per_s).collect()),
        cpu_us: median(rounds.iter().map(|round| round.cpu_us).collect()),
    });
    [
        Comparison { ours, std },
        Comparison { ours: ours_at_once, std: std_at_once },
        Comparison { ours: limited, std: unlimited },
        Comparison { ours: behind_shim, std: unlimited },
    ]
}

fn own_user() -> Prepared {
    let env = clean_environment(&current_user(), &Default::default());
    Prepared::new(vec!["/bin/true".into()], env, RunTag { run: "bench".into(), attempt: 1 })
}

/// Another user where we may become one, and all that the kernel limits for a process.
fn limited() -> Prepared {
    let other = lookup_user("nobody").ok().filter(|_| current_user().uid == 0);
    let limit = |of, value| ProcessLimit { of, value };
    Prepared {
        identity: other.map(|login| login.identity()),
        no_new_privileges: true,
        limits: vec![
            limit(LimitOf::OpenFiles, 1024),
            limit(LimitOf::CpuSeconds, 600),
            limit(LimitOf::FileBytes, 1 << 30),
            limit(LimitOf::UserProcesses, 10_000),
            limit(LimitOf::Memory, 4 << 30),
        ],
        ..own_user()
    }
}

fn json([one_by_one, at_once, limited, behind_shim]: [Comparison; 4]) -> String {
    let one = |Comparison { ours, std }: Comparison| {
        format!(
            "{{\"zygote_per_s\":{:.0},\"std_per_s\":{:.0},\"ratio\":{:.2},\"zygote_cpu_us\":{:.0},\"std_cpu_us\":{:.0},\"cpu_ratio\":{:.2}}}",
            ours.per_s,
            std.per_s,
            ours.per_s / std.per_s,
            ours.cpu_us,
            std.cpu_us,
            std.cpu_us / ours.cpu_us
        )
    };
    let (one_by_one, at_once, limited, behind_shim) = (one(one_by_one), one(at_once), one(limited), one(behind_shim));
    format!(
        "{{\"one_by_one\":{one_by_one},\"at_once_{AT_ONCE}\":{at_once},\"as_user_with_limits\":{limited},\"behind_shim\":{behind_shim}}}"
    )
}

fn measure(spawner: &Spawner, round: impl FnOnce()) -> Measured {
    let cpu_before = cpu_us(std::process::id()) + cpu_us(spawner.zygote_pid());
    let began = Instant::now();
    round();
    let per_s = STARTS_PER_ROUND as f64 / began.elapsed().as_secs_f64();
    let cpu = cpu_us(std::process::id()) + cpu_us(spawner.zygote_pid()) - cpu_before;
    Measured { per_s, cpu_us: cpu / STARTS_PER_ROUND as f64 }
}

/// CPU time of a process and its reaped children.
fn cpu_us(pid: u32) -> f64 {
    const US_PER_TICK: f64 = 10_000.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields = stat.rsplit_once(") ").expect("a name").1.split(' ');
    fields.skip(11).take(4).map(|ticks| ticks.parse::<f64>().expect("ticks")).sum::<f64>() * US_PER_TICK
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn ours(spawner: Spawner, what: Prepared, count: usize) {
    for _ in 0..count {
        let mut child = spawner.spawn(what.clone()).await.expect("start");
        let (sink, _events) = mpsc::channel(4);
        let (_summary, exit) =
            tokio::join!(capture(child.take_output(), CaptureLimits::default(), None, sink), child.wait());
        assert_eq!(exit.status, belfry_exec::ExitStatus::Code(0));
    }
}

async fn ours_at_once(spawner: &Spawner, what: &Prepared) {
    let lane = || tokio::spawn(ours(spawner.clone(), what.clone(), STARTS_PER_ROUND / AT_ONCE));
    let lanes: Vec<_> = (0..AT_ONCE).map(|_| lane()).collect();
    for lane in lanes {
        lane.await.expect("no panic");
    }
}

fn plain(count: usize) {
    for _ in 0..count {
        let mut child = Command::new("/bin/true")
            .env_clear()
            .envs(clean_environment(&current_user(), &Default::default()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("start");
        let mut output = Vec::new();
        child.stdout.take().expect("stdout").read_to_end(&mut output).expect("read");
        child.stderr.take().expect("stderr").read_to_end(&mut output).expect("read");
        assert!(child.wait().expect("exit").success());
    }
}

fn plain_at_once() {
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| plain(STARTS_PER_ROUND / AT_ONCE));
        }
    });
}

/// `cargo run --example` puts the example next to the crate's programs; build them first (`cargo build -p belfry-exec`).
fn zygote_program() -> PathBuf {
    let here = std::env::current_exe().expect("this program");
    let built = here.ancestors().nth(2).expect("the target folder").join("belfry-zygote");
    std::env::args_os().nth(1).map_or(built, PathBuf::from)
}
