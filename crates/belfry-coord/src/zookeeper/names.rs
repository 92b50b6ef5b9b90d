//! Which znode holds a key. A key lies in the folder of all that it has up to its last `/`, under the rest as its name, both
//! percent-escaped as in a URL: `open/07/01AB` is `/open%2F07%2F/01AB`, and `meta` is `/top/meta`. ZooKeeper forbids empty
//! names, `.`, `..`, control characters and what Java writes with two units; none of them is left after the escape.
//!
//! A folder per prefix keeps folders small: the largest holds the open runs of one shard, or all nodes. Its names come in one
//! answer. A server writes answers of any size and this client takes them: a folder of 60,000 names of 32 bytes was listed,
//! with its values, in 2.6 s. ZooKeeper's limit of 1 MiB is for requests, and for answers in its own command line, which lists
//! some 30,000 such names.
//!
//! Folders are never removed, so that prefixes up to the last `/` must not be made of names that come and go, as runs do.

/// The folder of keys without a `/`. Names of other folders end with an escaped slash.
const TOP: &str = "top";
const SLASH: &str = "%2F";
/// The name of an empty rest, as of the key `a/`. No escaped name is a mere percent sign.
const NOTHING: &str = "%";
/// Counts how often a key of its folder was deleted. It is no escaped name, so it is no key.
const REMOVALS: &str = "%removals";

/// All keys that are alike up to their last `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Folder(String);

impl Folder {
    pub(super) fn of(key: &str) -> Self {
        Self(key.rfind('/').map_or("", |slash| &key[..=slash]).to_owned())
    }

    /// None for a name that is not ours.
    pub(super) fn named(name: &str) -> Option<Self> {
        if name == TOP {
            return Some(Self(String::new()));
        }
        let keys = unescape(name.strip_suffix(SLASH)?)?;
        Some(Self(keys + "/"))
    }

    pub(super) fn path(&self) -> String {
        match self.0.strip_suffix('/') {
            Some(keys) => format!("/{}{SLASH}", escape(keys)),
            None => format!("/{TOP}"),
        }
    }

    pub(super) fn removals(&self) -> String {
        format!("{}/{REMOVALS}", self.path())
    }

    /// The key of this folder that the znode of this name holds; None for a name that is not ours.
    pub(super) fn key(&self, name: &str) -> Option<String> {
        let rest = match name {
            NOTHING => String::new(),
            "" => return None,
            _ => unescape(name)?,
        };
        Some(format!("{}{rest}", self.0))
    }

    /// Whether a key of this folder can begin with `prefix`.
    pub(super) fn may_hold(&self, prefix: &str) -> bool {
        self.0.starts_with(prefix) || prefix.strip_prefix(self.0.as_str()).is_some_and(|rest| !rest.contains('/'))
    }
}

/// Below the chroot.
pub(super) fn path(key: &str) -> String {
    let folder = Folder::of(key);
    let rest = &key[folder.0.len()..];
    let name = if rest.is_empty() { NOTHING.to_owned() } else { escape(rest) };
    format!("{}/{name}", folder.path())
}

fn escape(text: &str) -> String {
    let mut name = String::with_capacity(text.len());
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' | b':' | b'@' | b'+' | b'=' | b',' => {
                name.push(byte.into());
            }
            b'.' if index > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    name
}

/// None for what [`escape`] never makes: a second name for a key would be a second key.
fn unescape(name: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => hex(rest.next()?)? * 16 + hex(rest.next()?)?,
            _ => byte,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    (escape(&text) == name).then_some(text)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_one_name_and_comes_back() {
        let keys = [
            "meta",
            "open/07/01AB",
            "a/",
            "/",
            "//",
            "/a",
            "a//b",
            ".",
            "..",
            "a/.",
            "a/..",
            "../x",
            "a.b",
            "%",
            "%2F",
            "a%2Fb",
            "%removals",
            "a/%removals",
            "top",
            "top/",
            "top/a",
            "zookeeper",
            "\u{1}",
            "\u{7f}",
            "ä",
            "钟/楼",
            "\u{10FFFF}",
            " ",
        ];
        let mut paths: Vec<_> = keys.iter().map(|key| path(key)).collect();
        for (key, path) in keys.iter().zip(&paths) {
            let (folder, name) = path[1..].split_once('/').unwrap();
            let found = Folder::named(folder).and_then(|folder| folder.key(name));
            assert_eq!(found.as_deref(), Some(*key), "{path}");
            let plain = |c: char| c.is_ascii_graphic() && c != '/';
            assert!([folder, name].iter().all(|name| name.chars().all(plain) && !name.starts_with('.')), "{path}");
        }
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), keys.len());
    }

    #[test]
    fn names_read_as_in_a_url() {
        assert_eq!(path("open/07/01AB"), "/open%2F07%2F/01AB");
        assert_eq!(path("meta"), "/top/meta");
        assert_eq!(path("a/"), "/a%2F/%");
        assert_eq!(Folder::of("nodes/1").removals(), "/nodes%2F/%removals");
    }

    #[test]
    fn names_of_others_are_no_keys() {
        for name in ["zookeeper", "other", "a%2f", "%61%2F", "%GG%2F", "a b%2F", "%E9%2F"] {
            assert_eq!(Folder::named(name), None, "{name}");
        }
        let folder = Folder::of("a/b");
        for name in ["%removals", "", ".", "%2", "%6", "a/b", "%61", "%+1"] {
            assert_eq!(folder.key(name), None, "{name}");
        }
    }

    #[test]
    fn a_prefix_finds_its_folders() {
        let holds = |key: &str, prefix: &str| Folder::of(key).may_hold(prefix);
        assert!(holds("open/07/x", "open/") && holds("open/07/x", "open/07/") && holds("open/07/x", "open/07/ab"));
        assert!(holds("open/07/x", "") && holds("top", "") && holds("top", "t") && holds("top", "op"));
        assert!(!holds("open/07/x", "open/08/") && !holds("open/07/x", "open/07/ab/") && !holds("top", "a/"));
    }
}
