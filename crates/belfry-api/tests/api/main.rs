//! The API as its callers see it: a real router on a real store (SQLite in a temporary folder) and a real control part without agents.

mod bad_input;
mod console;
mod doings;
mod edits;
mod explain;
mod forward;
mod harness;
mod lists;
mod matrix;
mod openapi;
mod output;
mod overview;
mod session;
mod store_away;
mod wrapped;
