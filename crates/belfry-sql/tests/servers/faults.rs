//! Promises while the network or the server fails: no error claims more than is known.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use belfry_sql::{Database, MySql, Postgres, SqlError, Written, sql};
use belfry_testkit::Proxy;

use crate::server::{Server, ids, insert, refused_at};

/// In the arguments of a step, for the proxy to know it by.
const MARKER: &[u8] = b"a-step-before-the-commit";

pub async fn a_server_that_is_away_is_named_without_its_password(server: &mut Server) {
    let proxy = Proxy::before(&server.address());
    let address = proxy.address();
    proxy.cut();
    let error = match server {
        Server::Postgres(_) => Postgres::connect(&format!("postgres://joe:s3cret@{address}/b")).await.unwrap_err(),
        Server::MariaDb(_) => MySql::connect(&format!("mysql://joe:s3cret@{address}/b")).await.unwrap_err(),
    };
    assert!(matches!(error, SqlError::Away(_)), "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(text.contains(&address) && !text.contains("s3cret") && !text.contains("joe"), "{text}");
    let missing = server.connect_at(&server.address(), "no_such_database").await.err().unwrap();
    assert!(matches!(&missing, SqlError::Broken(says) if says.contains("no_such_database")), "{missing:?}");
}

async fn behind(server: &Server, proxy: &Proxy) -> (Arc<dyn Database>, Arc<dyn Database>) {
    let name = server.fresh_name();
    let direct = server.connect(&name).await;
    direct.migrate("test", server.table()).await.unwrap();
    (server.connect_at(&proxy.address(), &name).await.unwrap(), direct)
}

pub async fn a_lost_answer_to_a_commit_is_unknown_and_found_applied(server: &mut Server) {
    let proxy = Proxy::before(&server.address());
    let (database, direct) = behind(server, &proxy).await;
    for id in 0..3 {
        proxy.lose_answer_to(server.commit());
        let error = database.write(vec![insert(id).touching(1)]).await.unwrap_err();
        assert!(error.outcome_unknown() && error.is_transient(), "{error:?}");
        assert_eq!(ids(&*direct).await, (0..=id).collect::<Vec<_>>());
    }
    assert_eq!(proxy.answers_lost(), 3);
    assert_eq!(refused_at(database.write(vec![insert(2).touching(1)]).await), Some(0), "and the handle works again");
}

pub async fn an_answer_lost_before_the_commit_means_that_nothing_happened(server: &mut Server) {
    let proxy = Proxy::before(&server.address());
    let (database, direct) = behind(server, &proxy).await;
    let marked = || sql!("INSERT INTO marks (id, word, body) VALUES (?, 'x', ?)", 2, MARKER);
    proxy.lose_answer_to(MARKER);
    let error = database.write(vec![insert(1).touching(1), marked().touching(1)]).await.unwrap_err();
    assert!(matches!(error, SqlError::Away(_)), "{error:?}");
    assert_eq!(proxy.answers_lost(), 1);
    assert_eq!(ids(&*direct).await, [0i64; 0]);
    assert_eq!(refused_at(database.write(vec![insert(1).touching(1), marked().touching(1)]).await), None);
    // Connections that died while they lay idle are no reason to fail.
    proxy.cut();
    proxy.heal();
    assert_eq!(ids(&*database).await, [1, 2]);
    assert_eq!(refused_at(database.write(vec![insert(3).touching(1)]).await), None);
}

pub async fn a_silent_network_is_told_and_healed(server: &mut Server) {
    let proxy = Proxy::before(&server.address());
    let (database, direct) = behind(server, &proxy).await;
    assert_eq!(refused_at(database.write(vec![insert(1).touching(1)]).await), None);
    assert_eq!(ids(&*database).await, [1]);
    proxy.stall();
    let (read, written) =
        tokio::join!(database.read(sql!("SELECT 1 FROM marks")), database.write(vec![insert(2).touching(1)]));
    assert!(matches!(read, Err(SqlError::Away(_))), "{read:?}");
    assert!(matches!(written, Err(SqlError::Away(_))), "{written:?}");
    proxy.heal();
    assert_eq!(ids(&*database).await, [1], "it was told that nothing happened");
    assert_eq!(refused_at(database.write(vec![insert(2).touching(1)]).await), None);
    assert_eq!(ids(&*direct).await, [1, 2]);
}

pub async fn a_dropped_write_leaves_no_open_transaction(server: &mut Server) {
    // MariaDB's list of transactions stays as it is while it is asked for more than ten times a second.
    const LOOK_AFTER: Duration = Duration::from_millis(150);
    let database = server.marks().await;
    for id in 0..3 {
        let mut steps = vec![insert(id).touching(1)];
        steps.extend((0..4).map(|_| server.sleep(1).anything()));
        let mut write = Box::pin(database.write(steps));
        while server.open_transactions() == 0 {
            let polled = tokio::time::timeout(LOOK_AFTER, &mut write).await;
            assert!(polled.is_err(), "it was not to end yet");
        }
        drop(write);
        // The server sees at the end of a statement that nobody listens.
        while server.open_transactions() > 0 {
            tokio::time::sleep(LOOK_AFTER).await;
        }
        assert_eq!(ids(&*database).await, [0i64; 0]);
    }
    assert_eq!(refused_at(database.write(vec![insert(0).touching(1)]).await), None);
}

pub async fn a_killed_server_tells_the_truth_and_is_used_again(server: &mut Server) {
    let database = server.marks().await;
    for round in 0..2 {
        let writers = (0..16).map(|writer| {
            let database = database.clone();
            async move {
                let mut told = BTreeMap::new();
                for id in (round * 100_000 + writer..).step_by(16) {
                    let written = database.write(vec![insert(id).touching(1)]).await;
                    let failed = written.is_err();
                    told.insert(id, written);
                    if failed {
                        break;
                    }
                }
                told
            }
        });
        let killed = async {
            loop {
                let count = database.read(sql!("SELECT COUNT(*) FROM marks")).await.unwrap()[0].int(0);
                if count > (round + 1) * 200 {
                    break;
                }
            }
            server.kill();
        };
        let (told, ()) = tokio::join!(futures_util::future::join_all(writers), killed);
        let away = database.read(sql!("SELECT 1 FROM marks")).await.unwrap_err();
        assert!(matches!(away, SqlError::Away(_)), "{away:?}");
        server.restart();
        let there = ids(&*database).await;
        for (id, told) in told.into_iter().flatten() {
            let is_there = there.binary_search(&id).is_ok();
            match told {
                Ok(Written::Done(_)) => assert!(is_there, "{id} was told to be safe"),
                Ok(Written::Refused { step, .. }) => panic!("{id} was refused at {step}"),
                Err(SqlError::Unknown) => {}
                Err(SqlError::Away(_)) => assert!(!is_there, "{id} was told to be nothing"),
                Err(other) => panic!("{id}: {other:?}"),
            }
        }
        assert_eq!(refused_at(database.write(vec![insert(-1 - round).touching(1)]).await), None);
    }
}
