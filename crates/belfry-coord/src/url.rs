//! Addresses of coordination services: `scheme://[user:password@]host:port,host:port/path?name=value`. Says what is wrong
//! with one without showing it, because it may hold a password.

use std::fmt;

/// What is wrong, as the end of a sentence that begins with "its URL".
pub(crate) type Wrong = String;

#[derive(Debug)]
pub(crate) struct ServiceUrl {
    pub(crate) scheme: String,
    pub(crate) login: Option<Login>,
    /// Each with its port.
    pub(crate) hosts: Vec<String>,
    /// Without slashes at its ends; empty when there is none.
    pub(crate) path: String,
    parameters: Vec<(String, String)>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

impl ServiceUrl {
    pub(crate) fn parse(url: &str, default_port: u16) -> Result<Self, Wrong> {
        let (scheme, rest) = url.split_once("://").ok_or("has no scheme")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(read_login(login)?), hosts),
            None => (None, authority),
        };
        Ok(Self {
            scheme: scheme.to_owned(),
            login,
            hosts: hosts.split(',').map(|host| read_host(host, default_port)).collect::<Result<_, _>>()?,
            path: decoded(path, "path")?.trim_matches('/').to_owned(),
            parameters: read_parameters(query)?,
        })
    }

    /// A parameter that is not understood may be a mistyped request for encryption: refused, and its value not shown.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), Wrong> {
        match self.parameters.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((unknown, _)) => {
                Err(format!("has a parameter `{unknown}` that is not known; known are {}", known.join(", ")))
            }
        }
    }

    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

fn read_login(login: &str) -> Result<Login, Wrong> {
    let (user, password) = login.split_once(':').ok_or("names a user without a password")?;
    let login = Login { user: decoded(user, "user")?, password: decoded(password, "password")? };
    if login.user.is_empty() {
        return Err("has a password without a user".into());
    }
    Ok(login)
}

fn read_host(host: &str, default_port: u16) -> Result<String, Wrong> {
    // The address of IPv6 has colons of its own and stands in brackets.
    let end = host.rfind(']').map_or(0, |bracket| bracket + 1);
    let (name, port) = match host[end..].rfind(':') {
        Some(colon) => (&host[..end + colon], &host[end + colon + 1..]),
        None => (host, ""),
    };
    if name.is_empty() {
        return Err("names no host".into());
    }
    let bare = !name.starts_with('[') && name.contains(':');
    let odd = |character: char| !character.is_ascii_alphanumeric() && !"-._[]:%".contains(character);
    if bare || name.contains(odd) {
        return Err("has a host that is no name and no address (IPv6 stands in brackets)".into());
    }
    let port = if port.is_empty() { Ok(default_port) } else { port.parse() };
    let port: u16 = port.map_err(|_| format!("has a port of `{name}` that is no number up to 65535"))?;
    Ok(format!("{name}:{port}"))
}

fn read_parameters(query: &str) -> Result<Vec<(String, String)>, Wrong> {
    let mut parameters: Vec<(String, String)> = vec![];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if parameters.iter().any(|(known, _)| known == name) {
            return Err(format!("has the parameter `{name}` twice"));
        }
        parameters.push((name.to_owned(), decoded(value, name)?));
    }
    Ok(parameters)
}

/// `%40` for a character that has a meaning of its own here.
fn decoded(text: &str, part: &str) -> Result<String, Wrong> {
    let wrong = || format!("has a `%` in its {part} that does not begin two hexadecimal digits of UTF-8");
    let mut pieces = text.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let code = piece.get(..2).filter(|code| code.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = code.and_then(|code| u8::from_str_radix(code, 16).ok()).ok_or_else(wrong)?;
        bytes.push(byte);
        bytes.extend_from_slice(&piece.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<ServiceUrl, Wrong> {
        ServiceUrl::parse(url, 2379)
    }

    #[test]
    fn every_part_is_read() {
        let url = parse("etcd://joe:a%40b%3a%2Fc@h1:1,h2,[::1]:3,[::1]/a/b/?tls=true&ca=/x%20y").unwrap();
        assert_eq!(url.scheme, "etcd");
        assert_eq!(url.login, Some(Login { user: "joe".into(), password: "a@b:/c".into() }));
        assert_eq!(url.hosts, ["h1:1", "h2:2379", "[::1]:3", "[::1]:2379"]);
        assert_eq!(url.path, "a/b");
        assert_eq!((url.parameter("tls"), url.parameter("ca")), (Some("true"), Some("/x y")));
        assert!(url.only(&["tls", "ca"]).is_ok());
    }

    #[test]
    fn what_is_wrong_is_said_without_the_password() {
        for (url, says) in [
            ("joe:s3cret@h1", "scheme"),
            ("etcd://joe@h1", "without a password"),
            ("etcd://:s3cret@h1", "without a user"),
            ("etcd://joe:s3cret@", "no host"),
            ("etcd://joe:s3cret@h1,,h2", "no host"),
            ("etcd://joe:s3cret@h1:99999", "port of `h1`"),
            ("etcd://joe:s3cret@::1", "brackets"),
            ("etcd://joe:s3cret%4@h1", "`%`"),
            ("etcd://joe:s3cret@h1?a=1&a=2", "`a` twice"),
        ] {
            let wrong = parse(url).unwrap_err();
            assert!(wrong.contains(says) && !wrong.contains("s3cret"), "{url}: {wrong}");
        }
        let unknown = parse("etcd://h1?tsl=s3cret").unwrap().only(&["tls"]).unwrap_err();
        assert!(unknown.contains("`tsl`") && unknown.contains("tls") && !unknown.contains("s3cret"), "{unknown}");
        let shown = format!("{:?}", parse("etcd://joe:s3cret@h1").unwrap());
        assert!(shown.contains("joe") && !shown.contains("s3cret"), "{shown}");
    }
}
