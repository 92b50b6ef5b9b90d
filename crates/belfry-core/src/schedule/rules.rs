//! The settings beside the expressions: what happens at clock changes, and the window in which a job may fire.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What becomes of a fixed time of day that the clock skips.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapRule {
    /// It fires once, at the first valid instant after the gap.
    #[default]
    After,
    /// It does not fire.
    Skip,
}

/// Which pass counts when a fixed time of day comes twice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlapRule {
    #[default]
    First,
    Last,
    Both,
}

/// How fixed times of day behave at clock changes.
///
/// A cron expression is a fixed time when neither its hour nor its minute starts with `*` (or is `H/n`, which is `*/n` with a hashed
/// phase). All others are intervals: they match the wall clock of every real second, so nothing in a gap is made up and both passes of
/// an overlap fire, whatever this rule says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DstRule {
    pub gap: GapRule,
    pub overlap: OverlapRule,
}

/// Fires satisfy `from <= t < until`; an absent end is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Window {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

impl Window {
    pub fn contains(&self, t: Timestamp) -> bool {
        self.from.is_none_or(|from| from <= t) && self.until.is_none_or(|until| t < until)
    }

    pub fn is_open(&self) -> bool {
        self.from.is_none() && self.until.is_none()
    }
}
