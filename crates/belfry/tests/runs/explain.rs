//! What was decided about an instant, asked of a real server with a real agent.

use belfry_testkit::{Layout, until};
use serde_json::{Value, json};

use crate::start;

fn text(explanation: &Value) -> String {
    let sentences = explanation["sentences"].as_array().expect("sentences");
    sentences.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
}

pub async fn an_instant_is_explained_from_its_fire_to_its_end(layout: Layout) {
    let belfry = start(layout).await;
    let client = belfry.client();
    client.add("tick", "true", json!({"schedule": "* * * * * *", "overlap": "allow"})).await;
    let run =
        until("a fire has ended", async || client.runs("tick").await.into_iter().find(|run| run.state == "succeeded"))
            .await;
    let past = client.get(&format!("/explain?job=tick&at={}", run.planned)).await;
    assert_eq!((&past["verdict"], &past["runs"][0]["id"]), (&json!("due"), &json!(run.id)), "{past}");
    assert_eq!(past["runs"][0]["placement"]["by"], "weighted", "{past}");
    assert!(text(&past).contains("it was the only node that could take it"), "{}", text(&past));
    assert!(past["runs"][0]["started_after_ms"].is_i64(), "{past}");

    let next = client.get("/jobs/default/tick/fires?limit=60").await["items"][59]["at"]
        .as_str()
        .expect("an instant")
        .to_owned();
    let to_come = client.get(&format!("/explain?job=default/tick&at={next}")).await;
    assert_eq!(to_come["outlook"]["certain"], true, "there is one node: {to_come}");
    assert!(to_come["outlook"]["node"].is_string() && text(&to_come).contains("It is still to come"), "{to_come}");

    client.post("/jobs/default/tick/pause", json!({})).await;
    let paused = client.get(&format!("/explain?job=default/tick&at={next}")).await;
    assert_eq!((&paused["verdict"], &paused["definition"]["revision"]), (&json!("paused"), &json!(2)), "{paused}");
    // The same from the command line.
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_belfry"))
        .args(["explain", "tick", "--at", &run.planned.to_string()])
        .env("BELFRY_DATA", belfry.data())
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("is a fire of `* * * * * *`"), "{output:?}");
}
