//! The proof that a letter is from this cluster, and not an old one: HMAC-SHA-256 over the second of its sending and its body.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// `t=<second>,v1=<hex>`, with a `v1` for each secret: after a rotation letters are signed with the old one too for a while.
pub fn signature<'a>(secrets: impl IntoIterator<Item = &'a str>, second: i64, body: &str) -> String {
    let parts = secrets.into_iter().map(|secret| format!(",v1={}", digest(secret, second, body)));
    format!("t={second}{}", parts.collect::<String>())
}

fn digest(secret: &str, second: i64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length is good");
    mac.update(format!("{second}.").as_bytes());
    mac.update(body.as_bytes());
    mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_other_tools_compute() {
        // printf '%s' '1794700800.{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected = "36e0c39dc0c7704fc9bcf0be9005a6f6deb429289b1c888b1b6b97b88e0b890e";
        assert_eq!(signature(["secret"], 1_794_700_800, "{\"a\":1}"), format!("t=1794700800,v1={expected}"));
    }

    #[test]
    fn while_a_secret_is_replaced_letters_have_both_signatures() {
        let both = signature(["new", "old"], 5, "x");
        let (new, old) = (signature(["new"], 5, "x"), signature(["old"], 5, "x"));
        assert_eq!(both, format!("{new}{}", old.trim_start_matches("t=5")));
        assert_ne!(new, signature(["new"], 6, "x"));
        assert_ne!(new, signature(["new"], 5, "y"));
    }
}
