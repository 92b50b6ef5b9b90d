//! Numbers that look random but are the same on every machine and after every restart: jitter, and the values of `H`.

use std::time::Duration;

use jiff::Timestamp;
use xxhash_rust::xxh3::xxh3_64;

/// How much later than planned this fire of this job starts: `0..=max` in whole milliseconds, the same whenever it is asked.
pub fn jitter_for(seed: u64, planned: Timestamp, max: Duration) -> Duration {
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    if max_ms == 0 {
        return Duration::ZERO;
    }
    let mut input = [0; 16];
    input[..8].copy_from_slice(&seed.to_le_bytes());
    input[8..].copy_from_slice(&planned.as_millisecond().to_le_bytes());
    let hash = xxh3_64(&input);
    Duration::from_millis(max_ms.checked_add(1).map_or(hash, |count| hash % count))
}

/// The number behind `H` in one field of a job. It depends on the field, so that `H H * * *` spreads over the whole day, and not on the
/// expression's place, so that reordering a job's schedules moves nothing.
pub(super) fn field_hash(seed: u64, field_position: u8) -> u64 {
    let mut input = [0; 9];
    input[..8].copy_from_slice(&seed.to_le_bytes());
    input[8] = field_position;
    xxh3_64(&input)
}
