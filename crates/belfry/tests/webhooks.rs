//! Webhooks, with real processes and a real receiver: told once, signed, told again when that failed, and never in anybody's way.

use std::time::Duration;

use belfry_testkit::{Belfry, Client, Layout, Letter, Receiver, Reply, Setup, now, until, until_within};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A hanging try takes ten seconds, and the pause after it five and more.
const PATIENCE: Duration = Duration::from_secs(90);

async fn start() -> Belfry {
    setup().start().await
}

fn setup() -> Setup {
    Setup::new(env!("CARGO_BIN_EXE_belfry"), Layout::OneProcess).env("BELFRY_WEBHOOK_ALLOW", "127.0.0.0/8")
}

fn hook(receiver: &Receiver, path: &str) -> Value {
    json!({"webhook": {"url": receiver.url(path)}})
}

async fn letters(receiver: &Receiver, path: &str, count: usize) -> Vec<Letter> {
    let heard = until_within(PATIENCE, async || Some(receiver.heard(path)).filter(|heard| heard.len() >= count)).await;
    heard.unwrap_or_else(|| panic!("{count} letters to {path} were expected, there are {:?}", receiver.heard(path)))
}

async fn deliveries(client: &Client, run: &str) -> Vec<Value> {
    client.get(&format!("/runs/{run}/deliveries")).await["items"].as_array().unwrap().clone()
}

async fn until_delivered(client: &Client, run: &str) -> Value {
    let look = async || deliveries(client, run).await.into_iter().find(|delivery| delivery["state"] == "delivered");
    until_within(PATIENCE, look).await.expect("it is delivered")
}

fn hmac_hex(key: &str, message: &str) -> String {
    let pad = |with: u8| -> Vec<u8> {
        let key = if key.len() > 64 { Sha256::digest(key.as_bytes()).to_vec() } else { key.as_bytes().to_vec() };
        (0..64).map(|place| key.get(place).copied().unwrap_or(0) ^ with).collect()
    };
    let inner = Sha256::digest([pad(0x36), message.as_bytes().to_vec()].concat());
    let outer = Sha256::digest([pad(0x5c), inner.to_vec()].concat());
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// As a receiver would: the second of the sending, and whether the letter was signed with this secret.
fn verified(letter: &Letter, secret: &str) -> i64 {
    let header = &letter.headers["belfry-signature"];
    let (second, signatures) = header.strip_prefix("t=").unwrap().split_once(',').unwrap();
    let expected = format!("v1={}", hmac_hex(secret, &format!("{second}.{}", letter.body)));
    assert!(signatures.split(',').any(|signature| signature == expected), "{header} is not of {secret}");
    second.parse().unwrap()
}

async fn secret(client: &Client) -> String {
    client.get("/webhook-secret").await["secret"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_end_of_a_run_is_told_once_and_signed() {
    let (belfry, receiver) = (start().await, Receiver::start());
    let client = belfry.client();
    client.add("fails", "exit 3", hook(&receiver, "/json")).await;
    let form = json!({"webhook": {"url": receiver.url("/form"), "format": "form", "on": ["succeeded"]}});
    client.add("works", "true", form.clone()).await;
    client.add("is-not-told", "exit 1", form).await;
    client.add("is-killed", "sleep 600", hook(&receiver, "/killed")).await;
    let long = client.run_now("is-killed").await;
    client.until_state(&long.id, "running").await;
    client.post(&format!("/runs/{}/kill", long.id), json!({})).await;

    let untold = client.run_to_end("is-not-told").await;
    let failed = client.run_to_end("fails").await;
    let letter = letters(&receiver, "/json", 1).await.remove(0);
    let body: Value = serde_json::from_str(&letter.body).unwrap();
    let id = format!("{}-1-failed", failed.id);
    assert_eq!(
        (&body["delivery"], &body["event"], &body["run"]),
        (&json!(id), &json!("run.failed"), &json!(failed.id))
    );
    assert_eq!((&body["state"], &body["exit_code"], &body["attempt"]), (&json!("failed"), &json!(3), &json!(1)));
    assert_eq!((&body["job"]["name"], &body["reason"]), (&json!("fails"), &json!("exit code 3")));
    assert_eq!(body["ended_at"].as_str().unwrap().parse::<belfry_core::Timestamp>().unwrap(), failed.ended_at.unwrap());
    assert_eq!(
        (&letter.headers["belfry-delivery"], &letter.headers["content-type"]),
        (&id, &"application/json".into())
    );
    let sent = verified(&letter, &secret(client).await);
    assert!((sent - now().as_second()).abs() < 120, "{sent} is no moment of this test");

    let worked = client.run_to_end("works").await;
    let letter = letters(&receiver, "/form", 1).await.remove(0);
    let job = client.get("/jobs/default/works").await["id"].as_str().unwrap().to_owned();
    assert_eq!(letter.body, format!("task_id={}&job_id={job}&job_name=works&task_status=succeeded&msg=", worked.id));
    assert_eq!(letter.headers["content-type"], "application/x-www-form-urlencoded");
    assert!(letters(&receiver, "/killed", 1).await[0].body.contains("\"event\":\"run.killed\""));

    for run in [&failed.id, &worked.id] {
        let told = until_delivered(client, run).await;
        assert_eq!((&told["tries"], &told["last_status"]), (&json!(1), &json!(204)));
    }
    assert_eq!(deliveries(client, &untold.id).await, Vec::<Value>::new());
    // What was delivered stays so, also when another end passes by.
    client.run_to_end("works").await;
    letters(&receiver, "/form", 2).await;
    assert_eq!(receiver.heard("/json").len(), 1);
}

#[tokio::test]
async fn what_was_in_vain_is_told_again_with_the_same_id_and_body() {
    let (belfry, receiver) = (start().await, Receiver::start());
    let client = belfry.client();
    receiver.replies("/broken", &[Reply::Status(500), Reply::Status(204)]);
    receiver.replies("/hangs", &[Reply::Never, Reply::Status(200)]);
    client.add("broken", "true", hook(&receiver, "/broken")).await;
    client.add("hangs", "true", hook(&receiver, "/hangs")).await;
    let broken = client.run_to_end("broken").await;
    let waiting = until("the first try is written down", async || {
        deliveries(client, &broken.id).await.into_iter().find(|delivery| delivery["tries"] == 1)
    })
    .await;
    assert_eq!((&waiting["state"], &waiting["last_status"]), (&json!("waiting"), &json!(500)));
    assert_eq!(waiting["last_error"], "the receiver answered 500");
    let hangs = client.run_to_end("hangs").await;
    for (path, run) in [("/broken", &broken), ("/hangs", &hangs)] {
        let heard = letters(&receiver, path, 2).await;
        assert_eq!(heard[0].headers["belfry-delivery"], heard[1].headers["belfry-delivery"]);
        assert_eq!(heard[0].body, heard[1].body);
        let secret = secret(client).await;
        assert!(verified(&heard[0], &secret) < verified(&heard[1], &secret), "each sending has its own time");
        let told = until_delivered(client, &run.id).await;
        assert_eq!((&told["tries"], &told["last_error"]), (&json!(2), &Value::Null));
    }
}

#[tokio::test]
async fn what_was_not_delivered_before_kill_9_is_delivered_after_it_with_the_same_id() {
    let (mut belfry, receiver) = (start().await, Receiver::start());
    receiver.replies("/x", &[Reply::Never]);
    belfry.client().add("a", "exit 7", hook(&receiver, "/x")).await;
    let run = belfry.client().run_to_end("a").await;
    let first = letters(&receiver, "/x", 1).await.remove(0);
    belfry.kill9();
    receiver.replies("/x", &[Reply::Status(204)]);
    belfry.restart().await;
    let again = letters(&receiver, "/x", 2).await.remove(1);
    assert_eq!(first.headers["belfry-delivery"], format!("{}-1-failed", run.id));
    assert_eq!(again.headers["belfry-delivery"], first.headers["belfry-delivery"]);
    assert_eq!(again.body, first.body);
    until_delivered(belfry.client(), &run.id).await;
    assert_eq!(receiver.heard("/x").len(), 2);
}

#[tokio::test]
async fn a_receiver_that_hangs_holds_up_neither_other_receivers_nor_runs() {
    const RUNS: usize = 20;
    let (belfry, hanging, other) = (start().await, Receiver::start(), Receiver::start());
    let client = belfry.client();
    hanging.replies("/x", &[Reply::Never]);
    let mut each_second = hook(&other, "/x");
    each_second["schedule"] = json!("* * * * * *");
    client.add("hangs", "true", hook(&hanging, "/x")).await;
    for _ in 0..RUNS {
        client.run_to_end("hangs").await;
    }
    letters(&hanging, "/x", 1).await;
    client.add("every-second", "true", each_second).await;
    letters(&other, "/x", RUNS).await;
    let heard = hanging.heard("/x").len();
    assert!(heard < RUNS, "its letters wait for each other: {heard}");
    let fires = client.runs("every-second").await;
    let starts: Vec<i64> = fires.iter().map(|run| run.planned.as_second()).collect();
    assert!(starts.windows(2).all(|pair| pair[1] == pair[0] + 1), "no fire is missing: {starts:?}");
    for run in client.runs("hangs").await {
        assert_ne!(deliveries(client, &run.id).await[0]["state"], "delivered");
    }
}

#[tokio::test]
async fn runs_that_a_node_fires_by_itself_are_told_too() {
    let (belfry, receiver) = (start().await, Receiver::start());
    let mut job = hook(&receiver, "/local");
    job["run_on"] = json!("each");
    job["schedule"] = json!("* * * * * *");
    belfry.client().add("local", "exit 4", job).await;
    let letter = letters(&receiver, "/local", 1).await.remove(0);
    let body: Value = serde_json::from_str(&letter.body).unwrap();
    assert_eq!((&body["event"], &body["exit_code"]), (&json!("run.failed"), &json!(4)));
    until_delivered(belfry.client(), body["run"].as_str().unwrap()).await;
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_told_while_it_runs_and_then_its_end() {
    let (belfry, receiver) = (start().await, Receiver::start());
    let client = belfry.client();
    let mut job = hook(&receiver, "/x");
    job["timeout"] = json!({"after": "1s", "action": "report"});
    let gate = belfry.folder().join("gate");
    client.add("slow", &format!("until test -e {}; do sleep 0.1; done", gate.display()), job).await;
    let run = client.run_now("slow").await;
    let first = letters(&receiver, "/x", 1).await.remove(0);
    let body: Value = serde_json::from_str(&first.body).unwrap();
    assert_eq!((&body["event"], &body["state"]), (&json!("run.overdue"), &json!("running")));
    assert_eq!((&body["delivery"], &body["ended_at"]), (&json!(format!("{}-1-overdue", run.id)), &Value::Null));
    assert_eq!(client.run(&run.id).await.state, "running");
    std::fs::write(&gate, "").unwrap();
    let second = letters(&receiver, "/x", 2).await.remove(1);
    assert_eq!(second.headers["belfry-event"], "run.succeeded");
}

#[tokio::test]
async fn this_machine_itself_is_not_called_unless_that_is_allowed() {
    let receiver = Receiver::start();
    let belfry = Belfry::start(env!("CARGO_BIN_EXE_belfry"), Layout::OneProcess).await;
    belfry.client().add("a", "true", hook(&receiver, "/x")).await;
    let run = belfry.client().run_to_end("a").await;
    let tried = until("it was tried", async || {
        deliveries(belfry.client(), &run.id).await.into_iter().find(|delivery| delivery["tries"] != 0)
    })
    .await;
    let why = tried["last_error"].as_str().unwrap();
    assert!(why.contains("this machine itself") && why.contains("--webhook-allow 127.0.0.1"), "{why}");
    assert_eq!(receiver.heard("/x").len(), 0);
}

#[tokio::test]
async fn a_new_secret_signs_beside_the_old_one_and_only_admins_see_it() {
    let (belfry, receiver) = (start().await, Receiver::start());
    let client = belfry.client();
    let old = secret(client).await;
    let rotated = client.post("/webhook-secret", json!({})).await;
    let new = rotated["secret"].as_str().unwrap();
    assert!(new != old && rotated["old_good_until"].is_string(), "{rotated}");
    client.add("a", "true", hook(&receiver, "/x")).await;
    client.run_to_end("a").await;
    let letter = letters(&receiver, "/x", 1).await.remove(0);
    verified(&letter, new);
    verified(&letter, &old);
    let audit = client.get("/audit").await.to_string();
    assert!(audit.contains("webhook_secrets") && !audit.contains(new) && !audit.contains(&old), "{audit}");
    assert!(!belfry.stderr().contains(new) && !belfry.stderr().contains("bfw_"));
}
