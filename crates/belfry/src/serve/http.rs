//! The listener for API and console.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use belfry_control::Tasks;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Open streams do not end by themselves; after this they are cut.
const GOODBYE_MAX: Duration = Duration::from_secs(3);

pub struct Http {
    listener: TcpListener,
    pub address: SocketAddr,
}

impl Http {
    pub async fn bind(address: SocketAddr, allow_plain_http: bool) -> anyhow::Result<Self> {
        if !address.ip().is_loopback() && !allow_plain_http {
            bail!(
                "{address} can be reached from other machines, and TLS is not supported yet; listen on 127.0.0.1 and use `ssh -L`, \
                 or put a proxy with TLS in front"
            );
        }
        let listener = TcpListener::bind(address).await.with_context(|| {
            let owner = super::process::owner_of_port(address).unwrap_or_default();
            format!("{address} cannot be listened on{owner}; choose another with --listen")
        })?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Serves until the sender is used or dropped.
    pub fn serve(self, tasks: &Tasks, router: Router) -> oneshot::Sender<()> {
        let (stop, stopped) = oneshot::channel::<()>();
        tasks.spawn("http", async move {
            let (leaving, left) = oneshot::channel();
            let service = router.into_make_service_with_connect_info::<SocketAddr>();
            let serving = axum::serve(self.listener, service).with_graceful_shutdown(async move {
                let _ = stopped.await;
                let _ = leaving.send(());
            });
            tokio::select! {
                result = async { serving.await } => {
                    if let Err(cause) = result {
                        tracing::error!("the HTTP listener ended: {cause}");
                    }
                }
                () = async { let _ = left.await; tokio::time::sleep(GOODBYE_MAX).await } => {}
            }
        });
        stop
    }
}
