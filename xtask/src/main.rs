//! The project's own commands: `cargo xtask up | console | test | check | bench | sim | chaos`. It runs other programs and prints tables; what a
//! command of Belfry itself does is never done here.
#![expect(
    clippy::disallowed_methods,
    reason = "a build tool starts programs and measures them with the real clock; nothing here is simulated"
)]

mod bench;
mod benches;
mod chaos;
mod console;
mod json;
mod sim;
mod steps;
mod suites;
mod table;
mod tools;
mod up;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  up              build Belfry, run it here with its data in .belfry, and add a few example jobs
  console         build the console with npm, if its sources have changed; the server that is built then carries it
  test [--fast]   install what the tests need, then format, lints and every test; --fast leaves the lints out
  check           format and lints only
  bench [NAME]    measure in release mode and print ratios against their aims; all of them, or one
  sim [OPTIONS]   simulate whole clusters with faults: --seeds N [--seed S]; --seed S --trace shows one of them
  chaos [--backend B] [--seed N] [--faults K] [--kinds KIND,..] [--ttl SECONDS] [--plant BUG] [--keep FOLDER]
                  let a cluster of real processes suffer faults, and judge what became of its fires
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["up"] => up::up(),
        [up::ADD_EXAMPLES] => up::add_examples_apart(),
        [up::ADD_EXAMPLES, "now"] => up::add_examples(),
        ["console"] => console::build().map(|_| true),
        ["test"] => steps::test(steps::Lints::Checked),
        ["test", "--fast"] => steps::test(steps::Lints::LeftOut),
        ["check"] => steps::check(),
        ["bench"] => bench::bench(None),
        ["bench", name] => bench::bench(Some(name)),
        ["sim", options @ ..] => sim::sim(options),
        ["chaos", words @ ..] => chaos::chaos(words),
        [] | ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(true)
        }
        _ => {
            eprint!("xtask: `{}` is not understood\n\n{HELP}", words.join(" "));
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(cause) => {
            eprintln!("xtask: {cause:#}");
            ExitCode::FAILURE
        }
    }
}
