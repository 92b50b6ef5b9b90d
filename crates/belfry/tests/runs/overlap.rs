//! A run while another run of its job goes on.

use belfry_testkit::{Layout, Witness, until};
use serde_json::json;

use crate::start;

const WORK: &str = "sleep 0.7";

pub async fn forbid_skips_while_a_run_goes_on(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    client.add("one", &witness.command("one", "sleep 1.5"), json!({"schedule": "* * * * * *"})).await;
    let runs = until("some ran and some were skipped", async || {
        let runs = client.runs("one").await;
        let count = |state: &str| runs.iter().filter(|run| run.state == state).count();
        (count("succeeded") >= 2 && count("skipped") >= 2).then_some(runs)
    })
    .await;
    let skipped = runs.iter().find(|run| run.state == "skipped").expect("there are two");
    assert!(skipped.why().contains("overlap is forbid"), "{}", skipped.why());
    let manual = client.run_now("one").await;
    let lines = witness.starts("one");
    assert!(manual.state != "skipped" || !lines.iter().any(|line| line.run == manual.id), "skipped means not started");
    let ended: Vec<_> = runs.iter().filter(|run| run.state == "succeeded").collect();
    for pair in ended.windows(2) {
        assert!(pair[0].ended_at <= pair[1].started_at, "two at once: {pair:?}");
    }
}

pub async fn queue_runs_them_one_after_the_other(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("line", WORK, json!({"overlap": "queue"})).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(client.run_now("line").await);
    }
    let mut ended = Vec::new();
    for run in &runs {
        ended.push(client.until_state(&run.id, "succeeded").await);
    }
    for pair in ended.windows(2) {
        assert!(pair[0].ended_at <= pair[1].started_at, "in the order in which they came: {pair:?}");
        assert!(pair[0].fence < pair[1].fence);
    }
}

pub async fn allow_runs_them_side_by_side(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    let witness = Witness::new();
    let lines = witness.file(belfry_testkit::LINES);
    let together = format!("until [ $(grep -c '^S crowd ' {}) -ge 3 ]; do sleep 0.02; done", lines.display());
    client.add("crowd", &witness.command("crowd", &together), json!({"overlap": "allow"})).await;
    let runs = [client.run_now("crowd").await, client.run_now("crowd").await, client.run_now("crowd").await];
    for run in &runs {
        client.until_state(&run.id, "succeeded").await;
    }
}

pub async fn replace_ends_the_older_run(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("king", "sleep 300", json!({"overlap": "replace", "timeout": {"after": "1h", "grace": "1s"}})).await;
    let old = client.run_now("king").await;
    client.until_state(&old.id, "running").await;
    let new = client.run_now("king").await;
    let old = client.until_state(&old.id, "killed").await;
    assert!(old.why().contains("replace"), "{}", old.why());
    let new = client.until_state(&new.id, "running").await;
    assert!(old.ended_at <= new.started_at, "{old:?} {new:?}");
}

pub async fn forced_runs_ignore_the_rule(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("strict", "sleep 300", json!({})).await;
    let first = client.run_now("strict").await;
    client.until_state(&first.id, "running").await;
    let refused = client.run_now("strict").await;
    assert_eq!(refused.state, "skipped", "the answer says so at once");
    assert!(refused.why().contains("overlap is forbid"), "{}", refused.why());
    let forced = client.run_with("strict", json!({"force": true})).await;
    client.until_state(&forced.id, "running").await;
    assert_eq!(client.run(&first.id).await.state, "running");
}
