//! Running things on a node: processes started through a zygote, the end of whole process trees, captured output and
//! the environment a job gets. It decides nothing about jobs: when, where and whether to run is other crates' work.

mod cgroups;
mod child;
mod clock;
mod deadline;
mod environment;
mod error;
mod fifo;
mod link;
mod output;
mod prepared;
mod processes;
mod sealed;
mod socket;
mod spawner;
mod survivors;
mod tasks;
mod wire;
mod zygote;

pub use cgroups::{Allowance, Cage, CageUsage, CgroupError, Cgroups, Controller, TreeLimits, Version};
pub use child::{Child, Exit, ExitStatus, Killer, OutputPipes};
pub use deadline::{Deadline, LastMoments};
pub use environment::{CLEAN_PATH, Login, LookupError, clean_environment, current_user, lookup_group, lookup_user};
pub use error::SpawnError;
pub use fifo::Fifo;
pub use output::{
    CaptureEvent, CaptureLimits, CaptureSummary, Chunk, DRAIN_GRACE, FailMatch, FailOn, Kept,
    OUTPUT_CHUNKS_IN_FLIGHT_MAX, OutputCopy, Stream, capture,
};
pub use prepared::{Identity, LimitOf, Prepared, ProcessLimit, RunTag};
pub use sealed::{SealError, Sealed};
pub use spawner::{Spawner, ZygoteCommand};
pub use zygote::zygote_main;
