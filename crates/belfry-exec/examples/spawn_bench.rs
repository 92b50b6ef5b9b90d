//! Starts per second of /bin/true through the zygote, with output captured, against a loop that prepares and spawns the
//! same child through std's posix_spawn with two pipes. Alternating rounds, medians, one line of JSON.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock and starts the baseline itself")]

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use belfry_exec::{CaptureLimits, Prepared, RunTag, Spawner, ZygoteCommand, capture, clean_environment, current_user};
use tokio::sync::mpsc;

const ROUNDS: usize = 5;
const STARTS_PER_ROUND: usize = 320;
const AT_ONCE: usize = 8;

fn main() {
    let zygote = zygote_program();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let spawner = runtime
        .block_on(async { Spawner::start(ZygoteCommand { program: zygote, args: vec![] }) })
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
struct Measured {
    per_s: f64,
    cpu_us: f64,
}

struct Comparison {
    ours: Measured,
    std: Measured,
}

fn compare(runtime: &tokio::runtime::Runtime, spawner: &Spawner) -> [Comparison; 2] {
    let mut rounds: [Vec<Measured>; 4] = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        rounds[0].push(measure(spawner, || runtime.block_on(ours(spawner.clone(), STARTS_PER_ROUND))));
        rounds[1].push(measure(spawner, || plain(STARTS_PER_ROUND)));
        rounds[2].push(measure(spawner, || runtime.block_on(ours_at_once(spawner))));
        rounds[3].push(measure(spawner, plain_at_once));
    }
    let [ours, std, ours_at_once, std_at_once] = rounds.map(|rounds| Measured {
        per_s: median(rounds.iter().map(|round| round.per_s).collect()),
        cpu_us: median(rounds.iter().map(|round| round.cpu_us).collect()),
    });
    [Comparison { ours, std }, Comparison { ours: ours_at_once, std: std_at_once }]
}

fn json([one_by_one, at_once]: [Comparison; 2]) -> String {
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
    format!("{{\"one_by_one\":{},\"at_once_{AT_ONCE}\":{}}}", one(one_by_one), one(at_once))
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

async fn ours(spawner: Spawner, count: usize) {
    for _ in 0..count {
        let what = Prepared {
            argv: vec!["/bin/true".into()],
            env: clean_environment(&current_user(), &Default::default()),
            directory: None,
            umask: None,
            identity: None,
            tag: RunTag { run: "bench".into(), attempt: 1 },
        };
        let mut child = spawner.spawn(what).await.expect("start");
        let (sink, _events) = mpsc::channel(4);
        let (_summary, exit) =
            tokio::join!(capture(child.take_output(), CaptureLimits::default(), None, sink), child.wait());
        assert_eq!(exit.status, belfry_exec::ExitStatus::Code(0));
    }
}

async fn ours_at_once(spawner: &Spawner) {
    let lanes: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(ours(spawner.clone(), STARTS_PER_ROUND / AT_ONCE))).collect();
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
