//! What the URL of an etcd says: which members, where our keys lie, who we are, and how to be sure whom we talk to.

use belfry_core::units::Size;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::CoordError;
use crate::url::{ServiceUrl, Wrong};

const LOOKS_LIKE: &str =
    "etcd://[user:password@]h1:2379,h2:2379/prefix[?tls=true&ca=FILE&cert=FILE&key=FILE&quota=2GiB]";
const DEFAULT_PORT: u16 = 2379;
const DEFAULT_PREFIX: &str = "belfry";
const PARAMETERS: &[&str] = &["tls", "ca", "cert", "key", "quota"];

pub(super) struct Address {
    pub(super) hosts: Vec<String>,
    pub(super) prefix: String,
    pub(super) options: ConnectOptions,
    /// What etcd was started with; versions before 3.6 do not tell.
    pub(super) quota_bytes: Option<u64>,
}

/// Reads the files that it names too.
pub(super) async fn read(url: &str) -> Result<Address, CoordError> {
    let read = async {
        let url = ServiceUrl::parse(url, DEFAULT_PORT)?;
        url.only(PARAMETERS)?;
        let mut options = ConnectOptions::new();
        if wants_tls(&url)? {
            options = options.with_tls(tls(&url).await?);
        }
        let quota = url.parameter("quota").map(|text| Size::parse(text).map(Size::bytes));
        let quota_bytes = quota.transpose().map_err(|wrong| format!("has a `quota` that is no size: {wrong}"))?;
        if let Some(login) = url.login {
            options = options.with_user(login.user, login.password);
        }
        let prefix = if url.path.is_empty() { DEFAULT_PREFIX.to_owned() } else { url.path };
        Ok(Address { hosts: url.hosts, prefix, options, quota_bytes })
    };
    read.await.map_err(|wrong: Wrong| CoordError::Broken(format!("its URL {wrong}; it looks like {LOOKS_LIKE}")))
}

/// Files for TLS without TLS are a mistake that would send secrets in the clear.
fn wants_tls(url: &ServiceUrl) -> Result<bool, Wrong> {
    let by_scheme = match url.scheme.as_str() {
        "etcd" => false,
        "etcds" => true,
        other => return Err(format!("has the scheme `{other}`, which is not etcd")),
    };
    let wanted = match url.parameter("tls") {
        None => by_scheme,
        Some("true") => true,
        Some("false") if !by_scheme => false,
        Some("false") => return Err("has tls=false with the scheme etcds".into()),
        Some(_) => return Err("has a `tls` that is neither true nor false".into()),
    };
    match ["ca", "cert", "key"].iter().find(|name| url.parameter(name).is_some()) {
        Some(name) if !wanted => Err(format!("has `{name}` without tls=true")),
        _ => Ok(wanted),
    }
}

async fn tls(url: &ServiceUrl) -> Result<TlsOptions, Wrong> {
    let ca = url.parameter("ca").ok_or("wants TLS without ca=FILE, the certificate of who signed those of etcd")?;
    let tls = TlsOptions::new().ca_certificate(Certificate::from_pem(file("ca", ca).await?));
    match (url.parameter("cert"), url.parameter("key")) {
        (None, None) => Ok(tls),
        (Some(cert), Some(key)) => {
            Ok(tls.identity(Identity::from_pem(file("cert", cert).await?, file("key", key).await?)))
        }
        (Some(_), None) => Err("has `cert` without `key`".into()),
        (None, Some(_)) => Err("has `key` without `cert`".into()),
    }
}

async fn file(parameter: &str, path: &str) -> Result<Vec<u8>, Wrong> {
    let unreadable = |cause| format!("names a file `{path}` as `{parameter}` that cannot be read: {cause}");
    tokio::fs::read(path).await.map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_plain_address_is_read() {
        let address = read("etcd://h1,h2:1/team/a").await.unwrap();
        assert_eq!((address.hosts, address.prefix.as_str()), (vec!["h1:2379".into(), "h2:1".into()], "team/a"));
        assert_eq!(read("etcd://h1").await.unwrap().prefix, DEFAULT_PREFIX);
    }

    #[tokio::test]
    async fn what_is_wrong_is_said_with_what_is_accepted() {
        for (url, says) in [
            ("http://joe:s3cret@h1", "`http`"),
            ("etcd://joe:s3cret@h1?tsl=true", "`tsl`"),
            ("etcd://joe:s3cret@h1?tls=yes", "neither true nor false"),
            ("etcd://joe:s3cret@h1?tls=true", "ca=FILE"),
            ("etcds://joe:s3cret@h1", "ca=FILE"),
            ("etcds://joe:s3cret@h1?tls=false", "etcds"),
            ("etcd://joe:s3cret@h1?ca=/x", "`ca` without tls=true"),
            ("etcds://joe:s3cret@h1?ca=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ] {
            let Err(error) = read(url).await else { panic!("{url} is accepted") };
            let error = error.to_string();
            assert!(error.contains(says) && error.contains(LOOKS_LIKE), "{url}: {error}");
            assert!(!error.contains("s3cret"), "{url}: {error}");
        }
    }
}
