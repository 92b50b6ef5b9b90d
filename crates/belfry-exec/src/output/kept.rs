//! Output that is held until it is over, for whoever hands it on as a whole: head, gap and tail, in bounded memory.

use super::keep::{CHUNK_BYTES_MAX, Keep};
use super::{CaptureEvent, CaptureLimits, Chunk, Stream};

/// Both streams in turn, byte by byte, would make a chunk of each; what the head has no room for waits for the tail.
const HEAD_CHUNKS_MAX: usize = 4096;

pub struct Kept {
    keep: Keep,
    head: Vec<Chunk>,
}

impl Kept {
    pub fn new(limits: CaptureLimits) -> Kept {
        Kept { keep: Keep::new(limits.keep_bytes), head: Vec::new() }
    }

    /// `at_ms`: since the child's start.
    pub fn push(&mut self, stream: Stream, at_ms: u64, bytes: &[u8]) {
        self.keep.push(stream, at_ms, bytes);
        if self.keep.waiting_bytes() >= CHUNK_BYTES_MAX as u64 || self.keep.is_over() {
            while self.head.len() < HEAD_CHUNKS_MAX
                && let Some(chunk) = self.keep.take_head()
            {
                self.head.push(chunk);
            }
        }
        self.keep.trim();
    }

    /// All that was kept, in order, the gap where it is.
    pub fn into_events(mut self) -> Vec<CaptureEvent> {
        let mut events: Vec<CaptureEvent> = self.head.into_iter().map(CaptureEvent::Chunk).collect();
        let mut gap_told = false;
        while let Some(event) = self.keep.next_at_end(&mut gap_told) {
            events.push(event);
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::Stream::{Stderr, Stdout};
    use super::*;

    fn kept(keep_bytes: u64, pieces: impl IntoIterator<Item = (Stream, Vec<u8>)>) -> Vec<CaptureEvent> {
        let mut kept = Kept::new(CaptureLimits { keep_bytes });
        pieces.into_iter().zip(0..).for_each(|((stream, bytes), at_ms)| kept.push(stream, at_ms, &bytes));
        kept.into_events()
    }

    fn bytes(events: &[CaptureEvent]) -> (Vec<u8>, u64) {
        let mut all = (Vec::new(), 0);
        for event in events {
            match event {
                CaptureEvent::Chunk(chunk) => all.0.extend(&chunk.bytes),
                CaptureEvent::Gap { dropped_bytes } => all.1 += dropped_bytes,
            }
        }
        all
    }

    #[test]
    fn what_fits_is_kept_in_order_and_of_the_rest_the_head_and_the_tail() {
        let few = kept(100, [(Stdout, b"abc".to_vec()), (Stderr, b"de".to_vec()), (Stdout, b"f".to_vec())]);
        assert_eq!((few.len(), bytes(&few)), (3, (b"abcdef".to_vec(), 0)));
        let numbers: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
        let much = kept(64 * 1024, numbers.chunks(1000).map(|piece| (Stdout, piece.to_vec())));
        let (whole, dropped_bytes) = bytes(&much);
        assert_eq!((whole.len(), dropped_bytes), (64 * 1024, 400_000 - 64 * 1024));
        assert_eq!(whole[..32 * 1024], numbers[..32 * 1024]);
        assert_eq!(whole[32 * 1024..], numbers[400_000 - 32 * 1024..]);
        let gap = much.iter().position(|event| matches!(event, CaptureEvent::Gap { .. })).unwrap();
        assert_eq!(bytes(&much[..gap]).0.len(), 32 * 1024);
    }

    #[test]
    fn both_streams_byte_by_byte_make_a_bounded_number_of_chunks() {
        let pieces = (0..2_000_000_u32).map(|n| (if n % 2 == 0 { Stdout } else { Stderr }, vec![n as u8]));
        let events = kept(1 << 20, pieces);
        assert!(events.len() <= HEAD_CHUNKS_MAX + (1 << 19) / 16 + 1, "{}", events.len());
        let (whole, dropped_bytes) = bytes(&events);
        assert_eq!(whole.len() as u64 + dropped_bytes, 2_000_000);
    }
}
