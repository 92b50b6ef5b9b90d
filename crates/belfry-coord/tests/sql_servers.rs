//! The conformance suite on PostgreSQL and MariaDB, directly and through a proxy, printed as backend × case; and commits whose
//! answer a real network lost.

use std::sync::Arc;

use belfry_coord::conformance::{CaseReport, conformance, conformance_over_a_network};
use belfry_coord::{Commit, Coordinator, Guard, SqlCoordinator, Users, Write};
use belfry_sql::{Database, MySql, Postgres};
use belfry_testkit::{Proxy, servers};

async fn on(database: impl Database) -> Arc<dyn Coordinator> {
    Arc::new(SqlCoordinator::open(Arc::new(database), Users::Many).await.unwrap())
}

fn all_held(backend: &str, reports: &[CaseReport]) {
    for report in reports {
        println!("{backend:<18} {report}");
    }
    let failed = reports.iter().filter(|report| report.verdict.is_err()).count();
    assert_eq!(failed, 0, "{failed} of {} cases failed on {backend}", reports.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_conforms() {
    let server = servers::Postgres::start();
    let direct = || async { on(Postgres::connect(&server.fresh_database()).await.unwrap()).await };
    all_held("postgres", &conformance(direct).await);
    let proxy = Proxy::before(&server.address());
    let behind = |name: String| {
        let url = server.url_of(&proxy.address(), &name);
        async move { on(Postgres::connect(&url).await.unwrap()).await }
    };
    let lose = |_: &str| proxy.lose_answer_to(b"COMMIT\0");
    let behind_new = || behind(server.fresh_database_name());
    all_held("postgres (proxy)", &conformance_over_a_network(behind_new, &lose).await);
    assert!(proxy.answers_lost() > 5, "{} answers were lost", proxy.answers_lost());
    let name = server.fresh_database_name();
    let coordinator = behind(name.clone()).await;
    let witness = on(Postgres::connect(&server.url(&name)).await.unwrap()).await;
    proxy.lose_answer_to(b"COMMIT\0");
    a_lost_answer_is_unknown_and_applied(&*coordinator, &*witness).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_conforms() {
    let server = servers::MariaDb::start();
    let direct = || async { on(MySql::connect(&server.fresh_database()).await.unwrap()).await };
    all_held("mariadb", &conformance(direct).await);
    let proxy = Proxy::before(&server.address());
    let behind = |name: String| {
        let url = server.url_of(&proxy.address(), &name);
        async move { on(MySql::connect(&url).await.unwrap()).await }
    };
    let lose = |_: &str| proxy.lose_answer_to(b"\x03COMMIT");
    let behind_new = || behind(server.fresh_database_name());
    all_held("mariadb (proxy)", &conformance_over_a_network(behind_new, &lose).await);
    assert!(proxy.answers_lost() > 5, "{} answers were lost", proxy.answers_lost());
    let name = server.fresh_database_name();
    let coordinator = behind(name.clone()).await;
    let witness = on(MySql::connect(&server.url(&name)).await.unwrap()).await;
    proxy.lose_answer_to(b"\x03COMMIT");
    a_lost_answer_is_unknown_and_applied(&*coordinator, &*witness).await;
}

/// The proxy waits for the commit as it goes over the wire; the session's set-up has the word COMMITTED in it.
async fn a_lost_answer_is_unknown_and_applied(coordinator: &dyn Coordinator, witness: &dyn Coordinator) {
    let create = || vec![Write::Put("jobs/a".into(), "1".into())];
    let absent = || vec![Guard::Absent("jobs/a".into())];
    let error = coordinator.commit(absent(), create()).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
    let found = witness.get("jobs/a").await.unwrap().expect("it was applied");
    assert!(matches!(coordinator.commit(absent(), create()).await, Ok(Commit::Conflict { key }) if key == "jobs/a"));
    let guard = vec![Guard::At("jobs/a".into(), found.version)];
    assert!(
        matches!(coordinator.commit(guard, create()).await, Ok(Commit::Applied(version)) if version > found.version)
    );
}
