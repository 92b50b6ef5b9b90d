//! Posts what webhooks are told. The addresses that are really connected to are checked, whatever their names say; redirects are not
//! followed, and no proxy is asked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use belfry_control::{Letter, Post};
use belfry_core::outward::{Network, refuses};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::client::in_full;

const IDLE_PER_RECEIVER_MAX: usize = 4;

#[derive(Debug)]
pub struct WebhookPost {
    http: reqwest::Client,
    allowed: Arc<[Network]>,
}

impl WebhookPost {
    /// `allowed`: networks that are called although they are this machine's own.
    pub fn new(allowed: &[Network]) -> anyhow::Result<Self> {
        let allowed: Arc<[Network]> = allowed.into();
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(Outward { allowed: allowed.clone() }))
            .pool_max_idle_per_host(IDLE_PER_RECEIVER_MAX)
            .user_agent(concat!("belfry/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("start the client for webhooks")?;
        Ok(Self { http, allowed })
    }
}

impl Post for WebhookPost {
    fn post(&self, letter: Letter) -> BoxFuture<'static, Result<u16, String>> {
        let (http, allowed) = (self.http.clone(), self.allowed.clone());
        async move {
            let url =
                reqwest::Url::parse(&letter.url).map_err(|cause| format!("webhook.url cannot be read: {cause}"))?;
            // An address is not looked up, so the resolver does not see it.
            let literal = url.host_str().and_then(|host| host.trim_matches(['[', ']']).parse::<IpAddr>().ok());
            if let Some(why) = literal.and_then(|ip| refusal(ip, &allowed)) {
                return Err(why);
            }
            let mut request = http.post(url).body(letter.body);
            for (name, value) in letter.headers {
                request = request.header(name, value);
            }
            let answer = request.send().await.map_err(|cause| in_full(&cause))?;
            Ok(answer.status().as_u16())
        }
        .boxed()
    }
}

/// Names lead only to addresses that may be called.
#[derive(Debug)]
struct Outward {
    allowed: Arc<[Network]>,
}

impl Resolve for Outward {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = self.allowed.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let (good, bad): (Vec<SocketAddr>, Vec<SocketAddr>) =
                found.into_iter().partition(|address| refuses(address.ip(), &allowed).is_none());
            match (good.is_empty(), bad.first().and_then(|address| refusal(address.ip(), &allowed))) {
                (true, Some(why)) => Err(why.into()),
                (true, None) => Err("the receiver's name has no address".into()),
                (false, _) => Ok(Box::new(good.into_iter()) as Addrs),
            }
        })
    }
}

fn refusal(ip: IpAddr, allowed: &[Network]) -> Option<String> {
    refuses(ip, allowed)
        .map(|why| format!("{ip} is {why} and is not called; servers started with --webhook-allow {ip} call it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn posted(url: &str, allowed: &[&str]) -> Result<u16, String> {
        let allowed: Vec<Network> = allowed.iter().map(|text| text.parse().unwrap()).collect();
        let post = WebhookPost::new(&allowed).unwrap();
        post.post(Letter { url: url.to_owned(), headers: Vec::new(), body: String::new() }).await
    }

    #[tokio::test]
    async fn names_and_numbers_that_lead_to_this_machine_are_not_called_unless_allowed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "0.0.0.0", "[::1]"] {
            let refused = posted(&format!("http://{host}:{port}/"), &[]).await.unwrap_err();
            assert!(refused.contains("--webhook-allow"), "{host}: {refused}");
        }
        let allowed = ["127.0.0.0/8", "::1"];
        let url = format!("http://localhost:{port}/");
        let (answer, ()) = tokio::join!(posted(&url, &allowed), async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let _read = stream.read(&mut request).await.unwrap();
            let answer = "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        assert_eq!(answer, Ok(302), "a redirect is told, not followed");
    }
}
