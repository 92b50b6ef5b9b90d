//! A small exhaustive model of heartbeat, takeover, claim and dispatch: 2 servers, 1 shard, 2 nodes, 2 fires. Every order of events is
//! tried, with commits that are lost, late, or unanswered, old reads, and crashes. Each rule can be switched off, and then the
//! explorer must find the way to the damage: that is how the model shows that it could.

mod explorer;
mod protocol;

pub use explorer::{Explored, Found, explore};
pub use protocol::{FIRES, Rule, Rules, State};
