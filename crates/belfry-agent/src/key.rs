//! The key of one attempt of a run, which a node takes at most once.

use std::fmt;

use belfry_core::RunId;
use belfry_proto::session::RunKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub run: RunId,
    pub attempt: u32,
}

/// A key without the padding that a 128-bit number brings.
pub(crate) type PackedKey = [u8; 20];

impl Key {
    /// `None`: there is no key, or the run is no id.
    pub(crate) fn from_wire(key: Option<&RunKey>) -> Option<Key> {
        let key = key?;
        Some(Key { run: key.run.parse().ok()?, attempt: key.attempt })
    }

    pub(crate) fn to_wire(self) -> RunKey {
        RunKey { run: self.run.to_string(), attempt: self.attempt }
    }

    pub(crate) fn packed(self) -> PackedKey {
        let mut packed = [0; 20];
        packed[..16].copy_from_slice(&self.run.as_u128().to_le_bytes());
        packed[16..].copy_from_slice(&self.attempt.to_le_bytes());
        packed
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.run, self.attempt)
    }
}
