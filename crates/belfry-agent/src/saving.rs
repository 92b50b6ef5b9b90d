//! What a run writes into its FIFO, line by line, on its way to a server. It is read no faster than it is saved: a run that writes without
//! end waits at the full FIFO, and only the last value of each key is held here. A line that cannot be kept is told in the run's output.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use belfry_core::job::RunOn;
use belfry_core::state::{LINE_BYTES_MAX, Lines, Values, merge, parse_line};
use belfry_exec::Fifo;
use belfry_proto::session::SaveState;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use crate::desk::Event;
use crate::key::Key;
use crate::session::Node;

pub(crate) struct Saving {
    fifo: Option<Fifo>,
    /// Nothing is kept; why.
    refusal: Option<String>,
    lines: Lines,
    /// As the run got it, with its changes: so that a key too many is known at once.
    known: Values,
    /// Not acknowledged.
    pending: Values,
    sequence: u64,
    notes: mpsc::Sender<String>,
    noted: usize,
}

/// More mistakes than these are not listed one by one.
pub(crate) const NOTES_MAX: usize = 20;
/// From the first line that came to the message that carries it.
const GATHER: Duration = Duration::from_millis(100);
const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Each run reads at least once, mostly nothing.
const READ_BYTES_MAX: usize = 4 * 1024;
/// What a FIFO can hold at most, unless the machine's keeper allows more.
const LAST_BYTES_MAX: usize = 1024 * 1024;
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(2);

impl Saving {
    /// The notes are for the run's output.
    pub(crate) fn new(
        fifo: Option<io::Result<Fifo>>,
        known: Values,
        run_on: RunOn,
    ) -> (Saving, mpsc::Receiver<String>) {
        let (notes, noted) = mpsc::channel(NOTES_MAX + 2);
        let lines = Lines::default();
        let refusal = (run_on != RunOn::One).then(|| {
            "nothing is kept: state is saved for jobs with `run_on: one`; one that nodes fire by themselves keeps files"
                .to_owned()
        });
        let (pending, sequence) = (Values::new(), 0);
        let mut saving = Saving { fifo: None, refusal, lines, known, pending, sequence, notes, noted: 0 };
        match fifo {
            Some(Ok(fifo)) => saving.fifo = Some(fifo),
            Some(Err(cause)) => saving.note(&format!("this run can save nothing, its FIFO could not be made: {cause}")),
            None => {}
        }
        (saving, noted)
    }

    /// What the run is to know of it.
    pub(crate) fn environment(&self) -> impl Iterator<Item = (String, String)> {
        let fifo = self.fifo.as_ref().map(|fifo| ("BELFRY_STATE".to_owned(), fifo.path().display().to_string()));
        let values = self.known.iter().map(|(key, value)| (format!("BELFRY_STATE_{key}"), value.clone()));
        fifo.into_iter().chain(values)
    }

    /// May be dropped at any time without loss.
    pub(crate) async fn keep(&mut self, node: &Node, key: Key) -> Infallible {
        loop {
            self.gather().await;
            if !self.pending.is_empty() {
                self.save(node, key).await;
            }
        }
    }

    async fn gather(&mut self) {
        let Some(fifo) = &self.fifo else { return std::future::pending().await };
        // An error shows again at the read.
        drop(fifo.reader().readable().await);
        let until = Instant::now() + GATHER;
        let mut bytes = 0;
        while bytes < BATCH_BYTES_MAX {
            bytes += self.read();
            let Some(fifo) = &self.fifo else { return };
            match timeout_at(until, fifo.reader().readable()).await {
                // Others have their turn between two reads.
                Ok(_) => tokio::task::yield_now().await,
                Err(_) => return,
            }
        }
    }

    /// Until a server has it.
    async fn save(&mut self, node: &Node, key: Key) {
        let mut answers = node.saves.expect(key);
        self.sequence += 1;
        let sequence = self.sequence;
        let changes = self.pending.clone().into_iter().collect();
        let save = SaveState { key: Some(key.to_wire()), sequence, changes };
        let mut again = false;
        loop {
            node.tell(Event::Saves { save: save.clone(), again }).await;
            let answered = answers.wait_for(|answer| answer.sequence == sequence);
            if let Ok(Ok(answer)) = timeout(ASK_AGAIN_AFTER, answered).await {
                let refused = answer.refused.clone();
                self.pending.clear();
                refused.iter().for_each(|why| self.note(&format!("not saved: {why}")));
                return;
            }
            again = true;
        }
    }

    /// What the run wrote before it ended, and what nobody has acknowledged: it goes with the run's end.
    pub(crate) fn finish(mut self, node: &Node, key: Key) -> Option<SaveState> {
        node.saves.forget(key);
        let mut bytes = 0;
        while bytes < LAST_BYTES_MAX {
            match self.read() {
                0 => break,
                count => bytes += count,
            }
        }
        if let Some(number) = self.lines.unfinished() {
            self.note(&format!("line {number} has no end (a newline), and was not saved"));
        }
        let changes = std::mem::take(&mut self.pending);
        (!changes.is_empty()).then(|| SaveState {
            key: None,
            sequence: self.sequence + 1,
            changes: changes.into_iter().collect(),
        })
    }

    /// Reads once, and says how much.
    fn read(&mut self) -> usize {
        let mut buffer = [0; READ_BYTES_MAX];
        let Some(fifo) = &self.fifo else { return 0 };
        let Ok(count) = fifo.reader().try_read(&mut buffer) else { return 0 };
        let mut lines = std::mem::take(&mut self.lines);
        lines.feed(&buffer[..count], |number, line| self.line(number, line));
        self.lines = lines;
        count
    }

    /// `None`: the line was too long to be held.
    fn line(&mut self, number: u64, line: Option<&[u8]>) {
        if let Some(refusal) = self.refusal.clone() {
            if self.noted == 0 {
                self.note(&refusal);
            }
            return;
        }
        let parsed = match line {
            Some([]) => return,
            Some(line) => parse_line(line),
            None => Err(format!("it is longer than {LINE_BYTES_MAX} bytes")),
        };
        let refused = match parsed {
            // What is not there need not be removed, so there are never many.
            Ok((key, value)) if value.is_empty() && !self.known.contains_key(&key) => return,
            Ok((key, value)) => {
                let change = Values::from([(key, value)]);
                match merge(&mut self.known, &change).into_iter().next() {
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
        let text = match self.noted {
            ..=NOTES_MAX => format!("belfry: BELFRY_STATE: {what}\n"),
            number if number == NOTES_MAX + 1 => "belfry: BELFRY_STATE: more mistakes are not listed\n".to_owned(),
            _ => return,
        };
        // There is room for all of them.
        drop(self.notes.try_send(text));
    }
}
