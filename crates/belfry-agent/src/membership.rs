//! How a machine becomes a node of a cluster, and what it keeps of that: its credential, the CA's certificate, where the servers are.
//!
//! A join token names the CA by its hash. The newcomer takes the certificate of that hash from what a server shows, and speaks only to
//! servers whose own certificates that CA has signed: before that nothing secret is sent. Id and credential are drafted on the disk
//! first, so that a joining whose answer was lost is repeated, not begun anew; the old membership holds until the new one is whole.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belfry_core::NodeId;
use belfry_core::join::{CaHash, JoinToken};
use belfry_proto::SERVER_NAME;
use belfry_proto::session::JoinRequest;
use belfry_proto::session::session_client::SessionClient;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};
use tonic::transport::{Certificate, ClientTlsConfig};

use crate::identity::{self, write_once};
use crate::remote::{self, CONNECT_TIMEOUT};

/// What a node that has joined keeps in its data folder.
#[derive(Clone)]
pub(crate) struct Membership {
    pub credential: String,
    /// PEM.
    ca: String,
    /// `host:port`; the last that were known.
    pub servers: Vec<String>,
}

const CREDENTIAL_FILE: &str = "credential";
const CA_FILE: &str = "ca.pem";
const SERVERS_FILE: &str = "servers";
/// The hash of the token's secret; written last: with it the membership is whole.
const JOINED_FILE: &str = "joined-with";
/// Token, id and credential of a joining that has not been answered.
const DRAFT_FILE: &str = "joining";

#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("none of the servers that the join token names can be reached ({tried}); is the port open from here?")]
    NoServer { tried: String },
    #[error(
        "{address} does not have the CA that the join token names: something else answers in the server's place, or the token is of \
         another cluster; nothing was sent to it"
    )]
    WrongCa { address: String },
    #[error("{message}")]
    Refused { message: String },
    #[error("keep the membership in {}", path.display())]
    Keep {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
}

impl Membership {
    /// None: this machine has not joined a cluster.
    pub(crate) fn load(data_dir: &Path) -> Option<Membership> {
        fs::metadata(data_dir.join(JOINED_FILE)).ok()?;
        let read = |name| fs::read_to_string(data_dir.join(name)).ok();
        let servers = read(SERVERS_FILE).unwrap_or_default();
        Some(Membership {
            credential: read(CREDENTIAL_FILE)?.trim().to_owned(),
            ca: read(CA_FILE)?,
            servers: servers.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect(),
        })
    }

    /// Joins, unless it was this very token that the machine has joined with: the flag may stay on the command line.
    pub(crate) async fn join(data_dir: &Path, token: &JoinToken, name: &str, now: Timestamp) -> Result<(), JoinError> {
        let with = hex(&Sha256::digest(token.secret.as_bytes()));
        let joined_with = fs::read_to_string(data_dir.join(JOINED_FILE)).unwrap_or_default();
        if joined_with.trim() == with && Membership::load(data_dir).is_some() {
            return Ok(());
        }
        let kept = |path: PathBuf| move |cause| JoinError::Keep { path: path.clone(), cause };
        let draft = Draft::of(data_dir, &with, now).map_err(kept(data_dir.join(DRAFT_FILE)))?;
        let ca = ask(token, &draft, name).await?;
        let files = [
            (identity::NODE_ID_FILE, draft.node.to_string()),
            (CREDENTIAL_FILE, draft.credential),
            (CA_FILE, ca),
            (SERVERS_FILE, token.addresses.join("\n")),
            (JOINED_FILE, with),
        ];
        for (file, text) in files {
            let path = data_dir.join(file);
            write_once(data_dir, &path, text.trim_end()).map_err(kept(path.clone()))?;
        }
        let _nobody_needs_it = fs::remove_file(data_dir.join(DRAFT_FILE));
        tracing::info!(node = %draft.node, "this machine has joined the cluster");
        Ok(())
    }

    /// For connections to servers: only what the cluster's CA has signed is one.
    pub(crate) fn tls(&self) -> ClientTlsConfig {
        tls(&self.ca)
    }
}

/// Where servers were last, for the next start. With a full disk the former ones stay.
pub(crate) fn remember_servers(data_dir: &Path, servers: &[String]) {
    if let Err(cause) = write_once(data_dir, &data_dir.join(SERVERS_FILE), &servers.join("\n")) {
        tracing::warn!(%cause, "remember where the servers are");
    }
}

fn tls(ca: &str) -> ClientTlsConfig {
    // Not by host name: servers are reached by many, through tunnels and proxies; the CA signs nothing but servers of this cluster.
    ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)).domain_name(SERVER_NAME).timeout(CONNECT_TIMEOUT)
}

struct Draft {
    node: NodeId,
    credential: String,
}

impl Draft {
    fn of(data_dir: &Path, with: &str, now: Timestamp) -> io::Result<Draft> {
        let path = data_dir.join(DRAFT_FILE);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let words: Vec<&str> = text.split_whitespace().collect();
        if let [token, node, credential] = words[..]
            && token == with
            && let Ok(node) = node.parse()
        {
            return Ok(Draft { node, credential: credential.to_owned() });
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|cause| io::Error::other(cause.to_string()))?;
        let draft = Draft { node: NodeId::new(now, identity::random()?), credential: hex(&secret) };
        write_once(data_dir, &path, &format!("{with} {} {}", draft.node, draft.credential))?;
        Ok(draft)
    }
}

/// The CA's certificate, when a server has let this node in.
async fn ask(token: &JoinToken, draft: &Draft, name: &str) -> Result<String, JoinError> {
    let mut tried = Vec::new();
    for address in &token.addresses {
        let ca = match certificate_of(address, token.ca).await {
            Ok(Some(certificate)) => pem(&certificate),
            Ok(None) => return Err(JoinError::WrongCa { address: address.clone() }),
            Err(cause) => {
                tried.push(format!("{address}: {cause}"));
                continue;
            }
        };
        let channel = match remote::connect(address, tls(&ca)).await {
            Ok(channel) => channel,
            Err(cause) => {
                tried.push(format!("{address}: {cause}"));
                continue;
            }
        };
        let request = JoinRequest {
            secret: token.secret.clone(),
            node: draft.node.to_string(),
            name: name.to_owned(),
            credential_sha256: hex(&Sha256::digest(draft.credential.as_bytes())),
        };
        match SessionClient::new(channel).join(request).await {
            Ok(_) => return Ok(ca),
            Err(status) if status.code() == tonic::Code::PermissionDenied => {
                return Err(JoinError::Refused { message: status.message().to_owned() });
            }
            Err(status) => tried.push(format!("{address}: {}", status.message())),
        }
    }
    Err(JoinError::NoServer { tried: tried.join("; ") })
}

/// The certificate of this hash among those that the server shows. Nothing is trusted yet, and nothing is sent.
async fn certificate_of(address: &str, hash: CaHash) -> io::Result<Option<CertificateDer<'static>>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(OnlyLook(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(SERVER_NAME).map_err(io::Error::other)?;
    let handshake = async {
        let stream = TcpStream::connect(address).await?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, handshake)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))??;
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let found = shown.iter().find(|certificate| Sha256::digest(certificate.as_ref())[..] == hash.0[..]);
    Ok(found.map(|certificate| certificate.clone().into_owned()))
}

/// For looking at certificates that nobody relies on.
#[derive(Debug)]
struct OnlyLook(Arc<CryptoProvider>);

impl ServerCertVerifier for OnlyLook {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine;
    const LINE_CHARS: usize = 64;
    let text = base64::engine::general_purpose::STANDARD.encode(certificate);
    let lines: Vec<&str> =
        (0..text.len()).step_by(LINE_CHARS).map(|at| &text[at..(at + LINE_CHARS).min(text.len())]).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
