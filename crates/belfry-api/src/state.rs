//! What every route can reach: the store, the server's control part, the settings, the clock, and the bounds on what costs much.

use std::sync::Arc;

use belfry_control::Control;
use belfry_core::Timestamp;
use belfry_core::join::CaHash;
use belfry_store::{Callers, Store};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;

use crate::auth::{LoginThrottle, Passwords};
use crate::contact::{Finder, StoreContact};
use crate::plans::Plans;

/// Time comes in as a value: tests bring their own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What a join token says beside its secret.
#[derive(Clone, Debug)]
pub struct Joining {
    /// Of the CA that agents know the servers by.
    pub ca: CaHash,
    /// Where this server listens for agents; named when no server tells agents where it is.
    pub address: String,
}

#[derive(Clone, Debug)]
pub struct ApiSettings {
    /// Written into a job that is saved without `timezone`.
    pub default_timezone: String,
    pub version: String,
    /// How many live streams (output and events) are served at once. Each holds a connection and a small buffer. Default 256.
    pub streams_max: usize,
    /// How long a sign-in with a password lasts. Default 7 days.
    pub session_seconds: i64,
    /// The cookie is only sent over TLS. Set when the server listens with TLS.
    pub secure_cookie: bool,
    /// None: this server takes no agents of other machines.
    pub joining: Option<Joining>,
    /// Who is known while the store has not answered yet.
    pub callers: Callers,
    /// Its certificate (PEM), trusted beside the system's when other servers are asked.
    pub peers_ca: Option<String>,
}

impl Default for ApiSettings {
    fn default() -> Self {
        Self {
            default_timezone: "UTC".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            streams_max: 256,
            session_seconds: 7 * 86_400,
            secure_cookie: false,
            joining: None,
            callers: Callers::default(),
            peers_ca: None,
        }
    }
}

#[derive(Clone)]
pub struct ApiState {
    /// Answers within seconds, or that it is away.
    pub store: Store,
    /// Asks it also while it is known to be away.
    pub(crate) finder: Store,
    pub(crate) contact: Arc<StoreContact>,
    pub control: Control,
    pub settings: Arc<ApiSettings>,
    clock: Clock,
    pub(crate) metrics: Option<PrometheusHandle>,
    pub(crate) passwords: Passwords,
    pub(crate) throttle: Arc<LoginThrottle>,
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) plans: Arc<Plans>,
    /// For asking other servers.
    pub(crate) peers: reqwest::Client,
}

impl ApiState {
    pub fn new(store: Store, control: Control, settings: ApiSettings, clock: Clock) -> Self {
        let contact = Arc::new(StoreContact::default());
        contact.knows(settings.callers.clone());
        Self {
            store: store.impatient(contact.clone()),
            finder: store.impatient(Arc::new(Finder(contact.clone()))),
            contact,
            control,
            clock,
            metrics: None,
            passwords: Passwords::default(),
            throttle: Arc::default(),
            streams: Arc::new(Semaphore::new(settings.streams_max)),
            plans: Arc::default(),
            peers: crate::forward::client(settings.peers_ca.as_deref()),
            settings: Arc::new(settings),
        }
    }

    /// What `/metrics` shows; see [`crate::metrics::install`].
    pub fn with_metrics(mut self, handle: PrometheusHandle) -> Self {
        self.metrics = Some(handle);
        self
    }

    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }
}
