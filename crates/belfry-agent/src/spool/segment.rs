//! The files of the spool: found again after a restart, read from, removed. Writing is the writer's alone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belfry_proto::session::FromAgent;

use super::index::{Index, Location};
use super::record::{HEADER_BYTES, Header, key_of};

pub(super) fn create(folder: &Path, segment: u32) -> io::Result<File> {
    OpenOptions::new().create_new(true).append(true).mode(0o600).open(path(folder, segment))
}

pub(super) fn remove(folder: &Path, segments: &[u32]) {
    for segment in segments {
        match fs::remove_file(path(folder, *segment)) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%cause, segment, "remove a segment of the spool that nobody needs");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

fn path(folder: &Path, segment: u32) -> PathBuf {
    folder.join(format!("{segment:010}.seg"))
}

/// Reads all segments, and gives what ended in them with the number for the next segment. A torn tail is what a kill in
/// the middle of a write leaves; it was never handed on, so nobody misses it.
pub(super) fn replay(folder: &Path) -> io::Result<(Index, u32)> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_suffix(".seg")).and_then(|number| number.parse::<u32>().ok());
        segments.extend(number);
    }
    segments.sort_unstable();
    let mut index = Index::default();
    for segment in &segments {
        index.open_segment(*segment);
        replay_one(folder, *segment, &mut index)?;
    }
    index.forget_unfinished();
    let next = segments.last().map_or(0, |last| last + 1);
    index.open_segment(next);
    remove(folder, &index.take_unneeded_segments());
    Ok((index, next))
}

fn replay_one(folder: &Path, segment: u32, index: &mut Index) -> io::Result<()> {
    let mut bytes = Vec::new();
    File::open(path(folder, segment))?.read_to_end(&mut bytes)?;
    let mut offset = 0;
    while let Some((message, length)) = parse(&bytes[offset..]) {
        if let Some((key, kind)) = key_of(&message) {
            index.add(key, kind, Location::Disk { segment, offset: offset as u32, bytes: length as u32 });
        }
        offset += length;
    }
    if offset < bytes.len() {
        tracing::info!(segment, left_out_bytes = bytes.len() - offset, "the spool ends in the middle of a record");
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Option<(FromAgent, usize)> {
    let header = Header::parse(bytes)?;
    let length = HEADER_BYTES + header.length;
    let message = header.message(bytes.get(HEADER_BYTES..length)?)?;
    Some((message, length))
}

/// Takes places from the end of `left` and reads them, until `bytes_max` are reached.
pub(super) fn read_batch(folder: &Path, left: &mut Vec<Location>, bytes_max: usize) -> Vec<FromAgent> {
    let mut batch = Vec::new();
    let mut bytes = 0;
    let mut open: Option<(u32, File)> = None;
    while bytes < bytes_max
        && let Some(location) = left.pop()
    {
        match location {
            Location::Memory(message) => batch.push(message.as_ref().clone()),
            Location::Disk { segment, offset, .. } => {
                if open.as_ref().is_none_or(|(number, _)| *number != segment) {
                    open = File::open(path(folder, segment)).ok().map(|file| (segment, file));
                }
                let read = open.as_ref().and_then(|(_, file)| read_at(file, u64::from(offset)));
                match read {
                    Some((message, length)) => {
                        bytes += length;
                        batch.push(message);
                    }
                    None => tracing::debug!(segment, offset, "a record was removed before it was sent again"),
                }
            }
        }
    }
    batch
}

fn read_at(file: &File, offset: u64) -> Option<(FromAgent, usize)> {
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, offset).ok()?;
    let header = Header::parse(&header)?;
    let mut body = vec![0; header.length];
    file.read_exact_at(&mut body, offset + HEADER_BYTES as u64).ok()?;
    Some((header.message(&body)?, HEADER_BYTES + header.length))
}
