#![expect(clippy::disallowed_methods, reason = "a test hands on no more than it wrote")]

use std::sync::mpsc;
use std::time::Duration;

use belfry_core::RunId;
use bytes::Bytes;

use super::*;

fn key(run: u128) -> Key {
    Key { run: RunId::from_u128(run), attempt: 1 }
}

fn chunk(run: u128, sequence: u32, bytes: &'static [u8]) -> OutputChunk {
    OutputChunk {
        key: Some(key(run).to_wire()),
        sequence,
        stream: 1,
        bytes: Bytes::from_static(bytes),
        ..Default::default()
    }
}

fn end(run: u128) -> Ended {
    Ended { key: Some(key(run).to_wire()), outcome: "succeeded".into(), ..Default::default() }
}

fn open(folder: &Path) -> (Spool, mpsc::Receiver<Vec<FromAgent>>) {
    open_with(folder, 1 << 30)
}

fn open_with(folder: &Path, max_bytes: u64) -> (Spool, mpsc::Receiver<Vec<FromAgent>>) {
    let (sender, handed_on) = mpsc::channel();
    let hand_on = move |messages| drop(sender.send(messages));
    (Spool::open(folder, max_bytes, Box::new(hand_on)).unwrap(), handed_on)
}

fn wait_for(handed_on: &mpsc::Receiver<Vec<FromAgent>>, count: usize) {
    let mut seen = 0;
    while seen < count {
        seen += handed_on.recv_timeout(Duration::from_secs(5)).expect("written").len();
    }
}

async fn read_all(spool: &Spool, key: Key, from: u32) -> Vec<FromAgent> {
    let mut reading = spool.read(key, from);
    let mut all = Vec::new();
    loop {
        let batch = reading.next().await;
        if batch.is_empty() {
            return all;
        }
        all.extend(batch);
    }
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[tokio::test]
async fn what_ended_is_found_again_and_what_did_not_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, written) = open(folder.path());
    spool.pass_on(chunk(1, 0, b"a")).await;
    spool.pass_on(chunk(2, 0, b"x")).await;
    spool.pass_on(chunk(1, 1, b"b")).await;
    spool.keep_end(end(1));
    wait_for(&written, 4);
    // The files as a kill -9 leaves them: nothing was closed or synced on purpose.
    let (again, _written) = open(folder.path());
    assert_eq!(again.finished(), [key(1)]);
    let records = read_all(&again, key(1), 0).await;
    assert_eq!(records.len(), 3);
    assert_eq!(records[1].message, Some(from_agent::Message::Output(chunk(1, 1, b"b"))));
    assert_eq!(records[2].message, Some(from_agent::Message::Ended(end(1))));
    assert_eq!(read_all(&again, key(1), 1).await.len(), 2);
    assert!(read_all(&again, key(2), 0).await.is_empty());
}

#[tokio::test]
async fn what_only_followers_are_to_see_has_its_turn_and_takes_no_room() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, handed_on) = open_with(folder.path(), 40_000);
    let live = |sequence| OutputChunk { live_only: true, ..chunk(1, sequence, b"only shown") };
    for chunk in [chunk(1, 0, b"a"), live(1), chunk(1, 1, b"b"), live(2)] {
        spool.pass_on(chunk).await;
    }
    spool.keep_end(end(1));
    let mut seen = Vec::new();
    while seen.len() < 5 {
        seen.extend(handed_on.recv_timeout(Duration::from_secs(5)).expect("handed on"));
    }
    let is_live = |message: &FromAgent| match &message.message {
        Some(from_agent::Message::Output(chunk)) => chunk.live_only,
        _ => false,
    };
    assert_eq!(seen.iter().map(is_live).collect::<Vec<_>>(), [false, true, false, true, false]);
    seen.retain(|message| !is_live(message));
    assert_eq!(read_all(&spool, key(1), 0).await, seen);
    let held: u64 = seen.iter().map(record::bytes).sum();
    assert_eq!(segments(folder.path())[0].metadata().unwrap().len(), held);
    spool.forget(&[key(1)]);
    assert!(spool.has_room_for_output(30_000), "all that was taken is given back");
}

#[tokio::test]
async fn a_file_cut_at_any_byte_gives_all_whole_records_before_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, written) = open(folder.path());
    spool.keep_end(end(1));
    wait_for(&written, 1);
    let path = segments(folder.path()).remove(0);
    let first = fs::metadata(&path).unwrap().len() as usize;
    spool.keep_end(end(2));
    wait_for(&written, 1);
    let whole = fs::read(&path).unwrap();
    for cut in 0..whole.len() {
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("0000000000.seg"), &whole[..cut]).unwrap();
        let (index, next) = segment::replay(copy.path()).unwrap();
        let expected: &[Key] = if cut < first { &[] } else { &[key(1)] };
        assert_eq!((index.finished().as_slice(), next), (expected, 1), "cut at {cut}");
        let mut damaged = whole.clone();
        damaged[cut] ^= 0x40;
        fs::write(copy.path().join("0000000000.seg"), damaged).unwrap();
        assert!(segment::replay(copy.path()).unwrap().0.finished().len() < 2, "damaged at {cut}");
    }
}

#[tokio::test]
async fn a_segment_goes_when_all_its_runs_are_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, written) = open(folder.path());
    spool.keep_end(end(1));
    spool.keep_end(end(2));
    wait_for(&written, 2);
    drop(spool);
    let (spool, written) = open(folder.path());
    spool.keep_end(end(3));
    wait_for(&written, 1);
    assert_eq!(segments(folder.path()).len(), 2);
    spool.forget(&[key(1)]);
    assert_eq!(segments(folder.path()).len(), 2);
    spool.forget(&[key(2), key(7)]);
    assert_eq!(segments(folder.path()).len(), 1);
    assert_eq!(spool.finished(), [key(3)]);
}

#[tokio::test]
async fn a_full_disk_loses_no_result_and_is_recovered_from() {
    let folder = tempfile::tempdir().unwrap();
    let spool_folder = folder.path().join("spool");
    let (spool, written) = open(&spool_folder);
    // No segment can be made where the folder is missing: the same path as a disk without room.
    fs::remove_dir_all(&spool_folder).unwrap();
    spool.pass_on(chunk(1, 0, b"a")).await;
    spool.keep_end(end(1));
    wait_for(&written, 2);
    spool.keep_end(end(2));
    wait_for(&written, 1);
    assert_eq!(spool.finished(), [key(1), key(2)]);
    assert_eq!(read_all(&spool, key(1), 0).await.len(), 2);
    fs::create_dir(&spool_folder).unwrap();
    spool.flush().await;
    assert_eq!(read_all(&spool, key(1), 0).await.len(), 2);
    drop(spool);
    let (again, _written) = open(&spool_folder);
    assert_eq!(again.finished(), [key(1), key(2)]);
}

#[tokio::test]
async fn near_the_bound_output_has_no_room_beyond_it_there_is_no_work_and_ends_are_kept_all_the_same() {
    const MAX_BYTES: u64 = 64 * 1024;
    const CHUNK: &[u8] = &[b'x'; 4096];
    let folder = tempfile::tempdir().unwrap();
    let (spool, written) = open_with(folder.path(), MAX_BYTES);
    let mut chunks = 0;
    while spool.has_room_for_output(CHUNK.len()) {
        spool.pass_on(chunk(1, chunks, CHUNK)).await;
        chunks += 1;
    }
    assert_eq!(chunks, 11, "three quarters of the bound hold 11 chunks with their records' heads");
    assert_eq!(spool.space(), Space::Enough);
    let mut ends = 0;
    let mut keep_ends_until = |space: Space| {
        while spool.space() != space {
            ends += 1;
            spool.keep_end(end(100 + ends));
        }
        ends
    };
    let scarce_after = keep_ends_until(Space::Scarce);
    let full_after = keep_ends_until(Space::None);
    assert!(scarce_after < full_after);
    spool.keep_end(end(1));
    wait_for(&written, chunks as usize + full_after as usize + 1);
    assert_eq!(spool.finished().len(), full_after as usize + 1, "no end was given up");

    // The same after a restart: the bound is about what is there, whoever wrote it.
    drop(spool);
    let (spool, _written) = open_with(folder.path(), MAX_BYTES);
    assert_eq!(spool.space(), Space::None);
    assert_eq!(read_all(&spool, key(1), 0).await.len(), chunks as usize + 1);
    let ends: Vec<Key> = spool.finished().into_iter().filter(|known| *known != key(1)).collect();
    spool.forget(&ends[..1]);
    assert_ne!(spool.space(), Space::Enough, "it does not come and go with each result");
    spool.forget(&ends);
    assert_eq!(spool.space(), Space::Enough);
    assert!(!spool.has_room_for_output(CHUNK.len()));
    spool.forget(&[key(1)]);
    assert!(spool.has_room_for_output(CHUNK.len()));
}

#[tokio::test]
async fn what_the_disk_does_not_take_has_a_bound_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let spool_folder = folder.path().join("spool");
    let (spool, written) = open(&spool_folder);
    fs::remove_dir_all(&spool_folder).unwrap();
    let bytes: &'static [u8] = vec![b'x'; 1 << 20].leak();
    let mut chunks = 0;
    while spool.has_room_for_output(bytes.len()) {
        assert!(chunks < 64, "more than fits in memory");
        spool.pass_on(chunk(1, chunks, bytes)).await;
        wait_for(&written, 1);
        chunks += 1;
    }
    assert_eq!(spool.space(), Space::Enough, "work goes on, its ends are small");
    spool.keep_end(end(1));
    fs::create_dir(&spool_folder).unwrap();
    spool.flush().await;
    assert!(spool.has_room_for_output(bytes.len()));
    assert_eq!(read_all(&spool, key(1), 0).await.len(), chunks as usize + 1, "nothing was given up");
}

#[tokio::test]
async fn what_the_node_fired_by_itself_is_known_as_that_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (spool, written) = open(folder.path());
    spool.keep_end(end(1));
    spool.pass_on(chunk(2, 0, b"x")).await;
    spool.keep_end(Ended { local: Some(Default::default()), ..end(2) });
    wait_for(&written, 3);
    let (again, _written) = open(folder.path());
    assert_eq!((again.finished(), again.fired_here()), (vec![key(1), key(2)], vec![key(2)]));
}
