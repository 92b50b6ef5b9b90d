//! Time zones as tables of offset spans, built once per zone from the bundled database and shared by every schedule that uses it.
//!
//! Never the system's database: it may differ between nodes, and so would fire times.

use std::collections::HashMap;
use std::sync::{LazyLock, PoisonError, RwLock};

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::days::{DAY_LAST, DAY_SECONDS};
use super::error::ScheduleError;

/// Beyond every instant that jiff can name, and far enough from `i64::MAX` that adding an offset cannot overflow.
pub(super) const FAR_FUTURE: i64 = 1 << 42;
const FAR_PAST: i64 = -FAR_FUTURE;
/// About 194 days: no bucket of a current zone holds more than a few changes.
const BUCKET_SECONDS_LOG2: u32 = 24;
/// A little before the first and after the last local second of the years we serve.
const TABLE_FIRST: i64 = -2 * DAY_SECONDS;
const TABLE_LAST: i64 = (DAY_LAST as i64 + 3) * DAY_SECONDS;

static BUNDLED: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);
/// Grows to the number of zones in the bundled database at most: keys are the database's own spellings.
static ZONES: LazyLock<RwLock<HashMap<String, &'static Zone>>> = LazyLock::new(RwLock::default);

/// The offsets of one zone over the years we serve.
#[derive(Debug)]
pub(super) struct Zone {
    spans: Box<[Span]>,
    /// For each bucket of time, the span that holds its first second.
    buckets: Box<[u16]>,
    pub offset_min: i64,
    pub offset_max: i64,
}

/// There is one table for each zone.
impl PartialEq for Zone {
    fn eq(&self, other: &Zone) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Zone {}

impl std::hash::Hash for Zone {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::hash(self, state);
    }
}

#[derive(Clone, Copy, Debug)]
struct Span {
    start: i64,
    offset: i64,
}

/// A time with one offset, `start..end` in UTC seconds, and the offsets beside it (its own where there is no neighbour).
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanView {
    pub start: i64,
    pub end: i64,
    pub offset: i64,
    pub offset_before: i64,
    pub offset_after: i64,
}

impl Zone {
    /// The shared table of a zone named as in the IANA database, in any case.
    pub fn shared(name: &str) -> Result<&'static Zone, ScheduleError> {
        if let Some(zone) = ZONES.read().unwrap_or_else(PoisonError::into_inner).get(name) {
            return Ok(zone);
        }
        let tz = time_zone(name)?;
        let canonical = tz.iana_name().unwrap_or(name).to_owned();
        let mut zones = ZONES.write().unwrap_or_else(PoisonError::into_inner);
        Ok(zones.entry(canonical).or_insert_with(|| Box::leak(Box::new(Zone::build(&tz)))))
    }

    fn build(tz: &TimeZone) -> Zone {
        let first = Timestamp::from_second(TABLE_FIRST).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut spans = vec![Span { start: FAR_PAST, offset: i64::from(tz.to_offset(first).seconds()) }];
        let mut offset = spans[0].offset;
        for change in tz.following(first) {
            let start = change.timestamp().as_second();
            if start > TABLE_LAST {
                break;
            }
            // A change of name or of the DST flag alone moves no clock.
            if i64::from(change.offset().seconds()) != offset {
                offset = i64::from(change.offset().seconds());
                spans.push(Span { start, offset });
            }
        }
        let bucket_count = ((TABLE_LAST - TABLE_FIRST) >> BUCKET_SECONDS_LOG2) + 1;
        let buckets = (0..bucket_count)
            .map(|bucket| {
                let start = TABLE_FIRST + (bucket << BUCKET_SECONDS_LOG2);
                (spans.partition_point(|span| span.start <= start) - 1) as u16
            })
            .collect();
        let offsets = spans.iter().map(|span| span.offset);
        let (offset_min, offset_max) = offsets.fold((i64::MAX, i64::MIN), |(low, high), o| (low.min(o), high.max(o)));
        Zone { spans: spans.into_boxed_slice(), buckets, offset_min, offset_max }
    }

    /// Index of the span that holds a UTC second.
    pub fn span_at(&self, second: i64) -> usize {
        let bucket = (second.clamp(TABLE_FIRST, TABLE_LAST) - TABLE_FIRST) >> BUCKET_SECONDS_LOG2;
        let mut index = self.buckets[bucket as usize] as usize;
        if second < TABLE_FIRST {
            return 0;
        }
        while self.spans.get(index + 1).is_some_and(|next| next.start <= second) {
            index += 1;
        }
        index
    }

    pub fn span(&self, index: usize) -> SpanView {
        let Span { start, offset } = self.spans[index];
        let before = index.checked_sub(1).map(|i| self.spans[i]);
        let after = self.spans.get(index + 1);
        SpanView {
            start,
            end: after.map_or(FAR_FUTURE, |span| span.start),
            offset,
            offset_before: before.map_or(offset, |span| span.offset),
            offset_after: after.map_or(offset, |span| span.offset),
        }
    }
}

impl SpanView {
    pub fn is_first(&self) -> bool {
        self.start == FAR_PAST
    }

    pub fn is_last(&self) -> bool {
        self.end == FAR_FUTURE
    }

    /// Local times that the change at `start` skipped, if it put the clock forward.
    pub fn gap_before(&self) -> Option<std::ops::Range<i64>> {
        (self.offset > self.offset_before).then(|| self.start + self.offset_before..self.start + self.offset)
    }
}

/// A zone of the bundled database, for showing local times that agree with the schedule on every node.
pub fn time_zone(name: &str) -> Result<TimeZone, ScheduleError> {
    BUNDLED.get(name).ok().filter(|tz| !tz.is_unknown()).ok_or_else(|| {
        ScheduleError::timezone(format!(
            "timezone \"{name}\" is not known; use an IANA name such as Europe/Berlin, Asia/Shanghai or UTC"
        ))
    })
}

/// All names that `timezone` accepts, sorted.
pub fn time_zone_names() -> Vec<String> {
    let mut names: Vec<String> = BUNDLED.available().map(|name| name.to_string()).collect();
    names.sort();
    names
}
