//! Who owns what, and which fire is claimed: versioned keys with compare-and-swap on several backends, and above them
//! heartbeats, trust and ownership by term. Correctness rests on guards alone; reads and hints may be stale.
//!
//! There are no leases and no ephemeral keys here, and no write is repeated without looking first. The one ephemeral node is no key of
//! ours: [`OldLock`] takes that of the wrapper that `dcron` replaces.

pub mod clock;
pub mod conformance;
mod coordinator;
mod etcd;
pub mod faulty;
pub mod former;
pub mod heartbeat;
mod held;
mod hints;
pub mod keys;
mod memory;
pub mod observer;
pub mod ownership;
mod sql;
pub mod trust;
mod url;
pub mod wrapped;
mod zookeeper;

pub use clock::{Clock, ManualClock, SystemClock};
pub use coordinator::{
    COMMIT_BYTES_MAX, Commit, CoordError, Coordinator, Entry, GUARDS_PER_COMMIT_MAX, Guard, KEY_BYTES_MAX,
    WRITES_PER_COMMIT_MAX, Write,
};
pub use etcd::{EtcdCoordinator, Quota};
pub use former::Former;
pub use heartbeat::{FirstBeat, Heartbeat, Life, Pulse, PulseError};
pub use held::{HELD_WRITES_MAX, Held, HeldError, Resolved};
pub use hints::{Hints, Watch};
pub use memory::Memory;
pub use observer::{Liveness, Observer};
pub use ownership::{Record, Seat, Taking, Vacancy};
pub use sql::{SqlCoordinator, Users};
pub use trust::Trust;
pub use zookeeper::{OldLock, OldTake, ZooKeeperCoordinator};
