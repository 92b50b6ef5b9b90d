//! What wrapped commands printed, as their wrappers tell it.

use std::sync::Arc;

use belfry_coord::wrapped::encode;
use belfry_coord::{Coordinator, Guard, Heartbeat, Life, Memory, Write, keys};
use belfry_core::wrapped::{Phase, Record};
use serde_json::{Value, json};

use crate::harness::{Answer, Api, now, wrapped};

const PATH: &str = "/api/v1/wrapped/output";

fn saying(said: &Value, text: &str) -> Value {
    let mut said = said.clone();
    said["chunks"] = json!([
        {"stream": "stdout", "at_ms": 1_790_000_000_000_i64, "text": text},
        {"stream": "stderr", "at_ms": 1_790_000_000_100_i64, "base64": "//4K", "dropped_bytes": 40},
    ]);
    said
}

async fn tell(api: &Api, body: Value) -> Answer {
    api.call("wrapper", "PUT", PATH, body).await
}

async fn output(api: &Api, run: &str) -> Vec<u8> {
    api.admin("GET", &format!("/api/v1/runs/{run}/output"), Value::Null).await.expect(200).body
}

#[tokio::test]
async fn what_a_wrapped_command_printed_is_kept_once_and_shown() {
    let api = Api::start().await;
    let (run, said) = api.wrapped_run("0230").await;
    let run = run.id.to_string();
    for _ in 0..2 {
        let answer = tell(&api, saying(&said, "hello\n")).await.expect(200).json();
        assert_eq!(answer["run"], json!(run));
    }
    let printed = [b"hello\n".as_slice(), "\n… 40 bytes left out …\n".as_bytes(), &[0xff, 0xfe, b'\n']].concat();
    assert_eq!(output(&api, &run).await, printed);
    let shown = api.admin("GET", &format!("/api/v1/runs/{run}"), Value::Null).await.expect(200).json();
    assert_eq!((shown["output_bytes"].as_u64(), shown["output_dropped_bytes"].as_u64()), (Some(49), Some(40)));
    let other = tell(&api, saying(&said, "something else\n")).await.expect(409);
    assert_eq!(other.code(), "already_told");
    assert_eq!(output(&api, &run).await, printed);
}

#[tokio::test]
async fn what_is_too_much_or_cannot_be_read_is_refused_by_name() {
    let api = Api::start().await;
    let (run, said) = api.wrapped_run("0230").await;
    let chunk = |text: &str| json!({"stream": "stdout", "at_ms": 0, "text": text});
    let mebibyte = "x".repeat(1 << 20);
    for (field, value, refused) in [
        ("chunks", json!([chunk(&mebibyte), chunk("y")]), "chunks"),
        ("chunks", json!(vec![chunk("a"); 40_001]), "chunks"),
        ("chunks", json!([{"stream": "stdin", "at_ms": 0, "text": "a"}]), "chunks[0].stream"),
        ("chunks", json!([{"stream": "stdout", "at_ms": 0}]), "chunks[0]"),
        ("chunks", json!([{"stream": "stdout", "at_ms": 0, "base64": "?"}]), "chunks[0].base64"),
        ("chunks", json!([{"stream": "stdout", "at_ms": 0, "text": "a", "dropped_bytes": u64::MAX}]), "chunks"),
        ("attempt", json!(2), "attempt"),
        ("attempt", json!(0), "attempt"),
        ("claimed_at_ms", json!(i64::MAX), "claimed_at_ms"),
    ] {
        let mut body = saying(&said, "hello");
        body[field] = value;
        let answer = tell(&api, body).await.expect(422).json();
        assert_eq!(answer["error"]["field"], json!(refused), "{answer}");
    }
    tell(&api, json!({"chunks": "x".repeat(9 << 20)})).await.expect(413);
    assert!(output(&api, &run.id.to_string()).await.is_empty());
    let mut whole = said.clone();
    whole["chunks"] = json!([chunk(&mebibyte)]);
    tell(&api, whole).await.expect(200);
}

#[tokio::test]
async fn a_run_that_no_server_knows_of_has_no_output() {
    let api = Api::start().await;
    api.ended_run("default", "job", 0).await;
    let (_, said) = api.wrapped_run("0230").await;
    for (field, value) in [("name", json!("job")), ("instance", json!("0231")), ("claimed_at_ms", json!(1))] {
        let mut body = saying(&said, "hello");
        body[field] = value;
        let refused = tell(&api, body).await.expect(404);
        assert!(String::from_utf8_lossy(&refused.body).contains("DCRON_COORD"));
    }
}

async fn write(coordinator: &dyn Coordinator, instance: &str, record: &Record) {
    let heartbeat = Heartbeat { beat: 77, life: Life::Stopped, info: encode(record) };
    let key = keys::wrapped("restore", instance);
    let put = Write::Put(key.clone(), heartbeat.encode().unwrap());
    coordinator.commit(vec![Guard::Absent(key)], vec![put]).await.unwrap();
}

#[tokio::test]
async fn output_that_comes_before_the_leader_brings_its_run_along() {
    let coordinator = Arc::new(Memory::sole());
    let api = Api::start_on(coordinator.clone()).await;
    let at = now();
    // As if the leader had marked it and history had forgotten it since.
    write(&*coordinator, "copied", &Record { copied: true, ..wrapped(at) }).await;
    write(&*coordinator, "running", &Record { phase: Phase::Running, ..wrapped(at) }).await;
    write(&*coordinator, "ended", &wrapped(at)).await;
    let said = |instance: &str| {
        let claimed_at_ms = at.as_millisecond();
        let said = json!({"name": "restore", "instance": instance, "claimed_at_ms": claimed_at_ms, "attempt": 1});
        saying(&said, "hello")
    };
    for instance in ["copied", "running"] {
        tell(&api, said(instance)).await.expect(404);
    }
    let run = tell(&api, said("ended")).await.expect(200).json()["run"].as_str().unwrap().to_owned();
    assert!(output(&api, &run).await.starts_with(b"hello"));
    let runs = api.admin("GET", "/api/v1/runs?namespace=dcron", Value::Null).await.expect(200).json();
    assert_eq!((runs["items"].as_array().map(Vec::len), &runs["items"][0]["id"]), (Some(1), &json!(run)));
}
