//! Hints from etcd's watches. The library never opens a watch again, so this does, with whichever member answers.
//!
//! A watch that is opened again begins at the revision of that moment and not at the last one seen: the hint that follows it
//! makes the caller list, which finds all that came before. So a compaction in between cannot matter.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Error, WatchOptions, WatchStream};
use futures_util::stream;
use tonic::Status;

use super::end_of;
use super::failure::Failure;
use super::members::Members;
use crate::{CoordError, Hints};

const OPEN_AGAIN_AFTER_MIN: Duration = Duration::from_millis(100);
const OPEN_AGAIN_AFTER_MAX: Duration = Duration::from_secs(2);

struct Watch {
    members: Arc<Members>,
    prefix: String,
    /// None after it ended.
    stream: Option<WatchStream>,
}

/// The watch is open when this returns.
pub(super) async fn watch(members: Arc<Members>, prefix: String) -> Result<Hints, CoordError> {
    let stream = open(&members, &prefix).await.map_err(Failure::of_read)?;
    let watch = Watch { members, prefix, stream: Some(stream) };
    Ok(Hints::new(stream::unfold(watch, |mut watch| async move {
        watch.changed().await;
        Some(((), watch))
    })))
}

impl Watch {
    async fn changed(&mut self) {
        while let Some(stream) = &mut self.stream {
            match stream.message().await {
                Ok(Some(told)) if told.canceled() => self.stream = None,
                Ok(Some(told)) if !told.events().is_empty() => return,
                Ok(Some(_)) => {}
                // A member that is paused or cut off answers no ping, and the connection ends with an error.
                Ok(None) | Err(_) => self.stream = None,
            }
        }
        self.open_again().await;
    }

    async fn open_again(&mut self) {
        let mut pause = OPEN_AGAIN_AFTER_MIN;
        loop {
            match open(&self.members, &self.prefix).await {
                Ok(stream) => {
                    self.stream = Some(stream);
                    return;
                }
                Err(failure) => tracing::debug!("open a watch of etcd again: {}", failure.of_read()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(OPEN_AGAIN_AFTER_MAX);
        }
    }
}

async fn open(members: &Members, prefix: &str) -> Result<WatchStream, Failure> {
    members.ask(|client| open_at(client.clone(), prefix.to_owned())).await
}

/// Waits for etcd's word that the watch is there: changes after that are told.
async fn open_at(mut client: Client, prefix: String) -> Result<WatchStream, Error> {
    let end = end_of(&prefix);
    let mut stream = client.watch(prefix, Some(WatchOptions::new().with_range(end))).await?;
    match stream.message().await? {
        // What is canceled at once is refused for the user's rights, or for a token that is not known any more.
        Some(told) if told.canceled() => {
            Err(Error::GRpcStatus(Status::unauthenticated(format!("watch refused: {}", told.cancel_reason()))))
        }
        Some(told) if told.created() => Ok(stream),
        Some(_) | None => Err(Error::WatchError("it ended before it began".into())),
    }
}
