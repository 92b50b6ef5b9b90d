//! Running things on a node: processes started through a zygote, the end of whole process trees, captured output and
//! the environment a job gets. It decides nothing about jobs: when, where and whether to run is other crates' work.

mod child;
mod clock;
mod environment;
mod error;
mod link;
mod output;
mod prepared;
mod processes;
mod socket;
mod spawner;
mod survivors;
mod tasks;
mod wire;
mod zygote;

pub use child::{Child, Exit, ExitStatus, Killer, OutputPipes};
pub use environment::{CLEAN_PATH, Login, LookupError, clean_environment, current_user, lookup_user};
pub use error::SpawnError;
pub use output::{
    CaptureEvent, CaptureLimits, CaptureSummary, Chunk, DRAIN_GRACE, FailMatch, FailOn, OUTPUT_CHUNKS_IN_FLIGHT_MAX,
    Stream, capture,
};
pub use prepared::{Identity, Prepared, RunTag};
pub use spawner::{Spawner, ZygoteCommand};
pub use zygote::zygote_main;
