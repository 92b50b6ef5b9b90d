//! For tests only: real Belfry processes on free ports in temporary folders, a client for them, and the judge of what jobs
//! themselves wrote down. It shares no rule with the code under test: what is due is computed here anew.

mod belfry;
pub mod chaos;
mod client;
mod daemon;
mod holding;
mod judge;
mod netns;
pub mod oracle;
pub mod planted;
mod proxy;
mod receiver;
mod seed;
pub mod servers;
mod until;
mod witness;
mod wrapping;

pub use belfry::{Belfry, Layout, Setup};
pub use client::{Answer, Client, Run};
pub use daemon::{Daemon, processes_with};
pub use holding::{Holding, Holdings};
pub use judge::{Case, Fault, Firer, Harm, MarkedLost, Promise, Tally, Trouble, TroubleOf, judge};
pub use proxy::{Direction, Proxy};
pub use receiver::{Letter, Receiver, Reply};
pub use seed::Seed;
pub use servers::{Etcd, EtcdOptions, MariaDb, Postgres, ZooKeeper};
pub use until::{now, sleep_until, until, until_within};
pub use witness::{LINES, Line, Mark, Witness};
pub use wrapping::{Call, Ground, Host};
