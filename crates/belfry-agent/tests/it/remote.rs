use std::sync::{Arc, Mutex};
use std::time::Duration;

use belfry_agent::{Agent, AgentConfig, AgentError, JoinError, LocalLink};
use belfry_core::join::{CaHash, JoinToken, SECRET_CHARS};
use belfry_proto::SERVER_NAME;
use belfry_proto::session::session_server::{Session, SessionServer};
use belfry_proto::session::{FromAgent, JoinAnswer, JoinRequest, ToAgent};
use rcgen::{CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Identity, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use crate::server::{Server, config, key, shell, stdout};

/// Hands each session to the test, as if it were in the same process, and lets in everyone who joins; the answers to the first of them
/// are lost.
struct Gateway {
    sessions: mpsc::Sender<LocalLink>,
    joins: Arc<Mutex<Vec<JoinRequest>>>,
    answers_lost: usize,
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

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinAnswer>, Status> {
        let mut joins = self.joins.lock().unwrap();
        joins.push(request.into_inner());
        if joins.len() <= self.answers_lost {
            Err(Status::unavailable("lost"))
        } else {
            Ok(Response::new(JoinAnswer {}))
        }
    }
}

struct Served {
    token: JoinToken,
    opened: mpsc::Receiver<LocalLink>,
    joins: Arc<Mutex<Vec<JoinRequest>>>,
}

/// A server with a CA of its own.
async fn served(answers_lost: usize) -> Served {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![SERVER_NAME.to_owned()]).unwrap().signed_by(&key, &ca).unwrap();
    let identity = Identity::from_pem(leaf.pem() + &ca.pem(), key.serialize_pem());

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sessions, opened) = mpsc::channel(4);
    let joins = Arc::default();
    let gateway = Gateway { sessions, joins: Arc::clone(&joins), answers_lost };
    let serving = tonic::transport::Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))
        .unwrap()
        .add_service(SessionServer::new(gateway))
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(serving);
    let ca = CaHash(Sha256::digest(ca.der()).into());
    Served { token: JoinToken { addresses: vec![address], ca, secret: "1".repeat(SECRET_CHARS) }, opened, joins }
}

fn joining(folder: &tempfile::TempDir, token: &JoinToken) -> AgentConfig {
    AgentConfig { join: Some(token.clone()), ..config(folder.path()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_over_the_wire_works_like_a_local_one_and_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let Served { token, mut opened, joins } = served(0).await;
    let agent = Agent::start(joining(&folder, &token)).await.unwrap();
    let shutdown = CancellationToken::new();
    let connecting = tokio::spawn({
        let (agent, shutdown) = (agent.clone(), shutdown.clone());
        async move { agent.run_remote(Vec::new(), shutdown).await }
    });
    let mut server = Server::welcome(opened.recv().await.unwrap(), Duration::from_secs(10)).await;
    let joined = joins.lock().unwrap()[0].clone();
    assert_eq!((joined.node, joined.secret), (agent.node().to_string(), token.secret.clone()));
    let shown: String = Sha256::digest(&server.hello.credential).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(joined.credential_sha256, shown);
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
async fn a_joining_whose_answer_was_lost_is_repeated_not_begun_anew() {
    let folder = tempfile::tempdir().unwrap();
    let Served { token, joins, .. } = served(1).await;
    let refusal = Agent::start(joining(&folder, &token)).await.map(|_| ()).unwrap_err();
    assert!(matches!(refusal, AgentError::Join(JoinError::NoServer { .. })) && refusal.is_transient(), "{refusal:?}");
    let agent = Agent::start(joining(&folder, &token)).await.unwrap();
    let node = agent.node();
    drop(agent);
    let asked = joins.lock().unwrap().clone();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0], asked[1]);
    assert_eq!(asked[1].node, node.to_string());
    // The flag stays on the command line; a new token is another matter.
    assert_eq!(start_again(&folder, &token).await, node);
    assert_eq!(joins.lock().unwrap().len(), 2);
    let other = JoinToken { secret: "2".repeat(SECRET_CHARS), ..token };
    assert_ne!(start_again(&folder, &other).await, node);
}

async fn start_again(folder: &tempfile::TempDir, token: &JoinToken) -> belfry_core::NodeId {
    loop {
        match Agent::start(joining(folder, token)).await {
            Ok(agent) => return agent.node(),
            // The one before it is still leaving.
            Err(AgentError::InUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_said_to_a_server_whose_ca_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let Served { token, joins, .. } = served(0).await;
    let other = JoinToken { ca: CaHash([7; 32]), ..token };
    let refusal = Agent::start(joining(&folder, &other)).await.map(|_| ()).unwrap_err();
    assert!(matches!(refusal, AgentError::Join(JoinError::WrongCa { .. })), "{refusal:?}");
    assert!(joins.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_has_not_joined_is_told_how() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Agent::start(config(folder.path())).await.unwrap();
    let refusal = agent.run_remote(vec!["192.0.2.1:8788".into()], CancellationToken::new()).await.unwrap_err();
    assert!(refusal.to_string().contains("belfry node join-token"), "{refusal}");
}
