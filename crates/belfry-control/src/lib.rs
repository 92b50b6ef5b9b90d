//! A server's work: it owns shards, claims what is due, places and dispatches it, hears how it ended and has that recorded. It
//! never runs anything itself, and knows neither which coordinator nor which database it stands on.

mod context;
mod control;
mod error;
mod feed;
mod forgotten;
mod gateway;
mod grpc;
mod heartbeats;
mod homes;
mod joins;
mod leader;
mod live;
mod machine;
mod meta;
mod nodes;
mod open_run;
mod peers;
mod recorder;
mod scripts;
mod seats;
mod shard;
mod snapshot;
mod tasks;
mod view;
mod webhooks;
mod wrapped;

pub use context::{Addresses, ControlConfig};
pub use control::{Control, StartError};
pub use error::ControlError;
pub use grpc::ServerIdentity;
pub use live::{Followed, Live, LiveChunk, LiveEvent};
pub use meta::Disagreement;
pub use snapshot::Snapshot;
pub use tasks::{Host, Tasks};
pub use view::{
    ClusterView, FiredBy, Health, KillAnswer, ManualRun, NodeView, Outlook, SavedView, ServerView, ShardView,
    Unrecorded,
};
pub use webhooks::{Letter, Post, WebhookSecrets};

/// An error with its causes, each once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}
