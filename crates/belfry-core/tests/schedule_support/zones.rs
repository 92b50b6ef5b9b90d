//! Every zone of the bundled database with the instants at which its clock is changed.

use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

pub struct ZoneCase {
    pub name: String,
    pub tz: TimeZone,
    /// UTC seconds at which the offset changes, 1970 to 2199.
    pub changes: Vec<i64>,
}

pub fn all_zones() -> Vec<ZoneCase> {
    let bundled = TimeZoneDatabase::bundled();
    let mut names: Vec<String> = bundled.available().map(|name| name.to_string()).collect();
    names.sort();
    names.into_iter().map(|name| ZoneCase::new(bundled.get(&name).expect("a bundled zone"), name)).collect()
}

impl ZoneCase {
    fn new(tz: TimeZone, name: String) -> Self {
        let first = Timestamp::from_second(0).expect("in range");
        let last = Timestamp::from_second(7_258_118_400).expect("in range");
        let mut offset = tz.to_offset(first);
        let mut changes = Vec::new();
        for change in tz.following(first).take_while(|change| change.timestamp() < last) {
            if change.offset() != offset {
                offset = change.offset();
                changes.push(change.timestamp().as_second());
            }
        }
        Self { name, tz, changes }
    }
}
