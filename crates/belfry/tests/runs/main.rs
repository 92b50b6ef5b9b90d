//! What becomes of runs, on real processes: each test of the list is run against `belfry up`, and against `belfry server` with
//! `belfry agent` over loopback.

mod asked;
mod end;
mod explain;
mod faults;
mod output;
mod overlap;
mod process;
mod retry;
mod schedule;
mod service;

use belfry_testkit::{Belfry, Layout, Setup};

fn setup(layout: Layout) -> Setup {
    Setup::new(env!("CARGO_BIN_EXE_belfry"), layout)
}

async fn start(layout: Layout) -> Belfry {
    setup(layout).start().await
}

/// One list, two ways to start Belfry.
macro_rules! in_both_layouts {
    ($($file:ident::$test:ident),+ $(,)?) => {
        mod in_one_process {
            $(#[tokio::test] async fn $test() { crate::$file::$test(belfry_testkit::Layout::OneProcess).await })+
        }
        mod in_two_processes {
            $(#[tokio::test] async fn $test() { crate::$file::$test(belfry_testkit::Layout::TwoProcesses).await })+
        }
    };
}

in_both_layouts! {
    asked::the_same_key_is_the_same_run,
    asked::a_rerun_names_the_run_it_repeats,
    asked::a_manual_run_may_bring_its_own_environment,
    asked::a_draining_node_gets_no_runs_until_it_is_back,
    asked::old_runs_are_forgotten_when_asked,
    asked::a_paused_job_can_be_run_by_hand,
    end::a_timeout_ends_the_whole_tree,
    end::a_run_that_takes_too_long_goes_on_and_says_so,
    end::the_clusters_timeout_holds_for_jobs_without_their_own,
    end::what_runs_print_is_in_files_of_their_node_too,
    end::a_killed_run_leaves_no_process,
    end::killing_a_job_ends_all_of_its_runs,
    end::a_run_that_ignores_term_is_killed_after_the_grace,
    end::sigterm_lets_running_work_finish,
    end::sigterm_ends_what_does_not_finish_in_time,
    explain::an_instant_is_explained_from_its_fire_to_its_end,
    faults::a_run_that_is_cut_short_is_lost,
    faults::a_full_disk_is_said_and_survived,
    output::both_streams_are_kept_apart_and_in_order,
    output::bytes_that_are_not_text_are_kept,
    output::output_beyond_what_is_kept_is_cut_in_the_middle,
    output::output_that_names_a_failure_fails_the_run,
    output::a_follower_gets_a_line_while_the_run_goes_on,
    overlap::forbid_skips_while_a_run_goes_on,
    overlap::queue_runs_them_one_after_the_other,
    overlap::allow_runs_them_side_by_side,
    overlap::replace_ends_the_older_run,
    overlap::forced_runs_ignore_the_rule,
    process::a_run_has_the_documented_environment,
    process::the_exit_code_decides_and_is_recorded,
    process::a_command_that_is_not_found_names_the_path_that_was_searched,
    process::exec_takes_its_arguments_as_they_are,
    process::stdin_is_empty_and_the_directory_is_the_jobs,
    retry::each_attempt_has_its_output_its_number_and_a_growing_fence,
    retry::only_the_listed_ends_are_tried_again,
    retry::a_run_that_waits_is_seen_has_its_turn_and_can_be_killed,
    retry::a_change_of_the_job_is_judged_when_the_next_attempt_is_due,
    retry::a_later_run_replaces_one_that_waits,
    retry::a_next_attempt_that_finds_no_node_ends_the_run_as_the_last_one_ended,
    retry::a_retry_that_waits_survives_the_end_of_all_processes,
    retry::what_was_cut_short_starts_again_when_lost_is_listed,
    service::a_service_is_started_again_and_shown_and_stopped_when_it_is_paused,
    service::one_that_ignores_term_is_killed_after_the_grace_of_its_job,
    service::one_that_floods_both_of_its_pipes_and_never_ends_delays_no_other,
    schedule::every_second_fires_on_time_and_once,
    schedule::several_schedules_on_one_instant_are_one_fire,
    schedule::every_counts_from_the_creation,
    schedule::at_fires_once,
    schedule::after_counts_from_the_end_of_the_run_before,
    schedule::jitter_delays_the_start_and_not_the_plan,
    schedule::what_is_claimed_ahead_is_cancelled_by_a_pause,
    schedule::what_is_claimed_ahead_is_cancelled_by_a_changed_schedule,
    schedule::what_is_claimed_ahead_is_cancelled_by_removal,
    schedule::what_is_claimed_ahead_runs_as_the_job_is_at_its_instant,
    schedule::a_resumed_job_goes_on_and_owes_nothing,
    schedule::missed_fires_follow_the_rule,
}

mod with_one_of_two_processes_gone {
    #[tokio::test]
    async fn a_server_that_is_killed_does_not_end_what_runs() {
        crate::faults::a_server_that_is_killed_does_not_end_what_runs().await;
    }

    #[tokio::test]
    async fn what_a_stopping_agent_ends_starts_again_when_lost_is_listed() {
        crate::retry::what_a_stopping_agent_ends_starts_again_when_lost_is_listed().await;
    }

    #[tokio::test]
    async fn an_agent_that_is_killed_loses_its_runs_and_comes_back() {
        crate::faults::an_agent_that_is_killed_loses_its_runs_and_comes_back().await;
    }
}
