//! `fail_on`: words whose appearance in the output makes a run fail, whatever its exit code.

use std::fmt;

use aho_corasick::{AhoCorasick, AhoCorasickBuilder};

use super::Stream;

/// Words to look for, in any case, anywhere in a line. Looked for in each stream by itself.
#[derive(Clone)]
pub struct FailOn {
    words: Vec<String>,
    automaton: AhoCorasick,
    bytes_between_pieces: usize,
}

/// The first word that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailMatch {
    pub word: String,
    pub stream: Stream,
}

impl FailOn {
    /// Words separated by `|`. `None`: there is no word, and nothing ever matches.
    pub fn parse(filter: &str) -> Option<FailOn> {
        let words: Vec<String> = filter.split('|').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        let longest = words.iter().map(String::len).max()?;
        // It fails only for more than two billion states: no job document can be that long.
        let automaton = AhoCorasickBuilder::new().ascii_case_insensitive(true).build(&words).ok()?;
        Some(FailOn { words, automaton, bytes_between_pieces: longest - 1 })
    }
}

impl fmt::Debug for FailOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FailOn").field(&self.words).finish()
    }
}

/// Looks through the pieces of a stream as they come.
pub(super) struct Watch {
    fail_on: Option<FailOn>,
    /// The end of what came before, for words that lie across two pieces; one for each stream.
    ends: [Vec<u8>; 2],
    found: Option<FailMatch>,
}

impl Watch {
    pub(super) fn new(fail_on: Option<FailOn>) -> Watch {
        Watch { fail_on, ends: [Vec::new(), Vec::new()], found: None }
    }

    pub(super) fn look(&mut self, stream: Stream, piece: &[u8]) {
        let (Some(fail_on), None) = (&self.fail_on, &self.found) else { return };
        let end = match stream {
            Stream::Stdout => &mut self.ends[0],
            Stream::Stderr => &mut self.ends[1],
        };
        let across = fail_on.bytes_between_pieces;
        end.extend(&piece[..piece.len().min(across)]);
        let hit = fail_on.automaton.find(&end[..]).or_else(|| fail_on.automaton.find(piece));
        if let Some(hit) = hit {
            let word = fail_on.words[hit.pattern().as_usize()].clone();
            self.found = Some(FailMatch { word, stream });
            return;
        }
        if piece.len() >= across {
            end.clear();
            end.extend(&piece[piece.len() - across..]);
        } else {
            end.drain(..end.len().saturating_sub(across));
        }
    }

    pub(super) fn found(self) -> Option<FailMatch> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found_in(filter: &str, pieces: &[&str]) -> Option<String> {
        let mut watch = Watch::new(FailOn::parse(filter));
        pieces.iter().for_each(|piece| watch.look(Stream::Stdout, piece.as_bytes()));
        watch.found().map(|found| found.word)
    }

    #[test]
    fn a_word_is_found_in_any_case_and_inside_other_words() {
        assert_eq!(found_in("fatal|error|fail", &["all well, one ErRoRs"]), Some("error".into()));
        assert_eq!(found_in("fatal|error|fail", &["all well"]), None);
    }

    #[test]
    fn a_word_is_found_wherever_the_stream_is_cut() {
        let text = "xx fatalities yy";
        for first in 0..text.len() {
            for second in first..text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(found_in("fatal|error", &pieces), Some("fatal".into()), "{pieces:?}");
            }
        }
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let pieces: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(found_in("error|fatal", &pieces), Some("fatal".into()));
    }

    #[test]
    fn nothing_is_found_without_words_or_across_two_streams() {
        assert!(FailOn::parse("").is_none());
        assert!(FailOn::parse("||").is_none());
        assert_eq!(found_in("|error|", &["fine"]), None);
        let mut watch = Watch::new(FailOn::parse("error"));
        watch.look(Stream::Stdout, b"err");
        watch.look(Stream::Stderr, b"or");
        assert_eq!(watch.found(), None);
    }
}
