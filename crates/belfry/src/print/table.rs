//! Tables without lines: columns two spaces apart, wrapped to the terminal, plain in a pipe.

use belfry_core::run::RunState;
use comfy_table::{Cell, Color, ContentArrangement, Table, presets};

/// A cell. The words say everything; the tone only helps the eye.
#[derive(Clone, Debug)]
pub struct Word {
    text: String,
    tone: Tone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Good,
    Bad,
    Warn,
    Faint,
}

impl Word {
    pub fn toned(text: impl Into<String>, tone: Tone) -> Self {
        Self { text: printable(&text.into()), tone }
    }

    /// What is not known or does not apply is a dash.
    pub fn or_dash(text: Option<impl Into<String>>) -> Self {
        text.map_or_else(|| Self::toned("-", Tone::Faint), |text| Self::toned(text, Tone::Plain))
    }
}

impl<T: Into<String>> From<T> for Word {
    fn from(text: T) -> Self {
        Self::toned(text, Tone::Plain)
    }
}

pub fn tone_of_state(state: &str) -> Tone {
    match RunState::parse(state) {
        Some(RunState::Succeeded) => Tone::Good,
        Some(RunState::Failed | RunState::TimedOut | RunState::Lost) => Tone::Bad,
        Some(RunState::Killed | RunState::Skipped | RunState::Cancelled | RunState::Waiting) => Tone::Warn,
        Some(RunState::Claimed | RunState::Dispatched | RunState::Running) | None => Tone::Plain,
    }
}

pub(super) fn terminal_width() -> u16 {
    const WIDTH_UNKNOWN: u16 = 100;
    Table::new().width().unwrap_or(WIDTH_UNKNOWN)
}

/// No newline at the end, no spaces at the ends of lines.
pub(super) fn render(header: &[&str], rows: Vec<Vec<Word>>, width: Option<u16>, colour: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    match width {
        Some(width) => table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    if !header.is_empty() {
        table.set_header(header.iter().map(|title| Cell::new(title.to_uppercase())));
    }
    for row in rows {
        table.add_row(row.into_iter().map(|word| cell(word, colour)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    if colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

fn cell(word: Word, colour: bool) -> Cell {
    let cell = Cell::new(word.text);
    let tint = match word.tone {
        Tone::Plain => return cell,
        Tone::Good => Color::Green,
        Tone::Bad => Color::Red,
        Tone::Warn => Color::Yellow,
        Tone::Faint => Color::DarkGrey,
    };
    if colour { cell.fg(tint) } else { cell }
}

/// Names and reasons come from others: what would move the cursor or change colours is shown, not obeyed.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piped_table_is_plain() {
        let rows = vec![
            vec![Word::from("a"), Word::toned("failed", Tone::Bad)],
            vec![Word::from("longer"), Word::or_dash(None::<String>)],
        ];
        assert_eq!(render(&["name", "state"], rows, None, false), "NAME    STATE\na       failed\nlonger  -");
    }

    #[test]
    fn a_long_cell_is_wrapped_to_the_terminal() {
        let rows = vec![vec![Word::from("a"), Word::from("word ".repeat(30))]];
        let text = render(&["name", "command"], rows, Some(40), false);
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = render(&[], vec![vec![Word::from("a\x1b[31mb\nc")]], None, false);
        assert_eq!(text, "a\u{fffd}[31mb c");
    }
}
