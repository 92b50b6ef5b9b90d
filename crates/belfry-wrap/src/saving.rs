//! What the command writes into its FIFO for the next one. It is read no faster than it is saved, so that a flood waits at the full FIFO, and
//! only the last value of each key is held. A line that cannot be kept is told in the log, never dropped in silence.

use std::time::Duration;

use belfry_core::state::{Lines, Values, merge_within, parse_line};
use belfry_exec::Fifo;
use tokio::time::{Instant, timeout_at};

use crate::parameters::KNOWN;

pub(crate) const KEYS_MAX: usize = 5;
/// From the first line that came to the commit that carries it.
const GATHER: Duration = Duration::from_millis(100);
const READ_BYTES_MAX: usize = 4 * 1024;
/// Others have their turn after so many.
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// There are few to set, and any number to remove.
const BATCH_KEYS_MAX: usize = 64;
const NOTES_MAX: usize = 20;

pub(crate) struct Saving {
    fifo: Fifo,
    lines: Lines,
    known: Values,
    pending: Values,
    noted: usize,
}

impl Saving {
    pub(crate) fn of(fifo: Fifo, known: Values) -> Saving {
        Saving { fifo, lines: Lines::default(), known, pending: Values::new(), noted: 0 }
    }

    pub(crate) fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let fifo = ("DCRON_FIFO".to_owned(), self.fifo.path().display().to_string());
        let values = self.known.iter().map(|(key, value)| (format!("DCRON_{key}"), value.clone()));
        [fifo].into_iter().chain(values)
    }

    /// Returns when there is something to be saved. May be dropped at any time without loss.
    pub(crate) async fn gather(&mut self) {
        while self.pending.is_empty() {
            drop(self.fifo.reader().readable().await);
            let until = Instant::now() + GATHER;
            let mut bytes = 0;
            while bytes < BATCH_BYTES_MAX && self.pending.len() < BATCH_KEYS_MAX {
                bytes += self.read();
                if timeout_at(until, self.fifo.reader().readable()).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    pub(crate) fn pending(&self) -> &Values {
        &self.pending
    }

    pub(crate) fn saved(&mut self) {
        self.pending.clear();
    }

    /// All that the command wrote before it ended.
    pub(crate) fn read_the_rest(&mut self) {
        while self.read() > 0 {}
        if let Some(number) = self.lines.unfinished() {
            self.note(&format!("line {number} has no end (a newline), and was not saved"));
        }
    }

    fn read(&mut self) -> usize {
        let mut buffer = [0; READ_BYTES_MAX];
        let Ok(count) = self.fifo.reader().try_read(&mut buffer) else { return 0 };
        let mut lines = std::mem::take(&mut self.lines);
        lines.feed(&buffer[..count], |number, line| self.line(number, line));
        self.lines = lines;
        count
    }

    fn line(&mut self, number: u64, line: Option<&[u8]>) {
        let parsed = match line {
            Some([]) => return,
            Some(line) => parse_line(line),
            None => Err("it is too long".to_owned()),
        };
        let refused = match parsed {
            Ok((key, _)) if KNOWN.contains(&key.as_str()) => format!("`{key}` would hide the parameter DCRON_{key}"),
            // Also a removal of what was not there at the start: another instance may have saved it since.
            Ok((key, value)) => {
                let change = Values::from([(key, value)]);
                match merge_within(&mut self.known, &change, KEYS_MAX).into_iter().next() {
                    None => return self.pending.extend(change),
                    Some(why) => why,
                }
            }
            Err(why) => why,
        };
        self.note(&format!("line {number} was not saved: {refused}"));
    }

    fn note(&mut self, what: &str) {
        self.noted += 1;
        match self.noted {
            ..=NOTES_MAX => tracing::warn!("DCRON_FIFO: {what}"),
            number if number == NOTES_MAX + 1 => tracing::warn!("DCRON_FIFO: more mistakes are not listed"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use nix::unistd::geteuid;

    use super::*;

    fn fifo(folder: &tempfile::TempDir) -> Fifo {
        Fifo::make(&folder.path().join("fifo"), geteuid().as_raw()).unwrap()
    }

    #[tokio::test]
    async fn a_key_that_was_not_there_at_the_start_is_removed_too() {
        let folder = tempfile::tempdir().unwrap();
        let known = Values::from([("KEPT".to_owned(), "1".to_owned())]);
        let mut saving = Saving::of(fifo(&folder), known);
        let mut fifo = std::fs::File::options().write(true).open(folder.path().join("fifo")).unwrap();
        fifo.write_all(b"OTHER=\nKEPT=2\n").unwrap();
        saving.gather().await;
        let expected = [("KEPT", "2"), ("OTHER", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(*saving.pending(), Values::from(expected));
    }

    #[tokio::test]
    async fn a_flood_of_removals_is_saved_in_small_batches() {
        let folder = tempfile::tempdir().unwrap();
        let mut saving = Saving::of(fifo(&folder), Values::new());
        let mut fifo = std::fs::File::options().write(true).open(folder.path().join("fifo")).unwrap();
        let lines: String = (0..6000).map(|number| format!("K{number}=\n")).collect();
        fifo.write_all(lines.as_bytes()).unwrap();
        let mut removed = 0;
        while removed < 6000 {
            saving.gather().await;
            let count = saving.pending().len();
            assert!((1..BATCH_KEYS_MAX + READ_BYTES_MAX / 3).contains(&count), "{count}");
            removed += count;
            saving.saved();
        }
    }
}
