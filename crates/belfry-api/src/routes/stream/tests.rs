//! A follower that meets a run at any moment, slow or fast, is told every chunk once and in order, and then the end.

use std::sync::Mutex;

use belfry_core::run::{OutputFacts, Trigger, Usage};
use belfry_core::{Fence, JobId, Timestamp};
use belfry_store::Stream as OutputStream;
use tokio::sync::broadcast;

use super::*;

const RUN: u128 = 7;
const LOOK_SOON: Duration = Duration::from_millis(10);

/// A run whose output goes the way it does in a server: first live and pending, then stored, then no longer pending.
struct Scene {
    state: Mutex<SceneState>,
    changes: broadcast::Sender<Arc<Run>>,
}

struct SceneState {
    run: Run,
    stored: Vec<OutputChunk>,
    pending: Vec<LiveChunk>,
    live: Option<broadcast::Sender<LiveEvent>>,
}

impl Scene {
    fn new() -> Arc<Self> {
        let state = SceneState { run: run(RunState::Running), stored: Vec::new(), pending: Vec::new(), live: None };
        Arc::new(Self { state: Mutex::new(state), changes: broadcast::channel(4).0 })
    }

    fn print(&self, seq: u64) {
        let mut state = self.state.lock().unwrap();
        let chunk = LiveChunk { chunk: Arc::new(chunk(seq)), live_only: false };
        state.pending.push(chunk.clone());
        if let Some(live) = &state.live {
            let _ = live.send(LiveEvent::Chunk(chunk));
        }
    }

    /// As a server passes on what is kept nowhere: with the number of the next chunk that is.
    fn print_unkept(&self, seq: u64) {
        if let Some(live) = &self.state.lock().unwrap().live {
            let _ = live.send(LiveEvent::Chunk(LiveChunk { chunk: Arc::new(chunk(seq)), live_only: true }));
        }
    }

    fn store_one(&self) {
        let mut state = self.state.lock().unwrap();
        if !state.pending.is_empty() {
            let chunk = state.pending.remove(0);
            state.stored.push((*chunk.chunk).clone());
        }
    }

    fn end(&self) {
        while !self.state.lock().unwrap().pending.is_empty() {
            self.store_one();
        }
        let mut state = self.state.lock().unwrap();
        state.run = run(RunState::Succeeded);
        if let Some(live) = state.live.take() {
            let _ = live.send(LiveEvent::Ended(Arc::new(state.run.clone())));
        }
    }
}

impl Source for Arc<Scene> {
    fn follow(&self, _: RunId) -> Followed {
        let mut state = self.state.lock().unwrap();
        let pending = state.pending.clone();
        // Small, so that a slow follower loses its place.
        let live = state.live.get_or_insert_with(|| broadcast::channel(4).0);
        Followed { pending, events: live.subscribe(), known: true }
    }

    fn changes(&self) -> Receiver<Arc<Run>> {
        self.changes.subscribe()
    }

    async fn run(&mut self, _: RunId) -> Answer<Option<Run>> {
        tokio::task::yield_now().await;
        Ok(Some(self.state.lock().unwrap().run.clone()))
    }

    async fn read_output(&self, _: RunId, from: Place) -> Answer<Vec<OutputChunk>> {
        tokio::task::yield_now().await;
        let state = self.state.lock().unwrap();
        Ok(state.stored.iter().filter(|chunk| Place::of(chunk) >= from).take(3).cloned().collect())
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn run(state: RunState) -> Run {
    Run {
        id: RunId::from_u128(RUN),
        job: JobId::from_u128(1),
        namespace: "default".into(),
        job_name: "a".into(),
        revision: 1,
        planned: at(1),
        trigger: Trigger::Schedule,
        state,
        reason: None,
        attempt: 1,
        next_attempt_at: None,
        node: None,
        node_name: None,
        incarnation: None,
        fence: Fence(1),
        claimed_at: at(0),
        dispatched_at: None,
        started_at: Some(at(1)),
        ended_at: state.is_ended().then(|| at(2)),
        exit_code: None,
        signal: None,
        late: false,
        marks: Default::default(),
        usage: Usage::default(),
        output: OutputFacts::default(),
        overdue_at: None,
        placement: None,
        script: None,
    }
}

fn chunk(seq: u64) -> OutputChunk {
    let bytes = format!("line {seq}\n").into_bytes();
    OutputChunk {
        run: RunId::from_u128(RUN),
        attempt: 1,
        seq,
        stream: OutputStream::Stdout,
        offset: seq,
        at: at(1),
        bytes,
        dropped_bytes: 0,
    }
}

fn follower(scene: &Arc<Scene>, from: u64) -> Follower<Arc<Scene>> {
    let run = run(RunState::Running);
    let shown = RunView::of(run.clone(), None);
    Follower::new(scene.clone(), run, Place { attempt: 1, seq: from }, shown, LOOK_SOON)
}

async fn seqs_until_end(mut follower: Follower<Arc<Scene>>) -> Vec<u64> {
    let mut seqs = Vec::new();
    while let Some(happening) = follower.next().await {
        match happening {
            Happening::Output { chunk, .. } => seqs.push(chunk.chunk.seq),
            Happening::End(_) => assert!(follower.next().await.is_none(), "nothing comes after the end"),
            Happening::State(_) => {}
            Happening::Broken(why) => panic!("{why}"),
        }
    }
    seqs
}

#[tokio::test]
async fn no_chunk_is_missed_or_told_twice_between_stored_and_live() {
    const CHUNKS: u64 = 40;
    for seed in 1..400u64 {
        let scene = Scene::new();
        let mut random = seed;
        let mut dice = move |sides: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % sides
        };
        let before = dice(CHUNKS);
        for seq in 0..before {
            scene.print(seq);
            if dice(2) == 0 {
                scene.store_one();
            }
        }
        let printer = async {
            for seq in before..CHUNKS {
                scene.print(seq);
                for _ in 0..dice(3) {
                    scene.store_one();
                }
                for _ in 0..dice(4) {
                    tokio::task::yield_now().await;
                }
            }
            scene.end();
        };
        let ((), seqs) = tokio::join!(printer, seqs_until_end(follower(&scene, 0)));
        assert_eq!(seqs, (0..CHUNKS).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[tokio::test]
async fn a_reconnect_goes_on_behind_the_last_event() {
    let scene = Scene::new();
    for seq in 0..10 {
        scene.print(seq);
    }
    scene.end();
    let behind = Place::parse("1:6").map(Place::following).unwrap();
    assert_eq!(seqs_until_end(follower(&scene, behind.seq)).await, [7, 8, 9]);
    assert!(Place::parse("x").is_none());
}

#[tokio::test]
async fn what_is_not_kept_is_told_as_it_comes_and_hides_nothing_that_is() {
    let scene = Scene::new();
    scene.print(0);
    let mut follower = follower(&scene, 0);
    // It follows before more is printed.
    let first = loop {
        match follower.next().await {
            Some(Happening::Output { place, .. }) => break place,
            Some(_) => {}
            None => panic!("it goes on"),
        }
    };
    assert_eq!(first, Some(Place { attempt: 1, seq: 0 }));
    scene.print_unkept(1);
    scene.print_unkept(1);
    scene.print(1);
    for place in [None, None, Some(Place { attempt: 1, seq: 1 })] {
        let Some(Happening::Output { place: told, .. }) = follower.next().await else { panic!("it is output") };
        assert_eq!(told, place, "whoever comes back asks for what follows the last that is kept");
    }
    scene.end();
    assert!(seqs_until_end(follower).await.is_empty());
}

#[tokio::test]
async fn an_end_that_only_the_store_tells_is_found_by_looking_again() {
    let scene = Scene::new();
    scene.print(0);
    let other_server = async {
        tokio::time::sleep(LOOK_SOON * 5).await;
        scene.store_one();
        scene.state.lock().unwrap().run = run(RunState::Failed);
    };
    let ((), seqs) = tokio::join!(other_server, seqs_until_end(follower(&scene, 0)));
    assert_eq!(seqs, [0]);
}
