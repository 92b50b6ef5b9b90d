//! The local API of a node: requests and answers as a table, against a real agent, and what they change.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use belfry_testkit::servers::Port;
use belfry_testkit::{Layout, Setup, Witness, processes_with, until};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::{BELFRY, Cluster, STOP_PATIENCE};

struct Local {
    http: reqwest::Client,
    base: String,
    token: String,
}

impl Local {
    /// `data`: the agent's folder.
    fn new(data: &Path, address: &str) -> Self {
        let file = data.join("local-api-token");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "only its owner can read the token");
        let token = std::fs::read_to_string(&file).unwrap().trim().to_owned();
        Self { http: reqwest::Client::new(), base: format!("http://{address}"), token }
    }

    async fn with(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> (StatusCode, Value) {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status();
        (status, serde_json::from_str(&answer.text().await.unwrap()).expect("JSON"))
    }

    async fn ask(&self, method: Method, path: &str) -> (StatusCode, Value) {
        self.with(method, path, &[("authorization", &format!("Bearer {}", self.token))]).await
    }

    /// The data of an answer that must be a good one.
    async fn data(&self, method: Method, path: &str) -> Value {
        let (status, answer) = self.ask(method.clone(), path).await;
        assert_eq!((status, &answer["ret"]), (StatusCode::OK, &json!(0)), "{method} {path}: {answer}");
        answer["data"].clone()
    }

    async fn until_job(&self, is: impl Fn(&Value) -> bool) -> Value {
        until("the node has the job as it should be", async || {
            let jobs = self.data(Method::GET, "/jobs").await;
            jobs.as_array().unwrap().iter().find(|job| is(job)).cloned()
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_answers_of_the_local_api() {
    let cluster = Cluster::start().await;
    let port = Port::free();
    let address = format!("127.0.0.1:{}", port.number());
    let mut agent = cluster.join("a", &["--local-api", &address]).await;
    assert!(agent.stderr().contains("local-api-token"), "its place is told: {}", agent.stderr());
    let (client, local) = (&cluster.client, Local::new(&cluster.data("a"), &address));
    client.add("each", "true", json!({"schedule": "0 0 1 1 *", "run_on": "each"})).await;
    let id = local.until_job(|job| job["name"] == "each").await["id"].as_str().unwrap().to_owned();
    client.add("long", "setsid sleep 998 & sleep 999", json!({})).await;
    let run = client.run_now("long").await.id;
    client.until_state(&run, "running").await;
    let (job, task, by_name) = (format!("/jobs/{id}"), format!("/tasks/{run}"), "/jobs/default%2Feach".to_owned());

    let is = |field: &'static str, value: Value| move |data: &Value| data[field] == value;
    let says = |word: &'static str| move |data: &Value| data.as_str().is_some_and(|text| text.contains(word));
    type Check = Box<dyn Fn(&Value) -> bool>;
    let table: Vec<(Method, &str, u16, Check)> = vec![
        (Method::GET, "/jobs", 0, Box::new(|data| data.as_array().is_some_and(|jobs| jobs.len() == 1))),
        (Method::GET, &job, 0, Box::new(is("run_on", json!("each")))),
        (Method::GET, &job, 0, Box::new(|data| data["definition"]["action"]["shell"]["command"] == "true")),
        (Method::GET, &by_name, 0, Box::new(is("id", json!(id)))),
        (Method::GET, "/jobs/nothing", 404, Box::new(says("has no job `nothing`"))),
        (Method::PUT, "/jobs/nothing", 404, Box::new(says("by its id"))),
        (Method::PUT, "/jobs/00000000000000000000000001", 404, Box::new(says("the centre has no job"))),
        (Method::DELETE, "/jobs/nothing", 404, Box::new(says("has no job `nothing`"))),
        (Method::POST, &job, 0, Box::new(is("disabled_here", json!(false)))),
        (Method::PUT, &job, 0, Box::new(is("revision", json!(1)))),
        (Method::DELETE, &job, 0, Box::new(is("disabled_here", json!(true)))),
        (Method::DELETE, &job, 0, Box::new(is("disabled_here", json!(true)))),
        (Method::GET, &job, 0, Box::new(|data| data["disabled_here"] == true && data["next"].is_null())),
        (Method::PUT, &job, 0, Box::new(|data| data["disabled_here"] == false && data["next"].is_string())),
        (Method::POST, "/jobs", 405, Box::new(says("no definition can be made here"))),
        (Method::GET, "/tasks", 0, Box::new(|data| data[0]["state"] == "running" && data[0]["job"] == "default/long")),
        (Method::GET, &task, 0, Box::new(is("state", json!("running")))),
        (Method::GET, "/tasks/nothing", 404, Box::new(says("has no run `nothing`"))),
        (Method::DELETE, "/tasks/nothing", 404, Box::new(says("has no run `nothing`"))),
        (Method::PUT, &task, 405, Box::new(says("no definition"))),
        (Method::DELETE, &task, 0, Box::new(is("job", json!("default/long")))),
        (Method::GET, "/", 404, Box::new(says("/tasks/{id}"))),
    ];
    for (method, path, ret, check) in &table {
        let (status, answer) = local.ask(method.clone(), path).await;
        let expected = if *ret == 0 { 200 } else { *ret };
        assert_eq!((status.as_u16(), &answer["ret"]), (expected, &json!(ret)), "{method} {path}: {answer}");
        assert!(check(&answer["data"]), "{method} {path}: {answer}");
        for headers in [&[][..], &[("authorization", "Bearer wrong")][..], &[("x-belfry-token", "")][..]] {
            let (status, answer) = local.with(method.clone(), path, headers).await;
            assert_eq!((status.as_u16(), &answer["ret"]), (401, &json!(401)), "{method} {path} without its token");
        }
    }
    let (status, _) = local.with(Method::GET, "/jobs", &[("x-belfry-token", &local.token)]).await;
    assert_eq!(status, StatusCode::OK, "an old client sends its token as it can");

    let ended = client.until_ended(&run).await;
    assert_eq!((ended.state.as_str(), ended.why()), ("killed", "killed through the local API of a"));
    assert!(processes_with(&format!("BELFRY_RUN_ID={run}")).is_empty(), "its whole tree is gone");
    until("it is shown as ended", async || {
        let shown = local.data(Method::GET, &task).await;
        (shown["state"] == "killed").then_some(())
    })
    .await;
    assert_eq!(local.ask(Method::DELETE, &task).await.0, StatusCode::CONFLICT, "it has ended already");

    // Without a server a definition cannot be fetched, and what is here is still shown.
    drop(cluster);
    until("it says that no server is there", async || {
        let (status, answer) = local.ask(Method::PUT, &job).await;
        (status == StatusCode::SERVICE_UNAVAILABLE && answer["data"].as_str()?.contains("no server is reachable"))
            .then_some(())
    })
    .await;
    assert_eq!(local.data(Method::GET, &job).await["id"], json!(id));
    agent.kill9();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_disabled_on_a_host_stays_so_and_is_seen_at_the_centre() {
    let cluster = Cluster::start().await;
    let port = Port::free();
    let address = format!("127.0.0.1:{}", port.number());
    let flags = ["--local-api", address.as_str()];
    let mut agent = cluster.join("a", &flags).await;
    let (client, witness) = (&cluster.client, Witness::new());
    let local = Local::new(&cluster.data("a"), &address);
    let every_second = json!({"schedule": "* * * * * *", "overlap": "allow", "run_on": "each"});
    client.add("off", &witness.command("off", ":"), every_second.clone()).await;
    client.add("on", &witness.command("on", ":"), every_second).await;
    let id = local.until_job(|job| job["name"] == "off").await["id"].as_str().unwrap().to_owned();
    let job = format!("/jobs/{id}");
    let fired = |name: &str| witness.starts(name).len();
    until("both fire", async || (fired("off") > 0 && fired("on") > 0).then_some(())).await;

    local.data(Method::DELETE, &job).await;
    let before = witness.starts("off").len();
    let node =
        cluster.until_node("a", |node| node["disabled_jobs"].as_array().is_some_and(|jobs| jobs.len() == 1)).await;
    assert_eq!(node["disabled_jobs"][0], json!({"id": id, "name": "default/off"}));
    let explained = client.get("/explain?job=default/off&at=2099-01-01T00:00:00Z").await;
    let said = explained["sentences"].to_string();
    assert!(said.contains("disabled on this host by its local API: a"), "{said}");

    // A change at the centre arrives, a restart passes, and it stays off; the other one goes on.
    client.patch("/jobs/default/off", json!({"description": "changed"})).await;
    local.until_job(|job| job["name"] == "off" && job["revision"] == 2 && job["disabled_here"] == true).await;
    agent.stop(STOP_PATIENCE).await;
    let _again = cluster.again("a", &flags);
    cluster.until_node("a", |node| node["connected"] == true && node["disabled_jobs"][0]["id"] == *id).await;
    assert_eq!(local.data(Method::GET, &job).await["disabled_here"], true);
    let on = fired("on");
    until("the other one fires", async || (fired("on") >= on + 2).then_some(())).await;
    let quiet_until = witness.starts("on").last().unwrap().planned;
    assert!(fired("off") <= before + 1, "at most one was starting when it was disabled");

    assert_eq!(local.data(Method::POST, &job).await["disabled_here"], false);
    until("it fires again", async || (fired("off") > before + 1).then_some(())).await;
    let disabled_at = witness.starts("off")[before.saturating_sub(1)].planned;
    let late = witness.starts("off").into_iter().skip(before + 1).filter(|line| line.planned <= quiet_until).count();
    assert_eq!(late, 0, "what passed after {disabled_at} while it was disabled was not due");
    cluster.until_node("a", |node| node["disabled_jobs"] == json!([])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn belfry_up_serves_it_too() {
    let port = Port::free();
    let address = format!("127.0.0.1:{}", port.number());
    let setup = Setup::new(BELFRY, Layout::OneProcess).env("BELFRY_LOCAL_API", &address);
    let belfry = setup.start().await;
    let local = Local::new(&belfry.data().join("agent"), &address);
    assert_eq!(local.data(Method::GET, "/jobs").await, json!([]));
}

#[test]
fn only_this_machine_can_reach_the_local_api() {
    for address in ["0.0.0.0:8001", "192.0.2.1:8001", "localhost", "[::]:8001"] {
        let output = assert_cmd::Command::new(BELFRY).args(["agent", "--local-api", address]).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("127.0.0.1:8001"), "{address}: {said}");
    }
}
