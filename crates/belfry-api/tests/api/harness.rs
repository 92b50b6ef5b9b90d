//! A server without a socket: requests go straight into the router.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use belfry_api::{ApiSettings, ApiState, create_token, ensure_admin, router};
use belfry_control::{Control, ControlConfig};
use belfry_coord::{Clock, Coordinator, Memory, SystemClock};
use belfry_core::role::{Grants, Role};
use belfry_core::run::{OutputFacts, Run, RunState, Trigger, Usage};
use belfry_core::wrapped::{End, Outcome, Phase, Record, Rule};
use belfry_core::{Fence, Incarnation, JobId, NodeId, RunId, ServerId, Timestamp};
use belfry_sql::{Database, Dialect, Migration, Row, SqlError, Sqlite, SqliteOptions, Statement, Step, Written};
use belfry_store::{NodeRecord, Store, TokenOwner};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

pub struct Api {
    router: Router,
    state: ApiState,
    pub store: Store,
    database: Arc<MayBeAway>,
    pub password: String,
    tokens: BTreeMap<&'static str, String>,
    _folder: tempfile::TempDir,
}

/// A database that does not answer while it is told so.
struct MayBeAway {
    inner: Sqlite,
    away: AtomicBool,
    silent: AtomicBool,
    /// A read whose text has this is not answered.
    slow: Mutex<Option<&'static str>>,
    asked: AtomicU64,
    /// What was read.
    texts: Mutex<Vec<String>>,
}

impl MayBeAway {
    async fn check(&self) -> Result<(), SqlError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if self.away.load(Ordering::Relaxed) { Err(SqlError::Away("unplugged by a test".to_owned())) } else { Ok(()) }
    }
}

#[async_trait]
impl Database for MayBeAway {
    fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }
    async fn read(&self, statement: Statement) -> Result<Vec<Row>, SqlError> {
        self.check().await?;
        self.texts.lock().unwrap().push(statement.sql.to_string());
        let slow = *self.slow.lock().unwrap();
        if slow.is_some_and(|part| statement.sql.contains(part)) {
            std::future::pending::<()>().await;
        }
        self.inner.read(statement).await
    }
    async fn write(&self, steps: Vec<Step>) -> Result<Written, SqlError> {
        self.check().await?;
        self.inner.write(steps).await
    }
    async fn migrate(&self, scope: &'static str, migrations: &'static [Migration]) -> Result<(), SqlError> {
        self.inner.migrate(scope, migrations).await
    }
}

pub fn now() -> Timestamp {
    SystemClock.now()
}

pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("not JSON: {}", String::from_utf8_lossy(&self.body)))
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        self
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// The callers of the matrix, and what each is granted.
pub const CALLERS: [(&str, Option<(&str, Role)>); 7] = [
    ("none", None),
    ("viewer", Some(("default", Role::Viewer))),
    ("operator", Some(("default", Role::Operator))),
    ("editor", Some(("default", Role::Editor))),
    ("admin", Some(("*", Role::Admin))),
    ("other", Some(("other", Role::Admin))),
    ("wrapper", Some(("dcron", Role::Operator))),
];

/// The record of a wrapped command that failed.
pub fn wrapped(claimed_at: Timestamp) -> Record {
    let end = End { outcome: Outcome::Failed, exit_code: Some(3), signal: None, at: claimed_at, reason: String::new() };
    Record {
        host: "db1".into(),
        rule: Rule::AtMostOnce,
        attempt: 1,
        attempts_max: 2,
        claimed_at,
        ttl_ms: 15_000,
        keep_s: 3600,
        phase: Phase::Ended(end),
        fence: 0,
        quick_ends: 0,
        copied: false,
    }
}

impl Api {
    pub async fn start() -> Self {
        Self::start_on(Arc::new(Memory::sole())).await
    }

    pub async fn start_on(coordinator: Arc<dyn Coordinator>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let inner = Sqlite::open(folder.path().join("belfry.db"), SqliteOptions::default()).unwrap();
        let database = Arc::new(MayBeAway {
            inner,
            away: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            slow: Mutex::new(None),
            texts: Mutex::default(),
            asked: AtomicU64::new(0),
        });
        let store = Store::open(database.clone()).await.unwrap();
        let now = now();
        let password = ensure_admin(&store, now).await.unwrap().expect("the first start makes a password");
        assert_eq!(ensure_admin(&store, now).await.unwrap(), None, "only the first start makes one");
        let mut tokens = BTreeMap::new();
        for (name, grant) in CALLERS {
            if let Some((namespace, role)) = grant {
                let grants = Grants(BTreeMap::from([(namespace.to_owned(), role)]));
                let owner = TokenOwner::Service(name.to_owned());
                tokens.insert(name, create_token(&store, owner, "test", grants, now).await.unwrap());
            }
        }
        for (n, name) in ["node-get", "node-patch", "node-delete"].into_iter().enumerate() {
            store.upsert_node(&node(n as u128 + 1, name, now)).await.unwrap();
        }
        let server = ServerId::from_u128(1);
        // The runs of these tests are old, and the leader's first look would remove them in between.
        let config =
            ControlConfig { retention_age: Duration::from_secs(100 * 365 * 86_400), ..ControlConfig::default() };
        let control = Control::start(config, server, coordinator, store.clone(), Arc::new(SystemClock)).await.unwrap();
        let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
        let settings = ApiSettings {
            default_timezone: "Europe/Berlin".to_owned(),
            joining: Some(belfry_api::Joining {
                ca: belfry_core::join::CaHash([0; 32]),
                address: "127.0.0.1:8788".to_owned(),
            }),
            ..ApiSettings::default()
        };
        let state =
            ApiState::new(store.clone(), control, settings, Arc::new(|| SystemClock.now())).with_metrics(metrics);
        Self { router: router(state.clone()), state, store, database, password, tokens, _folder: folder }
    }

    pub async fn call(&self, caller: &str, method: &str, path: &str, body: Value) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(token) = self.tokens.get(caller) {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let body = if body.is_null() {
            Body::empty()
        } else {
            request = request.header(header::CONTENT_TYPE, "application/json");
            Body::from(body.to_string())
        };
        self.send(request.body(body).unwrap()).await
    }

    pub async fn admin(&self, method: &str, path: &str, body: Value) -> Answer {
        self.call("admin", method, path, body).await
    }

    pub fn unplug_store(&self, away: bool) {
        self.database.away.store(away, Ordering::Relaxed);
    }

    /// It takes requests and answers none.
    pub fn silence_store(&self) {
        self.database.silent.store(true, Ordering::Relaxed);
    }

    /// It answers everything but reads whose text has this.
    pub fn slow_store(&self, part: &'static str) {
        *self.database.slow.lock().unwrap() = Some(part);
    }

    /// How often it was asked, whether it answered or not.
    pub fn asked_store(&self) -> u64 {
        self.database.asked.load(Ordering::Relaxed)
    }

    /// How many reads so far had this in their text.
    pub fn reads_of(&self, part: &str) -> usize {
        self.database.texts.lock().unwrap().iter().filter(|text| text.contains(part)).count()
    }

    /// As the server does every few seconds.
    pub async fn look_at_store(&self) {
        self.state.look().await;
    }

    /// For answers that do not end.
    pub fn router(&self) -> Router {
        self.router.clone()
    }

    pub fn token(&self, caller: &str) -> &str {
        &self.tokens[caller]
    }

    pub async fn send(&self, request: Request<Body>) -> Answer {
        let method = request.method().clone();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let endless = parts.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind == "text/event-stream");
        let body = if endless || method == Method::HEAD {
            Vec::new()
        } else {
            body.collect().await.unwrap().to_bytes().to_vec()
        };
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// A job that is there when this returns.
    pub async fn job(&self, namespace: &str, name: &str) -> JobId {
        if let Some(job) = self.store.job(namespace, name).await.unwrap() {
            return job.id;
        }
        let document = json!({"name": name, "namespace": namespace, "schedule": "0 4 1 1 *", "action": {"shell": {"command": "echo hello"}}});
        self.admin("POST", "/api/v1/jobs", document).await.expect(201);
        self.store.job(namespace, name).await.unwrap().unwrap().id
    }

    /// A run of a wrapped command, as the leader copies it; and what its wrapper says of it, without what it printed.
    pub async fn wrapped_run(&self, instance: &str) -> (Run, Value) {
        let run = wrapped(now()).run("backup", instance).unwrap();
        self.store.record_runs(std::slice::from_ref(&run)).await.unwrap();
        let claimed_at_ms = run.claimed_at.as_millisecond();
        let said = json!({"name": "backup", "instance": instance, "claimed_at_ms": claimed_at_ms, "attempt": 1});
        (run, said)
    }

    /// Of a job in the namespace `default`.
    pub async fn saved_an_hour_ago(&self, name: &str) {
        let text = format!("UPDATE jobs SET updated_at = updated_at - 3600000 WHERE name = '{name}'");
        self.database.write(vec![Statement { sql: text.into(), args: Vec::new() }.anything()]).await.unwrap();
    }

    /// An ended run of a job.
    pub async fn ended_run(&self, namespace: &str, name: &str, second: i64) -> RunId {
        let planned = Timestamp::from_second(1_790_000_000 + second).unwrap();
        self.run_with(namespace, name, planned, |_| ()).await
    }

    /// A run of a job that succeeded within a second, but for what is changed.
    pub async fn run_with(
        &self,
        namespace: &str,
        name: &str,
        planned: Timestamp,
        change: impl FnOnce(&mut Run),
    ) -> RunId {
        let job = self.job(namespace, name).await;
        let id = RunId::of(job, planned, belfry_core::id::Slot::Only);
        let after = |ms: u64| Some(planned.saturating_add(Duration::from_millis(ms)).unwrap());
        let mut run = Run {
            id,
            job,
            namespace: namespace.into(),
            job_name: name.into(),
            revision: 1,
            planned,
            trigger: Trigger::Schedule,
            state: RunState::Succeeded,
            reason: None,
            attempt: 1,
            next_attempt_at: None,
            node: None,
            node_name: None,
            incarnation: None,
            fence: Fence(1),
            claimed_at: planned,
            dispatched_at: after(1),
            started_at: after(12),
            ended_at: after(1012),
            exit_code: Some(0),
            signal: None,
            late: false,
            marks: Default::default(),
            usage: Usage::default(),
            output: OutputFacts::default(),
            overdue_at: None,
            placement: None,
            script: None,
        };
        change(&mut run);
        self.store.record_runs(&[run]).await.unwrap();
        id
    }
}

fn node(id: u128, name: &str, now: Timestamp) -> NodeRecord {
    NodeRecord {
        id: NodeId::from_u128(id),
        name: name.into(),
        labels: BTreeMap::new(),
        weight: 1,
        slots: None,
        draining: false,
        excluded: false,
        version: "test".into(),
        incarnation: Incarnation(1),
        first_seen: now,
        removed_at: None,
    }
}
