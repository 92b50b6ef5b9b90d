//! Promises about output.

use belfry_core::RunId;

use super::sample::at;
use crate::{OutputChunk, Store, Stream};

pub async fn output_is_kept_byte_for_byte(store: Store) {
    let every_byte: Vec<u8> = (0..=255).collect();
    let contents = [
        vec![],
        b"hi\n".to_vec(),
        every_byte.clone(),
        every_byte.repeat(300),
        vec![0; 200_000],
        vec![0xff, 0xfe, 0x80],
    ];
    let chunks: Vec<OutputChunk> = contents.into_iter().enumerate().map(|(i, bytes)| chunk(i as u64, bytes)).collect();
    store.append_output(&chunks).await.unwrap();
    assert_eq!(store.read_output(run(), 1, 0, usize::MAX).await.unwrap(), chunks);
    assert_eq!(store.output_attempts(run()).await.unwrap(), [1]);
    assert!(store.read_output(run(), 2, 0, 9).await.unwrap().is_empty());
}

pub async fn a_chunk_sent_twice_is_kept_once(store: Store) {
    let chunks: Vec<OutputChunk> = (0..100).map(|seq| chunk(seq, vec![seq as u8; 10])).collect();
    store.append_output(&chunks[..60]).await.unwrap();
    store.append_output(&chunks[20..]).await.unwrap();
    let mut changed = chunks[5].clone();
    changed.bytes = b"other".to_vec();
    store.append_output(&[changed.clone(), changed]).await.unwrap();
    assert_eq!(store.read_output(run(), 1, 0, usize::MAX).await.unwrap(), chunks);
}

pub async fn reads_are_bounded_and_the_tail_is_the_end(store: Store) {
    let chunks: Vec<OutputChunk> = (0..100).map(|seq| chunk(seq, vec![seq as u8; 10])).collect();
    store.append_output(&chunks).await.unwrap();
    assert_eq!(store.read_output(run(), 1, 90, 25).await.unwrap(), chunks[90..93]);
    assert_eq!(store.read_output(run(), 1, 90, 0).await.unwrap(), chunks[90..91]);
    assert_eq!(store.tail_output(run(), 1, 25).await.unwrap(), chunks[97..]);
    assert_eq!(store.tail_output(run(), 1, 500).await.unwrap(), chunks[50..]);
    assert_eq!(store.tail_output(run(), 1, usize::MAX).await.unwrap(), chunks);
    assert!(store.read_output(run(), 1, 100, 25).await.unwrap().is_empty());
}

fn run() -> RunId {
    RunId::from_u128(77)
}

fn chunk(seq: u64, bytes: Vec<u8>) -> OutputChunk {
    let stream = if seq.is_multiple_of(2) { Stream::Stdout } else { Stream::Stderr };
    OutputChunk {
        run: run(),
        attempt: 1,
        seq,
        stream,
        offset: seq * 10,
        at: at(seq as i64),
        bytes,
        dropped_bytes: seq % 3,
    }
}
