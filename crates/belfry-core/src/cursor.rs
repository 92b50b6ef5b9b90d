//! How far a shard has come: a pair, because many fires share an instant and take many commits.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::JobId;

/// Every fire up to here, in the order of instant and then job, is claimed or decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cursor {
    #[serde(with = "milliseconds")]
    pub at: Timestamp,
    pub job: JobId,
}

impl Cursor {
    /// Nothing up to here is due any more, or ever was.
    pub fn starting(now: Timestamp) -> Self {
        Self { at: now, job: JobId::from_u128(u128::MAX) }
    }

    /// The instant after which this job's unclaimed fires lie: the cursor's own instant counts for jobs behind it.
    pub fn before_first_fire_of(self, job: JobId) -> Timestamp {
        if job > self.job && !crate::planted::is("cursor_is_a_bare_instant") {
            self.at.saturating_sub(std::time::Duration::from_nanos(1)).unwrap_or(Timestamp::MIN)
        } else {
            self.at
        }
    }
}

mod milliseconds {
    use jiff::Timestamp;
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(at: &Timestamp, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_i64(at.as_millisecond())
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Timestamp, D::Error> {
        Timestamp::from_millisecond(i64::deserialize(d)?).map_err(serde::de::Error::custom)
    }
}
