//! No list reads a whole table or sorts: SQLite's own account of each query, for every combination of filters.

use std::sync::Arc;

use belfry_core::run::RunState;
use belfry_core::{JobId, NodeId, RunId, Timestamp};
use belfry_sql::{Database, Dialect, Sqlite, SqliteOptions, Statement, Value};

use crate::jobs::list::{Within, page};
use crate::{AuditFilter, AuditPlace, JobCursor, JobFilter, Store};
use crate::{RunFilter, retention, revisions, runs, trouble};

struct Plans {
    db: Arc<Sqlite>,
    _folder: tempfile::TempDir,
}

impl Plans {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Arc::new(Sqlite::open(folder.path().join("store.db"), SqliteOptions::default()).unwrap());
        Store::open(db.clone()).await.unwrap();
        Self { db, _folder: folder }
    }

    /// The plan, for those who want to know more of it.
    async fn check(&self, statement: Statement) -> String {
        let text = statement.sql.to_string();
        let explain = Statement { sql: format!("EXPLAIN QUERY PLAN {text}").into(), args: statement.args };
        let plan: Vec<String> = self.db.read(explain).await.unwrap().iter().map(|row| row.text(3).to_owned()).collect();
        let whole = format!("{text}\n{}", plan.join("\n"));
        assert!(!plan.iter().any(|line| line.contains("TEMP B-TREE")), "sorts: {whole}");
        // The ids of a merge are scanned, which is a list a page long, and arguments that are joined as rows.
        let is_list =
            |of: &str| of == "newest" || ["CONSTANT ROW", "VALUES", "(subquery"].iter().any(|list| of.contains(list));
        let scans = |line: &String| line.strip_prefix("SCAN ").is_some_and(|of| !is_list(of));
        assert!(!plan.iter().any(scans), "reads all: {whole}");
        whole
    }
}

#[tokio::test]
async fn pages_of_runs_are_ranges_of_an_index() {
    let plans = Plans::open().await;
    let two_jobs = [JobId::from_u128(1), JobId::from_u128(2)];
    let cases = combinations(&[0, 1, 2], &[0, 1], &[0, 1, 3], &[0, 1, 2, 99]);
    for (jobs, nodes, states, namespaces) in cases {
        let filter = RunFilter {
            job: None,
            namespaces: (namespaces > 0).then(|| (0..namespaces).map(|n| format!("ns{n}")).collect()),
            states: RunState::ALL[4..4 + states].to_vec(),
            node: (nodes > 0).then(|| NodeId::from_u128(3)),
            from: Some(Timestamp::UNIX_EPOCH),
            to: None,
            cursor: Some(RunId::from_u128(9)),
            limit: 50,
        };
        let jobs = (jobs > 0).then(|| &two_jobs[..jobs]);
        plans.check(filter.page(Dialect::Sqlite, runs::COLUMNS, jobs).unwrap()).await;
    }
}

#[tokio::test]
async fn pages_of_the_audit_are_ranges_of_an_index() {
    let plans = Plans::open().await;
    let cursors = [None, Some(AuditPlace::Seq(9)), Some(AuditPlace::At(8, 9))];
    for (actor, action, namespaces, cursor) in combinations(&[0, 1], &[0, 1], &[0, 1, 2, 200], &[0, 1, 2]) {
        for (from, to) in [(false, false), (true, false), (false, true), (true, true)] {
            let filter = AuditFilter {
                namespaces: (namespaces > 0).then(|| (0..namespaces).map(|n| format!("ns{n}")).collect()),
                actor: (actor > 0).then(|| "ann".to_owned()),
                action: (action > 0).then(|| "job.update".to_owned()),
                from: from.then_some(Timestamp::UNIX_EPOCH),
                to: to.then_some(Timestamp::MAX),
                cursor: cursors[cursor],
                limit: 50,
            };
            let plan = plans.check(filter.page(Dialect::Sqlite).unwrap()).await;
            // What is before the range, or behind it, is not walked through.
            let by_time = cursor == 2 || (cursor == 0 && (from || to));
            assert_eq!(plan.contains("at>? AND (at,seq)<(?,?)"), by_time, "{plan}");
        }
    }
}

#[tokio::test]
async fn pages_of_jobs_are_ranges_of_an_index() {
    let plans = Plans::open().await;
    let after = JobCursor { namespace: "a".into(), name: "b".into() };
    for labels in [vec![], vec![("k".to_owned(), "v".to_owned())], vec![("k".to_owned(), "v".to_owned()); 2]] {
        for q in [None, Some("x".to_owned())] {
            for within in [Within::All(&after), Within::One("a", "b")] {
                for (failing, running, node_name) in
                    [(false, false, None), (true, false, None), (false, true, Some("n1"))]
                {
                    let node_name = node_name.map(str::to_owned);
                    let (labels, q, enabled) = (labels.clone(), q.clone(), Some(true));
                    let filter = JobFilter { labels, q, enabled, failing, running, node_name, ..Default::default() };
                    plans.check(page(Dialect::Sqlite, &filter, within, 51)).await;
                }
            }
        }
    }
}

#[tokio::test]
async fn what_needs_attention_is_found_by_ranges_of_indexes() {
    let plans = Plans::open().await;
    let some = ["a".to_owned(), "b".to_owned()];
    for namespaces in [None, Some(&some[..])] {
        plans.check(trouble::failing(namespaces, 101)).await;
        plans.check(trouble::missed_since(Timestamp::UNIX_EPOCH, namespaces, 101)).await;
        plans.check(runs::oldest_in(RunState::Running, namespaces, Some(Timestamp::UNIX_EPOCH), 500)).await;
    }
}

#[tokio::test]
async fn a_cold_start_walks_the_key() {
    Plans::open().await.check(crate::jobs::load_page("0")).await;
}

#[tokio::test]
async fn revisions_of_a_page_are_found_by_their_key() {
    let plans = Plans::open().await;
    for wanted in [1, 3, 256] {
        let wanted = vec![(JobId::from_u128(1), 2); wanted];
        let plan = plans.check(revisions::some_of(Dialect::Sqlite, &wanted)).await;
        assert!(plan.contains("SEARCH r USING INDEX"), "{plan}");
    }
}

#[tokio::test]
async fn jobs_of_names_are_found_by_their_key() {
    let plans = Plans::open().await;
    for names in [1, 4, 64] {
        let plan = plans.check(crate::jobs::ids_of(Dialect::Sqlite, &vec![("a", "b"); names])).await;
        assert!(plan.contains("(removed_seq=? AND namespace=? AND name=?)"), "{plan}");
    }
}

#[tokio::test]
async fn pruning_reads_only_what_it_deletes() {
    let plans = Plans::open().await;
    plans.check(retention::ended_before(JobId::from_u128(1), &Value::Text("Z".into()), 100)).await;
}

#[tokio::test]
async fn what_is_due_at_a_receiver_is_a_range_of_an_index() {
    let plans = Plans::open().await;
    let args = vec![Value::Text("https://x:443".into()), Value::Int(9)];
    plans.check(Statement { sql: crate::deliveries::due_of_one(4).into(), args }).await;
}

/// Every combination.
fn combinations(a: &[usize], b: &[usize], c: &[usize], d: &[usize]) -> Vec<(usize, usize, usize, usize)> {
    let mut all = Vec::new();
    for a in a {
        for b in b {
            for c in c {
                all.extend(d.iter().map(|d| (*a, *b, *c, *d)));
            }
        }
    }
    all
}
