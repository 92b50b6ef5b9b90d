//! What a job keeps from run to run: a few named values, which one run writes and the next one gets. The rule of what may be
//! kept, and of who may still write.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Fence;

/// Of one job.
pub const KEYS_MAX: usize = 32;
pub const KEY_BYTES_MAX: usize = 64;
pub const VALUE_BYTES_MAX: usize = 4096;
/// The longest line that can be taken: a key, `=` and a value.
pub const LINE_BYTES_MAX: usize = KEY_BYTES_MAX + 1 + VALUE_BYTES_MAX;

/// Values by key; an empty value among changes removes its key.
pub type Values = BTreeMap<String, String>;

/// What an attempt wrote and nobody has acknowledged yet. The numbers grow with each that an attempt sends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saves {
    pub sequence: u64,
    pub changes: Values,
}

/// The saved state of a job, and who wrote it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Of the newest attempt that has written.
    #[serde(rename = "f")]
    pub fence: Fence,
    #[serde(rename = "q")]
    pub sequence: u64,
    #[serde(rename = "v")]
    pub values: Values,
}

/// What became of what an attempt wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Took {
    /// All but what is refused here, in words.
    New { refused: Vec<String> },
    /// It is known from before.
    Again,
    /// An attempt with this greater fence has written since: nothing was taken.
    Stale { newer: Fence },
}

impl Saved {
    /// Takes what an attempt wrote, unless a newer one has written before it.
    pub fn save(&mut self, fence: Fence, saves: &Saves) -> Took {
        if fence < self.fence {
            return Took::Stale { newer: self.fence };
        }
        if (fence, saves.sequence) <= (self.fence, self.sequence) {
            return Took::Again;
        }
        (self.fence, self.sequence) = (fence, saves.sequence);
        Took::New { refused: merge(&mut self.values, &saves.changes) }
    }

    /// Roughly what it takes where it is kept.
    pub fn bytes(&self) -> usize {
        self.values.iter().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>() + 64
    }
}

/// Makes the changes as far as they may be made, removals first; says of each other why not.
pub fn merge(values: &mut Values, changes: &Values) -> Vec<String> {
    merge_within(values, changes, KEYS_MAX)
}

/// The same with another number of keys.
pub fn merge_within(values: &mut Values, changes: &Values, keys_max: usize) -> Vec<String> {
    let mut refused = Vec::new();
    for key in changes.iter().filter(|(_, value)| value.is_empty()).map(|(key, _)| key) {
        values.remove(key);
    }
    for (key, value) in changes.iter().filter(|(_, value)| !value.is_empty()) {
        let fits =
            || (values.contains_key(key) || values.len() < keys_max).then_some(()).ok_or_else(|| too_many(keys_max));
        match check(key, value).and_then(|()| fits()) {
            Ok(()) => drop(values.insert(key.clone(), value.clone())),
            Err(why) => refused.push(format!("`{}`: {why}", shown(key))),
        }
    }
    refused
}

/// One line as a program writes it.
pub fn parse_line(line: &[u8]) -> Result<(String, String), String> {
    let text = std::str::from_utf8(line).map_err(|_| "it is not UTF-8".to_owned())?;
    let (key, value) = text.split_once('=').ok_or_else(|| format!("`{}` has no `=`; write KEY=VALUE", shown(text)))?;
    check(key, value).map_err(|why| format!("`{}`: {why}", shown(key)))?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Why a value may not be kept under a key.
pub fn check(key: &str, value: &str) -> Result<(), String> {
    let is_first = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let is_key = key.bytes().next().is_some_and(is_first)
        && key.bytes().all(|byte| is_first(byte) || byte.is_ascii_digit())
        && key.len() <= KEY_BYTES_MAX;
    if !is_key {
        return Err(format!(
            "a key has 1 to {KEY_BYTES_MAX} capital letters, digits and `_`, and begins with none of the digits"
        ));
    }
    if value.len() > VALUE_BYTES_MAX {
        return Err(format!("its value has {} bytes; at most {VALUE_BYTES_MAX} are kept", value.len()));
    }
    if value.chars().any(|char| char.is_control() && char != '\t') {
        return Err("its value has control characters; only tabs are kept of these".to_owned());
    }
    Ok(())
}

/// Cuts what comes into lines, and holds no more than one.
#[derive(Default)]
pub struct Lines {
    begun: Vec<u8>,
    /// The line that has begun is too long: it is only counted.
    is_too_long: bool,
    number: u64,
}

impl Lines {
    /// Each with its number; none: it was too long.
    pub fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(u64, Option<&[u8]>)) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.begin(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.number += 1;
            each(self.number, (!self.is_too_long).then_some(&self.begun));
            self.begun.clear();
            self.is_too_long = false;
        }
        self.begin(bytes);
    }

    fn begin(&mut self, bytes: &[u8]) {
        if self.begun.len() + bytes.len() > LINE_BYTES_MAX {
            self.is_too_long = true;
            self.begun.clear();
        } else if !self.is_too_long {
            self.begun.extend_from_slice(bytes);
        }
    }

    /// The number of a line that has begun and not ended.
    pub fn unfinished(&self) -> Option<u64> {
        (self.is_too_long || !self.begun.is_empty()).then_some(self.number + 1)
    }
}

fn too_many(keys_max: usize) -> String {
    format!("at most {keys_max} keys are kept; remove one by writing `KEY=` with nothing after it")
}

/// A key that may be anything, in a message.
fn shown(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 40;
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn saves(sequence: u64, pairs: &[(&str, &str)]) -> Saves {
        Saves { sequence, changes: changes(pairs) }
    }

    #[test]
    fn a_value_may_contain_the_equals_sign_and_a_bad_line_says_what_is_wrong() {
        assert_eq!(parse_line(b"URL=http://x/?a=b&c=").unwrap(), ("URL".into(), "http://x/?a=b&c=".into()));
        assert_eq!(parse_line(b"_A9=\tb").unwrap(), ("_A9".into(), "\tb".into()));
        assert_eq!(parse_line(b"GONE=").unwrap(), ("GONE".into(), String::new()));
        for (line, why) in [
            (&b"no equals"[..], "has no `=`"),
            (b"lower=1", "capital letters"),
            (b"9A=1", "none of the digits"),
            (b"=1", "capital letters"),
            (b"A\xff=1", "not UTF-8"),
            (b"A=\x1b[2J", "control characters"),
        ] {
            let said = parse_line(line).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
        let long = format!("A={}", "x".repeat(VALUE_BYTES_MAX + 1));
        assert!(parse_line(long.as_bytes()).unwrap_err().contains("4097 bytes; at most 4096"));
    }

    #[test]
    fn a_stale_fence_writes_nothing_and_what_comes_twice_counts_once() {
        let mut saved = Saved::default();
        assert_eq!(saved.save(Fence(5), &saves(1, &[("A", "1")])), Took::New { refused: vec![] });
        assert_eq!(saved.save(Fence(9), &saves(1, &[("A", "2")])), Took::New { refused: vec![] });
        let before = saved.clone();
        assert_eq!(saved.save(Fence(5), &saves(2, &[("A", "3"), ("B", "1")])), Took::Stale { newer: Fence(9) });
        assert_eq!(saved.save(Fence(9), &saves(1, &[("A", "4")])), Took::Again);
        assert_eq!(saved, before);
    }

    #[test]
    fn beyond_the_limit_keys_are_refused_by_name_and_an_empty_value_makes_room() {
        let mut saved = Saved::default();
        let full: Values = (0..KEYS_MAX).map(|n| (format!("K{n}"), n.to_string())).collect();
        assert_eq!(merge(&mut saved.values, &full), Vec::<String>::new());
        let refused = merge(&mut saved.values, &changes(&[("ONE_MORE", "x"), ("K0", "changed")]));
        assert!(refused.len() == 1 && refused[0].contains("`ONE_MORE`: at most 32 keys are kept"), "{refused:?}");
        assert_eq!(saved.values["K0"], "changed");
        assert_eq!(merge(&mut saved.values, &changes(&[("ONE_MORE", "x"), ("K1", "")])), Vec::<String>::new());
        assert_eq!((saved.values.len(), saved.values.contains_key("K1")), (KEYS_MAX, false));
    }

    /// With its number; none: it was too long.
    type Line = (u64, Option<Vec<u8>>);

    fn cut(pieces: &[&[u8]]) -> (Vec<Line>, Option<u64>) {
        let (mut lines, mut found) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.feed(piece, |number, line| found.push((number, line.map(<[u8]>::to_vec))));
        }
        (found, lines.unfinished())
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        let whole = cut(&[b"A=1\nB=2\n\nC=3\n"]);
        assert_eq!(whole, cut(&[b"A", b"=1\nB=", b"2", b"\n\n", b"C=3\n"]));
        assert_eq!(whole.0[3], (4, Some(b"C=3".to_vec())));
        assert_eq!(cut(&[b"A=1\nB=2"]).1, Some(2), "the last one has no end");
    }

    #[test]
    fn a_line_without_an_end_is_not_held() {
        let long = vec![b'x'; LINE_BYTES_MAX];
        let (found, unfinished) = cut(&[b"A=", &long, &long, b"\nB=2\n"]);
        assert_eq!((found, unfinished), (vec![(1, None), (2, Some(b"B=2".to_vec()))], None));
    }
}
