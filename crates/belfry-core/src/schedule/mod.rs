//! When a job fires: cron expressions and `@` forms compiled to a few machine words, and the instants that follow from them.
//!
//! Everything here is a pure function of its arguments: no clock is read, and zones come from the bundled database only, so that every
//! machine of a cluster computes the same instants. Fires are whole UTC seconds in the local years 1970 to 2199.

mod clock;
mod compiled;
mod cron;
mod days;
mod error;
mod field;
mod jitter;
mod note;
mod parse;
mod rules;
mod special_days;
mod trigger;
mod zone;

pub use compiled::{Schedule, ScheduleSpec};
pub use error::ScheduleError;
pub use jitter::jitter_for;
pub use note::ClockNote;
pub use rules::{DstRule, GapRule, OverlapRule, Window};
pub use zone::{time_zone, time_zone_names};
