//! The session service for agents in other processes.

use std::pin::Pin;
use std::sync::Arc;

use belfry_proto::session::session_server::{Session, SessionServer};
use belfry_proto::session::{FromAgent, ToAgent};
use futures_util::{Stream, StreamExt};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::context::Context;
use crate::gateway::{self, ORDERS_WAITING_MAX};

pub struct SessionService(Arc<Context>);

impl SessionService {
    pub(crate) fn server(context: Arc<Context>) -> SessionServer<Self> {
        SessionServer::new(Self(context))
    }
}

#[tonic::async_trait]
impl Session for SessionService {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<ToAgent, Status>> + Send>>;

    async fn open(&self, request: Request<Streaming<FromAgent>>) -> Result<Response<Self::OpenStream>, Status> {
        let (orders, waiting) = mpsc::channel(ORDERS_WAITING_MAX);
        // A broken stream is an ended one: the agent connects again.
        let incoming = request
            .into_inner()
            .take_while(|item| std::future::ready(item.is_ok()))
            .filter_map(|item| std::future::ready(item.ok()));
        let context = self.0.clone();
        let tasks = context.tasks.clone();
        tasks.spawn("agent session", async move {
            if let Err(refused) = gateway::serve(context, incoming, orders).await {
                tracing::warn!("an agent was not admitted: {refused}");
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(waiting).map(Ok))))
    }
}
