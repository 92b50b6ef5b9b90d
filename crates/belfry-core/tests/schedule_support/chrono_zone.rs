//! A jiff zone for crates that want chrono's trait, so that all engines read the same database.

use chrono::{FixedOffset, MappedLocalTime, NaiveDate, NaiveDateTime};
use jiff::Timestamp;
use jiff::tz::{AmbiguousOffset, TimeZone};

#[derive(Clone, Debug)]
pub struct ChronoZone(pub TimeZone);

#[derive(Clone, Debug)]
pub struct ChronoOffset(FixedOffset, TimeZone);

impl chrono::Offset for ChronoOffset {
    fn fix(&self) -> FixedOffset {
        self.0
    }
}

impl ChronoZone {
    fn offset(&self, offset: jiff::tz::Offset) -> ChronoOffset {
        ChronoOffset(FixedOffset::east_opt(offset.seconds()).expect("in range"), self.0.clone())
    }
}

impl chrono::TimeZone for ChronoZone {
    type Offset = ChronoOffset;

    fn from_offset(offset: &ChronoOffset) -> Self {
        ChronoZone(offset.1.clone())
    }

    fn offset_from_local_date(&self, local: &NaiveDate) -> MappedLocalTime<ChronoOffset> {
        self.offset_from_local_datetime(&local.and_hms_opt(0, 0, 0).expect("midnight"))
    }

    fn offset_from_local_datetime(&self, local: &NaiveDateTime) -> MappedLocalTime<ChronoOffset> {
        let as_if_utc = Timestamp::from_second(local.and_utc().timestamp()).expect("in range");
        let civil = TimeZone::UTC.to_datetime(as_if_utc);
        match self.0.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => MappedLocalTime::Single(self.offset(offset)),
            AmbiguousOffset::Gap { .. } => MappedLocalTime::None,
            AmbiguousOffset::Fold { before, after } => {
                MappedLocalTime::Ambiguous(self.offset(before), self.offset(after))
            }
        }
    }

    fn offset_from_utc_date(&self, utc: &NaiveDate) -> ChronoOffset {
        self.offset_from_utc_datetime(&utc.and_hms_opt(0, 0, 0).expect("midnight"))
    }

    fn offset_from_utc_datetime(&self, utc: &NaiveDateTime) -> ChronoOffset {
        self.offset(self.0.to_offset(Timestamp::from_second(utc.and_utc().timestamp()).expect("in range")))
    }
}
