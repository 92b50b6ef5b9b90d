//! Oracles for the schedule engine, written apart from it: expressions are generated as structures, never parsed, and their fires are
//! found by stepping through the calendar and the clock with jiff.
#![allow(dead_code, reason = "each test file uses its part of it")]

pub mod chrono_zone;
pub mod compare;
pub mod example;
pub mod expression;
pub mod generate;
pub mod oracle;
pub mod random;
pub mod zones;
