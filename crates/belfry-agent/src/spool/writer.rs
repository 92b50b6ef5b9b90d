//! The one writer: takes all that was submitted, writes what is to be kept with one call, and hands all of it on. When the disk takes nothing,
//! records stay in memory, are handed on all the same, and are written when there is room again.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use belfry_proto::session::FromAgent;

use super::index::Location;
use super::record::{self, is_kept, key_of, output_bytes};
use super::segment;
use super::sync::Syncer;
use super::{HandOn, Shared, Submitted};
use crate::key::Key;

struct Writer {
    shared: Arc<Shared>,
    syncer: Syncer,
    hand_on: HandOn,
    open: Option<Open>,
    next_segment: u32,
    unwritten: VecDeque<Unwritten>,
    unwritten_bytes: u64,
}

struct Open {
    segment: u32,
    file: Arc<File>,
    bytes: usize,
}

/// A record that the disk did not take.
struct Unwritten {
    key: Key,
    place: usize,
    message: Arc<FromAgent>,
}

const SEGMENT_BYTES_MAX: usize = 16 * 1024 * 1024;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_RECORDS_MAX: usize = 256;

pub(super) fn start(shared: Arc<Shared>, next_segment: u32, hand_on: HandOn) -> io::Result<()> {
    let syncer = Syncer::start()?;
    let mut writer =
        Writer { shared, syncer, hand_on, open: None, next_segment, unwritten: VecDeque::new(), unwritten_bytes: 0 };
    // Fate: ends when the last handle of the spool is gone, after writing what was submitted.
    std::thread::Builder::new().name("spool-writer".into()).spawn(move || writer.write_until_closed())?;
    Ok(())
}

impl Writer {
    fn write_until_closed(&mut self) {
        loop {
            let Submitted { messages, flushes, closed } = self.wait();
            self.keep(messages);
            self.retry();
            self.shared.room.unwritten(self.unwritten_bytes);
            if let Some(open) = self.open.as_ref().filter(|_| !flushes.is_empty())
                && let Err(cause) = open.file.sync_data()
            {
                tracing::error!(%cause, "bring results of runs to the disk");
            }
            for done in flushes {
                let _nobody_waits = done.send(());
            }
            if closed {
                return;
            }
        }
    }

    fn wait(&self) -> Submitted {
        let mut submitted = self.shared.submitted();
        while submitted.messages.is_empty() && submitted.flushes.is_empty() && !submitted.closed {
            if self.unwritten.is_empty() {
                submitted = self.shared.something_submitted.wait(submitted).unwrap_or_else(PoisonError::into_inner);
            } else {
                let waited = self.shared.something_submitted.wait_timeout(submitted, RETRY_INTERVAL);
                let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                submitted = guard;
                if timeout.timed_out() {
                    break;
                }
            }
        }
        let closed = submitted.closed;
        Submitted { closed, ..std::mem::take(&mut *submitted) }
    }

    fn keep(&mut self, messages: Vec<FromAgent>) {
        if messages.is_empty() {
            return;
        }
        let room: usize = messages.iter().map(output_bytes).sum();
        let kept: Vec<&FromAgent> = messages.iter().filter(|message| is_kept(message)).collect();
        // Once the disk is full, what comes later may not pass what waits: it queues up behind.
        if self.unwritten.is_empty() && !kept.is_empty() {
            match self.write(kept.iter().copied()) {
                Ok(places) => self.record_places(&kept, &places),
                Err(cause) => {
                    tracing::error!(%cause, folder = %self.shared.folder.display(),
                        "the spool cannot be written; results stay in memory and are sent, but would not survive a crash; make room on the disk");
                    self.keep_in_memory(&kept);
                }
            }
        } else {
            self.keep_in_memory(&kept);
        }
        self.shared.room.unwritten(self.unwritten_bytes);
        self.shared.room_bytes.add_permits(room);
        (self.hand_on)(messages);
    }

    fn record_places(&self, messages: &[&FromAgent], places: &[Location]) {
        let mut index = self.shared.index();
        for (message, place) in messages.iter().zip(places) {
            if let Some((key, kind)) = key_of(message) {
                index.add(key, kind, place.clone());
            }
        }
    }

    fn keep_in_memory(&mut self, messages: &[&FromAgent]) {
        let mut index = self.shared.index();
        for message in messages {
            let Some((key, kind)) = key_of(message) else { continue };
            self.unwritten_bytes += record::bytes(message);
            let message = Arc::new(FromAgent::clone(message));
            let place = index.add(key, kind, Location::Memory(Arc::clone(&message)));
            self.unwritten.push_back(Unwritten { key, place, message });
        }
    }

    fn retry(&mut self) {
        while !self.unwritten.is_empty() {
            let count = self.unwritten.len().min(RETRY_RECORDS_MAX);
            let mut batch: Vec<Unwritten> = self.unwritten.drain(..count).collect();
            {
                let index = self.shared.index();
                batch.retain(|record| {
                    let needed = index.is_in_memory(record.key, record.place);
                    if !needed {
                        self.unwritten_bytes -= record::bytes(&record.message);
                    }
                    needed
                });
            }
            match self.write(batch.iter().map(|record| record.message.as_ref())) {
                Ok(places) => {
                    let mut index = self.shared.index();
                    for (record, place) in batch.iter().zip(places) {
                        self.unwritten_bytes -= record::bytes(&record.message);
                        index.moved_to_disk(record.key, record.place, place);
                    }
                }
                Err(cause) => {
                    tracing::debug!(%cause, "the spool still cannot be written");
                    batch.into_iter().rev().for_each(|record| self.unwritten.push_front(record));
                    return;
                }
            }
            if self.unwritten.is_empty() {
                tracing::info!("the spool can be written again; no result was lost");
            }
        }
    }

    /// One write for all. When it fails, nothing of it stays in the file. Says where each record is.
    fn write<'a>(&mut self, messages: impl Iterator<Item = &'a FromAgent>) -> io::Result<Vec<Location>> {
        let mut bytes = Vec::new();
        let mut starts = Vec::new();
        for message in messages {
            starts.push(bytes.len());
            record::append(&mut bytes, message);
        }
        if self.open.as_ref().is_none_or(|open| open.bytes + bytes.len() > SEGMENT_BYTES_MAX) {
            self.open_next_segment()?;
        }
        let Some(open) = self.open.as_mut() else { return Err(io::Error::other("no segment is open")) };
        if let Err(cause) = open.file.as_ref().write_all(&bytes) {
            if open.file.set_len(open.bytes as u64).is_err() {
                // What follows a torn record would never be found again, so it goes into a new file.
                self.open = None;
            }
            return Err(cause);
        }
        let (segment, start) = (open.segment, open.bytes);
        open.bytes += bytes.len();
        self.syncer.written(&open.file);
        let ends = starts.iter().copied().skip(1).chain([bytes.len()]);
        let place = |(at, end): (&usize, usize)| Location::Disk {
            segment,
            offset: (start + at) as u32,
            bytes: (end - at) as u32,
        };
        Ok(starts.iter().zip(ends).map(place).collect())
    }

    fn open_next_segment(&mut self) -> io::Result<()> {
        let segment = self.next_segment;
        let file = segment::create(&self.shared.folder, segment)?;
        self.next_segment += 1;
        self.open = Some(Open { segment, file: Arc::new(file), bytes: 0 });
        let unneeded = {
            let mut index = self.shared.index();
            index.open_segment(segment);
            index.take_unneeded_segments()
        };
        segment::remove(&self.shared.folder, &unneeded);
        Ok(())
    }
}
