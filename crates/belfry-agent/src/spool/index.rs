//! Where the records of each run are. Holds places, not bytes, except for what could not be written yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use belfry_proto::session::FromAgent;

use super::record::{self, Kind};
use crate::key::Key;

#[derive(Clone)]
pub(super) enum Location {
    Disk {
        segment: u32,
        offset: u32,
        bytes: u32,
    },
    /// The disk did not take it so far.
    Memory(Arc<FromAgent>),
}

impl Location {
    fn bytes(&self) -> u64 {
        match self {
            Location::Disk { bytes, .. } => u64::from(*bytes),
            Location::Memory(message) => record::bytes(message),
        }
    }
}

#[derive(Default)]
pub(super) struct Index {
    runs: HashMap<Key, Records>,
    /// Segment → needed records in it.
    needed: BTreeMap<u32, u32>,
    /// The segment that is written to; never unneeded.
    active: Option<u32>,
}

#[derive(Default)]
struct Records {
    /// Chunks in order of their sequence, then the end.
    places: Vec<Location>,
    ended: bool,
    fired_here: bool,
}

impl Index {
    pub(super) fn open_segment(&mut self, segment: u32) {
        self.active = Some(segment);
        self.needed.entry(segment).or_default();
    }

    /// Its place among the records of the run, for `moved_to_disk`.
    pub(super) fn add(&mut self, key: Key, kind: Kind, location: Location) -> usize {
        if let Location::Disk { segment, .. } = location {
            *self.needed.entry(segment).or_default() += 1;
        }
        let records = self.runs.entry(key).or_default();
        records.places.push(location);
        records.ended |= kind != Kind::Chunk;
        records.fired_here |= kind == Kind::EndOfLocal;
        records.places.len() - 1
    }

    /// Whether the record is still needed.
    pub(super) fn is_in_memory(&self, key: Key, place: usize) -> bool {
        let location = self.runs.get(&key).and_then(|records| records.places.get(place));
        matches!(location, Some(Location::Memory(_)))
    }

    pub(super) fn moved_to_disk(&mut self, key: Key, place: usize, written: Location) {
        let Some(location) = self.runs.get_mut(&key).and_then(|records| records.places.get_mut(place)) else { return };
        if let Location::Disk { segment, .. } = written {
            *self.needed.entry(segment).or_default() += 1;
        }
        *location = written;
    }

    /// How many bytes of records that gives back.
    pub(super) fn forget(&mut self, key: Key) -> u64 {
        let Some(records) = self.runs.remove(&key) else { return 0 };
        let bytes = records.places.iter().map(Location::bytes).sum();
        for location in records.places {
            if let Location::Disk { segment, .. } = location
                && let Some(needed) = self.needed.get_mut(&segment)
            {
                *needed = needed.saturating_sub(1);
            }
        }
        bytes
    }

    pub(super) fn needed_bytes(&self) -> u64 {
        self.runs.values().flat_map(|records| &records.places).map(Location::bytes).sum()
    }

    /// After a crash: what has no end is unknown to everybody, and the servers call it lost.
    pub(super) fn forget_unfinished(&mut self) {
        let unfinished: Vec<Key> =
            self.runs.iter().filter(|(_, records)| !records.ended).map(|(key, _)| *key).collect();
        for key in unfinished {
            self.forget(key);
        }
    }

    pub(super) fn take_unneeded_segments(&mut self) -> Vec<u32> {
        let active = self.active;
        self.needed
            .extract_if(.., |segment, needed| *needed == 0 && Some(*segment) != active)
            .map(|(segment, _)| segment)
            .collect()
    }

    pub(super) fn finished(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.runs.iter().filter(|(_, records)| records.ended).map(|(key, _)| *key).collect();
        keys.sort_unstable();
        keys
    }

    pub(super) fn fired_here(&self) -> Vec<Key> {
        self.runs.iter().filter(|(_, records)| records.fired_here).map(|(key, _)| *key).collect()
    }

    pub(super) fn locations(&self, key: Key, from_sequence: u32) -> Vec<Location> {
        let places = self.runs.get(&key).map_or([].as_slice(), |records| records.places.as_slice());
        places.get(from_sequence as usize..).unwrap_or_default().to_vec()
    }
}
