//! The word that a new machine joins with: where the servers are, the hash of their CA, and a secret that is good once.
//!
//! `belfry:HOST:PORT,HOST:PORT/CA-HASH/SECRET`. Only the secret is secret, but all of it is shown to the person who asked for it and to
//! nobody else.

use std::fmt;
use std::str::FromStr;

const SCHEME: &str = "belfry:";

#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    /// `host:port`, at least one.
    pub addresses: Vec<String>,
    pub ca: CaHash,
    pub secret: String,
}

/// SHA-256 of a CA's certificate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CaHash(pub [u8; 32]);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadJoinToken {
    #[error("a join token begins with `{SCHEME}`; `belfry node join-token` prints one")]
    NotOne,
    #[error("the join token is not whole; copy all of what `belfry node join-token` has printed")]
    NotWhole,
    #[error("`{0}` in the join token is not an address; expected is HOST:PORT")]
    Address(String),
}

impl FromStr for JoinToken {
    type Err = BadJoinToken;

    fn from_str(text: &str) -> Result<Self, BadJoinToken> {
        let rest = text.trim().strip_prefix(SCHEME).ok_or(BadJoinToken::NotOne)?;
        let mut parts = rest.split('/');
        let (Some(addresses), Some(ca), Some(secret), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(BadJoinToken::NotWhole);
        };
        let ca = ca.parse().map_err(|_| BadJoinToken::NotWhole)?;
        if secret.len() < SECRET_CHARS || !secret.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(BadJoinToken::NotWhole);
        }
        let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
        match addresses.iter().find(|address| !is_address(address)) {
            Some(bad) => Err(BadJoinToken::Address(bad.clone())),
            None => Ok(Self { addresses, ca, secret: secret.to_owned() }),
        }
    }
}

/// 160 bits as hexadecimal digits.
pub const SECRET_CHARS: usize = 40;

/// `host:port`, where a host is a name, an IPv4 address, or an IPv6 address in brackets.
pub fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_is_good = match bare {
        Some(bare) => bare.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')),
    };
    host_is_good && port.parse::<u16>().is_ok_and(|port| port > 0)
}

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/{}", self.addresses.join(","), self.ca, self.secret)
    }
}

/// Without the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}/…", self.addresses.join(","), self.ca)
    }
}

impl fmt::Display for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CaHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for CaHash {
    type Err = BadJoinToken;

    fn from_str(text: &str) -> Result<Self, BadJoinToken> {
        let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
        if text.len() != 64 || digits.len() != 64 {
            return Err(BadJoinToken::NotWhole);
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(Self(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> JoinToken {
        let addresses = vec!["10.0.0.1:8788".to_owned(), "[::1]:8788".to_owned(), "b.example:1".to_owned()];
        JoinToken { addresses, ca: CaHash([0xa5; 32]), secret: "0123456789".repeat(4) }
    }

    #[test]
    fn a_token_is_one_word_and_comes_back_whole() {
        let text = token().to_string();
        assert!(!text.contains(char::is_whitespace), "{text}");
        assert_eq!(format!("{text}\n").parse(), Ok(token()));
        assert!(!format!("{:?}", token()).contains("0123456789"));
    }

    #[test]
    fn what_is_no_token_or_half_of_one_is_refused_by_name() {
        let text = token().to_string();
        for cut in [20, text.len() - 1, text.len() - 41] {
            assert_eq!(text[..cut].parse::<JoinToken>(), Err(BadJoinToken::NotWhole), "{}", &text[..cut]);
        }
        assert_eq!("http://h:1".parse::<JoinToken>(), Err(BadJoinToken::NotOne));
        let bad = text.replace("b.example:1", "b.example");
        assert_eq!(bad.parse::<JoinToken>(), Err(BadJoinToken::Address("b.example".to_owned())));
    }
}
