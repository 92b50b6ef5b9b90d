//! `belfry-sim [--seeds N] [--seed S]`: runs seeds and says which ones went wrong. Each has a process of its own, so that nothing is
//! left of another seed's, and a seed that hangs or dies is found as well.

mod fleet;

use std::process::ExitCode;

use fleet::{Fleet, run_here};

/// As in Belfry itself; a simulation does little else than to allocate.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const HELP: &str = "\
belfry-sim [--seeds N] [--seed S] [--jobs J] [--until-wrong] [--trace]

  --seeds N      so many seeds, one after the other from S on; default 1,000, or 1 when S is given
  --seed S       the first seed; default 1
  --jobs J       at the same time; default: one per core
  --until-wrong  ends with the first seed that goes wrong
  --trace        runs seed S alone and prints all that happens; RUST_LOG=info adds what servers and agents say
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words = words.iter().map(String::as_str);
    let (mut seeds, mut seed, mut until_wrong, mut trace) = (None, None, false, false);
    let mut jobs = std::thread::available_parallelism().map_or(1, usize::from);
    while let Some(word) = words.next() {
        let mut number = || words.next().and_then(|text| text.parse::<u64>().ok());
        let understood = match word {
            "--seeds" => number().map(|n| seeds = Some(n)).is_some(),
            "--seed" => number().map(|n| seed = Some(n)).is_some(),
            "--jobs" => number().map(|n| jobs = n.max(1) as usize).is_some(),
            "--until-wrong" => std::mem::replace(&mut until_wrong, true) || until_wrong,
            "--trace" => std::mem::replace(&mut trace, true) || trace,
            "--help" | "-h" => {
                print!("{HELP}");
                return ExitCode::SUCCESS;
            }
            _ => false,
        };
        if !understood {
            eprint!("belfry-sim: `{word}` is not understood\n\n{HELP}");
            return ExitCode::from(2);
        }
    }
    let count = seeds.unwrap_or(if seed.is_some() { 1 } else { 1000 });
    let first = seed.unwrap_or(1);
    let all_went_well = if trace {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
        run_here(first, true).map(|text| {
            print!("{text}");
            !text.contains("WRONG")
        })
    } else {
        Fleet { first, count, jobs, until_wrong }.run()
    };
    match all_went_well {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(cause) => {
            eprintln!("belfry-sim: {cause:#}");
            ExitCode::FAILURE
        }
    }
}
