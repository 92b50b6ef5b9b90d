//! Requests that only another server can answer. Here that server is a listener that does what the test says.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, header};
use belfry_control::{Addresses, Control, ControlConfig};
use belfry_coord::{Coordinator, Memory, SystemClock};
use belfry_core::ServerId;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::harness::Api;

struct Two {
    api: Api,
    /// The path of a job that the other server owns.
    run: String,
    listener: TcpListener,
    other: Control,
}

impl Two {
    async fn start() -> Self {
        let coordinator: Arc<dyn Coordinator> = Arc::new(Memory::default());
        let api = Api::start_on(coordinator.clone()).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = Addresses { api: format!("http://{}", listener.local_addr().unwrap()), agents: String::new() };
        let config = ControlConfig { addresses, ..ControlConfig::default() };
        let store = api.store.clone();
        let other =
            Control::start(config, ServerId::from_u128(2), coordinator, store, Arc::new(SystemClock)).await.unwrap();
        let owns = |job: belfry_core::JobId| other.cluster().shards.iter().any(|shard| shard.shard == job.shard());
        let waited = async {
            while other.cluster().shards.len() < 8 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waited).await.expect("the other server gets its share");
        for n in 0.. {
            let name = format!("job-{n}");
            if owns(api.job("default", &name).await) {
                let run = format!("/api/v1/jobs/default/{name}/run");
                return Self { api, run, listener, other };
            }
        }
        unreachable!("one of the first few jobs is the other's")
    }

    fn request(&self, body: &str) -> Request<Body> {
        Request::post(&self.run)
            .header(header::AUTHORIZATION, format!("Bearer {}", self.api.token("admin")))
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::HOST, "belfry.example")
            .body(Body::from(body.to_owned()))
            .unwrap()
    }
}

/// The head and body of a request, as far as it announces.
async fn heard(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        let announced = text.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()?.parse().ok());
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() >= announced.unwrap_or(0)
        {
            return format!("{head}\n\n{body}");
        }
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.unwrap();
        assert!(count > 0, "it broke off: {text}");
        bytes.extend(&piece[..count]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_gets_the_request_as_it_came_and_the_caller_its_answer() {
    let two = Two::start().await;
    let owner = async {
        let (mut stream, _) = two.listener.accept().await.unwrap();
        let request = heard(&mut stream).await;
        let answer = json!({"id": "the run"}).to_string();
        let head = format!(
            "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            answer.len()
        );
        stream.write_all((head + &answer).as_bytes()).await.unwrap();
        request
    };
    let (request, answer) = tokio::join!(owner, two.api.send(two.request(r#"{"force":true}"#)));
    assert_eq!(answer.expect(201).json(), json!({"id": "the run"}));
    assert!(request.starts_with(&format!("post {} http/1.1", two.run)), "{request}");
    // A page's origin is compared with the host that it asked.
    assert!(request.contains("host: belfry.example"), "{request}");
    assert!(request.contains("authorization: bearer ") && request.contains("belfry-forwarded-by: "), "{request}");
    assert!(request.ends_with(r#"{"force":true}"#), "{request}");
    two.other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_may_have_been_carried_out_is_not_called_refused() {
    let two = Two::start().await;
    let owner = async {
        let (mut stream, _) = two.listener.accept().await.unwrap();
        heard(&mut stream).await;
        // It carries it out, and is gone before it can say so.
    };
    let ((), answer) = tokio::join!(owner, two.api.send(two.request("{}")));
    assert_eq!(answer.expect(503).code(), "outcome_unknown");
    // Nobody listens: it surely was not carried out, and may be tried again.
    let request = two.request("{}");
    drop(two.listener);
    assert_eq!(two.api.send(request).await.expect(503).code(), "no_owner");
    two.other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_a_credential_makes_servers_ask_each_other() {
    let two = Two::start().await;
    two.api.call("none", "POST", &two.run, json!({})).await.expect(401);
    two.api.call("none", "GET", "/api/v1/runs/01M7HBXAW83TWS4MM24NYV3GDN", Value::Null).await.expect(401);
    let long = format!(r#"{{"payload":"{}"}}"#, "x".repeat(2 << 20));
    assert_eq!(two.api.send(two.request(&long)).await.expect(413).code(), "too_large");
    let asked = tokio::time::timeout(Duration::from_millis(200), two.listener.accept()).await;
    assert!(asked.is_err(), "the other server was asked");
    two.other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_comes_from_the_owner_and_without_it_from_the_store() {
    let two = Two::start().await;
    let name = two.run.trim_start_matches("/api/v1/jobs/").trim_end_matches("/run");
    let path = format!("/api/v1/explain?job={name}&at=2040-01-01T03:00:00Z");
    let owner = async {
        let (mut stream, _) = two.listener.accept().await.unwrap();
        let request = heard(&mut stream).await;
        let answer = json!({"sentences": ["the owner knows"]}).to_string();
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", answer.len());
        stream.write_all((head + &answer).as_bytes()).await.unwrap();
        request
    };
    let (request, answer) = tokio::join!(owner, two.api.admin("GET", &path, Value::Null));
    assert!(request.starts_with(&format!("get {}", path.to_lowercase())), "{request}");
    assert_eq!(answer.expect(200).json()["sentences"][0], "the owner knows");
    drop(two.listener);
    let answer = two.api.admin("GET", &path, Value::Null).await.expect(200).json();
    assert_eq!(answer["verdict"], "due");
    let said = answer["sentences"].to_string();
    assert!(said.contains("the server that owns the job cannot be asked now"), "{said}");
    two.other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_followed_is_told_once_when_it_is_there_and_once_when_it_is_gone() {
    let two = Two::start().await;
    let request = Request::get("/api/v1/events")
        .header(header::AUTHORIZATION, format!("Bearer {}", two.api.token("admin")))
        .body(Body::empty())
        .unwrap();
    let mut stream = two.api.router().oneshot(request).await.unwrap().into_body();
    let other = async {
        let (mut stream, _) = two.listener.accept().await.unwrap();
        heard(&mut stream).await;
        drop(stream);
        let (mut stream, _) = two.listener.accept().await.unwrap();
        heard(&mut stream).await;
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        stream.write_all(format!("{head}event: run\ndata: theirs\n\n").as_bytes()).await.unwrap();
    };
    let told = async {
        let mut told = String::new();
        while !told.ends_with("theirs\n\nevent: missed\ndata: {\"missed\":0}\n\n") {
            let piece = stream.frame().await.expect("it goes on").unwrap().into_data().unwrap();
            told.push_str(std::str::from_utf8(&piece).unwrap().trim_start_matches(":\n\n"));
        }
        told
    };
    let both = async { tokio::join!(other, told) };
    let ((), told) = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it is tried again");
    let missed = "event: missed\ndata: {\"missed\":0}\n\n";
    assert_eq!(told, format!("{missed}event: run\ndata: theirs\n\n{missed}"));
    two.other.stop().await;
}
