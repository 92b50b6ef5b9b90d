use std::time::Duration;

use belfry_agent::{Agent, LocalLink};
use belfry_proto::session::session_server::{Session, SessionServer};
use belfry_proto::session::{FromAgent, ToAgent};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::server::{Server, config, key, shell, stdout};

/// Hands each session to the test, as if it were in the same process.
struct Gateway {
    sessions: mpsc::Sender<LocalLink>,
}

#[tonic::async_trait]
impl Session for Gateway {
    type OpenStream = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<ToAgent, Status>> + Send>>;

    async fn open(&self, request: Request<Streaming<FromAgent>>) -> Result<Response<Self::OpenStream>, Status> {
        let mut incoming = request.into_inner();
        let (to_agent, outgoing) = mpsc::channel(64);
        let (forward, from_agent) = mpsc::channel(64);
        tokio::spawn(async move {
            while let Some(Ok(message)) = incoming.next().await {
                if forward.send(message).await.is_err() {
                    return;
                }
            }
        });
        self.sessions.send(LocalLink { to_agent, from_agent }).await.map_err(|_| Status::unavailable("closing"))?;
        Ok(Response::new(Box::pin(ReceiverStream::new(outgoing).map(Ok))))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_over_the_wire_works_like_a_local_one_and_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sessions, mut opened) = mpsc::channel(4);
    let serving = tonic::transport::Server::builder()
        .add_service(SessionServer::new(Gateway { sessions }))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(serving);
    let agent = Agent::start(config(folder.path())).await.unwrap();
    let shutdown = CancellationToken::new();
    let connecting = tokio::spawn({
        let (agent, shutdown) = (agent.clone(), shutdown.clone());
        async move { agent.run_remote(vec![url], shutdown).await }
    });
    let mut server = Server::welcome(opened.recv().await.unwrap(), Duration::from_secs(10)).await;
    server.stores = false;
    server.dispatch(shell(1, "echo over the wire")).await;
    assert_eq!(stdout(&server.result(1).await.0), "over the wire\n");
    drop(server);
    let mut server = Server::welcome(opened.recv().await.unwrap(), Duration::from_secs(10)).await;
    assert_eq!(server.hello.finished, [key(1)]);
    assert_eq!(stdout(&server.result(1).await.0), "over the wire\n");
    shutdown.cancel();
    connecting.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_machine_is_refused_until_there_is_tls() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(config(folder.path())).await.unwrap();
    let refusal = agent.run_remote(vec!["http://192.0.2.1:8788".into()], CancellationToken::new()).await.unwrap_err();
    assert!(refusal.to_string().contains("TLS between machines is not supported yet"));
}
