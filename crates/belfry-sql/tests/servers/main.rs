//! What `Postgres` and `MySql` promise, on real servers: one server per kind, a new database for each case.

mod cases;
mod faults;
mod server;

use server::Server;

macro_rules! run_all {
    ($server:expr, $($module:ident :: $case:ident),* $(,)?) => {
        $(
            $module::$case(&mut $server).await;
            println!("{:<10} ok  {}", $server.kind(), stringify!($case));
        )*
    };
}

async fn keeps_its_promises(mut server: Server) {
    run_all!(
        server,
        cases::values_come_back_as_they_went_in,
        cases::a_write_counts_the_rows_that_match,
        cases::a_broken_unique_key_names_its_step,
        cases::a_read_cannot_write,
        cases::writers_of_two_handles_take_effect_in_one_order,
        cases::of_two_that_lock_in_a_ring_both_happen,
        cases::two_processes_migrate_at_once,
        cases::who_has_nothing_to_migrate_waits_for_nobody_who_does,
        cases::migrations_run_once_and_an_unknown_one_is_refused,
        cases::a_commit_waits_for_the_disk,
        cases::a_read_only_replica_is_refused,
        faults::a_server_that_is_away_is_named_without_its_password,
        faults::a_lost_answer_to_a_commit_is_unknown_and_found_applied,
        faults::an_answer_lost_before_the_commit_means_that_nothing_happened,
        faults::a_silent_network_is_told_and_healed,
        faults::a_dropped_write_leaves_no_open_transaction,
        faults::a_killed_server_tells_the_truth_and_is_used_again,
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_keeps_its_promises() {
    keeps_its_promises(Server::Postgres(belfry_testkit::servers::Postgres::start())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_keeps_its_promises() {
    keeps_its_promises(Server::MariaDb(belfry_testkit::servers::MariaDb::start())).await;
}
