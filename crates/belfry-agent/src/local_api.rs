//! What the local API of a node can ask of its desk, and what it hears. How that looks over HTTP is the program's business.

use std::time::Duration;

use belfry_core::{JobId, RunId};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::oneshot;

use crate::Agent;
use crate::desk::Event;

/// Longer than the centre may take; only a disk that takes nothing is slower.
const REPLY_WITHIN: Duration = Duration::from_secs(15);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Jobs,
    /// By its id, or by `namespace/name`; so are those below.
    Job(String),
    /// Get its definition from the centre now; one that was disabled here fires again.
    Fetch(String),
    /// On this host only, until it is fetched.
    Disable(String),
    Tasks,
    /// By the id of its run.
    Task(String),
    Kill(String),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Jobs(Vec<JobView>),
    Job(Box<JobView>),
    Tasks(Vec<TaskView>),
    Task(Box<TaskView>),
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReply {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Refused(String),
    #[error("no server is reachable; the job is as it was, and is fetched when there is contact again")]
    NoServer,
    #[error("no server that answers for this job was heard within {0}; try again")]
    TooLate(String),
    #[error("it is not on the disk yet; see the agent's log, and ask again")]
    NotWritten,
    #[error("the agent is stopping")]
    Stopping,
}

/// A job that this node fires by itself, as its own copy is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobView {
    pub id: JobId,
    pub namespace: String,
    pub name: String,
    pub revision: u64,
    pub run_on: &'static str,
    /// Not paused, as the centre says.
    pub enabled: bool,
    /// By this API; it fires nothing here.
    pub disabled_here: bool,
    pub next: Option<Timestamp>,
    pub definition: Value,
}

/// A run that this node has, or had a moment ago.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskView {
    pub id: RunId,
    pub attempt: u32,
    /// `namespace/name`
    pub job: String,
    pub job_id: Option<JobId>,
    /// `waiting`, `starting`, `running`, `ending`, or how it ended.
    pub state: String,
    pub reason: Option<String>,
    pub planned: Timestamp,
    pub started_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
}

/// Somebody who waits for a reply; one who has gone away is not missed.
#[derive(Debug)]
pub(crate) struct Asker(oneshot::Sender<Result<Reply, NoReply>>);

impl Asker {
    pub(crate) fn hears(self, reply: Result<Reply, NoReply>) {
        drop(self.0.send(reply));
    }
}

impl Agent {
    pub async fn ask(&self, question: Question) -> Result<Reply, NoReply> {
        let (sender, reply) = oneshot::channel();
        self.tell(Event::Asked(question, Asker(sender))).await;
        match tokio::time::timeout(REPLY_WITHIN, reply).await {
            Ok(reply) => reply.unwrap_or(Err(NoReply::Stopping)),
            Err(_) => Err(NoReply::NotWritten),
        }
    }
}

#[cfg(test)]
pub(crate) fn asker() -> (Asker, oneshot::Receiver<Result<Reply, NoReply>>) {
    let (sender, reply) = oneshot::channel();
    (Asker(sender), reply)
}
