//! Promises about output.

use belfry_core::RunId;
use belfry_core::run::{OutputFacts, RunState};

use super::sample::{ann, at, job_id, run as sample_run};
use crate::{OutputChunk, Store, Stream, Told};

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

pub async fn offsets_may_be_whatever_somebody_says(store: Store) {
    let odd = OutputChunk { offset: u64::MAX, dropped_bytes: 1 << 63, ..chunk(0, b"hi".to_vec()) };
    store.append_output(std::slice::from_ref(&odd)).await.unwrap();
    assert_eq!(store.read_output(run(), 1, 0, 9).await.unwrap(), [odd]);
    assert!(store.read_output(run(), 1, u64::MAX, 9).await.unwrap().is_empty());
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

pub async fn output_that_is_told_as_a_whole_is_kept_with_its_run_and_once(store: Store) {
    let mut of = sample_run(job_id(1), 0, RunState::Failed);
    of.attempt = 2;
    let told = |bytes: &[u8]| {
        let chunks = (0..100).map(|seq| OutputChunk { run: of.id, attempt: 2, ..chunk(seq, bytes.to_vec()) });
        chunks.collect::<Vec<_>>()
    };
    let facts = OutputFacts { bytes: 1099, dropped_bytes: 99 };
    let tell = async |chunks: &[OutputChunk]| store.tell_output(of.id, 2, chunks, facts).await.unwrap();
    assert_eq!(tell(&told(b"0123456789")).await, Told::NoRun);
    assert!(store.output_attempts(of.id).await.unwrap().is_empty(), "nothing that no run would take along");
    store.record_runs(std::slice::from_ref(&of)).await.unwrap();
    for _ in 0..2 {
        assert_eq!(tell(&told(b"0123456789")).await, Told::Kept);
        // The leader copies what it finds once more.
        store.record_runs(std::slice::from_ref(&of)).await.unwrap();
    }
    assert_eq!(tell(&told(b"another")).await, Told::Otherwise);
    assert_eq!(tell(&told(b"0123456789")[..50]).await, Told::Otherwise);
    assert_eq!(store.read_output(of.id, 2, 0, usize::MAX).await.unwrap(), told(b"0123456789"));
    assert_eq!(store.run(of.id).await.unwrap().unwrap().output, facts);
    // An earlier attempt's is kept beside it; the row tells of the last one.
    let first: Vec<_> = told(b"first").into_iter().map(|chunk| OutputChunk { attempt: 1, ..chunk }).collect();
    let other = OutputFacts { bytes: 5, dropped_bytes: 0 };
    assert_eq!(store.tell_output(of.id, 1, &first, other).await.unwrap(), Told::Kept);
    assert_eq!(store.run(of.id).await.unwrap().unwrap().output, facts);
    assert_eq!(store.delete_runs_before(at(10), None, at(10), &ann()).await.unwrap(), 1);
    assert!(store.output_attempts(of.id).await.unwrap().is_empty());
}

pub async fn of_two_who_tell_another_output_one_is_kept_whole(store: Store) {
    let of = sample_run(job_id(1), 0, RunState::Failed);
    store.record_runs(std::slice::from_ref(&of)).await.unwrap();
    let told = |letter: u8, count: u64| {
        let chunks = (0..count).map(|seq| OutputChunk { run: of.id, ..chunk(seq, vec![letter; 10]) });
        chunks.collect::<Vec<_>>()
    };
    let (one, other) = (told(b'a', 30), told(b'b', 70));
    let facts = OutputFacts::default();
    let tell = async |chunks: &[OutputChunk]| store.tell_output(of.id, 1, chunks, facts).await.unwrap();
    let answers = tokio::join!(tell(&one), tell(&other));
    let kept = match answers {
        (Told::Kept, Told::Otherwise) => one,
        (Told::Otherwise, Told::Kept) => other,
        neither => panic!("{neither:?}"),
    };
    assert_eq!(store.read_output(of.id, 1, 0, usize::MAX).await.unwrap(), kept);
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
