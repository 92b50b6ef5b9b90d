//! How things look: data on stdout, talk on stderr, tables for people, JSON for programs. It decides nothing and asks nobody.

mod moments;
mod table;

pub use moments::{Zone, relative, short_duration};
pub use table::{Tone, Word, tone_of_state};

use std::io::{self, IsTerminal, Write};

use belfry_core::Timestamp;
use serde_json::Value;

/// Where output goes and what it may look like. The present moment is read once, so that one answer has one "now".
#[derive(Clone, Debug)]
pub struct Printer {
    pub json: bool,
    pub now: Timestamp,
    pub zone: Zone,
    /// Columns of the terminal; none when stdout is a pipe or a file: nothing is wrapped then.
    width: Option<u16>,
    colour: bool,
}

impl Printer {
    pub fn new(json: bool, now: Timestamp) -> Self {
        let terminal = io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let width = terminal.then(table::terminal_width);
        Self { json, now, zone: Zone::local(), width, colour: terminal && !no_colour && !dumb }
    }

    /// Data, as it stands.
    pub fn data(&self, bytes: &[u8]) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    pub fn line(&self, text: &str) -> anyhow::Result<()> {
        self.data(format!("{text}\n").as_bytes())
    }

    /// For programs: what the API answered.
    pub fn json(&self, value: &Value) -> anyhow::Result<()> {
        self.line(&serde_json::to_string_pretty(value)?)
    }

    /// Talk: it goes to stderr, and to nobody when a program reads us.
    pub fn say(&self, text: &str) {
        if !self.json {
            tell(text);
        }
    }

    /// Rows of equal length under a header. An empty table prints nothing; the caller says what that means.
    pub fn table(&self, header: &[&str], rows: Vec<Vec<Word>>) -> anyhow::Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.line(&table::render(header, rows, self.width, self.colour))
    }

    /// Names and values of one thing, one per line.
    pub fn facts(&self, facts: Vec<(&str, Word)>) -> anyhow::Result<()> {
        let rows = facts.into_iter().map(|(name, value)| vec![Word::from(name), value]).collect();
        self.line(&table::render(&[], rows, self.width, self.colour))
    }

    /// A moment in the local zone, with how far away it is.
    pub fn moment(&self, at: Option<Timestamp>) -> String {
        at.map_or_else(|| "-".to_owned(), |at| format!("{} ({})", self.zone.show(at, self.now), relative(at, self.now)))
    }
}

/// To stderr; that nobody reads it is no error.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Asks on the terminal. Answers none when there is no terminal to ask on.
pub fn confirm(question: &str) -> anyhow::Result<Option<bool>> {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(None);
    }
    let _ = write!(io::stderr().lock(), "{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes" | "Yes")))
}
