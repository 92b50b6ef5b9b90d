//! Where the ensemble is and who we are there: `zookeeper://[user:password@]h1:2181,h2:2181/chroot`. Never shows a password.

use crate::CoordError;
use crate::url::{Login, ServiceUrl, Wrong};

/// Where our nodes are when the URL names no path: at the root of a shared ensemble they would be in the way.
const CHROOT: &str = "/belfry";
const PORT: u16 = 2181;

#[derive(Clone, Debug)]
pub(super) struct Address {
    /// `h1:2181,h2:2181`.
    pub(super) hosts: String,
    pub(super) chroot: String,
    /// Whether the URL names it; else it is our default, and others know nothing of it.
    pub(super) chroot_is_named: bool,
    pub(super) login: Option<Login>,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, CoordError> {
        Self::read(url).map_err(|wrong| CoordError::Broken(format!("the URL of ZooKeeper {wrong}")))
    }

    fn read(url: &str) -> Result<Self, Wrong> {
        let url = ServiceUrl::parse(url, PORT)?;
        if url.scheme != "zookeeper" {
            return Err("does not begin with zookeeper://".into());
        }
        url.only(&[])?;
        // ZooKeeper takes all up to the first colon as the user.
        if url.login.as_ref().is_some_and(|login| login.user.contains(':')) {
            return Err("has a user with a colon".into());
        }
        Ok(Self {
            hosts: url.hosts.join(","),
            chroot: chroot(&url.path)?,
            chroot_is_named: !url.path.is_empty(),
            login: url.login,
        })
    }

    /// As the scheme `digest` of ZooKeeper wants it.
    pub(super) fn digest(&self) -> Option<String> {
        self.login.as_ref().map(|login| format!("{}:{}", login.user, login.password))
    }
}

fn chroot(path: &str) -> Result<String, Wrong> {
    if path.is_empty() {
        return Ok(CHROOT.to_owned());
    }
    let sound = |name: &str| !["", ".", ".."].contains(&name) && name.chars().all(|c| c.is_ascii_graphic());
    if !path.split('/').all(sound) || path.split('/').next() == Some("zookeeper") {
        return Err(format!("has a path `/{path}` that ZooKeeper has no room for"));
    }
    Ok(format!("/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_path_and_login_are_found() {
        let all = Address::parse("zookeeper://bel:p%40s%3As%2F@h1:2182,h2,[::1]:2183/infra/belfry/").unwrap();
        assert_eq!((all.hosts.as_str(), all.chroot.as_str()), ("h1:2182,h2:2181,[::1]:2183", "/infra/belfry"));
        assert_eq!(all.digest().as_deref(), Some("bel:p@s:s/"));
        for bare in ["zookeeper://h1", "zookeeper://h1/", "zookeeper://h1?"] {
            let bare = Address::parse(bare).unwrap();
            assert_eq!((bare.hosts.as_str(), bare.chroot.as_str(), bare.digest()), ("h1:2181", "/belfry", None));
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_the_password_is_not() {
        for (url, named) in [
            ("zk://u:s3cret@h", "zookeeper://"),
            ("zookeeper://u:s3cret@h/a?timeout=3", "`timeout`"),
            ("zookeeper://a%3Ab:s3cret@h1", "colon"),
            ("zookeeper://u:s3cret@h1/a//b", "`/a//b`"),
            ("zookeeper://u:s3cret@h1/a/..", "`/a/..`"),
            ("zookeeper://u:s3cret@h1/zookeeper/x", "`/zookeeper/x`"),
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(named) && !error.contains("s3cret"), "{url}: {error}");
        }
        let debug = format!("{:?}", Address::parse("zookeeper://u:s3cret@h1").unwrap());
        assert!(debug.contains("h1") && !debug.contains("s3cret"), "{debug}");
    }
}
