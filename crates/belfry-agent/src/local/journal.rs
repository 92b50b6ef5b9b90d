//! The file behind local jobs: one record a line, only appended to, written anew when most of it is out of date. A line counts when
//! it ends; what a crash left of the last one is passed over.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ToWrite;
use super::record::{Kept, Record};

/// Where local jobs are kept: on the node's disk, or in the memory of a simulation.
pub(crate) enum Journal {
    Disk(DiskJournal),
    Memory(MemoryJournal),
}

/// Told by the writer which ticket is on the disk, in their order.
pub(crate) type Written = Box<dyn Fn(u64) + Send>;

pub(crate) struct DiskJournal {
    shared: Arc<Shared>,
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub struct MemoryJournal(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Shared {
    submitted: Mutex<Submitted>,
    something_submitted: Condvar,
}

#[derive(Default)]
struct Submitted {
    /// As many as the desk lets be on their way.
    batches: Vec<ToWrite>,
    closed: bool,
}

const FILE: &str = "local-jobs";
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Below this a file is not worth writing anew.
const SMALL_BYTES: u64 = 256 * 1024;

impl Journal {
    /// What the disk has, and where the next records go.
    pub(crate) fn open(folder: &Path, written: Written) -> io::Result<(Journal, Kept)> {
        let path = folder.join(FILE);
        let kept = read(&path)?;
        let mut writer = Writer { path, kept: kept.clone(), file: None, bytes: 0, bytes_when_new: 0, written };
        writer.write_anew()?;
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        // Fate: ends when the journal is dropped, after writing what was submitted.
        std::thread::Builder::new().name("local-jobs".into()).spawn(move || writer.write_until_closed(&its))?;
        Ok((Journal::Disk(DiskJournal { shared }), kept))
    }

    pub(crate) fn in_memory(disk: &MemoryJournal) -> (Journal, Kept) {
        (Journal::Memory(disk.clone()), disk.lock().clone())
    }

    /// The ticket, when everything is written at once; else the writer says it later.
    pub(crate) fn keep(&self, batch: ToWrite) -> Option<u64> {
        match self {
            Journal::Disk(DiskJournal { shared }) => {
                shared.lock().batches.push(batch);
                shared.something_submitted.notify_one();
                None
            }
            Journal::Memory(disk) => {
                let mut kept = disk.lock();
                batch.records.into_iter().for_each(|record| kept.add(record));
                Some(batch.ticket)
            }
        }
    }
}

impl MemoryJournal {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Submitted> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DiskJournal {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.something_submitted.notify_one();
    }
}

struct Writer {
    path: PathBuf,
    /// What the file says.
    kept: Kept,
    file: Option<File>,
    bytes: u64,
    bytes_when_new: u64,
    written: Written,
}

impl Writer {
    fn write_until_closed(&mut self, shared: &Shared) {
        loop {
            let mut submitted = shared.lock();
            while submitted.batches.is_empty() && !submitted.closed {
                submitted = shared.something_submitted.wait(submitted).unwrap_or_else(PoisonError::into_inner);
            }
            let (batches, closed) = (std::mem::take(&mut submitted.batches), submitted.closed);
            drop(submitted);
            if !self.write_all(batches, shared) || closed {
                return;
            }
        }
    }

    /// False: the agent ends, and the disk still takes nothing.
    fn write_all(&mut self, batches: Vec<ToWrite>, shared: &Shared) -> bool {
        let mut told = false;
        while let Err(cause) = self.write(&batches) {
            if !told {
                told = true;
                tracing::error!(%cause, path = %self.path.display(),
                    "jobs that this node fires by itself cannot be kept, and do not start until they can; make room on the disk");
            }
            self.file = None;
            let submitted = shared.lock();
            let (submitted, _) = shared
                .something_submitted
                .wait_timeout(submitted, RETRY_INTERVAL)
                .unwrap_or_else(PoisonError::into_inner);
            if submitted.closed {
                return false;
            }
        }
        if told {
            tracing::info!("jobs that this node fires by itself are kept again");
        }
        for batch in batches {
            batch.records.into_iter().for_each(|record| self.kept.add(record));
            (self.written)(batch.ticket);
        }
        true
    }

    fn write(&mut self, batches: &[ToWrite]) -> io::Result<()> {
        // After an error the end of the file is not known, so it is written anew.
        if self.file.is_none() || self.bytes > SMALL_BYTES.max(4 * self.bytes_when_new) {
            self.write_anew()?;
        }
        let mut text = Vec::new();
        for record in batches.iter().flat_map(|batch| &batch.records) {
            append(&mut text, record)?;
        }
        let Some(file) = self.file.as_mut() else { return Err(io::Error::other("no file is open")) };
        file.write_all(&text)?;
        file.sync_data()?;
        self.bytes += text.len() as u64;
        Ok(())
    }

    /// All of it or nothing, also when the power fails.
    fn write_anew(&mut self) -> io::Result<()> {
        let draft = self.path.with_extension("new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
        let mut text = Vec::new();
        for record in self.kept.records() {
            append(&mut text, &record)?;
        }
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&draft, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        self.file = Some(file);
        self.bytes = text.len() as u64;
        self.bytes_when_new = self.bytes;
        Ok(())
    }
}

fn append(text: &mut Vec<u8>, record: &Record) -> io::Result<()> {
    serde_json::to_writer(&mut *text, record)?;
    text.push(b'\n');
    Ok(())
}

fn read(path: &Path) -> io::Result<Kept> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(Kept::default()),
        Err(cause) => return Err(cause),
    };
    let mut kept = Kept::default();
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n").map(serde_json::from_slice::<Record>) {
            Some(Ok(record)) => kept.add(record),
            // The last write was cut off; nothing that it said was acted upon.
            None => break,
            Some(Err(cause)) => {
                tracing::error!(%cause, path = %path.display(), "a record of local jobs cannot be read; what follows it is passed over");
                break;
            }
        }
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use belfry_core::{JobId, RunId};

    use super::*;
    use crate::local::Claim;

    fn claim(run: u128) -> Record {
        Record::Claimed(Claim {
            job: JobId::from_u128(1),
            run: RunId::from_u128(run),
            namespace: "default".into(),
            name: "a".into(),
            revision: 1,
            planned_ms: run as i64,
            start_ms: 0,
            claimed_at_ms: 0,
            fence: run as u64,
            home_term: 0,
            at_boot: false,
            skipped: None,
        })
    }

    fn open(folder: &Path) -> (Journal, Kept, mpsc::Receiver<u64>) {
        let (tell, told) = mpsc::sync_channel(10_000);
        let (journal, kept) = Journal::open(folder, Box::new(move |ticket| tell.send(ticket).unwrap())).unwrap();
        (journal, kept, told)
    }

    #[test]
    fn what_was_told_as_written_is_found_again_and_a_torn_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, kept, told) = open(folder.path());
        assert!(kept.open.is_empty());
        journal.keep(ToWrite { ticket: 1, records: vec![claim(1), claim(2)] });
        let end = Record::Ended { job: JobId::from_u128(1), run: RunId::from_u128(1), at_ms: 5 };
        journal.keep(ToWrite { ticket: 2, records: vec![end] });
        assert_eq!((told.recv().unwrap(), told.recv().unwrap()), (1, 2));
        drop(journal);
        let path = folder.path().join(FILE);
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(b"{\"claimed\":{\"job\":").unwrap();
        let (_journal, kept, _told) = open(folder.path());
        assert_eq!(kept.open.keys().copied().collect::<Vec<_>>(), [RunId::from_u128(2)]);
    }

    #[test]
    fn the_file_is_written_anew_before_it_is_mostly_out_of_date() {
        let folder = tempfile::tempdir().unwrap();
        let (journal, _, told) = open(folder.path());
        for run in 1..=3000 {
            let end = Record::Ended { job: JobId::from_u128(1), run: RunId::from_u128(run), at_ms: 5 };
            journal.keep(ToWrite { ticket: run as u64, records: vec![claim(run), end] });
        }
        while told.recv().unwrap() < 3000 {}
        journal.keep(ToWrite { ticket: 3001, records: vec![claim(3001)] });
        while told.recv().unwrap() < 3001 {}
        let bytes = fs::metadata(folder.path().join(FILE)).unwrap().len();
        assert!(bytes < 2 * SMALL_BYTES, "{bytes} bytes for one open claim");
    }
}
