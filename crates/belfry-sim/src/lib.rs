//! Whole clusters in one thread under a seed: the shipped servers and agents on simulated time, network, disks, coordinator and
//! store, with faults, and a judge that knows from outside what was due and what was started. For development only.

mod clock;
mod coordinator;
mod dice;
mod faults;
mod local;
mod machine;
pub mod model;
mod network;
mod process;
mod programs;
pub mod randomness;
mod simulate;
mod store;
mod verdict;
mod witness;
mod workload;
mod world;

pub use simulate::{Report, simulate};
pub use witness::{Verdict, Wrong};
