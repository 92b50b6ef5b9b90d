//! The bugs that are planted in the shipped code behind switches (`belfry_core::planted`), and which test sees each of them: every test
//! below is run once more with its bug in place, in a process of its own, and must fail with the words that name what it saw.

use std::process::Command;

/// One bug.
pub struct Planted {
    /// In DESIGN §12, and counted on.
    pub number: u8,
    pub switch: &'static str,
    /// Crate and test program.
    pub suite: &'static str,
    pub test: &'static str,
    /// In what the failing test says.
    pub seen_as: &'static str,
}

const fn planted(
    number: u8,
    switch: &'static str,
    suite: &'static str,
    test: &'static str,
    seen_as: &'static str,
) -> Planted {
    Planted { number, switch, suite, test, seen_as }
}

const AGENT: &str = "belfry-agent/it";
const BACKENDS: &str = "belfry-coord/backends";
const CHAOS: &str = "belfry/chaos";
const CONTROL: &str = "belfry-control/it";
const KILL9: &str = "belfry/kill9";
const LIVENESS: &str = "belfry-coord/liveness";

/// The tests of `belfry/chaos` and `belfry/kill9` plant their bugs by themselves: for them it is the verdict that is named.
pub const PLANTED: &[Planted] = &[
    planted(1, "commit_without_guards", CONTROL, "takeover::a_deposed_server_starts_nothing_more", "started by both"),
    planted(
        2,
        "order_for_another_incarnation_taken",
        AGENT,
        "orders::an_order_for_another_incarnation_is_refused_for_ever",
        "another incarnation",
    ),
    planted(
        2,
        "order_not_bound_to_incarnation",
        KILL9,
        "an_order_that_is_not_bound_to_an_incarnation_is_caught_as_doubles",
        "doubled",
    ),
    planted(
        3,
        "agent_forgets_taken_runs",
        AGENT,
        "orders::the_same_order_again_starts_nothing_and_is_answered_with_all_that_is_known",
        "it was started again",
    ),
    planted(4, "node_not_named_in_the_claim", CHAOS, "a_claim_that_names_no_node_is_caught_as_doubled", "doubled"),
    planted(
        5,
        "refusal_not_remembered",
        AGENT,
        "orders::an_order_for_another_incarnation_is_refused_for_ever",
        "another incarnation",
    ),
    planted(6, "start_without_trust", AGENT, "trust::nothing_is_started_after_contact_was_lost", "succeeded"),
    planted(8, "commit_repeated_without_looking", BACKENDS, "memory_conforms", "cases failed on memory"),
    planted(9, "no_barrier_before_the_next_commit", BACKENDS, "memory_conforms", "cases failed on memory"),
    planted(12, "lost_run_is_forgotten", KILL9, "a_lost_run_that_is_forgotten_is_caught_as_unaccounted", "unaccounted"),
    planted(
        13,
        "acknowledged_on_receipt",
        KILL9,
        "a_result_acknowledged_before_it_is_stored_is_caught_as_lost_without_cause",
        "lost without cause",
    ),
    planted(
        14,
        "owner_never_looks_into_the_store",
        CONTROL,
        "cluster::an_end_told_to_another_server_closes_the_run_at_its_owner",
        "the owner never learned of the end",
    ),
    planted(
        16,
        "cursor_is_a_bare_instant",
        CONTROL,
        "cluster::a_cursor_inside_a_herd_neither_skips_nor_repeats",
        "left: []",
    ),
    planted(17, "takeover_unguarded", LIVENESS, "a_takeover_guarded_by_an_old_heartbeat_is_refused", "unwrap_err"),
    planted(18, "trust_from_reply", LIVENESS, "trust_counts_from_send", "left: "),
    planted(19, "no_shim", CHAOS, "services_without_a_shim_are_caught_as_running_twice", "service"),
    planted(27, "local_cursor_forgotten", CHAOS, "a_node_that_forgets_how_far_it_came_is_caught_as_doubled", "doubled"),
    planted(20, "lower_term_obeyed", AGENT, "orders::orders_of_a_lower_term_are_not_obeyed", "does not own the shard"),
    planted(
        26,
        "old_list_believed",
        CONTROL,
        "takeover::a_new_owner_waits_for_a_list_that_is_not_older_than_its_taking",
        "the run was left out",
    ),
    planted(
        25,
        "end_taken_without_its_output",
        CONTROL,
        "store_away::an_end_is_taken_only_with_all_of_the_output_before_it",
        "acknowledged without its output",
    ),
];

/// Each test of this suite that a planted bug must make fail does so.
#[expect(clippy::disallowed_methods, reason = "the test program starts itself with another environment")]
pub fn are_caught_in(suite: &str) {
    let of_suite: Vec<&Planted> = PLANTED.iter().filter(|planted| planted.suite == suite).collect();
    assert!(!of_suite.is_empty(), "no bug is planted for {suite}");
    let mut missed = Vec::new();
    for Planted { number, switch, test, seen_as, .. } in of_suite {
        let itself = std::env::current_exe().expect("the test program");
        let run = Command::new(itself)
            .args(["--exact", test, "--nocapture"])
            .env("BELFRY_PLANTED_BUG", switch)
            .env("RUST_BACKTRACE", "0")
            .output();
        let output = run.expect("the test program starts itself");
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        let ran = said.contains("1 failed");
        if output.status.success() || !ran || !said.contains(seen_as) {
            missed.push(format!("{number} {switch}: {test} did not fail with `{seen_as}`, but said:\n{said}"));
        } else {
            eprintln!("{number:>3} {switch}: caught by {test} as `{seen_as}`");
        }
    }
    assert!(missed.is_empty(), "planted bugs that were not seen:\n{}", missed.join("\n"));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn at_least_twelve_bugs_of_the_design_are_planted() {
        let numbers: BTreeSet<u8> = PLANTED.iter().map(|planted| planted.number).collect();
        assert!(numbers.len() >= 12, "{numbers:?}");
    }
}
