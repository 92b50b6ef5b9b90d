//! The listener for API and console: plain on loopback addresses, with TLS where other machines can reach it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use belfry_control::{ServerIdentity, Tasks};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::Ca;
use crate::cli::HttpArgs;

/// Open streams do not end by themselves; after this they are cut.
const GOODBYE_MAX: Duration = Duration::from_secs(3);

pub struct Http {
    listener: TcpListener,
    tls: Tls,
    pub address: SocketAddr,
}

enum Tls {
    /// Nobody else can listen in, or the operator takes that upon himself.
    None,
    /// The operator's own certificate.
    Given(ServerIdentity),
    /// One that the cluster's CA signs.
    ByCa,
}

impl Http {
    /// Everything about the flags is refused here, before anything is touched.
    pub async fn bind(args: &HttpArgs) -> anyhow::Result<Self> {
        let address = args.listen.unwrap_or(([127, 0, 0, 1], 8787).into());
        let tls = match (&args.tls_cert, &args.tls_key) {
            (Some(_), Some(_)) if args.allow_plain_http => {
                bail!("--allow-plain-http and --tls-cert exclude each other")
            }
            (Some(certificate), Some(key)) => Tls::Given(read_identity(certificate, key)?),
            (Some(_), None) | (None, Some(_)) => bail!("--tls-cert and --tls-key need each other"),
            (None, None) if address.ip().is_loopback() || args.allow_plain_http => Tls::None,
            (None, None) => Tls::ByCa,
        };
        let listener = TcpListener::bind(address).await.with_context(|| {
            let owner = super::process::owner_of_port(address).unwrap_or_default();
            format!("{address} cannot be listened on{owner}; choose another with --listen")
        })?;
        let address = listener.local_addr()?;
        Ok(Self { listener, tls, address })
    }

    pub fn has_tls(&self) -> bool {
        !matches!(self.tls, Tls::None)
    }

    /// How a person on this machine reaches it.
    pub fn local_url(&self) -> String {
        let host = if self.address.ip().is_unspecified() { "localhost".to_owned() } else { host_of(self.address.ip()) };
        format!("{}://{host}:{}", self.scheme(), self.address.port())
    }

    /// How other machines reach it, as far as that can be known from here.
    pub fn url(&self) -> String {
        let ip = self.address.ip();
        let host = if ip.is_unspecified() { super::host_name() } else { host_of(ip) };
        format!("{}://{host}:{}", self.scheme(), self.address.port())
    }

    fn scheme(&self) -> &'static str {
        if self.has_tls() { "https" } else { "http" }
    }

    /// Serves until the sender is used or dropped. `names`: hosts beside this machine's own by which it is reached.
    pub fn serve(
        self,
        tasks: &Tasks,
        router: Router,
        ca: &Ca,
        names: &[String],
    ) -> anyhow::Result<oneshot::Sender<()>> {
        let identity = match self.tls {
            Tls::None => None,
            Tls::Given(identity) => Some(identity),
            Tls::ByCa => Some(ca.issue(&[names, &own_names(self.address.ip())].concat())?),
        };
        let config = identity.as_ref().map(server_config).transpose().context("the certificate for the API")?;
        let (stop, stopped) = oneshot::channel::<()>();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let handle = Handle::new();
        let leaving = handle.clone();
        tasks.spawn("end of http", async move {
            let _ = stopped.await;
            leaving.graceful_shutdown(Some(GOODBYE_MAX));
        });
        let listener = self.listener.into_std()?;
        tasks.spawn("http", async move {
            let serving = match config {
                Some(config) => {
                    let config = RustlsConfig::from_config(Arc::new(config));
                    match axum_server::from_tcp_rustls(listener, config) {
                        Ok(server) => server.handle(handle).serve(service).await,
                        Err(cause) => Err(cause),
                    }
                }
                None => match axum_server::from_tcp(listener) {
                    Ok(server) => server.handle(handle).serve(service).await,
                    Err(cause) => Err(cause),
                },
            };
            if let Err(cause) = serving {
                tracing::error!("the HTTP listener ended: {cause}");
            }
        });
        Ok(stop)
    }
}

fn host_of(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// What a certificate for this address should be good for.
fn own_names(listening: IpAddr) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), super::host_name()];
    if listening.is_unspecified() {
        let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
        names.extend(interfaces.filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            let v6 = address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip()));
            v4.or(v6).map(|ip| ip.to_string())
        }));
    } else {
        names.push(listening.to_string());
    }
    names
}

fn read_identity(certificate: &Path, key: &Path) -> anyhow::Result<ServerIdentity> {
    let read = |flag: &str, path: &Path| {
        std::fs::read_to_string(path).with_context(|| format!("{flag} {} cannot be read", path.display()))
    };
    let identity = ServerIdentity { chain: read("--tls-cert", certificate)?, key: read("--tls-key", key)? };
    server_config(&identity).with_context(|| {
        format!("{} and {} are not a certificate chain and its key in PEM", certificate.display(), key.display())
    })?;
    Ok(identity)
}

fn server_config(identity: &ServerIdentity) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_slice_iter(identity.chain.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
