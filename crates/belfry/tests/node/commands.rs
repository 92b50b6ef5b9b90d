//! What a person says to nodes and services on the command line, and what becomes of it.

use belfry_testkit::until;
use serde_json::{Value, json};

use crate::{BELFRY, Cluster};

/// Its exit code, what it prints on stdout, and says on stderr.
fn ran(cluster: &Cluster, words: &[&str]) -> (i32, String, String) {
    let ran = assert_cmd::Command::new(BELFRY)
        .args(words)
        .env("BELFRY_DATA", cluster.data("server"))
        .env_remove("BELFRY_URL")
        .env_remove("BELFRY_TOKEN")
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ran.status.code().expect("it exits by itself"), text(ran.stdout), text(ran.stderr))
}

fn belfry(cluster: &Cluster, words: &[&str]) -> (String, String) {
    let (code, printed, said) = ran(cluster, words);
    assert_eq!(code, 0, "{words:?}: {printed}{said}");
    (printed, said)
}

fn printed_json(cluster: &Cluster, words: &[&str]) -> Value {
    serde_json::from_str(&belfry(cluster, &[words, &["--json"]].concat()).0).unwrap()
}

/// The line of a table that begins with this word.
fn row<'a>(table: &'a str, first: &str) -> &'a str {
    let found = table.lines().find(|line| line.split_whitespace().next() == Some(first));
    found.unwrap_or_else(|| panic!("no line of {first} in\n{table}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_set_drained_and_excluded_and_all_of_it_is_taken_back() {
    let cluster = Cluster::start().await;
    let _agents = (cluster.join("a", &["--label", "zone=east"]).await, cluster.join("b", &[]).await);
    let (printed, said) =
        belfry(&cluster, &["node", "set", "a", "--weight", "7", "--slots", "3", "--label", "disk=ssd"]);
    assert_eq!((printed.as_str(), said.as_str()), ("", "a is changed\n"));
    let node = printed_json(&cluster, &["node", "show", "a"]);
    assert_eq!((&node["weight"], &node["slots"]), (&json!(7), &json!(3)));
    assert_eq!(node["labels"], json!({"zone": "east", "disk": "ssd"}), "the label that it had stays");
    let changed = printed_json(&cluster, &["node", "set", "a", "--unlabel", "zone", "--label", "disk=nvme"]);
    assert_eq!((&changed["labels"], &changed["weight"]), (&json!({"disk": "nvme"}), &json!(7)));

    for (verb, outcome, state) in [
        ("drain", "a gets no new runs\n", "draining"),
        ("exclude", "a is excluded\n", "excluded"),
        ("undrain", "a gets runs again\n", "excluded"),
        ("include", "a is included\n", "ready"),
    ] {
        assert_eq!(belfry(&cluster, &["node", verb, "a"]), (String::new(), outcome.to_owned()));
        let listed = belfry(&cluster, &["node", "ls"]).0;
        assert_eq!(row(&listed, "a").split_whitespace().nth(1), Some(state), "after {verb}:\n{listed}");
        assert_eq!(row(&listed, "b").split_whitespace().nth(1), Some("ready"), "after {verb}:\n{listed}");
    }
    let id = node["id"].as_str().unwrap();
    assert_eq!(printed_json(&cluster, &["node", "drain", id])["draining"], true, "by its id too");
    let node = cluster.client.get("/nodes/a").await;
    assert_eq!((&node["draining"], &node["excluded"]), (&json!(true), &json!(false)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_listed_and_moved() {
    let cluster = Cluster::start().await;
    let _agents = (cluster.join("a", &[]).await, cluster.join("b", &[]).await);
    let said = belfry(&cluster, &["service", "ls"]).1;
    assert!(said.contains("there is no service yet; `belfry job add"), "{said}");
    belfry(&cluster, &["job", "add", "gateway", "--service", "--", "sleep", "100000"]);
    let runs_on = async |wanted: &dyn Fn(&str) -> bool| {
        until("the service runs there", async || {
            let service = printed_json(&cluster, &["service", "ls"])["items"][0].clone();
            let node = service["node_name"].as_str().map(str::to_owned);
            node.filter(|node| service["state"] == "running" && wanted(node))
        })
        .await
    };
    let first = runs_on(&|_| true).await;
    let listed = belfry(&cluster, &["service", "ls"]).0;
    let words: Vec<&str> = row(&listed, "default/gateway").split_whitespace().collect();
    assert_eq!(words[1..3], ["running", &first], "{listed}");

    let moved = belfry(&cluster, &["service", "move", "gateway"]).1;
    assert!(moved.contains("gateway is told to end; it starts elsewhere when it has"), "{moved}");
    let second = runs_on(&|node| node != first).await;
    let service = printed_json(&cluster, &["service", "ls"])["items"][0].clone();
    assert_eq!((&service["restarts_24h"], &service["last_exit"]["state"]), (&json!(1), &json!("killed")), "{service}");
    let (code, _, said) = ran(&cluster, &["service", "move", "gateway", "--to", &second]);
    assert_eq!(code, 1, "it is there: {said}");
    let moved = printed_json(&cluster, &["service", "move", "default/gateway", "--to", &first]);
    assert_eq!(moved["run"], service["run"], "the one that is told to end");
    assert_eq!(runs_on(&|node| node != second).await, first);
}
