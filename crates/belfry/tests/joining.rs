//! How machines become nodes of a cluster, and how they are kept out: real servers and agents, each refusal with its own message.
#![expect(clippy::disallowed_methods, reason = "a test may wait for the real clock, and its futures end with it")]

use std::path::Path;
use std::time::Duration;

use belfry_core::join::{CaHash, JoinToken, SECRET_CHARS};
use belfry_proto::SERVER_NAME;
use belfry_testkit::servers::Port;
use belfry_testkit::{Client, Daemon, until};
use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ServerConfig, crypto::aws_lc_rs};

struct Server {
    folder: tempfile::TempDir,
    client: Client,
    _daemon: Daemon,
}

impl Server {
    async fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("belfry-joining-").tempdir().unwrap();
        let data = folder.path().join("server");
        let args = ["server", "--listen", "127.0.0.1:0", "--listen-agents", "127.0.0.1:0", "--ttl", "2s"];
        let mut daemon = start(&folder, "server", &args);
        let address = until("the address is written", async || {
            assert!(daemon.ended().is_none(), "{}", daemon.stderr());
            std::fs::read_to_string(data.join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        let token = std::fs::read_to_string(data.join("cli-token")).unwrap();
        Self { client: Client::new(address.trim(), token.trim()), folder, _daemon: daemon }
    }

    async fn token(&self) -> JoinToken {
        self.client.join_token().await.parse().unwrap()
    }

    fn agent(&self, name: &'static str, args: &[&str]) -> Daemon {
        start(&self.folder, name, &[&["agent", "--name", name], args].concat())
    }

    /// What an agent says that ends because it is not let in.
    async fn refused(&self, name: &'static str, token: &JoinToken) -> String {
        let mut agent = self.agent(name, &["--join", &token.to_string()]);
        let status = until("the agent ends", async || agent.ended()).await;
        assert!(!status.success());
        agent.stderr()
    }

    async fn until_connected(&self, name: &str) -> String {
        until("the node is connected", async || {
            let nodes = self.client.nodes().await;
            let node = nodes.iter().find(|node| node["name"] == name && node["connected"] == true)?;
            Some(node["id"].as_str()?.to_owned())
        })
        .await
    }
}

fn start(folder: &tempfile::TempDir, name: &'static str, args: &[&str]) -> Daemon {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let env = [("BELFRY_DATA".to_owned(), folder.path().join(name).display().to_string())];
    let log = folder.path().join(format!("{name}.err"));
    Daemon::start(name, Path::new(env!("CARGO_BIN_EXE_belfry")), &args, &env, &log)
}

async fn until_it_says(agent: &Daemon, wanted: &str) {
    until("the agent says why", async || agent.stderr().contains(wanted).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_to_be_refused_has_its_own_message() {
    let server = Server::start().await;
    let token = server.token().await;
    let wrong_ca = JoinToken { ca: CaHash([1; 32]), ..token.clone() };
    let said = server.refused("wrong-ca", &wrong_ca).await;
    assert!(said.contains("does not have the CA that the join token names"), "{said}");
    let unknown = JoinToken { secret: "0".repeat(SECRET_CHARS), ..token.clone() };
    let said = server.refused("unknown", &unknown).await;
    assert!(said.contains("the join token is not known here"), "{said}");

    let _first = server.agent("first", &["--join", &token.to_string()]);
    server.until_connected("first").await;
    let said = server.refused("second", &token).await;
    assert!(said.contains("was used at") && said.contains("belfry node join-token"), "{said}");
    assert!(!said.contains(&token.secret), "a secret is in the log: {said}");

    let short = server.client.post("/nodes/join-tokens", json!({ "expires_in_seconds": 1 })).await;
    let expires_at: jiff::Timestamp = short["expires_at"].as_str().unwrap().parse().unwrap();
    until("it has expired", async || (jiff::Timestamp::now() > expires_at).then_some(())).await;
    let said = server.refused("late", &short["token"].as_str().unwrap().parse().unwrap()).await;
    assert!(said.contains("the join token has expired at"), "{said}");

    let bare = server.agent("bare", &[]);
    until_it_says(&bare, "this machine has not joined a cluster").await;
    let nodes = server.client.nodes().await;
    assert_eq!(nodes.len(), 1, "only one was let in: {nodes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_node_stays_out_until_it_joins_anew() {
    let server = Server::start().await;
    let agent = server.agent("worker", &["--join", &server.token().await.to_string()]);
    let id = server.until_connected("worker").await;
    let refusal = server.client.call(reqwest::Method::DELETE, &format!("/nodes/{id}"), None).await;
    assert_eq!((refusal.status.as_u16(), &refusal.body["error"]["code"]), (409, &json!("still_connected")));
    server.client.delete(&format!("/nodes/{id}?force=true")).await;
    until_it_says(&agent, "was removed from the cluster").await;
    until("it is gone from the list", async || server.client.nodes().await.is_empty().then_some(())).await;
    drop(agent);
    let agent = server.agent("worker", &[]);
    until_it_says(&agent, "was removed from the cluster").await;
    drop(agent);
    let _agent = server.agent("worker", &["--join", &server.token().await.to_string()]);
    let new_id = server.until_connected("worker").await;
    assert_ne!(new_id, id);
}

/// Takes connections with a certificate of its own CA, for the very name that agents ask for.
async fn man_in_the_middle() -> (String, tokio::sync::mpsc::Receiver<Vec<u8>>) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![SERVER_NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
    let mut config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (heard, said) = tokio::sync::mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, heard) = (acceptor.clone(), heard.clone());
            tokio::spawn(async move {
                use tokio::io::AsyncReadExt;
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut bytes = vec![0; 4096];
                if let Ok(read @ 1..) = stream.read(&mut bytes).await {
                    bytes.truncate(read);
                    let _ = heard.send(bytes).await;
                }
            });
        }
    });
    (address, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_with_a_ca_of_its_own_learns_nothing() {
    let server = Server::start().await;
    let (address, mut heard) = man_in_the_middle().await;
    let token = server.token().await;
    let through_it = JoinToken { addresses: vec![address.clone()], ..token.clone() };
    let said = server.refused("newcomer", &through_it).await;
    assert!(said.contains("does not have the CA that the join token names"), "{said}");

    let agent = server.agent("worker", &["--join", &token.to_string()]);
    server.until_connected("worker").await;
    drop(agent);
    let agent = server.agent("worker", &["--server", &address]);
    until_it_says(&agent, "its certificate is not one that the cluster's CA has signed").await;
    assert!(tokio::time::timeout(Duration::from_millis(1), heard.recv()).await.is_err(), "something was said to it");
}

fn belfry(folder: &Path, args: &[&str]) -> assert_cmd::assert::Assert {
    let mut command = assert_cmd::Command::new(env!("CARGO_BIN_EXE_belfry"));
    command.args(args).env("HOME", folder).env_remove("BELFRY_URL").env_remove("BELFRY_TOKEN").assert()
}

fn said(assert: &assert_cmd::assert::Assert) -> String {
    String::from_utf8_lossy(&assert.get_output().stderr).into_owned()
}

/// Where other machines can reach it the API has TLS by itself; servers ask each other over it.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_others_reach_has_tls() {
    let folder = tempfile::Builder::new().prefix("belfry-tls-").tempdir().unwrap();
    let store = format!("sqlite:{}", folder.path().join("shared.db").display());
    let mut servers = Vec::new();
    for name in ["one", "two"] {
        let reserved = Port::free();
        let port = reserved.number();
        let (listen, url) = (format!("0.0.0.0:{port}"), format!("https://localhost:{port}"));
        let args = ["server", "--listen", &listen, "--advertise", &url, "--listen-agents", "127.0.0.1:0"];
        let mut daemon = start(&folder, name, &[&args[..], &["--store", &store, "--ttl", "2s"]].concat());
        until("the address is written", async || {
            assert!(daemon.ended().is_none(), "{}", daemon.stderr());
            std::fs::read_to_string(folder.path().join(name).join("address")).ok().filter(|text| text.ends_with('\n'))
        })
        .await;
        servers.push((daemon, url, reserved));
    }
    let (one, home) = (folder.path().join("one"), folder.path());
    let token = std::fs::read_to_string(one.join("cli-token")).unwrap();
    let (data, ca) = (one.display().to_string(), one.join("ca.pem").display().to_string());
    belfry(home, &["--data", &data, "node", "ls"]).success();
    let refused = belfry(home, &["--url", &servers[0].1, "--token", token.trim(), "node", "ls"]).code(4);
    assert!(said(&refused).contains("is not trusted") && said(&refused).contains("--ca FILE"), "{}", said(&refused));
    belfry(home, &["--url", &servers[0].1, "--token", token.trim(), "--ca", &ca, "node", "ls"]).success();
    let printed = belfry(home, &["--data", &data, "node", "join-token"]).success();
    let line = String::from_utf8_lossy(&printed.get_output().stdout).into_owned();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[..3], ["belfry", "agent", "--join"], "{line}");
    let mut agent = start(&folder, "worker", &["agent", "--join", words[3].trim_matches('\'')]);

    // Of twenty jobs some are the other server's.
    for n in 0..20 {
        let name = format!("j{n}");
        belfry(home, &["--data", &data, "job", "add", &name, "--", "echo", "hello"]).success();
        until("it can be run from here", async || {
            assert!(agent.ended().is_none(), "{}", agent.stderr());
            let ran = belfry(home, &["--data", &data, "job", "run", "-f", &name]);
            ran.get_output().status.success().then_some(())
        })
        .await;
    }
}
