//! What of the output is kept: a head that is handed on as it comes, a tail in a ring, and the count of what fell out
//! between them. Pure: it reads no pipe and no clock.

use std::collections::VecDeque;

use bytes::Bytes;

use super::{CaptureEvent, Chunk, Stream};

/// Pieces of one stream that come this close together become one chunk.
pub(super) const COALESCE_MS: u64 = 50;
pub(super) const CHUNK_BYTES_MAX: usize = 16 * 1024;
/// Both streams byte by byte in turn would cost more in notes about pieces than in bytes; beyond this the oldest go.
const BYTES_PER_PIECE_MIN: usize = 16;

pub(super) struct Keep {
    head_left: u64,
    tail_max: usize,
    bytes: VecDeque<u8>,
    pieces: VecDeque<Piece>,
    /// Place of the ring's first byte in all that was produced.
    start: u64,
    dropped: u64,
    /// What followers have been shown, or have missed.
    shown: u64,
}

#[derive(Clone, Copy)]
struct Piece {
    stream: Stream,
    at_ms: u64,
    length: usize,
}

impl Keep {
    pub(super) fn new(keep_bytes: u64) -> Keep {
        let head_left = keep_bytes / 2;
        let tail_max = usize::try_from(keep_bytes - head_left).unwrap_or(usize::MAX);
        Keep { head_left, tail_max, bytes: VecDeque::new(), pieces: VecDeque::new(), start: 0, dropped: 0, shown: 0 }
    }

    pub(super) fn push(&mut self, stream: Stream, at_ms: u64, bytes: &[u8]) {
        match self.pieces.back_mut() {
            Some(last) if last.stream == stream && at_ms < last.at_ms + COALESCE_MS => last.length += bytes.len(),
            _ => self.pieces.push_back(Piece { stream, at_ms, length: bytes.len() }),
        }
        self.bytes.extend(bytes);
    }

    /// Drops the oldest bytes until the rest fits. From the first dropped byte on, the head is over.
    pub(super) fn trim(&mut self) {
        let pieces_max = (self.tail_max / BYTES_PER_PIECE_MIN).max(64);
        while self.bytes.len() > self.tail_max || self.pieces.len() > pieces_max {
            let Some(first) = self.pieces.front_mut() else { return };
            let over = self.bytes.len().saturating_sub(self.tail_max);
            let count = if over == 0 { first.length } else { over.min(first.length) };
            first.length -= count;
            if first.length == 0 {
                self.pieces.pop_front();
            }
            self.bytes.drain(..count);
            self.start += count as u64;
            self.dropped += count as u64;
            self.head_left = 0;
        }
    }

    /// The next `trim` drops something, unless it is handed on before.
    pub(super) fn is_over(&self) -> bool {
        self.bytes.len() > self.tail_max
    }

    pub(super) fn is_in_head(&self) -> bool {
        self.head_left > 0
    }

    /// Bytes that nobody has been handed yet.
    pub(super) fn waiting_bytes(&self) -> u64 {
        if self.is_in_head() { self.bytes.len() as u64 } else { self.end() - self.shown.max(self.start) }
    }

    /// The next chunk of the head, to be handed on now.
    pub(super) fn take_head(&mut self) -> Option<Chunk> {
        if !self.is_in_head() {
            return None;
        }
        let chunk = self.take_front(usize::try_from(self.head_left).unwrap_or(usize::MAX))?;
        self.head_left -= chunk.bytes.len() as u64;
        self.shown = self.start;
        Some(chunk)
    }

    /// A copy of the next bytes that followers have not seen, at most `bytes_max`.
    pub(super) fn next_live(&mut self, bytes_max: usize) -> Option<Chunk> {
        let from = self.shown.max(self.start);
        let mut piece_start = self.end();
        let mut found = None;
        for piece in self.pieces.iter().rev() {
            piece_start -= piece.length as u64;
            found = Some((piece_start, *piece));
            if piece_start <= from {
                break;
            }
        }
        let (piece_start, piece) = found?;
        let length =
            ((piece_start + piece.length as u64).saturating_sub(from) as usize).min(bytes_max).min(CHUNK_BYTES_MAX);
        if length == 0 {
            return None;
        }
        let at = (from - self.start) as usize;
        let bytes: Bytes = self.bytes.range(at..at + length).copied().collect();
        self.shown = from + length as u64;
        Some(Chunk { stream: piece.stream, offset: from, at_ms: piece.at_ms, bytes, live_only: true })
    }

    /// Followers are not shown what has come so far: there is too much of it.
    pub(super) fn skip_live(&mut self) {
        self.shown = self.end();
    }

    pub(super) fn dropped_bytes(&self) -> u64 {
        self.dropped
    }

    /// What is still to be handed on when nothing more comes, in order. Empties the ring.
    pub(super) fn next_at_end(&mut self, gap_told: &mut bool) -> Option<CaptureEvent> {
        if let Some(chunk) = self.take_head() {
            return Some(CaptureEvent::Chunk(chunk));
        }
        if self.dropped > 0 && !*gap_told {
            *gap_told = true;
            return Some(CaptureEvent::Gap { dropped_bytes: self.dropped });
        }
        self.take_front(CHUNK_BYTES_MAX).map(CaptureEvent::Chunk)
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn take_front(&mut self, bytes_max: usize) -> Option<Chunk> {
        let first = self.pieces.front_mut()?;
        let count = first.length.min(bytes_max).min(CHUNK_BYTES_MAX);
        let Piece { stream, at_ms, .. } = *first;
        first.length -= count;
        if first.length == 0 {
            self.pieces.pop_front();
        }
        let bytes: Vec<u8> = self.bytes.drain(..count).collect();
        let offset = self.start;
        self.start += count as u64;
        Some(Chunk { stream, offset, at_ms, bytes: bytes.into(), live_only: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kept output as (offset, text), with `None` for the gap.
    fn kept(keep_bytes: u64, pieces: &[(Stream, &str)]) -> Vec<Option<(u64, String)>> {
        let mut keep = Keep::new(keep_bytes);
        let mut events = Vec::new();
        for (at, (stream, text)) in pieces.iter().enumerate() {
            keep.push(*stream, at as u64 * 1000, text.as_bytes());
            while let Some(chunk) = keep.take_head() {
                events.push(CaptureEvent::Chunk(chunk));
            }
            keep.trim();
        }
        let mut gap_told = false;
        while let Some(event) = keep.next_at_end(&mut gap_told) {
            events.push(event);
        }
        let text = |event| match event {
            CaptureEvent::Chunk(chunk) => Some((chunk.offset, String::from_utf8_lossy(&chunk.bytes).into_owned())),
            CaptureEvent::Gap { .. } => None,
        };
        events.into_iter().map(text).collect()
    }

    use Stream::{Stderr, Stdout};

    #[test]
    fn what_fits_is_kept_whole_and_in_order() {
        let pieces = [(Stdout, "abc"), (Stderr, "de"), (Stdout, "fgh")];
        let expected = [(0, "abc"), (3, "d"), (4, "e"), (5, "fgh")].map(|(at, text)| Some((at, text.to_owned())));
        assert_eq!(kept(8, &pieces), expected);
    }

    #[test]
    fn of_what_does_not_fit_the_head_and_the_tail_are_kept() {
        let pieces = [(Stdout, "abcdef"), (Stderr, "ghij"), (Stdout, "klm")];
        let expected = vec![Some((0, "abc".into())), None, Some((9, "j".into())), Some((10, "klm".into()))];
        assert_eq!(kept(7, &pieces), expected);
    }

    #[test]
    fn nothing_is_kept_when_nothing_is_to_be_kept() {
        assert_eq!(kept(0, &[(Stdout, "abc")]), [None]);
        assert!(kept(0, &[]).is_empty());
    }

    #[test]
    fn many_tiny_pieces_do_not_grow_the_notes_about_them() {
        let mut keep = Keep::new(64 * 1024);
        while keep.is_in_head() {
            keep.push(Stdout, 0, &[b'x'; 1024]);
            while keep.take_head().is_some() {}
        }
        for at in 0..200_000 {
            keep.push(if at % 2 == 0 { Stdout } else { Stderr }, 0, b"y");
            keep.trim();
        }
        assert!(keep.pieces.len() <= 32 * 1024 / BYTES_PER_PIECE_MIN);
    }

    #[test]
    fn followers_see_each_byte_at_most_once() {
        let mut keep = Keep::new(4);
        keep.push(Stdout, 0, b"ab");
        assert_eq!(keep.take_head().map(|chunk| chunk.bytes), Some(Bytes::from_static(b"ab")));
        keep.push(Stdout, 1, b"cd");
        keep.push(Stderr, 2, b"ef");
        let live: Vec<_> =
            std::iter::from_fn(|| keep.next_live(100)).map(|chunk| (chunk.offset, chunk.bytes)).collect();
        assert_eq!(live, [(2, Bytes::from_static(b"cd")), (4, Bytes::from_static(b"ef"))]);
        keep.push(Stderr, 2, b"gh");
        keep.trim();
        assert_eq!(keep.next_live(1).map(|chunk| (chunk.offset, chunk.bytes)), Some((6, Bytes::from_static(b"g"))));
        keep.skip_live();
        assert_eq!(keep.next_live(1), None);
    }
}
