//! Promises while nothing fails.

use std::time::Duration;

use belfry_sql::{Dialect, Migration, SqlError, Value, Written, sql};

use crate::server::{Server, ids, insert, refused_at};

pub async fn values_come_back_as_they_went_in(server: &mut Server) {
    let database = server.marks().await;
    let words = ["", "钟楼 🔔 %_'\\", "what? \\' -- ?\n\"", "a "];
    let bodies = [vec![], vec![0, 255, 0, 39, 92], (0..1 << 20).map(|i| (i % 251) as u8).collect::<Vec<u8>>()];
    let numbers = [i64::MIN, -1, 0, i64::MAX];
    for (i, id) in numbers.into_iter().enumerate() {
        let body = bodies.get(i).cloned();
        let share = (i > 0).then_some(i as f64 / 3.0);
        let row = sql!("INSERT INTO marks (id, word, body, share) VALUES (?, ?, ?, ?)", id, words[i], body, share);
        assert_eq!(refused_at(database.write(vec![row.touching(1)]).await), None);
    }
    // The first row has no share: a placeholder must not stay what it was when it was NULL.
    let rows = database.read(sql!("SELECT id, word, body, share FROM marks ORDER BY id")).await.unwrap();
    for (i, id) in numbers.into_iter().enumerate() {
        let body = bodies.get(i).map_or(Value::Null, |body| Value::Blob(body.clone()));
        let share = if i > 0 { Value::Real(i as f64 / 3.0) } else { Value::Null };
        assert_eq!(rows[i].0, [Value::Int(id), Value::Text(words[i].into()), body, share], "row {i}");
    }
    let found =
        sql!("SELECT word = '?', '?', COUNT(*), SUM(id), NULL FROM marks WHERE word = ? GROUP BY word", words[1]);
    let found = database.read(found).await.unwrap();
    assert_eq!((found[0].int(0), found[0].text(1), found[0].int(2), found[0].int(3)), (0, "?", 1, -1));
    assert_eq!(found[0].opt_int(4), None);
    // SUM is a decimal, which fits 64 bits or is a fraction.
    let sum = database.read(sql!("SELECT SUM(id), SUM(id) / 2 FROM marks WHERE id < ?", 5)).await.unwrap();
    assert!(matches!(sum[0].get(0), Value::Real(below) if *below < i64::MIN as f64 + 1e6), "{sum:?}");
}

pub async fn a_write_counts_the_rows_that_match(server: &mut Server) {
    let database = server.marks().await;
    let rows: Vec<_> = (0..3).map(|id| insert(id).touching(1)).collect();
    assert_eq!(refused_at(database.write(rows).await), None);
    // It sets what is there already: three rows match, none changes.
    let same = || sql!("UPDATE marks SET word = 'here' WHERE id < ?", 3);
    let query = || sql!("SELECT id FROM marks WHERE id < ?", 2);
    let Written::Done(results) = database.write(vec![same().touching(3), query().returning(2)]).await.unwrap() else {
        panic!("refused")
    };
    assert_eq!((results[0].touched, results[1].touched, results[1].rows.len()), (3, 0, 2));
    let delete = || sql!("DELETE FROM marks WHERE id = ?", 0);
    assert_eq!(refused_at(database.write(vec![delete().touching(1), same().touching(3)]).await), Some(1));
    assert_eq!(refused_at(database.write(vec![delete().touching(1), query().returning(0)]).await), Some(1));
    assert_eq!(ids(&*database).await, [0, 1, 2], "what was refused was undone");
}

pub async fn a_broken_unique_key_names_its_step(server: &mut Server) {
    let database = server.marks().await;
    assert_eq!(refused_at(database.write(vec![insert(1).touching(1)]).await), None);
    let twice = vec![insert(2).anything(), insert(1).anything(), insert(3).anything()];
    assert_eq!(refused_at(database.write(twice).await), Some(1));
    let null = sql!("INSERT INTO marks (id, word) VALUES (?, ?)", 5, None::<String>);
    for wrong in [null, sql!("NONSENSE"), sql!("SELECT id FROM marks WHERE id = ?")] {
        let error = database.write(vec![insert(4).touching(1), wrong.anything()]).await.unwrap_err();
        assert!(matches!(error, SqlError::Broken(_)), "{error:?}");
    }
    assert_eq!(ids(&*database).await, [1]);
    assert_eq!(refused_at(database.write(vec![insert(2).touching(1)]).await), None, "the connection is as good as new");
}

pub async fn a_read_cannot_write(server: &mut Server) {
    let database = server.marks().await;
    assert_eq!(refused_at(database.write(vec![insert(1).touching(1)]).await), None);
    assert!(database.read(sql!("DELETE FROM marks")).await.is_err());
    assert_eq!(ids(&*database).await, [1]);
}

/// As the coordinator does it: a row that all write first, then what they read decides.
pub async fn writers_of_two_handles_take_effect_in_one_order(server: &mut Server) {
    let name = server.fresh_name();
    let (one, other) = (server.connect(&name).await, server.connect(&name).await);
    one.migrate("test", server.table()).await.unwrap();
    assert_eq!(refused_at(one.write(vec![insert(0).touching(1)]).await), None);
    let writers = (0..60).map(|i| {
        let database = if i % 2 == 0 { &one } else { &other };
        async move {
            for _ in 0..20 {
                let seen = database.read(sql!("SELECT COUNT(*) FROM marks")).await.unwrap()[0].int(0);
                let steps = vec![
                    sql!("UPDATE marks SET word = 'locked' WHERE id = 0").touching(1),
                    sql!("SELECT id FROM marks WHERE id >= ?", seen).returning(0),
                    insert(seen).touching(1),
                    sql!("SELECT id FROM marks").returning(seen as u64 + 1),
                ];
                match database.write(steps).await.unwrap() {
                    Written::Done(_) => return true,
                    Written::Refused { step, .. } => assert_eq!(step, 1, "only the guard may refuse"),
                }
            }
            false
        }
    });
    let won = futures_util::future::join_all(writers).await.into_iter().filter(|won| *won).count() as i64;
    assert!(won >= 20, "{won} writers found their turn");
    assert_eq!(ids(&*one).await, (0..=won).collect::<Vec<_>>(), "no gap and none twice");
}

pub async fn of_two_that_lock_in_a_ring_both_happen(server: &mut Server) {
    let database = server.marks().await;
    assert_eq!(refused_at(database.write(vec![insert(1).touching(1), insert(2).touching(1)]).await), None);
    let longer = |id: i64| sql!("UPDATE marks SET word = CONCAT(word, '!') WHERE id = ?", id).touching(1);
    let ring = |first, second| vec![longer(first), server.sleep(1).anything(), longer(second)];
    let (one, other) = tokio::join!(database.write(ring(1, 2)), database.write(ring(2, 1)));
    assert_eq!((refused_at(one), refused_at(other)), (None, None));
    let words = database.read(sql!("SELECT word FROM marks ORDER BY id")).await.unwrap();
    assert_eq!((words[0].text(0), words[1].text(0)), ("here!!", "here!!"));
}

pub async fn two_processes_migrate_at_once(server: &mut Server) {
    for _ in 0..3 {
        let name = server.fresh_name();
        let handles = futures_util::future::join_all((0..4).map(|_| server.connect(&name))).await;
        let migrated = handles.iter().map(|handle| handle.migrate("test", server.table()));
        for migrated in futures_util::future::join_all(migrated).await {
            migrated.unwrap();
        }
        let noted = handles[0].read(sql!("SELECT name FROM belfry_migrations WHERE scope = 'test'")).await.unwrap();
        assert_eq!(noted.len(), 1);
    }
}

/// As a server does while it builds an index over all runs, and then a command of cron's comes.
pub async fn who_has_nothing_to_migrate_waits_for_nobody_who_does(server: &mut Server) {
    const MANY: &[Migration] = &[
        Migration { name: "0001-one", statements: &["CREATE TABLE one (id INT)", "CREATE TABLE two (id INT)"] },
        Migration { name: "0002-three", statements: &["CREATE TABLE three (id INT)"] },
    ];
    let name = server.fresh_name();
    let (migrates, comes) = (server.connect(&name).await, server.connect(&name).await);
    comes.migrate("other", MANY).await.unwrap();
    assert_eq!(migrates.read(server.lock_of_migrations()).await.unwrap().len(), 1);
    let comes_again = tokio::time::timeout(Duration::from_secs(20), comes.migrate("other", MANY)).await;
    comes_again.expect("it waits for the lock").unwrap();
    // Who has something to do waits for its turn.
    let more = tokio::time::timeout(Duration::from_secs(1), comes.migrate("test", server.table())).await;
    assert!(more.is_err(), "{more:?}");
}

pub async fn migrations_run_once_and_an_unknown_one_is_refused(server: &mut Server) {
    const MORE: &str = "ALTER TABLE marks ADD COLUMN more BIGINT";
    let table = server.table()[0];
    let and = |statements| -> &'static [Migration] {
        Box::leak(Box::new([table, Migration { name: "0002-more", statements }]))
    };
    let database = server.marks().await;
    database.migrate("test", server.table()).await.unwrap();
    let error = database.migrate("test", and(&[MORE, "DROP TABLE absent"])).await.unwrap_err().to_string();
    assert!(error.contains("test/0002-more"), "{error}");
    database.migrate("test", and(&[MORE])).await.expect("the half that ran was undone, or is known to have run");
    database.read(sql!("SELECT more FROM marks")).await.unwrap();
    let error = database.migrate("test", server.table()).await.unwrap_err();
    assert!(!error.is_transient() && error.to_string().contains("newer Belfry"), "{error}");
    database.migrate("other", &[]).await.unwrap();
    if database.dialect() == Dialect::MySql {
        goes_on_after_a_crash(server).await;
    }
}

/// MySQL commits every change of the schema by itself; what a crash left behind is found in the notes.
async fn goes_on_after_a_crash(server: &Server) {
    const THREE: &[Migration] = &[Migration {
        name: "0001-three",
        statements: &[
            "CREATE TABLE a (id INT)",
            "CREATE TABLE b (id INT PRIMARY KEY)",
            "INSERT INTO b (id) VALUES (7)",
        ],
    }];
    let begun =
        |begun, done| sql!("UPDATE belfry_migrations SET statements_begun = ?, statements_done = ?", begun, done);
    let database = server.connect(&server.fresh_name()).await;
    database.migrate("test", THREE).await.unwrap();
    for done in [2, 1] {
        // The crash was after statement `done` had run, before it was noted.
        database.write(vec![begun(done + 1, done).touching(1)]).await.unwrap();
        if done == 1 {
            database.write(vec![sql!("DELETE FROM b").anything()]).await.unwrap();
        }
        database.migrate("test", THREE).await.unwrap();
        assert_eq!(database.read(sql!("SELECT id FROM b")).await.unwrap().len(), 1);
    }
    // A table that another has made is not taken for ours.
    database.write(vec![begun(0, 0).touching(1)]).await.unwrap();
    let error = database.migrate("test", THREE).await.unwrap_err();
    assert!(matches!(&error, SqlError::Broken(says) if says.contains("0001-three")), "{error:?}");
}

pub async fn a_read_only_replica_is_refused(server: &mut Server) {
    let Server::MariaDb(_) = server else { return };
    let name = server.fresh_name();
    server.sql("SET GLOBAL read_only = 1");
    let error = server.connect_at(&server.address(), &name).await.err().unwrap();
    server.sql("SET GLOBAL read_only = 0");
    assert!(matches!(&error, SqlError::Away(says) if says.contains("read-only replica")), "{error:?}");
    server.connect(&name).await;
}

pub async fn a_commit_waits_for_the_disk(server: &mut Server) {
    let Server::Postgres(_) = server else { return };
    let name = server.fresh_name();
    server.sql(&format!("ALTER DATABASE {name} SET synchronous_commit = off"));
    let database = server.connect(&name).await;
    let setting = || sql!("SELECT current_setting('synchronous_commit')");
    let Written::Done(results) = database.write(vec![setting().returning(1)]).await.unwrap() else { panic!("refused") };
    assert_eq!(results[0].rows[0].text(0), "on");
}
