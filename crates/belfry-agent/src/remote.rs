//! Sessions with servers in other processes: gRPC over TLS, opened again for ever.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belfry_core::join::is_address;
use belfry_proto::session::session_client::SessionClient;
use futures_util::{StreamExt, TryFutureExt};
use tokio::sync::mpsc;
use tokio_rustls::rustls;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::AgentError;
use crate::membership;
use crate::session::{Closed, MESSAGES_IN_FLIGHT_MAX, Node};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Below the TTL: a server that comes back must hear of its nodes before it would hold them dead.
const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// After a refusal that only a person can do something about.
const BACKOFF_WHEN_DENIED: Duration = Duration::from_secs(60);

/// `host:port`, also of an URL.
pub(crate) fn address(text: &str) -> Result<String, AgentError> {
    let bare = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    if is_address(bare) { Ok(bare.to_owned()) } else { Err(AgentError::NotAnAddress { text: text.to_owned() }) }
}

/// Why there is no connection, in words that say what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoConnection {
    #[error(
        "its certificate is not one that the cluster's CA has signed: something else answers in the server's place, or it is a server \
         of another cluster"
    )]
    NotOurs,
    #[error("{0}")]
    Failed(String),
}

pub(crate) async fn connect(address: &str, tls: ClientTlsConfig) -> Result<Channel, NoConnection> {
    let failed = |cause: tonic::transport::Error| {
        let mut cause: &dyn std::error::Error = &cause;
        while let Some(next) = cause.source() {
            // An I/O error does not name what it wraps as its source.
            let inner = next.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
            if let Some(rustls::Error::InvalidCertificate(_)) = tls.or(next.downcast_ref()) {
                return NoConnection::NotOurs;
            }
            cause = next;
        }
        NoConnection::Failed(cause.to_string())
    };
    let endpoint = Endpoint::from_shared(format!("https://{address}")).map_err(failed)?;
    let endpoint = endpoint
        .tls_config(tls)
        .map_err(failed)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    endpoint.connect().await.map_err(failed)
}

/// A session with every server that was `given` or that a server named since; the latter only as long as it is named.
pub(crate) async fn keep_sessions(
    node: Arc<Node>,
    tls: ClientTlsConfig,
    given: Vec<String>,
    data_dir: PathBuf,
    shutdown: CancellationToken,
) {
    let mut named = node.servers.subscribe();
    let mut kept: HashMap<String, CancellationToken> = HashMap::new();
    let mut remembered: BTreeSet<String> = given.iter().cloned().collect();
    loop {
        let learned: BTreeSet<String> = named.borrow_and_update().addresses().cloned().collect();
        if !learned.is_empty() && learned != remembered {
            let (data_dir, servers) = (data_dir.clone(), learned.iter().cloned().collect::<Vec<_>>());
            let _written = tokio::task::spawn_blocking(move || membership::remember_servers(&data_dir, &servers)).await;
            remembered.clone_from(&learned);
        }
        let wanted: BTreeSet<String> = given.iter().cloned().chain(learned).collect();
        kept.retain(|address, end| {
            let is_wanted = wanted.contains(address);
            if !is_wanted {
                end.cancel();
            }
            is_wanted
        });
        for address in wanted {
            kept.entry(address).or_insert_with_key(|address| {
                let end = shutdown.child_token();
                let session = keep_session(Arc::clone(&node), address.clone(), tls.clone(), end.clone());
                node.tasks.spawn("session", session);
                end
            });
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            // The sender is the node itself, which outlives this.
            _ = named.changed() => {}
        }
    }
}

/// Opens sessions one after the other until `shutdown`.
async fn keep_session(node: Arc<Node>, server: String, tls: ClientTlsConfig, shutdown: CancellationToken) {
    let keep = async {
        let mut backoff = BACKOFF_MIN;
        let mut told = String::new();
        loop {
            let failure = match connect(&server, tls.clone()).await {
                Ok(channel) => match serve(&node, channel).await {
                    Ok(Closed::AfterWelcome) => {
                        backoff = BACKOFF_MIN;
                        told.clear();
                        None
                    }
                    Ok(Closed::BeforeWelcome) => None,
                    Err(denied) => {
                        backoff = BACKOFF_WHEN_DENIED;
                        Some(denied)
                    }
                },
                Err(cause) => Some(cause.to_string()),
            };
            // Each trouble is told once, not at every attempt.
            if let Some(failure) = failure.filter(|failure| *failure != told) {
                tracing::warn!(server, "no session with the server: {failure}; it is tried again until there is one");
                told = failure;
            }
            tokio::time::sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = keep => {}
    }
}

/// An error: the server will not have this node until somebody does something.
async fn serve(node: &Node, channel: Channel) -> Result<Closed, String> {
    let (outgoing, messages) = mpsc::channel(MESSAGES_IN_FLIGHT_MAX);
    let mut client = SessionClient::new(channel);
    // A server answers only after hello, so the session already speaks while this call waits.
    let opening = async move { client.open(ReceiverStream::new(messages)).await };
    let mut denied = None;
    let incoming = opening.map_ok(tonic::Response::into_inner).try_flatten_stream().map(|message| match message {
        Ok(message) => Some(message),
        Err(status) if status.code() == tonic::Code::PermissionDenied => {
            denied = Some(status.message().to_owned());
            None
        }
        Err(status) => {
            tracing::warn!(code = ?status.code(), message = status.message(), "the session with the server broke off");
            None
        }
    });
    let incoming = incoming.take_while(|message| std::future::ready(message.is_some())).filter_map(std::future::ready);
    let closed = node.serve(Box::pin(incoming), outgoing).await;
    denied.map_or(Ok(closed), Err)
}

/// Half of it for sure, the rest by chance: many agents do not come back in step.
fn jittered(backoff: Duration) -> Duration {
    let chance = getrandom::u32().unwrap_or(u32::MAX / 2);
    backoff / 2 + (backoff / 2).mul_f64(f64::from(chance) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_and_never_without_tls() {
        for text in ["10.0.0.1:8788", "https://10.0.0.1:8788/", "[::1]:8788", "belfry1.example:8788"] {
            assert!(address(text).is_ok(), "{text}");
        }
        for text in ["http://127.0.0.1:8788", "127.0.0.1", "https://h:1/path", "not an address", ""] {
            assert!(matches!(address(text), Err(AgentError::NotAnAddress { .. })), "{text}");
        }
    }
}
