//! `cargo xtask chaos` runs this: one ordeal on one backend, or all planted bugs, and the table of it. `BELFRY_BIN` names the built binary.

use std::process::ExitCode;
use std::time::Duration;

use belfry_testkit::chaos::{self, Backend, Kind, Plan};

fn main() -> ExitCode {
    let plan = match read(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(wrong) => {
            eprintln!("chaos: {wrong}");
            return ExitCode::from(2);
        }
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let report = runtime.block_on(chaos::run(&plan));
    println!("{report}");
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
    let program = std::env::var("BELFRY_BIN").map_err(|_| "BELFRY_BIN must name the built binary".to_owned())?;
    let mut plan = Plan {
        seed: 1,
        faults: 100,
        herd: 250,
        quiet_machine: true,
        aloud: true,
        ..Plan::short(&program, Backend::Postgres, &[])
    };
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
        let number = || value.parse().map_err(|_| format!("{flag}: `{value}` is not a number"));
        match flag.as_str() {
            "--backend" => {
                let known = Backend::ALL.map(Backend::name).join(", ");
                plan.backend = Backend::named(&value).ok_or(format!("--backend: `{value}` is not one of {known}"))?;
            }
            "--seed" => plan.seed = number()?,
            "--faults" => plan.faults = number()? as usize,
            "--ttl" => plan.ttl = Duration::from_secs(number()?),
            "--herd" => plan.herd = number()? as usize,
            "--plant" => plan.planted = Some(value),
            "--busy" => plan.quiet_machine = value != "yes",
            "--bin" => plan.program = value.into(),
            "--keep" => plan.keep = Some(value.into()),
            "--kinds" => {
                for word in value.split(',') {
                    let known: Vec<String> = Kind::ALL.map(Kind::word).to_vec();
                    let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word);
                    plan.kinds.push(kind.ok_or(format!("--kinds: `{word}` is not one of {}", known.join(", ")))?);
                }
            }
            _ => {
                return Err(format!(
                    "`{flag}` is not known; --backend, --seed, --faults, --kinds, --ttl, --herd, --busy, --plant, --bin and --keep are"
                ));
            }
        }
    }
    Ok(plan)
}
