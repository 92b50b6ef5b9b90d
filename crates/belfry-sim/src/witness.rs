//! What is seen from outside of the system: every start, and every write of the coordinator. Holds what is wrong at that very
//! moment; the rest is for `verdict`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use belfry_core::job::Overlap;
use belfry_core::{Incarnation, JobId, NodeId, RunId, Timestamp};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::programs::Going;
use crate::world::World;

#[derive(Default)]
pub struct Witness {
    pub starts: Vec<Start>,
    started: HashMap<(RunId, u32), (usize, Arc<Going>)>,
    pub wrong: Vec<Wrong>,
    /// Jobs of which nothing may go on when anything of them is started, and what of them was going.
    pub one_at_a_time: HashSet<String>,
    going: HashMap<String, Vec<(usize, Arc<Going>)>>,
    /// Jobs that nodes fire by themselves, and whether their runs go beside each other there.
    pub local: HashMap<String, Overlap>,
    pub local_starts: Vec<Start>,
    /// By job and node.
    local_going: HashMap<String, Vec<(usize, Arc<Going>)>>,
    /// When a node was dead or stopped, or its clock off by so little that it is believed.
    unwell: HashMap<NodeId, Vec<(Timestamp, Timestamp)>>,
    /// Nodes that began with a clock that was off: they know of no other time.
    pub astray: HashSet<NodeId>,
    /// Writes of homes.
    moves: HashMap<JobId, Vec<Duration>>,
    /// Heartbeat key → when it last changed, and whether it beats.
    beats: HashMap<String, (Duration, bool)>,
    lost: HashSet<(String, u64)>,
    open: HashMap<RunId, Bytes>,
    pub takeovers: u64,
    pub marked_lost: u64,
    pub commits: u64,
    pub faults: BTreeMap<&'static str, u64>,
}

/// A start as the started program itself could have told it.
#[derive(Clone, Debug)]
pub struct Start {
    pub run: RunId,
    pub attempt: u32,
    pub job: String,
    pub fence: u64,
    pub node: String,
    pub incarnation: Incarnation,
    pub at: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub verdict: Verdict,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// A fire, or an attempt, was started twice.
    Doubled,
    /// Started by an incarnation that was held dead, or without a claim that names it.
    Zombie,
    /// A seat or a node was taken for dead while its heartbeat went on.
    Unfair,
    /// A fire that was due has no record, or one that is not an end.
    Unaccounted,
    /// The record says what did not happen.
    Untrue,
    /// An attempt was started while the one before it went on, or a run while another one of a job that lets none run beside it.
    Overlapping,
    FenceNotGrowing,
    /// Nothing was wrong any more, and still fires did not start in time.
    Late,
    /// Started, passed over or decided at an instant that had not come.
    Early,
    /// A run was never closed.
    LeftOpen,
    /// Work that has to be done at least once was not.
    Undone,
    Panicked,
}

/// A wall clock that is off by less is believed, and what goes by it is early by as much.
pub const BELIEVED_OFF: Duration = Duration::from_millis(1500);
/// Fires are claimed so long before their instant.
const LOOK_AHEAD: Duration = Duration::from_secs(1);

/// Part of a TTL for which a heartbeat must have stood still; the rest is for clocks that go at different rates.
const STANDS_STILL_PERCENT: u32 = 85;

impl Witness {
    pub fn fault(&mut self, kind: &'static str) {
        *self.faults.entry(kind).or_default() += 1;
    }

    pub fn is_wrong(&mut self, verdict: Verdict, what: String) {
        self.wrong.push(Wrong { verdict, what });
    }

    pub fn started(&mut self, start: Start, going: Arc<Going>) {
        if let Some(overlap) = self.local.get(&start.job).copied() {
            return self.started_by_its_node(start, going, overlap);
        }
        let key = (start.run, start.attempt);
        if let Some((before, still)) = self.started.get(&(start.run, start.attempt.saturating_sub(1)))
            && still.should_be_over()
        {
            let what = format!("{}: {start:?} while {:?} went on", start.job, self.starts[*before]);
            self.is_wrong(Verdict::Overlapping, what);
        }
        if self.one_at_a_time.contains(&start.job) {
            let going_on = self.going.entry(start.job.clone()).or_default();
            going_on.retain(|(_, going)| going.should_be_over());
            let others: Vec<usize> = going_on.iter().map(|(before, _)| *before).collect();
            going_on.push((self.starts.len(), going.clone()));
            for before in others {
                self.is_wrong(Verdict::Overlapping, format!("{start:?} while {:?} went on", self.starts[before]));
            }
        }
        if let Some((first, _)) = self.started.insert(key, (self.starts.len(), going)) {
            let what = format!("{} started again: first {:?}, then {start:?}", start.job, self.starts[first]);
            self.is_wrong(Verdict::Doubled, what);
        }
        let incarnation = (start.node.clone(), start.incarnation.0);
        if self.lost.contains(&incarnation) {
            self.is_wrong(Verdict::Zombie, format!("started after its incarnation was marked lost: {start:?}"));
        } else if let Err(why) = self.is_claimed(&start) {
            self.is_wrong(Verdict::Zombie, format!("{why}: {start:?}"));
        }
        self.starts.push(start);
    }

    fn started_by_its_node(&mut self, start: Start, going: Arc<Going>, overlap: Overlap) {
        if let Some(first) = self.local_starts.iter().find(|first| first.run == start.run) {
            self.wrong.push(Wrong { verdict: Verdict::Doubled, what: format!("first {first:?}, then {start:?}") });
        }
        let others = self.local_going.entry(format!("{} on {}", start.job, start.node)).or_default();
        others.retain(|(_, going)| going.should_be_over());
        if let Some((before, _)) = others.first().filter(|_| overlap != Overlap::Allow) {
            let what = format!("{start:?} while {:?} went on", self.local_starts[*before]);
            self.wrong.push(Wrong { verdict: Verdict::Overlapping, what });
        }
        others.push((self.local_starts.len(), going));
        self.local_starts.push(start);
    }

    pub fn unwell(&mut self, node: NodeId, from: Timestamp, to: Timestamp) {
        self.unwell.entry(node).or_default().push((from, to));
    }

    pub fn was_well(&self, node: NodeId, (from, to): (Timestamp, Timestamp)) -> bool {
        !self.unwell.get(&node).into_iter().flatten().any(|(since, until)| *since <= to && from <= *until)
    }

    /// Its home, so shortly before.
    pub fn has_moved(&self, job: JobId, before: Duration, lately: Duration) -> bool {
        let moves = self.moves.get(&job).into_iter().flatten();
        moves.into_iter().any(|at| *at <= before && before - *at <= lately)
    }

    pub fn is_astray(&self, node: NodeId) -> bool {
        self.astray.contains(&node)
    }

    fn is_claimed(&self, start: &Start) -> Result<(), String> {
        let Some(open) = self.open.get(&start.run) else { return Err("started though its run is not open".into()) };
        let open: Value = read(open);
        if !open["d"].is_null() {
            return Err(format!("started though it was decided otherwise ({})", open["d"]));
        }
        let bound = &open["b"];
        let named = (bound["n"].as_str(), bound["i"].as_u64(), bound["a"].as_u64());
        if named == (Some(&start.node), Some(start.incarnation.0), Some(start.attempt.into())) {
            Ok(())
        } else {
            Err(format!("started though its run is bound otherwise ({bound})"))
        }
    }

    /// `before`: when it was written, and what.
    pub fn written(&mut self, world: &World, key: &str, before: Option<(Duration, Bytes)>, now: Option<&Bytes>) {
        self.commits += 1;
        if let Some(run) = key.strip_prefix("open/").and_then(|rest| rest.rsplit('/').next()?.parse().ok()) {
            match now {
                Some(record) => {
                    self.decision(world, run, record);
                    self.open.insert(run, record.clone());
                }
                None => drop(self.open.remove(&run)),
            }
        } else if let Some(job) = key.strip_prefix("homes/").and_then(|job| job.parse().ok()) {
            self.moves.entry(job).or_default().push(world.elapsed());
        } else if key.starts_with("servers/") || key.starts_with("nodes/") {
            let Some(after) = now else { return };
            self.heartbeat(world, key, before, &read(after));
        } else if key.starts_with("shards/") || key == "leader" {
            let (Some(after), Some((_, before))) = (now, before) else { return };
            let after: Seat = read(after);
            self.cursor(world, key, &after);
            self.seat(world, key, read(&before), after);
        }
    }

    fn heartbeat(&mut self, world: &World, key: &str, before: Option<(Duration, Bytes)>, after: &Beat) {
        let at = world.elapsed();
        let beats = after.life == "beating";
        if after.life == "lost"
            && let Some((since, before)) = before
        {
            self.marked_lost += 1;
            if read::<Beat>(&before).life == "beating" && at - since < stands_still(world.ttl) {
                let what = format!("{key} was marked lost {:?} after its last beat", at - since);
                self.is_wrong(Verdict::Unfair, what);
            }
        }
        if let Some(node) = key.strip_prefix("nodes/").filter(|_| !beats) {
            self.lost.insert((node.to_owned(), after.info.incarnation));
        }
        match self.beats.get_mut(key) {
            Some(known) => *known = (at, beats),
            None => drop(self.beats.insert(key.to_owned(), (at, beats))),
        }
    }

    fn seat(&mut self, world: &World, key: &str, before: Seat, after: Seat) {
        let (Some(former), Some(owner)) = (before.owner, after.owner) else { return };
        if former == owner {
            return;
        }
        self.takeovers += 1;
        let at = world.elapsed();
        if let Some((since, true)) = self.beats.get(&format!("servers/{former}"))
            && at - *since < stands_still(world.ttl)
        {
            let what = format!("{key} was taken from {former} {:?} after its last beat", at - *since);
            self.is_wrong(Verdict::Unfair, what);
        }
    }

    /// What a cursor has passed is never claimed again.
    fn cursor(&mut self, world: &World, key: &str, seat: &Seat) {
        let Some(cursor) = &seat.extra else { return };
        let ahead = ahead(world, cursor.at);
        if ahead > LOOK_AHEAD + BELIEVED_OFF {
            self.is_wrong(Verdict::Early, format!("{key} has passed all up to {ahead:?} from now"));
        }
    }

    /// What was missed by a clock that is ahead was not missed.
    fn decision(&mut self, world: &World, run: RunId, open: &Bytes) {
        // Few have one, and reading them all takes long.
        if !open.windows(DECIDED.len()).any(|bytes| bytes == DECIDED) {
            return;
        }
        let Decision { at, w: reason } = read::<Decided>(open).d;
        let ahead = ahead(world, at);
        if (reason.starts_with("missed") || reason.contains("misfire.within")) && ahead > BELIEVED_OFF {
            self.is_wrong(Verdict::Early, format!("{run} was decided {ahead:?} from now: {reason}"));
        }
    }

    pub fn open_runs(&self) -> impl Iterator<Item = (&RunId, Value)> {
        self.open.iter().map(|(run, record)| (run, read(record)))
    }
}

/// Of a heartbeat's record what is judged here.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Beat {
    life: String,
    info: BeatInfo,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BeatInfo {
    incarnation: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Seat {
    owner: Option<String>,
    extra: Option<SeatCursor>,
}

#[derive(Deserialize)]
struct SeatCursor {
    at: i64,
}

/// How every record of an open run that was decided begins its decision.
const DECIDED: &[u8] = br#""d":{"#;

#[derive(Deserialize)]
struct Decided {
    d: Decision,
}

#[derive(Deserialize)]
struct Decision {
    at: i64,
    w: String,
}

fn read<T: DeserializeOwned>(bytes: &Bytes) -> T {
    serde_json::from_slice(bytes).expect("the coordinator holds what Belfry wrote")
}

/// How far an instant is still to come, by the true time.
fn ahead(world: &World, at_ms: i64) -> Duration {
    Duration::from_millis(at_ms.saturating_sub(world.wall().as_millisecond()).max(0) as u64)
}

fn stands_still(ttl: Duration) -> Duration {
    ttl * STANDS_STILL_PERCENT / 100
}
