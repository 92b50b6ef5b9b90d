//! What every database under the store must keep, one named case per promise. `store_conformance!(open)` makes a test of each;
//! `open` gives an empty store and whatever must outlive it.

pub mod attempts;
pub mod audit;
pub mod deliveries;
pub mod jobs;
pub mod nodes;
pub mod output;
pub mod retention;
pub mod runs;
pub mod scripts;
pub mod standings;
pub mod users;

pub mod sample;

#[macro_export]
macro_rules! store_conformance {
    ($open:path) => {
        $crate::store_conformance!(@each $open;
            jobs::a_name_is_held_by_one_living_job,
            jobs::the_definition_of_an_instant_is_found,
            jobs::a_removed_job_frees_its_name_and_keeps_its_history,
            jobs::of_two_editors_exactly_one_wins,
            jobs::a_schedule_counts_from_its_change_only,
            jobs::changes_in_one_moment_count_from_different_instants,
            jobs::apply_changes_all_or_nothing,
            jobs::apply_reuses_a_name_that_it_frees,
            jobs::followers_miss_no_change_under_concurrency,
            jobs::every_edit_has_its_audit_row_and_secrets_have_none,
            jobs::pages_of_jobs_visit_each_once_while_jobs_are_created,
            jobs::lists_filter_by_namespace_text_label_and_state,
            jobs::lists_filter_by_how_jobs_do,
            jobs::a_cold_start_loads_every_living_job,
            runs::a_run_comes_back_as_it_was_recorded,
            runs::what_a_database_would_refuse_is_recorded_all_the_same,
            runs::a_record_never_goes_back,
            runs::a_run_that_waits_shows_what_it_waits_for_now,
            runs::what_was_decided_about_a_place_stays,
            runs::the_last_node_of_each_job_is_found,
            runs::a_late_result_corrects_lost_and_nothing_else,
            runs::a_batch_keeps_the_furthest_record_of_each_run,
            runs::a_key_belongs_to_its_first_run,
            runs::pages_visit_each_run_once_while_runs_are_inserted,
            runs::filters_find_exactly_what_matches,
            runs::counts_equal_a_recount,
            runs::an_end_that_several_bring_at_once_counts_once,
            runs::recent_runs_are_the_newest_of_each_job,
            standings::standings_equal_a_recount,
            standings::an_end_counts_once_in_its_jobs_standing_whoever_brings_it,
            standings::a_late_result_corrects_the_standing_that_lost_had_made,
            standings::usual_comes_from_the_newest_hundred_successes,
            standings::standings_are_built_from_the_history_that_is_there,
            standings::standings_outlive_what_retention_forgets_but_not_their_jobs,
            attempts::an_attempt_comes_back_as_it_was_recorded,
            attempts::an_attempt_is_final_except_lost,
            attempts::attempts_go_with_their_runs,
            deliveries::an_end_and_its_delivery_are_recorded_together,
            deliveries::only_the_ends_that_a_job_names_are_told,
            deliveries::an_end_that_several_bring_at_once_is_told_once,
            deliveries::lost_that_is_corrected_is_told_again,
            deliveries::a_run_that_takes_too_long_is_told_once_beside_its_end,
            deliveries::what_waits_for_one_receiver_hides_nothing_from_another,
            deliveries::a_try_moves_a_delivery_on_and_its_end_is_final,
            deliveries::deliveries_go_with_their_runs_but_not_while_they_wait,
            output::output_is_kept_byte_for_byte,
            output::offsets_may_be_whatever_somebody_says,
            output::a_chunk_sent_twice_is_kept_once,
            output::reads_are_bounded_and_the_tail_is_the_end,
            output::output_that_is_told_as_a_whole_is_kept_with_its_run_and_once,
            output::of_two_who_tell_another_output_one_is_kept_whole,
            retention::runs_go_by_age_unless_their_job_says_otherwise,
            retention::runs_go_by_count_and_the_newest_stay,
            retention::what_has_not_ended_stays,
            retention::runs_before_an_instant_go_on_demand,
            retention::pruning_goes_in_bounded_batches,
            scripts::a_script_has_versions_and_the_newest_counts,
            scripts::a_script_that_jobs_use_is_not_removed,
            users::an_admin_always_stays,
            users::of_two_admins_who_remove_each_other_one_stays,
            users::a_secret_is_good_until_it_expires_or_its_user_is_disabled,
            users::a_new_password_ends_sessions,
            audit::pages_visit_each_entry_once_whatever_its_clock_said,
            audit::a_list_that_began_by_number_goes_on_so,
            nodes::a_node_keeps_what_people_set,
            nodes::a_join_token_lets_one_node_in,
            nodes::of_many_who_join_with_one_token_one_is_let_in,
            nodes::settings_agree_for_all_who_start_together,
        );
    };
    (@each $open:path; $($noun:ident :: $case:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let (store, _alive) = $open().await;
                $crate::conformance::$noun::$case(store).await;
            }
        )*
    };
}

#[cfg(test)]
mod on_sqlite {
    use std::sync::Arc;

    use belfry_sql::{Sqlite, SqliteOptions};

    use crate::Store;

    async fn open() -> (Store, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let db = Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap();
        (Store::open(Arc::new(db)).await.unwrap(), folder)
    }

    crate::store_conformance!(open);
}
