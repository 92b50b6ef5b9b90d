//! Sessions with a server in another process: gRPC over plain HTTP/2, to this machine only, opened again for ever.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use belfry_proto::session::session_client::SessionClient;
use futures_util::{StreamExt, TryFutureExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::AgentError;
use crate::session::{Closed, MESSAGES_IN_FLIGHT_MAX, Node};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// An address that may be connected to without TLS.
pub(crate) fn endpoint(url: &str) -> Result<Endpoint, AgentError> {
    let not_an_address = || AgentError::NotAnAddress { url: url.to_owned() };
    let uri: Uri = url.parse().map_err(|_| not_an_address())?;
    let host = uri.host().ok_or_else(not_an_address)?;
    if uri.scheme_str() != Some("http") || !is_loopback(host) {
        return Err(AgentError::NotLoopback { url: url.to_owned() });
    }
    let endpoint = Endpoint::from(uri)
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    Ok(endpoint)
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A session with every server that was `given` or that a server named since; the latter only as long as it is named.
pub(crate) async fn keep_sessions(node: Arc<Node>, given: Vec<String>, shutdown: CancellationToken) {
    let mut named = node.servers.subscribe();
    let mut kept: HashMap<String, CancellationToken> = HashMap::new();
    loop {
        let wanted: BTreeSet<String> = given.iter().chain(&*named.borrow_and_update()).cloned().collect();
        kept.retain(|url, end| {
            let is_wanted = wanted.contains(url);
            if !is_wanted {
                end.cancel();
            }
            is_wanted
        });
        for url in wanted {
            if kept.contains_key(&url) {
                continue;
            }
            let end = shutdown.child_token();
            match endpoint(&url) {
                Ok(endpoint) => node.tasks.spawn("session", keep_session(Arc::clone(&node), endpoint, end.clone())),
                Err(cause) => tracing::warn!(%cause, "a server names an address that cannot be connected to"),
            }
            kept.insert(url, end);
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            // The sender is the node itself, which outlives this.
            _ = named.changed() => {}
        }
    }
}

/// Opens sessions one after the other until `shutdown`.
async fn keep_session(node: Arc<Node>, endpoint: Endpoint, shutdown: CancellationToken) {
    let keep = async {
        let mut backoff = BACKOFF_MIN;
        let mut told = false;
        loop {
            match endpoint.connect().await {
                Ok(channel) => {
                    told = false;
                    match serve(&node, channel).await {
                        Closed::AfterWelcome => backoff = BACKOFF_MIN,
                        Closed::BeforeWelcome => {}
                    }
                }
                Err(cause) if !told => {
                    told = true;
                    tracing::warn!(%cause, server = %endpoint.uri(), "connect to the server; it is tried again until it answers");
                }
                Err(_) => {}
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

async fn serve(node: &Node, channel: Channel) -> Closed {
    let (outgoing, messages) = mpsc::channel(MESSAGES_IN_FLIGHT_MAX);
    let mut client = SessionClient::new(channel);
    // A server answers only after hello, so the session already speaks while this call waits.
    let opening = async move { client.open(ReceiverStream::new(messages)).await };
    let incoming = opening.map_ok(tonic::Response::into_inner).try_flatten_stream().map(|message| match message {
        Ok(message) => Some(message),
        Err(status) => {
            tracing::warn!(code = ?status.code(), message = status.message(), "the session with the server broke off");
            None
        }
    });
    let incoming = incoming.take_while(|message| std::future::ready(message.is_some())).filter_map(std::future::ready);
    node.serve(Box::pin(incoming), outgoing).await
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
    fn only_this_machine_is_joined_without_tls() {
        for url in ["http://127.0.0.1:8788", "http://localhost:1", "http://[::1]:8788", "http://127.9.9.9:1"] {
            assert!(endpoint(url).is_ok(), "{url}");
        }
        for url in ["http://10.0.0.1:8788", "https://127.0.0.1:8788", "http://example.com:1", "http://localhost.evil:1"]
        {
            let refusal = endpoint(url).unwrap_err();
            assert!(refusal.to_string().contains("TLS between machines is not supported yet"), "{url}: {refusal}");
        }
        assert!(matches!(endpoint("not an address"), Err(AgentError::NotAnAddress { .. })));
    }
}
