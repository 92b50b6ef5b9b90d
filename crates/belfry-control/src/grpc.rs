//! The session service for agents in other processes, always over TLS.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use belfry_proto::MESSAGE_BYTES_MAX;
use belfry_proto::session::session_server::{Session, SessionServer};
use belfry_proto::session::{FromAgent, JoinAnswer, JoinRequest, ToAgent};
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::context::Context;
use crate::gateway::{self, Door, ORDERS_WAITING_MAX, SessionRefused};
use crate::joins::{self, NotLetIn};

const KEEP_ALIVE: Duration = Duration::from_secs(5);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server shows to its agents, as PEM.
#[derive(Clone)]
pub struct ServerIdentity {
    /// Its own certificate, then the CA's: a newcomer knows only the hash of the latter.
    pub chain: String,
    pub key: String,
}

/// Serves until the process ends.
pub async fn serve(
    context: Arc<Context>,
    listener: tokio::net::TcpListener,
    identity: ServerIdentity,
) -> Result<(), tonic::transport::Error> {
    let tls =
        ServerTlsConfig::new().identity(Identity::from_pem(&identity.chain, &identity.key)).timeout(HANDSHAKE_TIMEOUT);
    Server::builder()
        .tls_config(tls)?
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(SessionServer::new(SessionService(context)).max_decoding_message_size(MESSAGE_BYTES_MAX))
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await
}

struct SessionService(Arc<Context>);

#[tonic::async_trait]
impl Session for SessionService {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<ToAgent, Status>> + Send>>;

    async fn open(&self, request: Request<Streaming<FromAgent>>) -> Result<Response<Self::OpenStream>, Status> {
        // A broken stream is an ended one: the agent connects again.
        let incoming = request
            .into_inner()
            .take_while(|item| std::future::ready(item.is_ok()))
            .filter_map(|item| std::future::ready(item.ok()));
        let mut incoming = Box::pin(incoming);
        let context = self.0.clone();
        let visitor = gateway::greet(&context, &mut incoming, Door::Network).await.map_err(|refused| {
            tracing::warn!("an agent was not admitted: {refused}");
            status(&refused)
        })?;
        let (orders, waiting) = mpsc::channel(ORDERS_WAITING_MAX);
        let tasks = context.tasks.clone();
        tasks.spawn("agent session", async move {
            if let Err(refused) = gateway::serve(context, visitor, incoming, orders).await {
                tracing::warn!("an agent was not admitted: {refused}");
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(waiting).map(Ok))))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinAnswer>, Status> {
        let from = request.remote_addr().map_or_else(|| "?".to_owned(), |address| address.to_string());
        match joins::join(&self.0, request.into_inner()).await {
            Ok(()) => Ok(Response::new(JoinAnswer {})),
            Err(refused) => {
                tracing::warn!(from, "a node was not let in: {refused}");
                Err(status(&SessionRefused::NotLetIn(refused)))
            }
        }
    }
}

/// Denied is final until a person does something; unavailable is not.
fn status(refused: &SessionRefused) -> Status {
    let message = refused.to_string();
    match refused {
        SessionRefused::NotLetIn(NotLetIn::NotNow) | SessionRefused::NotNow => Status::unavailable(message),
        SessionRefused::NotLetIn(NotLetIn::BadRequest(_)) | SessionRefused::NoHello | SessionRefused::BadHello(_) => {
            Status::invalid_argument(message)
        }
        SessionRefused::NotLetIn(_) => Status::permission_denied(message),
    }
}
