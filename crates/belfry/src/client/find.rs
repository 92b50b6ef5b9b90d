//! Which server is asked, and with what: flags, the data folder of a running `belfry up`, or the saved login.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{ClientError, SavedLogins, saved_logins_path};
use crate::cli::ServerChoice;

/// Files that `belfry up` leaves in its data folder.
const ADDRESS_FILE: &str = "address";
const TOKEN_FILE: &str = "cli-token";
const CA_FILE: &str = "ca.pem";

#[derive(Clone, Debug)]
pub struct Found {
    pub url: String,
    pub token: Option<String>,
    /// Trusted instead of the system's CAs, PEM.
    pub ca: Option<String>,
    pub source: Source,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Given,
    DataDir(PathBuf),
    SavedLogin(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Given => f.write_str("--url or BELFRY_URL"),
            Source::DataDir(dir) => write!(f, "data folder {}", dir.display()),
            Source::SavedLogin(user) => write!(f, "saved login of {user}"),
        }
    }
}

/// /var/lib/belfry as root, else ~/.local/share/belfry.
pub fn default_data_dir() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/belfry"));
    }
    std::env::home_dir().filter(|home| !home.as_os_str().is_empty()).map(|home| home.join(".local/share/belfry"))
}

pub fn find_server(choice: &ServerChoice) -> Result<Found, ClientError> {
    let given_ca = choice.ca.as_ref().map(|path| {
        fs::read_to_string(path).map_err(|cause| ClientError::BadCa { path: path.clone(), why: cause.to_string() })
    });
    let given_ca = given_ca.transpose()?;
    let saved = saved_logins_path().map(|path| SavedLogins::read(&path)).unwrap_or_default();
    if let Some(url) = &choice.url {
        let url = url.trim_end_matches('/').to_owned();
        let login = saved.of(&url);
        let token = choice.token.clone().or_else(|| login.map(|login| login.token.clone()));
        let ca = given_ca.or_else(|| login.and_then(|login| login.ca.clone()));
        return Ok(Found { url, token, ca, source: Source::Given });
    }
    let mut tried = Vec::new();
    let folder = choice.data.clone().or_else(default_data_dir);
    if let Some(dir) = &folder {
        match read_data_dir(dir) {
            Ok((url, token)) => {
                return Ok(Found {
                    url,
                    token: choice.token.clone().or(Some(token)),
                    ca: given_ca.or_else(|| fs::read_to_string(dir.join(CA_FILE)).ok()),
                    source: Source::DataDir(dir.clone()),
                });
            }
            Err(why) => tried.push(why),
        }
    }
    // A folder that was named is meant; falling back to another server would act on the wrong one.
    if choice.data.is_none() {
        if let Some((url, login)) = saved.current() {
            let token = choice.token.clone().unwrap_or_else(|| login.token.clone());
            return Ok(Found {
                url: url.to_owned(),
                token: Some(token),
                ca: given_ca.or_else(|| login.ca.clone()),
                source: Source::SavedLogin(login.user.clone()),
            });
        }
        tried.push("no saved login".to_owned());
    }
    Err(ClientError::NoServer { tried: tried.join(", ") })
}

/// The address and token there, or why not.
fn read_data_dir(dir: &Path) -> Result<(String, String), String> {
    let read = |name: &str| {
        let path = dir.join(name);
        fs::read_to_string(&path).map(|text| text.trim().to_owned()).map_err(|e| match e.kind() {
            ErrorKind::NotFound => format!("nothing is running in {}", dir.display()),
            ErrorKind::PermissionDenied => format!("{} belongs to another user", path.display()),
            _ => format!("{}: {e}", path.display()),
        })
    };
    Ok((read(ADDRESS_FILE)?.trim_end_matches('/').to_owned(), read(TOKEN_FILE)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(address: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(ADDRESS_FILE), format!("{address}\n")).unwrap();
        fs::write(dir.path().join(TOKEN_FILE), "secret\n").unwrap();
        dir
    }

    #[test]
    fn the_data_folder_names_server_and_token() {
        let dir = running("http://127.0.0.1:9/");
        let choice = ServerChoice { data: Some(dir.path().into()), ..ServerChoice::default() };
        let found = find_server(&choice).unwrap();
        assert_eq!((found.url.as_str(), found.token.as_deref()), ("http://127.0.0.1:9", Some("secret")));
    }

    #[test]
    fn a_url_beats_the_data_folder() {
        let dir = running("http://127.0.0.1:9");
        let choice = ServerChoice {
            url: Some("http://other:1/".into()),
            token: Some("t".into()),
            data: Some(dir.path().into()),
            ..ServerChoice::default()
        };
        let found = find_server(&choice).unwrap();
        assert_eq!(
            (found.url.as_str(), found.token.as_deref(), found.source),
            ("http://other:1", Some("t"), Source::Given)
        );
    }

    #[test]
    fn an_empty_folder_says_what_to_try() {
        let dir = tempfile::tempdir().unwrap();
        let choice = ServerChoice { data: Some(dir.path().into()), ..ServerChoice::default() };
        let message = find_server(&choice).unwrap_err().to_string();
        assert!(message.contains("nothing is running in") && message.contains("belfry up"), "{message}");
    }
}
