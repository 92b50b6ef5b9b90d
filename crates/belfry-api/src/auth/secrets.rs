//! Random secrets: what is handed out once, and never stored as it is.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

pub const SESSION_COOKIE: &str = "belfry_session";
/// So that a token is recognised in a file or a log, and by secret scanners.
const TOKEN_PREFIX: &str = "bft_";
const SECRET_BYTES: usize = 32;
/// Without characters that look alike; 24 of 32 are 120 bits.
const PASSWORD_ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
const PASSWORD_CHARS: usize = 24;

pub fn new_secret() -> String {
    URL_SAFE_NO_PAD.encode(random::<SECRET_BYTES>())
}

pub fn new_token() -> String {
    format!("{TOKEN_PREFIX}{}", new_secret())
}

/// Of a join token: digits only, so that it can be selected as one word and pasted into any shell.
pub fn new_join_secret() -> String {
    random::<{ belfry_core::join::SECRET_CHARS / 2 }>().iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn new_password() -> String {
    random::<PASSWORD_CHARS>().iter().map(|byte| PASSWORD_ALPHABET[usize::from(byte % 32)] as char).collect()
}

/// 80 random bits and more, for ids.
pub fn random_bits() -> u128 {
    u128::from_be_bytes(random::<16>())
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the system gives random bytes");
    bytes
}
