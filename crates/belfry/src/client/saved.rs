//! Logins that were saved by `belfry login`: one token per server, in a file that only its owner can read.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLogins {
    /// The server of the last login, used when no other is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    servers: BTreeMap<String, SavedLogin>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLogin {
    pub user: String,
    pub token: String,
    /// For removing the token at logout.
    pub token_id: String,
    /// That the server's certificate was checked with, PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
}

/// $XDG_CONFIG_HOME/belfry/credentials, else ~/.config/belfry/credentials.
pub fn saved_logins_path() -> Option<PathBuf> {
    let config = std::env::var_os("XDG_CONFIG_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let config = config.or_else(|| std::env::home_dir().map(|home| home.join(".config")))?;
    Some(config.join("belfry/credentials"))
}

impl SavedLogins {
    /// A file that is missing or cannot be read holds no login.
    pub fn read(path: &Path) -> Self {
        fs::read_to_string(path).ok().and_then(|text| toml::from_str(&text).ok()).unwrap_or_default()
    }

    pub fn write(&self, path: &Path) -> io::Result<()> {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        let text = toml::to_string(self).map_err(io::Error::other)?;
        // A new file under its own name, then renamed: the mode holds from the first byte, and a crash leaves the old file.
        let fresh = path.with_extension("new");
        let _ = fs::remove_file(&fresh);
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    }

    pub fn current(&self) -> Option<(&str, &SavedLogin)> {
        let url = self.current.as_deref()?;
        Some((url, self.servers.get(url)?))
    }

    pub fn of(&self, url: &str) -> Option<&SavedLogin> {
        self.servers.get(url)
    }

    pub fn remember(&mut self, url: &str, login: SavedLogin) {
        self.current = Some(url.to_owned());
        self.servers.insert(url.to_owned(), login);
    }

    pub fn forget(&mut self, url: &str) -> Option<SavedLogin> {
        if self.current.as_deref() == Some(url) {
            self.current = None;
        }
        self.servers.remove(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_login_is_kept_for_its_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("belfry/credentials");
        let mut logins = SavedLogins::read(&path);
        assert_eq!(logins.current(), None);
        let login = SavedLogin { user: "anna".into(), token: "t".into(), token_id: "1".into(), ca: None };
        logins.remember("http://a:1", login.clone());
        logins.write(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let mut again = SavedLogins::read(&path);
        assert_eq!(again.current(), Some(("http://a:1", &login)));
        assert_eq!(again.forget("http://a:1"), Some(login));
        assert_eq!(again.current(), None);
    }
}
