//! The HTTP API as a test uses it: what is asked for must work, unless the test wants to see the refusal.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::until::until;

const PAGE: u32 = 500;
const ASK_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    token: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

/// A run as the API shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Run {
    pub id: String,
    pub job_name: String,
    pub state: String,
    pub reason: Option<String>,
    pub trigger: String,
    pub rerun_of: Option<String>,
    pub revision: u64,
    pub attempt: u32,
    pub node_name: Option<String>,
    pub fence: u64,
    pub planned: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub output_bytes: u64,
    pub output_dropped_bytes: u64,
    pub marks: Vec<String>,
}

impl Run {
    pub fn has_ended(&self) -> bool {
        ["succeeded", "failed", "timed_out", "killed", "lost", "skipped", "cancelled"].contains(&self.state.as_str())
    }

    pub fn may_have_run_twice(&self) -> bool {
        self.marks.iter().any(|mark| mark == "may_have_run_twice")
    }

    /// The reason, or nothing.
    pub fn why(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }
}

impl Client {
    pub fn new(base: &str, token: &str) -> Self {
        Self { http: reqwest::Client::new(), base: base.to_owned(), token: token.to_owned() }
    }

    /// Lets one agent join.
    pub async fn join_token(&self) -> String {
        let answer = self.post("/nodes/join-tokens", json!({})).await;
        answer["token"].as_str().expect("a token").to_owned()
    }

    /// The changes of runs, from now on.
    #[expect(clippy::disallowed_methods, reason = "it ends with what it returns")]
    pub async fn changes(&self) -> Changes {
        let mut stream = self.request(Method::GET, "/events").send().await.expect("a stream");
        assert!(stream.status().is_success(), "{}", stream.status());
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let to = said.clone();
        let listening = tokio::spawn(async move {
            while let Ok(Some(bytes)) = stream.chunk().await {
                to.lock().expect("no one panics here").extend_from_slice(&bytes);
            }
        });
        Changes { said, listening: listening.abort_handle() }
    }

    /// `path` is below /api/v1.
    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.http.request(method, format!("{}/api/v1{path}", self.base)).bearer_auth(&self.token)
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = self.request(method, path);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap_or_else(|cause| panic!("{path}: {cause:?}"));
        let status = response.status();
        let text = response.text().await.unwrap_or_default();
        Answer { status, body: serde_json::from_str(&text).unwrap_or(Value::Null) }
    }

    async fn must(&self, method: Method, path: &str, body: Option<Value>) -> Value {
        let answer = self.call(method.clone(), path, body).await;
        assert!(answer.status.is_success(), "{method} {path}: {} {}", answer.status, answer.body);
        answer.body
    }

    pub async fn get(&self, path: &str) -> Value {
        self.must(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.must(Method::POST, path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Value {
        self.must(Method::PATCH, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> Value {
        self.must(Method::DELETE, path, None).await
    }

    /// None when it does not answer with success, as one that is stopped or cut off.
    pub async fn ask(&self, path: &str) -> Option<Value> {
        let answer = self.request(Method::GET, path).timeout(ASK_TIMEOUT).send().await.ok()?;
        answer.error_for_status().ok()?.json().await.ok()
    }

    pub async fn is_ready(&self) -> bool {
        let asked = self.http.get(format!("{}/readyz", self.base)).timeout(ASK_TIMEOUT).send().await;
        asked.is_ok_and(|answer| answer.status().is_success())
    }

    pub async fn nodes(&self) -> Vec<Value> {
        self.get("/nodes").await["items"].as_array().cloned().unwrap_or_default()
    }

    /// Nothing when it does not answer.
    pub async fn nodes_if_any(&self) -> Vec<Value> {
        let nodes = self.ask("/nodes").await;
        nodes.and_then(|nodes| nodes["items"].as_array().cloned()).unwrap_or_default()
    }

    /// Adds a job in the namespace `default`; `more` is laid over its document.
    pub async fn add(&self, name: &str, command: &str, more: Value) -> Value {
        let mut document = json!({"name": name, "timezone": "UTC", "action": {"shell": {"command": command}}});
        let fields = more.as_object().expect("fields of a job").clone();
        document.as_object_mut().expect("an object").extend(fields);
        self.post("/jobs", document).await
    }

    pub async fn run_now(&self, job: &str) -> Run {
        self.run_with(job, json!({})).await
    }

    /// While a shard changes hands nobody can answer for its jobs; that is said, and nothing was done.
    pub async fn run_with(&self, job: &str, request: Value) -> Run {
        let path = format!("/jobs/default/{job}/run");
        let answer = until("somebody owns the job", async || {
            let answer = self.call(Method::POST, &path, Some(request.clone())).await;
            (answer.body["error"]["code"] != "no_owner").then_some(answer)
        })
        .await;
        assert!(answer.status.is_success(), "POST {path}: {} {}", answer.status, answer.body);
        read(answer.body)
    }

    pub async fn run(&self, id: &str) -> Run {
        read(self.get(&format!("/runs/{id}")).await)
    }

    /// The run of a job's fire, once it is claimed; it may not be recorded yet.
    pub async fn run_of_fire(&self, job: &Value, planned: Timestamp) -> Option<Run> {
        let job = job["id"].as_str()?.parse().ok()?;
        let id = belfry_core::RunId::of(job, planned, belfry_core::id::Slot::Only);
        let answer = self.call(Method::GET, &format!("/runs/{id}"), None).await;
        answer.status.is_success().then(|| read(answer.body))
    }

    pub async fn until_state(&self, id: &str, state: &str) -> Run {
        until(&format!("run {id} is {state}"), async || {
            let run = self.run(id).await;
            assert!(run.state == state || !run.has_ended(), "it should become {state}, and is {run:?}");
            (run.state == state).then_some(run)
        })
        .await
    }

    pub async fn until_ended(&self, id: &str) -> Run {
        until(&format!("run {id} has ended"), async || Some(self.run(id).await).filter(Run::has_ended)).await
    }

    /// Runs a job now and waits for its end.
    pub async fn run_to_end(&self, job: &str) -> Run {
        let run = self.run_now(job).await;
        self.until_ended(&run.id).await
    }

    /// All recorded runs of a job, oldest first.
    pub async fn runs(&self, job: &str) -> Vec<Run> {
        self.runs_where(&format!("&job=default/{job}")).await
    }

    /// Of every job.
    pub async fn all_runs(&self) -> Vec<Run> {
        self.runs_where("").await
    }

    async fn runs_where(&self, filter: &str) -> Vec<Run> {
        let mut all = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("/runs?limit={PAGE}{filter}{cursor}")).await;
            let items = page["items"].as_array().expect("items").iter().cloned().map(read);
            all.extend(items);
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        all.reverse();
        all
    }

    pub async fn output(&self, id: &str) -> Vec<u8> {
        let asked = self.request(Method::GET, &format!("/runs/{id}/output")).send().await;
        asked.expect("an answer").bytes().await.expect("a body").to_vec()
    }

    pub async fn output_text(&self, id: &str) -> String {
        String::from_utf8(self.output(id).await).expect("text")
    }

    pub async fn chunks(&self, id: &str) -> Vec<Value> {
        let request = self.request(Method::GET, &format!("/runs/{id}/output")).header("accept", "application/json");
        let text = request.send().await.expect("an answer").text().await.expect("a body");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["chunks"].as_array().expect("chunks").clone()
    }
}

fn read(value: Value) -> Run {
    serde_json::from_value(value.clone()).unwrap_or_else(|cause| panic!("{value} is not a run: {cause}"))
}

/// What a server tells of changed runs.
#[derive(Debug)]
pub struct Changes {
    said: Arc<Mutex<Vec<u8>>>,
    listening: tokio::task::AbortHandle,
}

impl Changes {
    /// The runs as they were told, first to last.
    pub fn runs(&self) -> Vec<Run> {
        let said = String::from_utf8_lossy(&self.said.lock().expect("no one panics here")).into_owned();
        let whole = said.split_inclusive("\n\n").filter(|event| event.ends_with("\n\n"));
        let data = whole.filter_map(|event| event.strip_prefix("event: run\ndata: "));
        data.map(|data| serde_json::from_str(data).expect("a run")).collect()
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
