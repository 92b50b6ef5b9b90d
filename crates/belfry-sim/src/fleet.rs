//! Seeds in processes of their own, a few at a time, and what became of all of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::time::Instant;

use anyhow::{Context, bail};
use belfry_sim::{Report, Verdict, randomness, simulate};
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{ForkResult, Pid, fork, pipe};

pub struct Fleet {
    pub first: u64,
    pub count: u64,
    pub jobs: usize,
    pub until_wrong: bool,
}

/// A seed takes a fraction of a second; one that takes so long hangs.
const SEED_SECONDS_MAX: u32 = 120;
/// Of each verdict.
const SHOWN_PER_SEED_MAX: usize = 3;

struct Running {
    seed: u64,
    report: File,
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    wrong: Vec<u64>,
    numbers: BTreeMap<String, u64>,
}

impl Fleet {
    /// True when no seed went wrong.
    #[expect(clippy::disallowed_methods, reason = "how long the machine takes is measured on its clock")]
    pub fn run(&self) -> anyhow::Result<bool> {
        let began = Instant::now();
        keep_freed_memory();
        let mut running: BTreeMap<Pid, Running> = BTreeMap::new();
        let mut totals = Totals::default();
        let mut next = self.first;
        loop {
            let is_enough = self.until_wrong && !totals.wrong.is_empty();
            while running.len() < self.jobs && next < self.first + self.count && !is_enough {
                let (pid, one) = start(next)?;
                running.insert(pid, one);
                next += 1;
            }
            if running.is_empty() {
                break;
            }
            let status = wait().context("wait for a seed")?;
            let Some(one) = status.pid().and_then(|pid| running.remove(&pid)) else { continue };
            totals.add(one, status)?;
        }
        totals.print(self, began.elapsed().as_secs_f64());
        Ok(totals.wrong.is_empty())
    }
}

/// SQLite's, which comes from the C library: what it gives back after each transaction would be asked for again with the next, and a fresh
/// page costs the kernel more than what SQLite does with it. A sixth of a seed's time was that.
#[expect(unsafe_code, reason = "no library has it")]
fn keep_freed_memory() {
    for (what, bytes) in
        [(libc::M_TOP_PAD, 16 << 20), (libc::M_MMAP_THRESHOLD, 1 << 30), (libc::M_TRIM_THRESHOLD, 1 << 30)]
    {
        // SAFETY: it sets a number, before there is a second thread.
        unsafe { libc::mallopt(what, bytes) };
    }
}

#[expect(unsafe_code, reason = "fork: each seed begins with the same memory, whatever ran before it")]
fn start(seed: u64) -> anyhow::Result<(Pid, Running)> {
    let (read, write) = pipe().context("make a pipe")?;
    // SAFETY: this process has one thread, so the child's memory is whole.
    match unsafe { fork() }.context("fork")? {
        ForkResult::Parent { child } => Ok((child, Running { seed, report: read.into() })),
        ForkResult::Child => {
            nix::unistd::alarm::set(SEED_SECONDS_MAX);
            drop(read);
            let text = run_here(seed, false).unwrap_or_else(|cause| format!("WRONG Panicked: {cause:#}\n"));
            let written = File::from(write).write_all(text.as_bytes());
            std::process::exit(i32::from(written.is_err()))
        }
    }
}

/// In a fresh thread, whose hash maps begin with the seed's own keys.
pub fn run_here(seed: u64, trace: bool) -> anyhow::Result<String> {
    let thread = std::thread::Builder::new().name(format!("seed {seed}")).spawn(move || {
        randomness::seed(seed);
        simulate(seed, trace)
    })?;
    match thread.join() {
        Ok(report) => Ok(text(&report?)),
        Err(_) => bail!("it panicked; the message stands above"),
    }
}

fn text(report: &Report) -> String {
    let mut text = format!("trace {:016x} of {} events\n", report.trace, report.events);
    let mut number = |name: &str, number: u64| text.push_str(&format!("{number} {name}\n"));
    number("fires due", report.fires as u64);
    number("starts", report.starts as u64);
    number("seats taken over", report.takeovers);
    number("nodes marked lost", report.marked_lost);
    report.faults.iter().for_each(|(kind, count)| number(&format!("fault: {kind}"), *count));
    report.states.iter().for_each(|(state, count)| number(&format!("runs {state}"), *count));
    let mut shown: BTreeMap<Verdict, usize> = BTreeMap::new();
    for wrong in &report.wrong {
        let count = shown.entry(wrong.verdict).or_default();
        *count += 1;
        if *count > SHOWN_PER_SEED_MAX {
            continue;
        }
        text.push_str(&format!("WRONG {:?}: {}\n", wrong.verdict, wrong.what));
    }
    text
}

impl Totals {
    fn add(&mut self, mut one: Running, status: WaitStatus) -> anyhow::Result<()> {
        self.seeds += 1;
        let mut report = String::new();
        one.report.read_to_string(&mut report).context("read a seed's report")?;
        if !matches!(status, WaitStatus::Exited(_, 0)) {
            report.push_str(&format!("WRONG Panicked: the seed ended with {status:?}\n"));
        }
        for line in report.lines() {
            if line.starts_with("WRONG") {
                println!("seed {}: {line}", one.seed);
                if self.wrong.last() != Some(&one.seed) {
                    self.wrong.push(one.seed);
                }
            } else if let Some((number, name)) = line.split_once(' ')
                && let Ok(number) = number.parse::<u64>()
            {
                *self.numbers.entry(name.to_owned()).or_default() += number;
            } else if let Some(trace) = line.strip_prefix("trace ") {
                let trace = trace.split(' ').next().unwrap_or_default();
                let trace = u64::from_str_radix(trace, 16).unwrap_or_default();
                // In any order: seeds end when they end.
                let all = self.numbers.entry("trace of all".to_owned()).or_default();
                *all ^= trace.rotate_left((one.seed % 64) as u32);
            }
        }
        Ok(())
    }

    fn print(&self, fleet: &Fleet, seconds: f64) {
        for (name, number) in &self.numbers {
            match name.as_str() {
                "trace of all" => println!("{number:>16x}  {name}"),
                _ => println!("{number:>16}  {name}"),
            }
        }
        println!("{:>16}  seeds of 10 simulated minutes in {seconds:.1} s, {} at a time", self.seeds, fleet.jobs);
        match self.wrong.first() {
            None => println!("{:>16}  went wrong", 0),
            Some(seed) => {
                println!(
                    "{:>16}  went wrong; look at the first: cargo xtask sim --seed {seed} --trace",
                    self.wrong.len()
                );
            }
        }
    }
}
