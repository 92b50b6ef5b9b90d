//! Identities: 128-bit ids written as 26 Crockford characters (time first, so that text order is time order), and the
//! numbers that only grow (version, term, fence).

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3;

/// How many parts the cluster's jobs are divided into. Fixed for the life of a cluster.
pub const SHARD_COUNT: u8 = 16;

const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
const TEXT_LEN: usize = 26;
const TIME_BITS: u32 = 48;
const REST_BITS: u32 = 128 - TIME_BITS;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not an id: 26 characters of 0-9 and A-Z without I, L, O, U are expected")]
pub struct NotAnId(pub String);

fn encode(value: u128) -> [u8; TEXT_LEN] {
    let mut text = [0; TEXT_LEN];
    for (i, slot) in text.iter_mut().enumerate() {
        *slot = ALPHABET[((value >> (5 * (TEXT_LEN - 1 - i))) & 31) as usize];
    }
    text
}

fn decode(text: &str) -> Result<u128, NotAnId> {
    let refuse = || NotAnId(text.to_owned());
    if text.len() != TEXT_LEN || text.as_bytes()[0] > b'7' {
        return Err(refuse());
    }
    text.bytes().try_fold(0u128, |value, byte| match DIGITS[usize::from(byte)] {
        NO_DIGIT => Err(refuse()),
        digit => Ok(value << 5 | u128::from(digit)),
    })
}

const NO_DIGIT: u8 = u8::MAX;
/// What each letter stands for, in either case.
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut digit = 0;
    while digit < ALPHABET.len() {
        digits[ALPHABET[digit] as usize] = digit as u8;
        digits[ALPHABET[digit].to_ascii_lowercase() as usize] = digit as u8;
        digit += 1;
    }
    digits
};

/// Puts the time in front of 80 bits that need no order.
fn timed(at: Timestamp, rest: u128) -> u128 {
    let ms = at.as_millisecond().max(0) as u128 & ((1 << TIME_BITS) - 1);
    ms << REST_BITS | rest & ((1 << REST_BITS) - 1)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u128);

        impl $name {
            /// A new id from a moment and 80 random bits of the caller's.
            pub fn new(at: Timestamp, random: u128) -> Self {
                Self(timed(at, random))
            }
            pub fn from_u128(value: u128) -> Self {
                Self(value)
            }
            pub fn as_u128(self) -> u128 {
                self.0
            }
            /// The moment in the id's first part.
            pub fn time(self) -> Timestamp {
                Timestamp::from_millisecond((self.0 >> REST_BITS) as i64).unwrap_or(Timestamp::MAX)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(std::str::from_utf8(&encode(self.0)).expect("the alphabet is ASCII"))
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
        impl FromStr for $name {
            type Err = NotAnId;
            fn from_str(text: &str) -> Result<Self, NotAnId> {
                decode(text).map(Self)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

id!(
    /// A job, for ever: survives renames and edits.
    JobId
);
id!(
    /// One run, known before it starts and the same on every server.
    RunId
);
id!(
    /// A machine or application that executes.
    NodeId
);
id!(
    /// One start of a server process.
    ServerId
);

/// What tells apart the runs of one job at one planned instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot<'a> {
    /// The one run of a fire.
    Only,
    /// The run of a fire on this node (`run_on: each`).
    Node(NodeId),
    /// A manual trigger, by its key.
    Manual(&'a str),
    /// An instance of a wrapped command.
    Instance(&'a str),
}

impl RunId {
    pub fn of(job: JobId, planned: Timestamp, slot: Slot<'_>) -> Self {
        let mut hash = xxh3::Xxh3::new();
        hash.update(&job.0.to_be_bytes());
        hash.update(&planned.as_millisecond().to_be_bytes());
        match slot {
            Slot::Only => hash.update(b"0"),
            Slot::Node(node) => {
                hash.update(b"n");
                hash.update(&node.0.to_be_bytes());
            }
            Slot::Manual(key) => {
                hash.update(b"m");
                hash.update(key.as_bytes());
            }
            Slot::Instance(instance) => {
                hash.update(b"i");
                hash.update(instance.as_bytes());
            }
        }
        Self(timed(planned, hash.digest128()))
    }

    /// The smallest id with this planned instant or a later one, for paging by time.
    pub fn first_at(planned: Timestamp) -> Self {
        Self(timed(planned, 0))
    }
}

impl JobId {
    /// Of something that is no job and yet has runs: the same for the same name, and older than every job.
    pub fn of_name(namespace: &str, name: &str) -> Self {
        let hash = xxh3::xxh3_128(format!("{namespace}/{name}").as_bytes());
        Self(timed(Timestamp::UNIX_EPOCH, hash))
    }

    pub fn shard(self) -> ShardId {
        ShardId((xxh3::xxh3_64(&self.0.to_be_bytes()) % u64::from(SHARD_COUNT)) as u8)
    }
}

/// The stable number that `H` and jitter are derived from; a restored or re-created job keeps its place.
pub fn name_seed(namespace: &str, name: &str) -> u64 {
    let mut hash = xxh3::Xxh3::new();
    hash.update(namespace.as_bytes());
    hash.update(b"/");
    hash.update(name.as_bytes());
    hash.digest()
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// One of [`SHARD_COUNT`] parts of the jobs.
    ShardId(u8)
);
number!(
    /// Grows with each commit of the coordinator, across the whole keyspace.
    Version(u64)
);
number!(
    /// Grows with each change of ownership.
    Term(u64)
);
number!(
    /// The number a run carries; grows per job.
    Fence(u64)
);
/// So many fences have room between the versions of two commits.
pub const FENCES_PER_COMMIT: u64 = 128;

number!(
    /// New at each start of an agent.
    Incarnation(u64)
);

impl ShardId {
    pub fn all() -> impl Iterator<Item = ShardId> {
        (0..SHARD_COUNT).map(ShardId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_id_survives_its_text() {
        let id = JobId::new(at("2026-11-15T00:00:00Z"), 0x1234_5678_9abc_def0_1234);
        assert_eq!(id.to_string().parse::<JobId>().unwrap(), id);
        assert_eq!(id.time(), at("2026-11-15T00:00:00Z"));
        assert!("8ZZZZZZZZZZZZZZZZZZZZZZZZZ".parse::<JobId>().is_err(), "129 bits do not fit");
        assert!("short".parse::<JobId>().is_err());
        assert!("01ARZ3NDEKTSV4RRFFQ69G5FÄ".parse::<JobId>().is_err());
    }

    #[test]
    fn a_run_id_is_the_same_everywhere_and_sorts_by_planned_instant() {
        let job = JobId::from_u128(7);
        let early = RunId::of(job, at("2026-11-15T00:00:00Z"), Slot::Only);
        assert_eq!(early.to_string(), RunId::of(job, at("2026-11-15T00:00:00Z"), Slot::Only).to_string());
        let late = RunId::of(job, at("2026-11-15T00:00:01Z"), Slot::Only);
        assert!(early < late && early.to_string() < late.to_string());
        assert_ne!(late, RunId::of(job, at("2026-11-15T00:00:01Z"), Slot::Manual("a")));
        assert!(RunId::first_at(at("2026-11-15T00:00:01Z")) <= late);
    }

    #[test]
    fn shards_are_even() {
        let mut counts = [0u32; SHARD_COUNT as usize];
        for n in 0..16_000u128 {
            counts[JobId::from_u128(n << 3).shard().0 as usize] += 1;
        }
        assert!(counts.iter().all(|c| (850..1150).contains(c)), "{counts:?}");
    }
}
